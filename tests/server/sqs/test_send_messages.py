"""Messages: what may be sent, in which order it comes, and what batches tell."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from typing import TYPE_CHECKING, Any

import pytest
from botocore.exceptions import ClientError

from millrace import limits
from tests.server.aws.site import AwsSite
from tests.server.sqs.codes import code_of

if TYPE_CHECKING:
    from types_boto3_sqs import SQSClient
    from types_boto3_sqs.type_defs import MessageTypeDef


def receive(sqs: SQSClient, url: str, **options: Any) -> list[MessageTypeDef]:
    options = {"MaxNumberOfMessages": 10, **options}
    found = sqs.receive_message(QueueUrl=url, AttributeNames=["All"], **options)
    return found.get("Messages", [])


def bodies(sqs: SQSClient, url: str) -> list[str]:
    return [one["Body"] for one in receive(sqs, url)]


@pytest.mark.parametrize(
    ("given", "code"),
    [
        ({"MessageBody": "\x00"}, "InvalidMessageContents"),
        ({"MessageBody": "x" * (1024 * 1024 + 1)}, "InvalidParameterValue"),
        ({"MessageBody": "x", "DelaySeconds": 901}, "InvalidParameterValue"),
        ({"MessageBody": "x", "MessageDeduplicationId": "a"}, "InvalidParameterValue"),
        ({"MessageBody": "x", "MessageGroupId": "a b"}, "InvalidParameterValue"),
        (
            {"MessageBody": "x", "MessageAttributes": {"a": {"DataType": "Thing"}}},
            "InvalidParameterValue",
        ),
        (
            {
                "MessageBody": "x",
                "MessageAttributes": {"a": {"DataType": "Number", "StringValue": "one"}},
            },
            "InvalidParameterValue",
        ),
        (
            {
                "MessageBody": "x",
                "MessageAttributes": {"AWS.a": {"DataType": "String", "StringValue": "one"}},
            },
            "InvalidParameterValue",
        ),
        (
            {
                "MessageBody": "x",
                "MessageAttributes": {
                    f"a{at}": {"DataType": "String", "StringValue": "x"} for at in range(11)
                },
            },
            "InvalidParameterValue",
        ),
    ],
)
def test_what_cannot_be_sent_is_refused(
    sqs: SQSClient, url: str, given: dict[str, Any], code: str
) -> None:
    with pytest.raises(ClientError) as error:
        sqs.send_message(QueueUrl=url, **given)
    assert code_of(error) == (code, 400)
    assert receive(sqs, url) == []


@pytest.mark.parametrize(
    "given",
    [
        {"MaxNumberOfMessages": 11},
        {"MaxNumberOfMessages": 0},
        {"WaitTimeSeconds": 21},
        {"VisibilityTimeout": 43201},
        {"ReceiveRequestAttemptId": "a"},
    ],
)
def test_what_cannot_be_received_is_refused(
    sqs: SQSClient, url: str, given: dict[str, Any]
) -> None:
    with pytest.raises(ClientError) as error:
        sqs.receive_message(QueueUrl=url, **given)
    assert code_of(error) == ("InvalidParameterValue", 400)


def test_a_batch_tells_what_became_of_each(sqs: SQSClient, url: str) -> None:
    sent = sqs.send_message_batch(
        QueueUrl=url,
        Entries=[
            {"Id": "a", "MessageBody": "1"},
            {"Id": "b", "MessageBody": "\x01"},
            {"Id": "c", "MessageBody": "3"},
        ],
    )
    assert [one["Id"] for one in sent["Successful"]] == ["a", "c"]
    [failed] = sent["Failed"]
    assert (failed["Id"], failed["Code"]) == ("b", "InvalidMessageContents")
    got = receive(sqs, url)
    assert [one["Body"] for one in got] == ["1", "3"]
    changed = sqs.change_message_visibility_batch(
        QueueUrl=url,
        Entries=[
            {"Id": "a", "ReceiptHandle": got[0]["ReceiptHandle"], "VisibilityTimeout": 0},
            {"Id": "b", "ReceiptHandle": got[1]["ReceiptHandle"], "VisibilityTimeout": 60},
            {"Id": "c", "ReceiptHandle": got[1]["ReceiptHandle"], "VisibilityTimeout": 50_000},
        ],
    )
    assert [one["Id"] for one in changed["Successful"]] == ["a", "b"]
    assert [one["Id"] for one in changed["Failed"]] == ["c"]
    assert bodies(sqs, url) == ["1"]
    deleted = sqs.delete_message_batch(
        QueueUrl=url,
        Entries=[
            {"Id": "a", "ReceiptHandle": got[1]["ReceiptHandle"]},
            {"Id": "b", "ReceiptHandle": "none"},
        ],
    )
    assert [one["Id"] for one in deleted["Successful"]] == ["a"]
    assert [one["Code"] for one in deleted["Failed"]] == ["ReceiptHandleIsInvalid"]


def test_a_batch_deletes_messages_of_one_receive_and_of_several(sqs: SQSClient, url: str) -> None:
    for part in ("abc", "d", "ef"):
        entries: Any = [{"Id": one, "MessageBody": one} for one in part]
        sqs.send_message_batch(QueueUrl=url, Entries=entries)
    first = sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=3)["Messages"]
    second = sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=3)["Messages"]
    assert len(first) == len(second) == 3
    assert _deleted(sqs, url, first[:2]) == (["0", "1"], [])
    assert _deleted(sqs, url, [first[2], second[0]]) == (["0", "1"], [])
    assert _deleted(sqs, url, [second[1], second[1]]) == (["0", "1"], [])
    told = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
    assert told["ApproximateNumberOfMessagesNotVisible"] == "1"
    assert _deleted(sqs, url, [*first, *second]) == (list("012345"), [])
    assert bodies(sqs, url) == []


def test_a_batch_of_a_fifo_queue_tells_which_receipts_are_late(sqs: SQSClient, fifo: str) -> None:
    entries: Any = [
        {"Id": one, "MessageBody": one, "MessageGroupId": one, "MessageDeduplicationId": one}
        for one in "abc"
    ]
    sqs.send_message_batch(QueueUrl=fifo, Entries=entries)
    got = receive(sqs, fifo)
    sqs.change_message_visibility(
        QueueUrl=fifo, ReceiptHandle=got[1]["ReceiptHandle"], VisibilityTimeout=0
    )
    assert _deleted(sqs, fifo, got) == (["0", "2"], ["1"])
    assert bodies(sqs, fifo) == [got[1]["Body"]]


def _deleted(
    sqs: SQSClient, url: str, messages: list[MessageTypeDef]
) -> tuple[list[str], list[str]]:
    """The places of those that were deleted, and of those that were not."""
    entries: Any = [
        {"Id": str(at), "ReceiptHandle": one["ReceiptHandle"]} for at, one in enumerate(messages)
    ]
    told = sqs.delete_message_batch(QueueUrl=url, Entries=entries)
    done, failed = told.get("Successful", []), told.get("Failed", [])
    return [one["Id"] for one in done], [one["Id"] for one in failed]


@pytest.mark.parametrize(
    ("ids", "code"),
    [
        ([], "AWS.SimpleQueueService.EmptyBatchRequest"),
        ([str(at) for at in range(11)], "AWS.SimpleQueueService.TooManyEntriesInBatchRequest"),
        (["a", "a"], "AWS.SimpleQueueService.BatchEntryIdsNotDistinct"),
        (["a b"], "AWS.SimpleQueueService.InvalidBatchEntryId"),
    ],
)
def test_a_batch_that_is_none_is_refused_whole(
    sqs: SQSClient, url: str, ids: list[str], code: str
) -> None:
    with pytest.raises(ClientError) as error:
        sqs.send_message_batch(
            QueueUrl=url, Entries=[{"Id": one, "MessageBody": "x"} for one in ids]
        )
    assert code_of(error) == (code, 400)
    assert receive(sqs, url) == []


# --- FIFO ----------------------------------------------------------------------------------------


def test_a_group_comes_in_its_order_and_waits_for_itself(sqs: SQSClient, fifo: str) -> None:
    for body, group in (("a1", "a"), ("b1", "b"), ("a2", "a")):
        sqs.send_message(
            QueueUrl=fifo, MessageBody=body, MessageGroupId=group, MessageDeduplicationId=body
        )
    first = receive(sqs, fifo)
    assert [one["Body"] for one in first if one["Attributes"]["MessageGroupId"] == "a"] == [
        "a1",
        "a2",
    ]
    sqs.send_message(
        QueueUrl=fifo, MessageBody="a3", MessageGroupId="a", MessageDeduplicationId="a3"
    )
    assert receive(sqs, fifo) == []
    for one in first:
        sqs.delete_message(QueueUrl=fifo, ReceiptHandle=one["ReceiptHandle"])
    assert bodies(sqs, fifo) == ["a3"]


def test_a_repeat_is_answered_as_the_first_one_was(sqs: SQSClient, fifo: str) -> None:
    sent = [
        sqs.send_message(
            QueueUrl=fifo, MessageBody=body, MessageGroupId="g", MessageDeduplicationId="same"
        )
        for body in "xy"
    ]
    assert sent[0]["MessageId"] == sent[1]["MessageId"]
    assert sent[0]["SequenceNumber"] == sent[1]["SequenceNumber"]
    [got] = receive(sqs, fifo)
    assert got["Body"] == "x"
    assert got["Attributes"]["MessageDeduplicationId"] == "same"


def test_bodies_and_groups_may_be_the_scope_of_repeats(sqs: SQSClient, name: str) -> None:
    url = sqs.create_queue(
        QueueName=f"{name}.fifo",
        Attributes={
            "FifoQueue": "true",
            "ContentBasedDeduplication": "true",
            "DeduplicationScope": "messageGroup",
            "FifoThroughputLimit": "perMessageGroupId",
        },
    )["QueueUrl"]
    for group in "aab":
        sqs.send_message(QueueUrl=url, MessageBody="same", MessageGroupId=group)
    assert [one["Attributes"]["MessageGroupId"] for one in receive(sqs, url)] == ["a", "b"]


def test_a_receive_that_is_made_again_is_given_the_same(sqs: SQSClient, fifo: str) -> None:
    for body in "ab":
        sqs.send_message(
            QueueUrl=fifo, MessageBody=body, MessageGroupId="g", MessageDeduplicationId=body
        )
    first = receive(sqs, fifo, ReceiveRequestAttemptId="try-1")
    again = receive(sqs, fifo, ReceiveRequestAttemptId="try-1")
    assert [one["ReceiptHandle"] for one in again] == [one["ReceiptHandle"] for one in first]
    assert receive(sqs, fifo, ReceiveRequestAttemptId="try-2") == []
    for bad in ("a b", "", "x" * 129):
        with pytest.raises(ClientError) as error:
            receive(sqs, fifo, ReceiveRequestAttemptId=bad)
        assert code_of(error) == ("InvalidParameterValue", 400)


def test_attributes_may_be_all_of_a_message(sqs: SQSClient, url: str) -> None:
    value = "x" * 1_000_000
    given: Any = {
        "large": {"DataType": "String", "StringValue": value},
        "number": {"DataType": "Number.int", "StringValue": "1"},
    }
    sqs.send_message(QueueUrl=url, MessageBody="small", MessageAttributes=given)
    [got] = receive(sqs, url, MessageAttributeNames=["All"])
    assert got["MessageAttributes"] == given
    given["large"]["StringValue"] = "x" * limits.SQS_MESSAGE_BYTES_MAX
    with pytest.raises(ClientError) as error:
        sqs.send_message(QueueUrl=url, MessageBody="small", MessageAttributes=given)
    assert code_of(error) == ("InvalidParameterValue", 400)
    assert f"shorter than {limits.SQS_MESSAGE_BYTES_MAX} bytes" in str(error.value)


def test_the_first_receive_is_told_after_others(sqs: SQSClient, url: str) -> None:
    began = int(time.time() * 1000)
    sqs.send_message(QueueUrl=url, MessageBody="x", DelaySeconds=1)
    told: list[Any] = []
    for _ in range(3):
        [got] = receive(sqs, url, VisibilityTimeout=0, WaitTimeSeconds=10)
        told.append(got["Attributes"])
    firsts = {int(one["ApproximateFirstReceiveTimestamp"]) for one in told}
    assert [one["ApproximateReceiveCount"] for one in told] == ["1", "2", "3"]
    [first] = firsts
    assert first >= began + 1000, "it was sent a second before"


def test_a_receive_takes_from_one_group_before_another(sqs: SQSClient, fifo: str) -> None:
    for at, group in enumerate("abacab"):
        sqs.send_message(
            QueueUrl=fifo,
            MessageBody=f"{group}{at}",
            MessageGroupId=group,
            MessageDeduplicationId=str(at),
        )
    assert [one["Body"] for one in receive(sqs, fifo, MaxNumberOfMessages=2)] == ["a0", "a2"]
    assert [one["Body"] for one in receive(sqs, fifo, MaxNumberOfMessages=2)] == ["b1", "b5"]
    assert [one["Body"] for one in receive(sqs, fifo)] == ["c3"]


@pytest.mark.parametrize(
    ("given", "code"),
    [
        ({}, "MissingParameter"),
        ({"MessageGroupId": "g"}, "InvalidParameterValue"),
        (
            {"MessageGroupId": "g", "MessageDeduplicationId": "d", "DelaySeconds": 1},
            "InvalidParameterValue",
        ),
    ],
)
def test_a_fifo_queue_takes_no_message_without_group_and_id(
    sqs: SQSClient, fifo: str, given: dict[str, Any], code: str
) -> None:
    with pytest.raises(ClientError) as error:
        sqs.send_message(QueueUrl=fifo, MessageBody="x", **given)
    assert code_of(error) == (code, 400)


def test_a_group_does_not_wait_behind_the_many_of_another(sqs: SQSClient, url: str) -> None:
    sqs.send_message(QueueUrl=url, MessageBody="before")
    for at in range(3):
        sqs.send_message_batch(
            QueueUrl=url,
            Entries=[
                {"Id": str(one), "MessageBody": f"noisy {at} {one}", "MessageGroupId": "noisy"}
                for one in range(10)
            ],
        )
    sqs.send_message(QueueUrl=url, MessageBody="quiet", MessageGroupId="quiet")
    first = receive(sqs, url)
    assert {"before", "quiet"} < {one["Body"] for one in first}
    groups = [one["Attributes"].get("MessageGroupId") for one in first]
    assert groups.count("quiet") == 1


# --- Looking -------------------------------------------------------------------------------------


def test_messages_are_looked_at_without_being_received(
    site: AwsSite, sqs: SQSClient, url: str
) -> None:
    for body in ("held", "ready"):
        sqs.send_message(QueueUrl=url, MessageBody=body)
    sqs.send_message(QueueUrl=url, MessageBody="late", DelaySeconds=900)
    receive(sqs, url, VisibilityTimeout=600)[:1]
    sqs.send_message(QueueUrl=url, MessageBody="new")

    def look(more: str = "") -> list[tuple[str, str]]:
        request = urllib.request.Request(
            f"{site.url}/_aws/sqs/messages?QueueUrl={url}{more}",
            headers={
                "Authorization": f"Bearer {site.process.token}",
                "Accept": "application/json",
            },
        )
        with urllib.request.urlopen(request) as answer:
            told = json.load(answer)["ReceiveMessageResponse"]["ReceiveMessageResult"]
        return [
            (one["Body"], next(a["Value"] for a in one["Attribute"] if a["Name"] == "IsVisible"))
            for one in told["Message"]
        ]

    assert look() == [("new", "true")]
    assert look("&ShowInvisible=true&ShowDelayed=true") == [
        ("held", "false"),
        ("ready", "false"),
        ("late", "false"),
        ("new", "true"),
    ]
    assert bodies(sqs, url) == ["new"]


def test_beyond_so_many_in_flight_a_receive_is_told(
    site: AwsSite, sqs: SQSClient, url: str, name: str
) -> None:
    path = f"/v1/spaces/default/queues/{name}"
    assert site.process.ask("PATCH", path, {"max_in_flight": 2}).status == 200
    for body in "abc":
        sqs.send_message(QueueUrl=url, MessageBody=body)
    held = receive(sqs, url)
    assert [one["Body"] for one in held] == ["a", "b"]
    with pytest.raises(ClientError) as error:
        receive(sqs, url)
    assert code_of(error) == ("OverLimit", 403)
    sqs.delete_message(QueueUrl=url, ReceiptHandle=held[0]["ReceiptHandle"])
    assert bodies(sqs, url) == ["c"]


@pytest.mark.parametrize(
    ("action", "given"),
    [("CreateTable", {}), ("ReceiveMessage", {"QueueUrl": "q", "Colour": "red"})],
)
def test_what_is_not_listed_is_unsupported(
    site: AwsSite, action: str, given: dict[str, str]
) -> None:
    request = urllib.request.Request(
        site.url,
        json.dumps(given).encode(),
        {
            "Authorization": f"Bearer {site.process.token}",
            "Content-Type": "application/x-amz-json-1.0",
            "X-Amz-Target": f"AmazonSQS.{action}",
        },
    )
    with pytest.raises(urllib.error.HTTPError) as error:
        urllib.request.urlopen(request)
    told = json.loads(error.value.read())
    assert error.value.code == 400
    assert told["__type"] == "com.amazonaws.sqs#UnsupportedOperation"
