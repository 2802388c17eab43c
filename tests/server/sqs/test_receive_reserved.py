"""What SQS tells of a message is what the server knows of it, and not what a client has claimed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.server.aws.site import ACCOUNT, AwsSite

if TYPE_CHECKING:
    from types_boto3_sqs import SQSClient


@pytest.mark.parametrize("way", ["message", "messages"])
def test_sec_20_where_a_message_died_is_not_claimed(
    site: AwsSite, sqs: SQSClient, name: str, url: str, way: str
) -> None:
    secret = sqs.create_queue(QueueName=f"{name}-secret")["QueueUrl"]
    hidden = sqs.send_message(QueueUrl=secret, MessageBody="x")["MessageId"]
    headers = {
        "millrace-dead-queue": f"default/{name}-secret",
        "millrace-dead-seq": "1",
        "millrace-dead-deliveries": "7",
        "aws.sender": "somebody",
    }
    path = f"/v1/spaces/default/queues/{name}/messages"
    for header, value in headers.items():
        one = {"body": "y", "headers": {header: value}}
        body = one if way == "message" else {"messages": [one]}
        assert site.process.ask("POST", path, body).status == 400
    assert site.process.ask("POST", path, {"body": "y"}).status == 201
    got = sqs.receive_message(QueueUrl=url, AttributeNames=["All"], MaxNumberOfMessages=10)
    [message] = got["Messages"]
    assert message["MessageId"] != hidden
    told = message["Attributes"]
    assert (told["SenderId"], told["ApproximateReceiveCount"]) == (ACCOUNT, "1")
    assert "DeadLetterQueueSourceArn" not in told
