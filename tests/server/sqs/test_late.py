"""Receipts after their time, as AWS has them (ADR 0057)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from botocore.exceptions import ClientError

from tests.server.sqs.codes import code_of

if TYPE_CHECKING:
    from types_boto3_sqs import SQSClient


def sent(sqs: SQSClient, url: str) -> str:
    """The receipt of a message whose time is over."""
    more: Any = (
        {"MessageGroupId": "g", "MessageDeduplicationId": "d"} if url.endswith(".fifo") else {}
    )
    sqs.send_message(QueueUrl=url, MessageBody="x", **more)
    [got] = sqs.receive_message(QueueUrl=url, VisibilityTimeout=0)["Messages"]
    return got["ReceiptHandle"]


def test_a_late_delete_succeeds_on_a_standard_queue(sqs: SQSClient, url: str) -> None:
    sqs.delete_message(QueueUrl=url, ReceiptHandle=sent(sqs, url))
    assert "Messages" not in sqs.receive_message(QueueUrl=url)


def test_a_delete_by_an_old_receipt_ends_nothing_and_is_not_told(sqs: SQSClient, url: str) -> None:
    late = sent(sqs, url)
    [got] = sqs.receive_message(QueueUrl=url)["Messages"]
    sqs.delete_message(QueueUrl=url, ReceiptHandle=late)
    sqs.change_message_visibility(
        QueueUrl=url, ReceiptHandle=got["ReceiptHandle"], VisibilityTimeout=0
    )
    assert sqs.receive_message(QueueUrl=url)["Messages"]


def test_a_late_delete_is_refused_on_a_fifo_queue(sqs: SQSClient, fifo: str) -> None:
    late = sent(sqs, fifo)
    with pytest.raises(ClientError) as error:
        sqs.delete_message(QueueUrl=fifo, ReceiptHandle=late)
    assert code_of(error) == ("InvalidParameterValue", 400)
    assert "The receipt handle has expired" in error.value.response["Error"]["Message"]
    [got] = sqs.receive_message(QueueUrl=fifo)["Messages"]
    sqs.delete_message(QueueUrl=fifo, ReceiptHandle=got["ReceiptHandle"])
    assert "Messages" not in sqs.receive_message(QueueUrl=fifo)


@pytest.mark.parametrize("kind", ["url", "fifo"])
def test_a_late_change_of_the_time_is_answered_and_changes_nothing(
    sqs: SQSClient, request: pytest.FixtureRequest, kind: str
) -> None:
    url = request.getfixturevalue(kind)
    late = sent(sqs, url)
    sqs.change_message_visibility(QueueUrl=url, ReceiptHandle=late, VisibilityTimeout=600)
    assert sqs.receive_message(QueueUrl=url)["Messages"]
