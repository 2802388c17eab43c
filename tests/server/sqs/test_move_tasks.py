"""Tasks that move messages, and the end of the server that runs them."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from botocore.exceptions import ClientError

from tests.server.aws.site import AwsSite, make_key, run
from tests.support.timeouts import scaled

if TYPE_CHECKING:
    from types_boto3_sqs import SQSClient
    from types_boto3_sqs.type_defs import ListMessageMoveTasksResultEntryTypeDef as Listed

pytestmark = pytest.mark.process

LETTERS = [str(number) for number in range(12)]


def until(holds: Callable[[], bool]) -> None:
    """Ask until it is so."""
    end = time.monotonic() + scaled(60)
    while not holds():
        assert time.monotonic() < end


def tasks(sqs: SQSClient, source: str) -> list[Listed]:
    return sqs.list_message_move_tasks(SourceArn=source, MaxResults=10)["Results"]


def bodies(site: AwsSite, queue: str) -> list[str]:
    """All messages of a queue, held ones too."""
    found = site.process.ask("GET", f"/v1/spaces/default/queues/{queue}/messages?count=100")
    return sorted((str(one["body"]) for one in found.items("messages")), key=int)


def count(sqs: SQSClient, url: str, name: Any) -> int:
    return int(sqs.get_queue_attributes(QueueUrl=url, AttributeNames=[name])["Attributes"][name])


def test_a_task_whose_server_was_killed_has_failed_and_another_moves_the_rest(
    tmp_path: Path,
) -> None:
    with AwsSite(tmp_path) as site:
        sqs = site.aws().sqs
        dead = sqs.create_queue(QueueName="dead")["QueueUrl"]
        source = sqs.get_queue_attributes(QueueUrl=dead, AttributeNames=["QueueArn"])["Attributes"][
            "QueueArn"
        ]
        policy = json.dumps({"deadLetterTargetArn": source, "maxReceiveCount": 1})
        sqs.create_queue(QueueName="live", Attributes={"RedrivePolicy": policy})
        for letter in LETTERS:
            sqs.send_message(QueueUrl=dead, MessageBody=letter)
        to = source.removesuffix("dead") + "live"
        sqs.start_message_move_task(
            SourceArn=source, DestinationArn=to, MaxNumberOfMessagesPerSecond=1
        )
        until(lambda: len(bodies(site, "live")) >= 3)
        site.restart()

        sqs = site.aws().sqs
        moved = bodies(site, "live")
        assert 3 <= len(moved) < len(LETTERS)
        assert sorted(moved + bodies(site, "dead"), key=int) == LETTERS, "none is lost or doubled"
        [lost] = tasks(sqs, source)
        if lost["Status"] == "RUNNING":
            with pytest.raises(ClientError, match="There is already a task running"):
                sqs.start_message_move_task(SourceArn=source, DestinationArn=to)
        until(lambda: tasks(sqs, source)[0]["Status"] == "FAILED")
        [lost] = tasks(sqs, source)
        assert "the server ended" in lost["FailureReason"].lower()
        assert lost["ApproximateNumberOfMessagesMoved"] <= len(moved)
        assert bodies(site, "live") == moved, "it did not go on"

        # One that the server had in its hands when it was killed is held for a minute more.
        held = count(sqs, dead, "ApproximateNumberOfMessagesNotVisible")
        assert held <= 1
        sqs.start_message_move_task(SourceArn=source, DestinationArn=to)
        until(lambda: tasks(sqs, source)[0]["Status"] != "RUNNING")
        assert [one["Status"] for one in tasks(sqs, source)] == ["COMPLETED", "FAILED"]
        assert len(bodies(site, "dead")) == held
        assert sorted(bodies(site, "live") + bodies(site, "dead"), key=int) == LETTERS


def test_sec_19_a_task_ends_with_its_user(tmp_path: Path) -> None:
    with AwsSite(tmp_path) as site:
        key = make_key(site.folder, "clerk", "allow publish,work,read,watch,manage default/*")
        sqs = site.aws(key).sqs
        dead = sqs.create_queue(QueueName="dead")["QueueUrl"]
        named = sqs.get_queue_attributes(QueueUrl=dead, AttributeNames=["QueueArn"])
        source = named["Attributes"]["QueueArn"]
        policy = json.dumps({"deadLetterTargetArn": source, "maxReceiveCount": 1})
        sqs.create_queue(QueueName="live", Attributes={"RedrivePolicy": policy})
        for letter in LETTERS:
            sqs.send_message(QueueUrl=dead, MessageBody=letter)
        to = source.removesuffix("dead") + "live"
        sqs.start_message_move_task(
            SourceArn=source, DestinationArn=to, MaxNumberOfMessagesPerSecond=1
        )
        until(lambda: len(bodies(site, "live")) > 0)
        run("user", "remove", "clerk", "--yes", "--data", site.folder)
        moved = len(bodies(site, "live"))
        root = site.aws().sqs
        until(lambda: tasks(root, source)[0]["Status"] == "FAILED")
        assert "may not" in tasks(root, source)[0]["FailureReason"]
        # One may have been on its way while the user was removed.
        assert len(bodies(site, "live")) <= moved + 1
        assert len(bodies(site, "live")) + len(bodies(site, "dead")) == len(LETTERS)
