"""What comes from a topic is told and signed as the topic's: nobody else can say so."""

from __future__ import annotations

import asyncio
import base64
import json
import urllib.request
from typing import TYPE_CHECKING, Any
from urllib.error import HTTPError

import pytest

import millrace
from millrace.errors import Invalid
from tests.server.aws.site import AwsSite

if TYPE_CHECKING:
    from types_boto3_sns import SNSClient
    from types_boto3_sns.type_defs import MessageAttributeValueTypeDef as NumberTypeDef
    from types_boto3_sqs import SQSClient
    from types_boto3_sqs.type_defs import MessageAttributeValueTypeDef

FORGED = {
    "aws.topic": "arn:aws:sns:us-east-1:000000000000:payments",
    "aws.id": "11111111-2222-3333-4444-555555555555",
    "aws.subject": "Transfer",
    "aws.time": "1700000000000",
}


def post(site: AwsSite, path: str, body: object) -> int:
    request = urllib.request.Request(
        f"{site.url}{path}",
        json.dumps(body).encode(),
        {
            "authorization": f"Bearer {site.process.token}",
            "content-type": "application/json",
        },
    )
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return int(answer.status)
    except HTTPError as error:
        return error.code


def test_sec_04_nobody_has_a_message_signed_as_of_a_topic(
    site: AwsSite, sqs: SQSClient, name: str
) -> None:
    url = sqs.create_queue(QueueName=name)["QueueUrl"]
    path = f"/v1/spaces/default/queues/{name}/messages"
    assert post(site, path, {"body": "pay me", "headers": FORGED}) == 400
    sent: MessageAttributeValueTypeDef = {"StringValue": "x", "DataType": "String"}
    with pytest.raises(sqs.exceptions.ClientError):
        sqs.send_message(QueueUrl=url, MessageBody="x", MessageAttributes={"aws.topic": sent})

    async def forge() -> None:
        async with millrace.connect(site.process.address, token=site.process.token) as m:
            with pytest.raises(Invalid, match="the server alone"):
                await (await m.find(name)).publish(b"pay me", headers=FORGED)

    asyncio.run(forge())
    assert "Messages" not in sqs.receive_message(QueueUrl=url)


def test_sec_04_a_dead_letter_of_a_topic_is_redriven_by_a_client(
    site: AwsSite, sqs: SQSClient, sns: SNSClient, topic: str, name: str
) -> None:
    letters, queue = f"{name}-letters", f"{name}-queue"
    arns: dict[str, str] = {}
    for made, policy in ((letters, None), (queue, letters)):
        attributes: dict[Any, str] = {}
        if policy:
            target = {"deadLetterTargetArn": arns[policy], "maxReceiveCount": 1}
            attributes["RedrivePolicy"] = json.dumps(target)
        url = sqs.create_queue(QueueName=made, Attributes=attributes)["QueueUrl"]
        found = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])
        arns[made] = found["Attributes"]["QueueArn"]
    sns.subscribe(TopicArn=topic, Protocol="sqs", Endpoint=arns[queue])
    attribute: NumberTypeDef = {"DataType": "Number", "StringValue": "5"}
    sns.publish(TopicArn=topic, Message="true", Subject="s", MessageAttributes={"n": attribute})
    url = sqs.get_queue_url(QueueName=queue)["QueueUrl"]
    [before] = sqs.receive_message(QueueUrl=url, WaitTimeSeconds=20)["Messages"]
    receipt = before["ReceiptHandle"]
    sqs.change_message_visibility(QueueUrl=url, ReceiptHandle=receipt, VisibilityTimeout=0)

    async def redrive() -> None:
        async with millrace.connect(site.process.address, token=site.process.token) as m:
            dead = await m.find(letters)
            while not (await dead.redrive().run()).moved:
                await (await m.find(queue)).lease()

    asyncio.run(redrive())
    [after] = sqs.receive_message(QueueUrl=url, WaitTimeSeconds=20)["Messages"]
    first, second = json.loads(before["Body"]), json.loads(after["Body"])
    assert second == first
    assert base64.b64decode(second["Signature"])
    assert second["MessageAttributes"] == {"n": {"Type": "Number", "Value": "5"}}
