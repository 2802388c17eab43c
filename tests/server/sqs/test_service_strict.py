"""What is asked is judged as AWS judges it, and whoever has no right to know is told nothing."""

from __future__ import annotations

import base64
import json
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

import pytest
from botocore.exceptions import ClientError

from millrace.core import bounds
from tests.server.aws.site import ACCOUNT, REGION, AwsSite, make_key
from tests.server.sqs.codes import code_of

if TYPE_CHECKING:
    from types_boto3_sqs import SQSClient

    from millrace.sync import Millrace


def arn(name: str) -> str:
    return f"arn:aws:sqs:{REGION}:{ACCOUNT}:{name}"


def redrive(name: str, most: object = 2) -> dict[Any, str]:
    return {
        "RedrivePolicy": json.dumps({"deadLetterTargetArn": arn(name), "maxReceiveCount": most})
    }


def attributes(sqs: SQSClient, url: str, *names: Any) -> dict[str, str]:
    found = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=names).get("Attributes", {})
    return {str(name): text for name, text in found.items()}


# --- Attributes of queues ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("policy", "is_taken"),
    [
        ({"redrivePermission": "allowAll"}, True),
        ({"redrivePermission": "denyAll"}, False),
        ({"redrivePermission": "byQueue", "sourceQueueArns": [arn("somebody")]}, False),
        ({"redrivePermission": "byQueue", "sourceQueueArns": [arn("NAME-from")]}, True),
    ],
)
def test_dead_letters_of_a_queue_go_where_they_are_taken(
    sqs: SQSClient, name: str, policy: dict[str, Any], *, is_taken: bool
) -> None:
    text = json.dumps(policy).replace("NAME", name)
    sqs.create_queue(QueueName=name, Attributes={"RedriveAllowPolicy": text})
    source = sqs.create_queue(QueueName=f"{name}-from")["QueueUrl"]
    if is_taken:
        sqs.set_queue_attributes(QueueUrl=source, Attributes=redrive(name))
        assert attributes(sqs, source, "RedrivePolicy") == redrive(name)
        return
    with pytest.raises(ClientError) as error:
        sqs.set_queue_attributes(QueueUrl=source, Attributes=redrive(name))
    assert code_of(error) == ("InvalidParameterValue", 400)
    with pytest.raises(ClientError) as error:
        sqs.create_queue(QueueName=f"{name}-other", Attributes=redrive(name))
    assert code_of(error) == ("InvalidParameterValue", 400)


@pytest.mark.parametrize(
    "text",
    [
        "{}",
        "[]",
        '{"redrivePermission": "some"}',
        '{"redrivePermission": "byQueue"}',
        '{"redrivePermission": "byQueue", "sourceQueueArns": ["x"]}',
        json.dumps({"redrivePermission": "denyAll", "sourceQueueArns": [arn("x")]}),
        json.dumps({"redrivePermission": "byQueue", "sourceQueueArns": [arn("x")] * 11}),
    ],
)
def test_what_says_not_whose_dead_letters_are_taken_is_refused(
    sqs: SQSClient, url: str, text: str
) -> None:
    with pytest.raises(ClientError) as error:
        sqs.set_queue_attributes(QueueUrl=url, Attributes={"RedriveAllowPolicy": text})
    assert code_of(error) == ("InvalidAttributeValue", 400)


@pytest.mark.parametrize("most", [0, 1001, 1.5, 1e300, True, None, "x"])
def test_a_message_is_received_a_whole_number_of_times(
    sqs: SQSClient, url: str, name: str, most: object
) -> None:
    sqs.create_queue(QueueName=f"{name}-dead")
    with pytest.raises(ClientError) as error:
        sqs.set_queue_attributes(QueueUrl=url, Attributes=redrive(f"{name}-dead", most))
    assert code_of(error) == ("InvalidParameterValue", 400)


def test_a_queue_has_one_kind_of_encryption(sqs: SQSClient, name: str) -> None:
    both: dict[Any, str] = {"KmsMasterKeyId": "alias/x", "SqsManagedSseEnabled": "true"}
    with pytest.raises(ClientError) as error:
        sqs.create_queue(QueueName=name, Attributes=both)
    assert code_of(error) == ("InvalidAttributeValue", 400)
    managed: dict[Any, str] = {"SqsManagedSseEnabled": "true"}
    url = sqs.create_queue(QueueName=name, Attributes=managed)["QueueUrl"]
    names = ("SqsManagedSseEnabled", "KmsMasterKeyId")
    sqs.set_queue_attributes(QueueUrl=url, Attributes={"KmsMasterKeyId": "alias/x"})
    assert attributes(sqs, url, *names) == {
        "SqsManagedSseEnabled": "false",
        "KmsMasterKeyId": "alias/x",
    }
    sqs.set_queue_attributes(QueueUrl=url, Attributes=managed)
    assert attributes(sqs, url, *names) == {"SqsManagedSseEnabled": "true"}


def test_a_throughput_by_group_needs_ids_by_group(sqs: SQSClient, name: str, fifo: str) -> None:
    by_group: dict[Any, str] = {"FifoThroughputLimit": "perMessageGroupId"}
    with pytest.raises(ClientError) as error:
        sqs.create_queue(QueueName=f"{name}-2.fifo", Attributes={"FifoQueue": "true", **by_group})
    assert code_of(error) == ("InvalidAttributeValue", 400)
    with pytest.raises(ClientError) as error:
        sqs.set_queue_attributes(QueueUrl=fifo, Attributes=by_group)
    assert code_of(error) == ("InvalidAttributeValue", 400)
    sqs.set_queue_attributes(QueueUrl=fifo, Attributes={"DeduplicationScope": "messageGroup"})
    sqs.set_queue_attributes(QueueUrl=fifo, Attributes=by_group)
    with pytest.raises(ClientError) as error:
        sqs.set_queue_attributes(QueueUrl=fifo, Attributes={"DeduplicationScope": "queue"})
    assert code_of(error) == ("InvalidAttributeValue", 400)


def test_notes_that_others_have_written_spoil_no_queue(
    site: AwsSite, sqs: SQSClient, name: str, url: str
) -> None:
    def write(notes: dict[str, str], m: Millrace) -> None:
        m.find(name).configure(notes=notes)

    for visibility, size in (("x", "-1"), ("43201", "1048577")):
        notes = {"aws.VisibilityTimeout": visibility, "aws.MaximumMessageSize": size}
        notes["aws.Policy"] = "[]"
        site.edit(partial(write, notes))
        assert attributes(sqs, url, "VisibilityTimeout", "MaximumMessageSize") == {
            "VisibilityTimeout": "30",
            "MaximumMessageSize": "1048576",
        }
    assert "Messages" not in sqs.receive_message(QueueUrl=url)
    sqs.add_permission(QueueUrl=url, Label="a", AWSAccountIds=[ACCOUNT], Actions=["SendMessage"])
    assert json.loads(attributes(sqs, url, "Policy")["Policy"])["Statement"]


def test_permissions_that_are_added_at_once_are_all_there(
    site: AwsSite, sqs: SQSClient, url: str
) -> None:
    def add(label: str) -> None:
        site.aws().sqs.add_permission(
            QueueUrl=url, Label=label, AWSAccountIds=[ACCOUNT], Actions=["SendMessage"]
        )

    labels = {f"label-{at}" for at in range(12)}
    with ThreadPoolExecutor(6) as threads:
        list(threads.map(add, labels))
    policy = json.loads(attributes(sqs, url, "Policy")["Policy"])
    assert {one["Sid"] for one in policy["Statement"]} == labels


# --- Messages ------------------------------------------------------------------------------------


def test_a_message_of_a_fifo_queue_waits_as_long_as_the_queue_says(
    sqs: SQSClient, name: str
) -> None:
    wait: dict[Any, str] = {"FifoQueue": "true", "DelaySeconds": "600"}
    url = sqs.create_queue(QueueName=f"{name}.fifo", Attributes=wait)["QueueUrl"]
    sqs.send_message(
        QueueUrl=url,
        MessageBody="x",
        MessageGroupId="a",
        MessageDeduplicationId="1",
        DelaySeconds=0,
    )
    assert "Messages" not in sqs.receive_message(QueueUrl=url)
    counted = attributes(sqs, url, "ApproximateNumberOfMessagesDelayed")
    assert counted == {"ApproximateNumberOfMessagesDelayed": "1"}


def test_an_entry_that_is_too_large_for_its_queue_fails_alone(sqs: SQSClient, url: str) -> None:
    sqs.set_queue_attributes(QueueUrl=url, Attributes={"MaximumMessageSize": "1024"})
    large = {"a": {"DataType": "String", "StringValue": "x" * 1024}}
    sent = sqs.send_message_batch(
        QueueUrl=url,
        Entries=[
            {"Id": "large", "MessageBody": "x", "MessageAttributes": large},  # type: ignore[typeddict-item]
            {"Id": "good", "MessageBody": "y"},
        ],
    )
    assert [one["Id"] for one in sent["Successful"]] == ["good"]
    assert [(one["Id"], one["Code"]) for one in sent["Failed"]] == [
        ("large", "InvalidParameterValue")
    ]


def test_a_batch_is_too_long_by_all_that_it_has(sqs: SQSClient, url: str) -> None:
    with pytest.raises(ClientError) as error:
        sqs.send_message_batch(
            QueueUrl=url,
            Entries=[
                {"Id": "a", "MessageBody": "x" * (1024 * 1024 + 1)},
                {"Id": "b", "MessageBody": "y"},
            ],
        )
    assert code_of(error) == ("AWS.SimpleQueueService.BatchRequestTooLong", 400)
    assert "Messages" not in sqs.receive_message(QueueUrl=url)


def test_attributes_count_with_their_names_and_types(sqs: SQSClient, name: str) -> None:
    size: dict[Any, str] = {"MaximumMessageSize": "1024"}
    url = sqs.create_queue(QueueName=name, Attributes=size)["QueueUrl"]
    one: Any = {"ab": {"DataType": "Number", "StringValue": "12"}}
    sqs.send_message(QueueUrl=url, MessageBody="x" * 1014, MessageAttributes=one)
    with pytest.raises(ClientError) as error:
        sqs.send_message(QueueUrl=url, MessageBody="x" * 1015, MessageAttributes=one)
    assert code_of(error) == ("InvalidParameterValue", 400)


def test_beyond_the_maximum_nothing_is_received_however_late_one_asks(
    site: AwsSite, sqs: SQSClient, name: str, url: str
) -> None:
    bounded = {"max_in_flight": 1}
    changed = site.process.ask("PATCH", f"/v1/spaces/default/queues/{name}", bounded)
    assert changed.status == 200
    for body in ("a", "b"):
        sqs.send_message(QueueUrl=url, MessageBody=body)
    assert len(sqs.receive_message(QueueUrl=url)["Messages"]) == 1
    # What was known of the queue is forgotten, as it is after a minute.
    sqs.tag_queue(QueueUrl=url, Tags={"a": "b"})
    with pytest.raises(ClientError) as error:
        sqs.receive_message(QueueUrl=url)
    assert code_of(error) == ("OverLimit", 403)


def test_beyond_the_maximum_who_waits_and_who_asks_a_fifo_queue_is_given_nothing(
    site: AwsSite, sqs: SQSClient, name: str, url: str, fifo: str
) -> None:
    for queue, place, more in ((name, url, {}), (f"{name}.fifo", fifo, {"MessageGroupId": "g"})):
        path = f"/v1/spaces/default/queues/{queue}"
        assert site.process.ask("PATCH", path, {"max_in_flight": 1}).status == 200
        sqs.tag_queue(QueueUrl=place, Tags={"a": "b"})
        for body in ("a", "b"):
            dedup: Any = {**more, "MessageDeduplicationId": body} if more else {}
            sqs.send_message(QueueUrl=place, MessageBody=body, **dedup)
        assert len(sqs.receive_message(QueueUrl=place)["Messages"]) == 1
        wait = 0 if more else 1
        assert "Messages" not in sqs.receive_message(QueueUrl=place, WaitTimeSeconds=wait)


def test_queues_have_the_bounds_and_times_of_aws(
    site: AwsSite, sqs: SQSClient, name: str, url: str, fifo: str
) -> None:
    for queue in (name, f"{name}.fifo"):
        seen = site.process.ask("GET", f"/v1/spaces/default/queues/{queue}")
        settings = json.loads(seen.body)["settings"]
        assert (settings["max_in_flight"], settings["dedup"]) == (120_000, 300)
    for place in (url, fifo):
        assert attributes(sqs, place, "MaximumMessageSize", "MessageRetentionPeriod") == {
            "MaximumMessageSize": "1048576",
            "MessageRetentionPeriod": "345600",
        }
    assert bounds.ATTEMPT_REMEMBERED_MS == 300_000


def test_what_xml_cannot_hold_spoils_no_answer_in_xml(
    site: AwsSite, sqs: SQSClient, name: str, url: str
) -> None:
    published = site.process.ask(
        "POST",
        f"/v1/spaces/default/queues/{name}/messages",
        {"messages": [{"body": "a\x00b", "headers": {"from": "c\x01d"}}]},
    )
    assert published.status == 201
    seen = site.process.ask("GET", f"/_aws/sqs/messages?QueueUrl=/{ACCOUNT}/{name}")
    told = ElementTree.fromstring(seen.body)
    assert [one.text for one in told.iter() if one.tag.endswith("}Body")] == ["a\ufffdb"]


# --- Who asks ------------------------------------------------------------------------------------


def test_headers_that_others_have_written_keep_nobody_from_receiving(
    site: AwsSite, sqs: SQSClient, name: str, url: str
) -> None:
    headers = {"aws.types": '{"x":"Binary"}', "aws.arrays": '{"x":"t"}'}
    site.edit(lambda m: m.find(name).publish(b"odd", headers=headers))
    sqs.send_message(QueueUrl=url, MessageBody="good")
    got = sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10, MessageAttributeNames=["All"])
    assert [one["Body"] for one in got["Messages"]] == ["odd", "good"]
    told = got["Messages"][0]["MessageAttributes"]
    assert told == {"x": {"StringValue": "t", "DataType": "String"}}


def test_a_message_of_a_queue_with_partitions_has_one_id(
    site: AwsSite, sqs: SQSClient, name: str
) -> None:
    assert site.process.ask("PUT", f"/v1/queues/{name}").status in (200, 201)
    url = f"{site.url}/{ACCOUNT}/{name}"
    for _ in range(2):
        # The second time it is known, and goes another way.
        sent = sqs.send_message(QueueUrl=url, MessageBody="x")["MessageId"]
        [got] = sqs.receive_message(QueueUrl=url, VisibilityTimeout=0)["Messages"]
        assert got["MessageId"] == sent
        sqs.delete_message(QueueUrl=url, ReceiptHandle=got["ReceiptHandle"])
        entries: Any = [{"Id": "a", "MessageBody": "y"}]
        [one] = sqs.send_message_batch(QueueUrl=url, Entries=entries)["Successful"]
        [got] = sqs.receive_message(QueueUrl=url, VisibilityTimeout=0)["Messages"]
        assert got["MessageId"] == one["MessageId"]
        sqs.delete_message(QueueUrl=url, ReceiptHandle=got["ReceiptHandle"])


def test_nobody_learns_of_queues_by_where_dead_letters_go(site: AwsSite, sqs: SQSClient) -> None:
    sqs.create_queue(QueueName="strict-secret")
    eve = site.aws(make_key(site.folder, "eve", "allow * default/eve*")).sqs
    for name in ("strict-secret", "strict-missing"):
        with pytest.raises(ClientError) as error:
            eve.create_queue(QueueName="eve", Attributes=redrive(name))
        assert code_of(error) == ("AccessDenied", 403)


@pytest.mark.parametrize(
    "attribute", ["millrace-group", "millrace-dead-queue", "millrace-colour", "aws.dedup"]
)
def test_no_attribute_is_taken_for_what_became_of_a_message(
    sqs: SQSClient, url: str, attribute: str
) -> None:
    given: Any = {attribute: {"DataType": "String", "StringValue": "default/other"}}
    with pytest.raises(ClientError) as error:
        sqs.send_message(QueueUrl=url, MessageBody="x", MessageAttributes=given)
    assert code_of(error) == ("InvalidParameterValue", 400)
    assert attribute in str(error.value)
    assert "Messages" not in sqs.receive_message(QueueUrl=url)


def test_a_statement_has_up_to_seven_actions(sqs: SQSClient, url: str) -> None:
    actions = [
        "SendMessage",
        "ReceiveMessage",
        "DeleteMessage",
        "ChangeMessageVisibility",
        "GetQueueAttributes",
        "GetQueueUrl",
        "PurgeQueue",
        "ListDeadLetterSourceQueues",
    ]

    def add(label: str, given: list[str], account: str = ACCOUNT) -> None:
        sqs.add_permission(QueueUrl=url, Label=label, AWSAccountIds=[account], Actions=given)

    add("seven", actions[:7])
    for given, account, code in (
        (actions, ACCOUNT, ("OverLimit", 403)),
        (["Fly"], ACCOUNT, ("InvalidParameterValue", 400)),
        (actions[:1], "me", ("InvalidParameterValue", 400)),
    ):
        with pytest.raises(ClientError) as error:
            add("more", given, account)
        assert code_of(error) == code


def test_a_queue_that_is_made_again_with_what_is_usual_is_the_same(
    sqs: SQSClient, name: str
) -> None:
    usual: Any = {"KmsDataKeyReusePeriodSeconds": "300", "VisibilityTimeout": "30"}
    url = sqs.create_queue(QueueName=name)["QueueUrl"]
    assert sqs.create_queue(QueueName=name, Attributes=usual)["QueueUrl"] == url
    with pytest.raises(ClientError) as error:
        sqs.create_queue(QueueName=name, Attributes={"KmsDataKeyReusePeriodSeconds": "60"})
    assert code_of(error) == ("QueueAlreadyExists", 400)


@pytest.mark.parametrize(
    ("policy", "why"),
    [
        ({"maxReceiveCount": 1}, "mandatory attribute: deadLetterTargetArn."),
        ({"deadLetterTargetArn": arn("x")}, "mandatory attribute: maxReceiveCount."),
        ([], "not a valid JSON map."),
    ],
)
def test_a_redrive_policy_that_is_none_is_told_why(
    sqs: SQSClient, name: str, url: str, policy: object, why: str
) -> None:
    text = json.dumps(policy).replace("NAME", name)
    with pytest.raises(ClientError) as error:
        sqs.set_queue_attributes(QueueUrl=url, Attributes={"RedrivePolicy": text})
    assert code_of(error) == ("InvalidParameterValue", 400)
    assert str(error.value).endswith(why)


def test_a_receive_brings_one_to_ten(sqs: SQSClient, url: str) -> None:
    with pytest.raises(ClientError, match="Must be between 1 and 10, if provided") as error:
        sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=11)
    assert code_of(error) == ("InvalidParameterValue", 400)


def test_a_handle_that_is_deep_is_none(sqs: SQSClient) -> None:
    deep = base64.b64encode(b"[" * 100_000 + b"]" * 100_000).decode()
    with pytest.raises(ClientError) as error:
        sqs.cancel_message_move_task(TaskHandle=deep)
    assert code_of(error) == ("InvalidParameterValue", 400)


def test_looking_reads_no_more_fields_than_any_call(site: AwsSite) -> None:
    seen = site.process.ask("GET", "/_aws/sqs/messages?" + "&" * 5000)
    assert (seen.status, b"MalformedQueryString" in seen.body) == (400, True)
