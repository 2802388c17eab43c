"""What actions refuse, each by the code that the guide lists for it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from botocore.exceptions import ClientError

from tests.server.aws.site import ACCOUNT, REGION, AwsSite
from tests.server.sqs.codes import code_of

if TYPE_CHECKING:
    from types_boto3_sqs import SQSClient

Asks = list[tuple[str, Callable[[], Any]]]


def see(asks: Asks, code: str, status: int = 400) -> None:
    """See that each is refused so."""
    for what, ask in asks:
        with pytest.raises(ClientError) as error:
            ask()
        assert (what, code_of(error)) == (what, (code, status))


def test_attributes_that_no_queue_has_are_told(sqs: SQSClient, name: str, url: str) -> None:
    colour: Any = {"Colour": "red"}
    names: Any = ["Colour"]
    asks: Asks = [
        ("create", lambda: sqs.create_queue(QueueName=f"{name}-new", Attributes=colour)),
        ("get", lambda: sqs.get_queue_attributes(QueueUrl=url, AttributeNames=names)),
        ("set", lambda: sqs.set_queue_attributes(QueueUrl=url, Attributes=colour)),
        ("receive", lambda: sqs.receive_message(QueueUrl=url, AttributeNames=names)),
        ("receive", lambda: sqs.receive_message(QueueUrl=url, MessageSystemAttributeNames=names)),
    ]
    see(asks, "InvalidAttributeName")


def test_values_that_no_attribute_has_are_told(sqs: SQSClient, name: str, url: str) -> None:
    long: Any = {"VisibilityTimeout": "43201"}
    asks: Asks = [
        ("create", lambda: sqs.create_queue(QueueName=f"{name}-new", Attributes=long)),
        ("set", lambda: sqs.set_queue_attributes(QueueUrl=url, Attributes=long)),
    ]
    see(asks, "InvalidAttributeValue")
    policy: Any = {"RedrivePolicy": "{}"}
    see(
        [("set", lambda: sqs.set_queue_attributes(QueueUrl=url, Attributes=policy))],
        "InvalidParameterValue",
    )


def test_tags_that_no_queue_has_are_refused(sqs: SQSClient, name: str, url: str) -> None:
    bad: list[dict[str, str]] = [{"aws:mine": "x"}, {"x" * 129: "y"}, {"x": "y" * 257}]
    asks: Asks = [(str(tags)[:20], partial(sqs.tag_queue, QueueUrl=url, Tags=tags)) for tags in bad]
    see(asks, "InvalidParameterValue")
    many = {str(one): "" for one in range(51)}
    see(
        [("create", lambda: sqs.create_queue(QueueName=f"{name}-new", tags=many))], "OverLimit", 403
    )
    assert "Tags" not in sqs.list_queue_tags(QueueUrl=url)


def test_receipts_that_are_none_are_refused(sqs: SQSClient, url: str) -> None:
    asks: Asks = [
        ("delete", lambda: sqs.delete_message(QueueUrl=url, ReceiptHandle="none")),
        (
            "change",
            lambda: sqs.change_message_visibility(
                QueueUrl=url, ReceiptHandle="none", VisibilityTimeout=1
            ),
        ),
    ]
    see(asks, "ReceiptHandleIsInvalid", 404)


def test_pages_have_a_size(sqs: SQSClient, url: str) -> None:
    asks: Asks = []
    for most in (0, 1001):
        asks += [
            ("list", partial(sqs.list_queues, MaxResults=most)),
            (
                "sources",
                partial(sqs.list_dead_letter_source_queues, QueueUrl=url, MaxResults=most),
            ),
        ]
    see(asks, "InvalidParameterValue")


def test_tasks_of_no_queue_are_not_listed(sqs: SQSClient) -> None:
    gone = f"arn:aws:sqs:{REGION}:{ACCOUNT}:gone"
    see(
        [("list", lambda: sqs.list_message_move_tasks(SourceArn=gone))],
        "ResourceNotFoundException",
        404,
    )


@pytest.mark.parametrize(
    ("type", "body", "code"),
    [
        ("application/x-amz-json-1.0", "{", "SerializationException"),
        ("application/x-www-form-urlencoded", "Action=ListQueues&Action=x", "MalformedQueryString"),
        ("application/x-www-form-urlencoded", "QueueUrl=x", "MissingAction"),
        ("text/plain", "hello", "UnknownOperationException"),
    ],
)
def test_what_is_no_call_is_told(site: AwsSite, type: str, body: str, code: str) -> None:
    connection = site.process.connect()
    headers = {"authorization": f"Bearer {site.process.token}", "content-type": type}
    if "json" in type:
        headers["x-amz-target"] = "AmazonSQS.ListQueues"
    connection.request("POST", "/", body, headers)
    answer = connection.getresponse()
    said = answer.read()
    connection.close()
    assert answer.status == 400
    assert code in said.decode()
