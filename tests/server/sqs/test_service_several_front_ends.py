"""Where several front ends serve, what one of them has done holds for all."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
from botocore.exceptions import ClientError

import millrace.sync
from millrace import limits
from millrace.server.sqs.move_tasks import ENDED, RUNNING, MoveTask
from tests.server.aws.site import AwsSite
from tests.support.timeouts import scaled

if TYPE_CHECKING:
    from types_boto3_sqs import SQSClient

CLIENTS = 8
"""Each has a connection of its own: one front end alone is met by all of them once in 128 times."""


@pytest.fixture(scope="module")
def several(starts_processes: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[AwsSite]:
    with AwsSite(tmp_path_factory.mktemp("several"), "--frontends", "2") as found:
        yield found


@pytest.fixture(scope="module")
def clients(several: AwsSite) -> list[SQSClient]:
    return [several.aws().sqs for _ in range(CLIENTS)]


def at_once(clients: list[SQSClient], ask: Callable[[int, SQSClient], object]) -> list[str]:
    """What became of each call: nothing, or the code of its error."""

    def one(at: int) -> str:
        try:
            ask(at, clients[at])
        except ClientError as error:
            return error.response["Error"]["Code"]
        return ""

    with ThreadPoolExecutor(len(clients)) as pool:
        return list(pool.map(one, range(len(clients))))


def test_no_queue_has_too_many_tags_whoever_gives_them(clients: list[SQSClient], name: str) -> None:
    url = clients[0].create_queue(QueueName=name)["QueueUrl"]

    def tag(at: int, sqs: SQSClient) -> None:
        sqs.tag_queue(QueueUrl=url, Tags={f"{at}-{number}": "x" for number in range(10)})

    codes = at_once(clients, tag)
    assert sorted(codes) == [""] * 5 + ["OverLimit"] * 3
    assert len(clients[0].list_queue_tags(QueueUrl=url)["Tags"]) == limits.SQS_TAGS_MAX


def with_letters(sqs: SQSClient, name: str, count: int) -> str:
    """The ARN of a queue that has dead letters."""
    dead = sqs.create_queue(QueueName=f"{name}-dead")["QueueUrl"]
    arn = sqs.get_queue_attributes(QueueUrl=dead, AttributeNames=["QueueArn"])["Attributes"]
    policy = json.dumps({"deadLetterTargetArn": arn["QueueArn"], "maxReceiveCount": 1})
    sqs.create_queue(QueueName=name, Attributes={"RedrivePolicy": policy})
    for at in range(count):
        sqs.send_message(QueueUrl=dead, MessageBody=str(at))
    return arn["QueueArn"]


def statuses(sqs: SQSClient, source: str) -> list[str]:
    found = sqs.list_message_move_tasks(SourceArn=source, MaxResults=10)
    return [one["Status"] for one in found["Results"]]


def until(sqs: SQSClient, source: str, wanted: list[str]) -> None:
    """Ask until the tasks of a queue are so."""
    end = time.monotonic() + scaled(30)
    while (found := statuses(sqs, source)) != wanted:
        assert time.monotonic() < end, found


def test_a_task_is_seen_and_called_off_by_every_front_end(
    clients: list[SQSClient], name: str
) -> None:
    sqs = clients[0]
    source = with_letters(sqs, name, 50)
    target = sqs.create_queue(QueueName=f"{name}-target")["QueueUrl"]
    to = source.removesuffix("-dead") + "-target"

    def start(_: int, sqs: SQSClient) -> None:
        sqs.start_message_move_task(
            SourceArn=source, DestinationArn=to, MaxNumberOfMessagesPerSecond=1
        )

    codes = at_once(clients, start)
    assert sorted(codes) == [""] + ["InvalidParameterValue"] * (CLIENTS - 1), "one runs at a time"
    handles: set[str] = set()
    for one in clients:
        [listed] = one.list_message_move_tasks(SourceArn=source)["Results"]
        assert listed["Status"] == "RUNNING"
        assert listed["DestinationArn"] == to
        handles.add(listed["TaskHandle"])
    [handle] = handles
    # It was begun by whoever serves that client, and perhaps not by whoever serves this one.
    clients[codes.index("") - 1].cancel_message_move_task(TaskHandle=handle)
    for one in clients:
        until(one, source, ["CANCELLED"])
    with pytest.raises(ClientError, match="Only active tasks"):
        sqs.cancel_message_move_task(TaskHandle=handle)
    sqs.start_message_move_task(SourceArn=source, DestinationArn=to)
    for one in clients:
        until(one, source, ["COMPLETED", "CANCELLED"])
    [moved] = sqs.list_message_move_tasks(SourceArn=source)["Results"]
    assert "TaskHandle" not in moved
    counts = sqs.get_queue_attributes(QueueUrl=target, AttributeNames=["All"])["Attributes"]
    assert counts["ApproximateNumberOfMessages"] == "50"


def test_a_task_whose_process_ended_has_failed_and_keeps_no_other_waiting(
    several: AwsSite, clients: list[SQSClient], name: str
) -> None:
    sqs = clients[0]
    source = with_letters(sqs, name, 0)
    lost = MoveTask(source, 1_000, 2_000, moved=7, total=9).text
    several.edit(lambda m: m.find(f"{name}-dead").configure(notes={f"{RUNNING}lost": lost}))
    [listed] = sqs.list_message_move_tasks(SourceArn=source)["Results"]
    assert listed["Status"] == "FAILED"
    assert listed["ApproximateNumberOfMessagesMoved"] == 7
    assert "the server ended" in listed["FailureReason"].lower()
    for _ in range(11):
        sqs.start_message_move_task(SourceArn=source)
        end = time.monotonic() + scaled(30)
        while statuses(sqs, source)[0] != "COMPLETED":
            assert time.monotonic() < end
    assert statuses(clients[1], source) == ["COMPLETED"] * 10
    with millrace.sync.open(several.folder) as m:
        notes = dict(m.find(f"{name}-dead").spec().notes)
    assert sum(note.startswith(ENDED) for note in notes) == 10
    assert not any(note.startswith(RUNNING) for note in notes)
