"""Receipts after their visibility timeout, and those of earlier receives (ADR 0057, ADR 0075)."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
from botocore.exceptions import ClientError

from tests.server.sqs.codes import code_of

if TYPE_CHECKING:
    from types_boto3_sqs import SQSClient


def of_group(url: str) -> Any:
    """What a message of a FIFO queue needs."""
    return {"MessageGroupId": "g", "MessageDeduplicationId": "d"} if url.endswith(".fifo") else {}


def sent(sqs: SQSClient, url: str) -> str:
    """The receipt of a message whose time is over."""
    sqs.send_message(QueueUrl=url, MessageBody="x", **of_group(url))
    [got] = sqs.receive_message(QueueUrl=url, VisibilityTimeout=0)["Messages"]
    return got["ReceiptHandle"]


def test_a_late_delete_succeeds_on_a_standard_queue(sqs: SQSClient, url: str) -> None:
    sqs.delete_message(QueueUrl=url, ReceiptHandle=sent(sqs, url))
    assert "Messages" not in sqs.receive_message(QueueUrl=url)


def gone(sqs: SQSClient, url: str, receipt: str) -> bool:
    """Return whether the message that was received last no longer exists."""
    with pytest.raises(ClientError) as error:
        sqs.change_message_visibility(QueueUrl=url, ReceiptHandle=receipt, VisibilityTimeout=0)
    return "Message does not exist" in error.value.response["Error"]["Message"]


@pytest.mark.parametrize("is_batch", [False, True])
def test_aws_2_a_delete_with_an_earlier_receipt_deletes_the_message(
    sqs: SQSClient, url: str, *, is_batch: bool
) -> None:
    first = sent(sqs, url)
    [second] = sqs.receive_message(QueueUrl=url)["Messages"]
    assert second["ReceiptHandle"] != first
    if is_batch:
        result = sqs.delete_message_batch(
            QueueUrl=url, Entries=[{"Id": "a", "ReceiptHandle": first}]
        )
        assert [entry["Id"] for entry in result["Successful"]] == ["a"]
    else:
        sqs.delete_message(QueueUrl=url, ReceiptHandle=first)
    assert gone(sqs, url, second["ReceiptHandle"])
    # The later receive may delete it as well: it has what it wanted.
    sqs.delete_message(QueueUrl=url, ReceiptHandle=second["ReceiptHandle"])


def test_aws_2_a_batch_deletes_what_several_others_received_since(sqs: SQSClient, url: str) -> None:
    for body in "abc":
        sqs.send_message(QueueUrl=url, MessageBody=body)
    first = sqs.receive_message(QueueUrl=url, VisibilityTimeout=0, MaxNumberOfMessages=10)
    later = [sqs.receive_message(QueueUrl=url)["Messages"][0] for _ in range(2)]
    # Two are with other receives, one is visible: all are deleted by one command.
    result = sqs.delete_message_batch(
        QueueUrl=url,
        Entries=[
            {"Id": one["Body"], "ReceiptHandle": one["ReceiptHandle"]} for one in first["Messages"]
        ],
    )
    assert [entry["Id"] for entry in result["Successful"]] == ["a", "b", "c"]
    assert all(gone(sqs, url, one["ReceiptHandle"]) for one in later)
    assert "Messages" not in sqs.receive_message(QueueUrl=url)


@pytest.mark.parametrize("is_batch", [False, True])
def test_aws_2_an_earlier_receipt_changes_the_visibility(
    sqs: SQSClient, url: str, *, is_batch: bool
) -> None:
    first = sent(sqs, url)

    def change(seconds: int) -> None:
        if is_batch:
            entries: Any = [{"Id": "a", "ReceiptHandle": first, "VisibilityTimeout": seconds}]
            result = sqs.change_message_visibility_batch(QueueUrl=url, Entries=entries)
            assert [entry["Id"] for entry in result["Successful"]] == ["a"]
        else:
            sqs.change_message_visibility(
                QueueUrl=url, ReceiptHandle=first, VisibilityTimeout=seconds
            )

    [second] = sqs.receive_message(QueueUrl=url, VisibilityTimeout=600)["Messages"]
    change(0)
    [third] = sqs.receive_message(QueueUrl=url, VisibilityTimeout=1)["Messages"]
    assert third["MessageId"] == second["MessageId"]
    change(100)
    # The longest wait is beyond the timeout of the third receive.
    assert "Messages" not in sqs.receive_message(QueueUrl=url, WaitTimeSeconds=2)


def test_aws_2_an_earlier_receipt_of_a_fifo_queue_is_refused(sqs: SQSClient, fifo: str) -> None:
    first = sent(sqs, fifo)
    [second] = sqs.receive_message(QueueUrl=fifo, VisibilityTimeout=600)["Messages"]
    with pytest.raises(ClientError) as error:
        sqs.delete_message(QueueUrl=fifo, ReceiptHandle=first)
    assert code_of(error) == ("InvalidParameterValue", 400)
    sqs.change_message_visibility(QueueUrl=fifo, ReceiptHandle=first, VisibilityTimeout=0)
    assert "Messages" not in sqs.receive_message(QueueUrl=fifo)
    sqs.delete_message(QueueUrl=fifo, ReceiptHandle=second["ReceiptHandle"])


@pytest.mark.parametrize("is_batch", [False, True])
def test_a_receipt_is_good_after_its_message_was_given_back(
    sqs: SQSClient, url: str, *, is_batch: bool
) -> None:
    """Until somebody else has it, as after a time that ran out."""
    sqs.send_message(QueueUrl=url, MessageBody="x")
    [got] = sqs.receive_message(QueueUrl=url)["Messages"]
    receipt = got["ReceiptHandle"]
    if is_batch:
        entries: Any = [{"Id": "a", "ReceiptHandle": receipt, "VisibilityTimeout": 0}]
        sqs.change_message_visibility_batch(QueueUrl=url, Entries=entries)
    else:
        sqs.change_message_visibility(QueueUrl=url, ReceiptHandle=receipt, VisibilityTimeout=0)
    sqs.delete_message(QueueUrl=url, ReceiptHandle=receipt)
    assert "Messages" not in sqs.receive_message(QueueUrl=url)


def test_whoever_waits_is_given_what_was_given_back(sqs: SQSClient, url: str, fifo: str) -> None:
    for place in (url, fifo):
        sqs.send_message(QueueUrl=place, MessageBody="x", **of_group(place))
        [got] = sqs.receive_message(QueueUrl=place, VisibilityTimeout=600)["Messages"]
        with ThreadPoolExecutor(1) as pool:
            waits = pool.submit(sqs.receive_message, QueueUrl=place, WaitTimeSeconds=20)
            sqs.change_message_visibility(
                QueueUrl=place, ReceiptHandle=got["ReceiptHandle"], VisibilityTimeout=0
            )
            [again] = waits.result()["Messages"]
        assert (again["Body"], again["MessageId"]) == ("x", got["MessageId"])


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


@pytest.mark.parametrize("seconds", [0, 600])
@pytest.mark.parametrize("end", ["delete", "purge"])
def test_a_change_of_the_time_of_a_message_that_is_not_there_is_refused(
    sqs: SQSClient, url: str, end: str, seconds: int
) -> None:
    sqs.send_message(QueueUrl=url, MessageBody="x")
    [got] = sqs.receive_message(QueueUrl=url)["Messages"]
    receipt = got["ReceiptHandle"]
    if end == "delete":
        sqs.delete_message(QueueUrl=url, ReceiptHandle=receipt)
    else:
        sqs.purge_queue(QueueUrl=url)
    with pytest.raises(ClientError) as error:
        sqs.change_message_visibility(
            QueueUrl=url, ReceiptHandle=receipt, VisibilityTimeout=seconds
        )
    assert code_of(error) == ("InvalidParameterValue", 400)
    assert "Message does not exist" in error.value.response["Error"]["Message"]
    [failed] = sqs.change_message_visibility_batch(
        QueueUrl=url,
        Entries=[{"Id": "a", "ReceiptHandle": receipt, "VisibilityTimeout": seconds}],
    )["Failed"]
    assert failed["Code"] == "InvalidParameterValue"


def test_a_message_is_held_for_twelve_hours_in_all(sqs: SQSClient, url: str) -> None:
    sqs.send_message(QueueUrl=url, MessageBody="x")
    [got] = sqs.receive_message(QueueUrl=url, VisibilityTimeout=600)["Messages"]
    receipt = got["ReceiptHandle"]
    # Some of the twelve hours has passed since the receive.
    with pytest.raises(ClientError) as error:
        sqs.change_message_visibility(QueueUrl=url, ReceiptHandle=receipt, VisibilityTimeout=43_200)
    assert code_of(error) == ("InvalidParameterValue", 400)
    assert error.value.response["Error"]["Message"] == (
        "Value 43200 for parameter VisibilityTimeout is invalid. Reason: Total VisibilityTimeout "
        "for the message is beyond the limit [43200 seconds]"
    )
    told = sqs.change_message_visibility_batch(
        QueueUrl=url,
        Entries=[
            {"Id": "1", "ReceiptHandle": receipt, "VisibilityTimeout": 43_200},
            {"Id": "2", "ReceiptHandle": receipt, "VisibilityTimeout": 43_000},
        ],
    )
    assert [one["Id"] for one in told["Successful"]] == ["2"]
    assert [one["Code"] for one in told["Failed"]] == ["InvalidParameterValue"]
    assert "Messages" not in sqs.receive_message(QueueUrl=url)
