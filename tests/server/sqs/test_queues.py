"""Queues: how they are made, found, changed, counted, tagged and ended."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from botocore.exceptions import ClientError

from tests.server.aws.site import ACCOUNT
from tests.server.sqs.codes import code_of

if TYPE_CHECKING:
    from types_boto3_sqs import SQSClient
    from types_boto3_sqs.literals import QueueAttributeNameType
    from types_boto3_sqs.type_defs import ListMessageMoveTasksResultEntryTypeDef as MoveTask


def attributes(sqs: SQSClient, url: str) -> dict[QueueAttributeNameType, str]:
    return sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]


def arn(sqs: SQSClient, url: str) -> str:
    return attributes(sqs, url)["QueueArn"]


def test_a_queue_is_as_it_was_asked_for(sqs: SQSClient, name: str) -> None:
    given: dict[QueueAttributeNameType, str] = {
        "VisibilityTimeout": "45",
        "MessageRetentionPeriod": "600",
        "DelaySeconds": "3",
        "MaximumMessageSize": "2048",
        "ReceiveMessageWaitTimeSeconds": "2",
        "KmsMasterKeyId": "alias/mine",
        "KmsDataKeyReusePeriodSeconds": "600",
        "Policy": '{"Version": "2012-10-17", "Statement": []}',
        "RedriveAllowPolicy": '{"redrivePermission": "denyAll"}',
    }
    url = sqs.create_queue(QueueName=name, Attributes=given, tags={"team": "blue"})["QueueUrl"]
    found = attributes(sqs, url)
    assert {name: found[name] for name in given} == given
    assert found["QueueArn"] == f"arn:aws:sqs:us-east-1:000000000000:{name}"
    assert sqs.list_queue_tags(QueueUrl=url)["Tags"] == {"team": "blue"}
    assert sqs.create_queue(QueueName=name, Attributes=given)["QueueUrl"] == url
    assert sqs.get_queue_url(QueueName=name)["QueueUrl"] == url
    with pytest.raises(ClientError) as error:
        sqs.create_queue(QueueName=name, Attributes={"VisibilityTimeout": "46"})
    assert code_of(error) == ("QueueAlreadyExists", 400)


def test_attributes_are_changed_one_by_one(sqs: SQSClient, url: str) -> None:
    sqs.set_queue_attributes(QueueUrl=url, Attributes={"VisibilityTimeout": "7", "Policy": "{}"})
    sqs.set_queue_attributes(QueueUrl=url, Attributes={"Policy": ""})
    found = attributes(sqs, url)
    assert found["VisibilityTimeout"] == "7"
    assert "Policy" not in found
    sqs.tag_queue(QueueUrl=url, Tags={"a": "", "b": "2"})
    sqs.tag_queue(QueueUrl=url, Tags={"b": "3"})
    sqs.untag_queue(QueueUrl=url, TagKeys=["c"])
    assert sqs.list_queue_tags(QueueUrl=url)["Tags"] == {"a": "", "b": "3"}
    sqs.untag_queue(QueueUrl=url, TagKeys=["a", "b"])
    assert "Tags" not in sqs.list_queue_tags(QueueUrl=url)


@pytest.mark.parametrize(
    ("given", "code"),
    [
        ({"VisibilityTimeout": "43201"}, "InvalidAttributeValue"),
        ({"VisibilityTimeout": "-1"}, "InvalidAttributeValue"),
        ({"DelaySeconds": "901"}, "InvalidAttributeValue"),
        ({"MessageRetentionPeriod": "59"}, "InvalidAttributeValue"),
        ({"MaximumMessageSize": "1023"}, "InvalidAttributeValue"),
        ({"ReceiveMessageWaitTimeSeconds": "21"}, "InvalidAttributeValue"),
        ({"Policy": "no JSON"}, "InvalidAttributeValue"),
        ({"SqsManagedSseEnabled": "perhaps"}, "InvalidAttributeValue"),
        ({"ContentBasedDeduplication": "true"}, "InvalidAttributeName"),
        ({"Colour": "red"}, "InvalidAttributeName"),
        ({"RedrivePolicy": "{}"}, "InvalidParameterValue"),
        (
            {
                "RedrivePolicy": '{"deadLetterTargetArn": "arn:aws:sqs:us-east-1:000000000000:no",'
                ' "maxReceiveCount": 3}'
            },
            "InvalidParameterValue",
        ),
    ],
)
def test_attributes_that_cannot_be_so_are_refused(
    sqs: SQSClient, name: str, given: dict[QueueAttributeNameType, str], code: str
) -> None:
    with pytest.raises(ClientError) as error:
        sqs.create_queue(QueueName=name, Attributes=given)
    assert code_of(error) == (code, 400)
    with pytest.raises(ClientError) as error:
        sqs.get_queue_url(QueueName=name)
    assert code_of(error) == ("AWS.SimpleQueueService.NonExistentQueue", 400)


@pytest.mark.parametrize("bad", ["", "a b", "x" * 81, "a.fifo", "ä", "a/b"])
def test_names_that_no_queue_can_have_are_refused(sqs: SQSClient, bad: str) -> None:
    with pytest.raises(ClientError) as error:
        sqs.create_queue(QueueName=bad)
    assert code_of(error)[0] in ("InvalidParameterValue", "MissingParameter")


def test_queues_are_listed_in_pages(sqs: SQSClient, name: str) -> None:
    made = [sqs.create_queue(QueueName=f"{name}-{at}")["QueueUrl"] for at in range(3)]
    first = sqs.list_queues(QueueNamePrefix=f"{name}-", MaxResults=2)
    assert first["QueueUrls"] == made[:2]
    rest = sqs.list_queues(QueueNamePrefix=f"{name}-", MaxResults=2, NextToken=first["NextToken"])
    assert rest["QueueUrls"] == made[2:]
    assert "NextToken" not in rest
    with pytest.raises(ClientError) as error:
        sqs.list_queues(MaxResults=2, NextToken="???")
    assert code_of(error) == ("InvalidParameterValue", 400)


def test_messages_are_counted_by_what_may_be_done_with_them(sqs: SQSClient, url: str) -> None:
    for body in "abc":
        sqs.send_message(QueueUrl=url, MessageBody=body)
    sqs.send_message(QueueUrl=url, MessageBody="late", DelaySeconds=900)
    sqs.receive_message(QueueUrl=url)
    found = attributes(sqs, url)
    assert found["ApproximateNumberOfMessages"] == "2"
    assert found["ApproximateNumberOfMessagesNotVisible"] == "1"
    assert found["ApproximateNumberOfMessagesDelayed"] == "1"
    sqs.purge_queue(QueueUrl=url)
    found = attributes(sqs, url)
    assert [found[name] for name in found if name.startswith("Approximate")] == ["0", "0", "0"]


def test_permissions_are_statements_of_the_policy(sqs: SQSClient, url: str) -> None:
    sqs.add_permission(
        QueueUrl=url, Label="one", AWSAccountIds=["123456789012"], Actions=["SendMessage"]
    )
    policy = json.loads(attributes(sqs, url)["Policy"])
    [statement] = policy["Statement"]
    assert statement["Sid"] == "one"
    assert statement["Action"] == "SQS:SendMessage"
    with pytest.raises(ClientError) as error:
        sqs.add_permission(
            QueueUrl=url, Label="one", AWSAccountIds=["123456789012"], Actions=["SendMessage"]
        )
    assert code_of(error) == ("InvalidParameterValue", 400)
    sqs.remove_permission(QueueUrl=url, Label="one")
    assert "Policy" not in attributes(sqs, url)
    given = json.dumps({"Version": "2012-10-17", "Statement": [{"Sid": "two"}]})
    sqs.set_queue_attributes(QueueUrl=url, Attributes={"Policy": given})
    sqs.add_permission(
        QueueUrl=url, Label="three", AWSAccountIds=["123456789012"], Actions=["SendMessage"]
    )
    policy = json.loads(attributes(sqs, url)["Policy"])
    assert [one["Sid"] for one in policy["Statement"]] == ["two", "three"]
    sqs.remove_permission(QueueUrl=url, Label="two")
    policy = json.loads(attributes(sqs, url)["Policy"])
    assert [one["Sid"] for one in policy["Statement"]] == ["three"]
    sqs.set_queue_attributes(QueueUrl=url, Attributes={"Policy": given})
    assert attributes(sqs, url)["Policy"] == given
    sqs.set_queue_attributes(QueueUrl=url, Attributes={"Policy": ""})
    assert "Policy" not in attributes(sqs, url)


def test_a_queue_that_was_deleted_is_gone(sqs: SQSClient, url: str, name: str) -> None:
    sqs.send_message(QueueUrl=url, MessageBody="old")
    sqs.delete_queue(QueueUrl=url)
    for attempt in (
        lambda: sqs.send_message(QueueUrl=url, MessageBody="x"),
        lambda: sqs.receive_message(QueueUrl=url),
        lambda: sqs.get_queue_attributes(QueueUrl=url),
    ):
        with pytest.raises(ClientError) as error:
            attempt()
        assert code_of(error) == ("AWS.SimpleQueueService.NonExistentQueue", 400)
    with pytest.raises(ClientError) as error:
        sqs.delete_queue(QueueUrl=url)
    assert code_of(error) == ("AWS.SimpleQueueService.NonExistentQueue", 400)
    assert sqs.create_queue(QueueName=name)["QueueUrl"] == url
    assert "Messages" not in sqs.receive_message(QueueUrl=url)


# --- Dead letters --------------------------------------------------------------------------------


def with_letters(sqs: SQSClient, name: str, most: int = 1) -> tuple[str, str]:
    """A queue whose messages are dead letters after so many receives, and where they go."""
    dead = sqs.create_queue(QueueName=f"{name}-dead")["QueueUrl"]
    policy = json.dumps({"deadLetterTargetArn": arn(sqs, dead), "maxReceiveCount": most})
    made = sqs.create_queue(
        QueueName=f"{name}-live", Attributes={"RedrivePolicy": policy, "VisibilityTimeout": "0"}
    )
    assert attributes(sqs, made["QueueUrl"])["RedrivePolicy"] == policy
    return made["QueueUrl"], dead


def lose(sqs: SQSClient, live: str) -> None:
    """Send a message and receive it once too often."""
    sqs.send_message(QueueUrl=live, MessageBody="poison")
    [held] = sqs.receive_message(QueueUrl=live, VisibilityTimeout=0)["Messages"]
    assert held["Body"] == "poison"
    assert "Messages" not in sqs.receive_message(QueueUrl=live)


def test_dead_letters_wait_for_a_queue_that_was_deleted(sqs: SQSClient, name: str) -> None:
    live, dead = with_letters(sqs, name)
    sqs.delete_queue(QueueUrl=dead)
    lose(sqs, live)
    sqs.send_message(QueueUrl=live, MessageBody="next")
    assert [one["Body"] for one in sqs.receive_message(QueueUrl=live)["Messages"]] == ["next"]
    sqs.create_queue(QueueName=f"{name}-dead")
    [letter] = sqs.receive_message(QueueUrl=dead, WaitTimeSeconds=20)["Messages"]
    assert letter["Body"] == "poison"


def test_dead_letters_that_wait_are_received_again_without_a_redrive_policy(
    sqs: SQSClient, name: str
) -> None:
    live, dead = with_letters(sqs, name)
    sqs.delete_queue(QueueUrl=dead)
    lose(sqs, live)
    sqs.set_queue_attributes(QueueUrl=live, Attributes={"RedrivePolicy": ""})
    [again] = sqs.receive_message(
        QueueUrl=live, WaitTimeSeconds=20, AttributeNames=["ApproximateReceiveCount"]
    )["Messages"]
    assert again["Body"] == "poison"
    assert again["Attributes"] == {"ApproximateReceiveCount": "2"}


def test_dead_letters_go_where_they_should_and_are_moved_back(sqs: SQSClient, name: str) -> None:
    live, dead = with_letters(sqs, name)
    assert sqs.list_dead_letter_source_queues(QueueUrl=dead)["queueUrls"] == [live]
    sqs.send_message(QueueUrl=live, MessageBody="bad")
    [first] = sqs.receive_message(QueueUrl=live, AttributeNames=["SentTimestamp"])["Messages"]
    assert "Messages" not in sqs.receive_message(QueueUrl=live, WaitTimeSeconds=1)
    [letter] = sqs.receive_message(
        QueueUrl=dead, WaitTimeSeconds=10, VisibilityTimeout=0, AttributeNames=["All"]
    )["Messages"]
    assert letter["Body"] == "bad"
    assert letter["MessageId"] == first["MessageId"]
    assert letter["Attributes"]["DeadLetterQueueSourceArn"] == arn(sqs, live)
    assert letter["Attributes"]["ApproximateReceiveCount"] == "2"
    assert letter["Attributes"]["SentTimestamp"] == first["Attributes"]["SentTimestamp"]
    task = sqs.start_message_move_task(SourceArn=arn(sqs, dead))["TaskHandle"]
    [back] = sqs.receive_message(
        QueueUrl=live, WaitTimeSeconds=10, AttributeNames=["SentTimestamp"]
    )["Messages"]
    assert back["Body"] == "bad"
    assert int(back["Attributes"]["SentTimestamp"]) > int(first["Attributes"]["SentTimestamp"])
    [listed] = sqs.list_message_move_tasks(SourceArn=arn(sqs, dead))["Results"]
    assert listed["SourceArn"] == arn(sqs, dead)
    assert listed["Status"] in ("RUNNING", "COMPLETED")
    if listed["Status"] == "COMPLETED":
        with pytest.raises(ClientError) as error:
            sqs.cancel_message_move_task(TaskHandle=task)
        assert code_of(error) == ("InvalidParameterValue", 400)


def test_a_dead_letter_of_a_fifo_queue_is_sent_when_it_is_moved(sqs: SQSClient, name: str) -> None:
    is_fifo: dict[QueueAttributeNameType, str] = {"FifoQueue": "true"}
    dead = sqs.create_queue(QueueName=f"{name}-dead.fifo", Attributes=is_fifo)["QueueUrl"]
    policy = json.dumps({"deadLetterTargetArn": arn(sqs, dead), "maxReceiveCount": 1})
    live = sqs.create_queue(
        QueueName=f"{name}.fifo", Attributes={**is_fifo, "RedrivePolicy": policy}
    )["QueueUrl"]
    sqs.send_message(
        QueueUrl=live, MessageBody="bad", MessageGroupId="g", MessageDeduplicationId="d"
    )
    [first] = sqs.receive_message(
        QueueUrl=live, VisibilityTimeout=0, AttributeNames=["SentTimestamp"]
    )["Messages"]
    assert "Messages" not in sqs.receive_message(QueueUrl=live)
    [letter] = sqs.receive_message(
        QueueUrl=dead, WaitTimeSeconds=20, AttributeNames=["SentTimestamp"]
    )["Messages"]
    assert letter["Body"] == "bad"
    assert int(letter["Attributes"]["SentTimestamp"]) > int(first["Attributes"]["SentTimestamp"])


def test_a_queue_whose_dead_letter_queue_is_gone_can_be_changed(sqs: SQSClient, name: str) -> None:
    live, dead = with_letters(sqs, name)
    sqs.delete_queue(QueueUrl=dead)
    sqs.tag_queue(QueueUrl=live, Tags={"a": "b"})
    assert sqs.list_queue_tags(QueueUrl=live)["Tags"] == {"a": "b"}
    sqs.set_queue_attributes(QueueUrl=live, Attributes={"VisibilityTimeout": "7"})
    sqs.add_permission(QueueUrl=live, Label="l", AWSAccountIds=[ACCOUNT], Actions=["SendMessage"])
    found = sqs.get_queue_attributes(QueueUrl=live, AttributeNames=["All"])["Attributes"]
    assert found["VisibilityTimeout"] == "7"


def test_a_task_fails_by_messages_that_come_from_nowhere(sqs: SQSClient, name: str) -> None:
    live, dead = with_letters(sqs, name)
    sqs.send_message(QueueUrl=live, MessageBody="letter")
    assert len(sqs.receive_message(QueueUrl=live)["Messages"]) == 1
    assert "Messages" not in sqs.receive_message(QueueUrl=live, WaitTimeSeconds=1)
    sqs.send_message(QueueUrl=dead, MessageBody="sent there")
    source = arn(sqs, dead)
    sqs.start_message_move_task(SourceArn=source)
    [back] = sqs.receive_message(QueueUrl=live, WaitTimeSeconds=10, VisibilityTimeout=600)[
        "Messages"
    ]
    assert back["Body"] == "letter"
    ended = ended_task(sqs, source)
    assert (ended["Status"], ended["FailureReason"]) == ("FAILED", "CouldNotDetermineMessageSource")
    assert ended["ApproximateNumberOfMessagesMoved"] == 1
    # Where it is said where they go, all of them do.
    sqs.start_message_move_task(SourceArn=source, DestinationArn=arn(sqs, live))
    [other] = sqs.receive_message(QueueUrl=live, WaitTimeSeconds=10)["Messages"]
    assert other["Body"] == "sent there"
    assert ended_task(sqs, source)["Status"] == "COMPLETED"


def test_messages_are_moved_to_a_queue_of_the_same_kind(sqs: SQSClient, name: str) -> None:
    _, dead = with_letters(sqs, name)
    made = sqs.create_queue(QueueName=f"{name}.fifo", Attributes={"FifoQueue": "true"})
    with pytest.raises(ClientError, match="both standard queues") as error:
        sqs.start_message_move_task(
            SourceArn=arn(sqs, dead), DestinationArn=arn(sqs, made["QueueUrl"])
        )
    assert code_of(error) == ("InvalidParameterValue", 400)


def ended_task(sqs: SQSClient, source: str) -> MoveTask:
    """The newest task of a queue, when it has ended."""
    while True:
        [newest] = sqs.list_message_move_tasks(SourceArn=source)["Results"]
        if newest["Status"] != "RUNNING":
            return newest


def test_what_cannot_be_moved_is_told(sqs: SQSClient, url: str) -> None:
    with pytest.raises(ClientError) as error:
        sqs.start_message_move_task(SourceArn=arn(sqs, url))
    assert code_of(error) == ("InvalidParameterValue", 400)
    with pytest.raises(ClientError) as error:
        sqs.start_message_move_task(SourceArn=arn(sqs, url) + "-none")
    assert code_of(error) == ("ResourceNotFoundException", 404)
    with pytest.raises(ClientError) as error:
        sqs.cancel_message_move_task(TaskHandle="x")
    assert code_of(error) == ("InvalidParameterValue", 400)
