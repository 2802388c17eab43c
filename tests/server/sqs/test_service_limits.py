"""The limits of SQS are those of AWS, unless the settings say otherwise."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest
from botocore.exceptions import ClientError

from tests.server.aws.site import AwsSite
from tests.server.sqs.codes import code_of

if TYPE_CHECKING:
    from types_boto3_sqs import SQSClient

SETTINGS = {
    "sqs_message_bytes_max": 2048,
    "sqs_batch_max": 12,
    "sqs_in_flight_max": 3,
    "sqs_visibility_seconds_max": 20,
}


@pytest.fixture(scope="module")
def bounded(
    starts_processes: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SQSClient]:
    flags = [word for name, most in SETTINGS.items() for word in ("--set", f"{name}={most}")]
    with AwsSite(tmp_path_factory.mktemp("bounded"), *flags) as site:
        yield site.aws().sqs


def told(sqs: SQSClient, url: str) -> dict[str, str]:
    found = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
    return {str(name): text for name, text in found.items()}


def entries(count: int, body: str = "x") -> list[Any]:
    return [{"Id": str(one), "MessageBody": body} for one in range(count)]


def test_a_queue_that_says_nothing_is_within_them(bounded: SQSClient) -> None:
    found = told(bounded, bounded.create_queue(QueueName="plain")["QueueUrl"])
    assert (found["MaximumMessageSize"], found["VisibilityTimeout"]) == ("2048", "20")


def test_batches_and_receives_are_as_large_as_allowed(bounded: SQSClient) -> None:
    url = bounded.create_queue(QueueName="batches")["QueueUrl"]
    sent = bounded.send_message_batch(QueueUrl=url, Entries=entries(12))
    assert len(sent["Successful"]) == 12
    got = bounded.receive_message(QueueUrl=url, MaxNumberOfMessages=12)["Messages"]
    assert len(got) == 3
    with pytest.raises(ClientError) as error:
        bounded.receive_message(QueueUrl=url)
    assert code_of(error) == ("OverLimit", 403)


def test_what_is_beyond_them_is_refused(bounded: SQSClient) -> None:
    sqs, url = bounded, bounded.create_queue(QueueName="beyond")["QueueUrl"]
    sqs.send_message(QueueUrl=url, MessageBody="x" * 2048)
    [got] = sqs.receive_message(QueueUrl=url)["Messages"]
    receipt = got["ReceiptHandle"]
    asks: list[tuple[Callable[[], object], str]] = [
        (
            lambda: sqs.send_message(QueueUrl=url, MessageBody="x" * 2049),
            "InvalidParameterValue",
        ),
        (
            lambda: sqs.send_message_batch(QueueUrl=url, Entries=entries(2, "x" * 1025)),
            "AWS.SimpleQueueService.BatchRequestTooLong",
        ),
        (
            lambda: sqs.send_message_batch(QueueUrl=url, Entries=entries(13)),
            "AWS.SimpleQueueService.TooManyEntriesInBatchRequest",
        ),
        (
            lambda: sqs.delete_message_batch(
                QueueUrl=url,
                Entries=[{"Id": str(one), "ReceiptHandle": receipt} for one in range(13)],
            ),
            "AWS.SimpleQueueService.TooManyEntriesInBatchRequest",
        ),
        (
            lambda: sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=13),
            "InvalidParameterValue",
        ),
        (
            lambda: sqs.receive_message(QueueUrl=url, VisibilityTimeout=21),
            "InvalidParameterValue",
        ),
        (
            lambda: sqs.change_message_visibility(
                QueueUrl=url, ReceiptHandle=receipt, VisibilityTimeout=21
            ),
            "InvalidParameterValue",
        ),
        (
            lambda: sqs.set_queue_attributes(QueueUrl=url, Attributes={"VisibilityTimeout": "21"}),
            "InvalidAttributeValue",
        ),
        (
            lambda: sqs.create_queue(QueueName="more", Attributes={"MaximumMessageSize": "2049"}),
            "InvalidAttributeValue",
        ),
    ]
    for ask, code in asks:
        with pytest.raises(ClientError) as error:
            ask()
        assert code_of(error) == (code, 400)
