"""AWS-1: in a FIFO queue a message that is not visible blocks what comes after it in its group.

A receive walks a group from its oldest undeleted message on and stops at the first that is not
visible. The cases are those that were recorded from AWS.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import millrace.sync
from tests.server.aws.site import AwsSite
from tests.support.timeouts import scaled

if TYPE_CHECKING:
    from types_boto3_sqs import SQSClient

VISIBILITY = int(scaled(3))
"""Seconds within which a message is extended before it times out."""


def send(sqs: SQSClient, url: str, *bodies: str) -> None:
    """Send messages; the group is what precedes the hyphen."""
    for body in bodies:
        sqs.send_message(
            QueueUrl=url,
            MessageBody=body,
            MessageGroupId=body.partition("-")[0],
            MessageDeduplicationId=body,
        )


def receive(sqs: SQSClient, url: str, count: int = 10, visibility: int = 30) -> dict[str, str]:
    """Receive once; returns bodies with their receipt handles, in the order of the answer."""
    found = sqs.receive_message(
        QueueUrl=url, MaxNumberOfMessages=count, VisibilityTimeout=visibility
    )
    return {one["Body"]: one["ReceiptHandle"] for one in found.get("Messages", [])}


def hide(sqs: SQSClient, url: str, receipt: str, seconds: int) -> None:
    sqs.change_message_visibility(QueueUrl=url, ReceiptHandle=receipt, VisibilityTimeout=seconds)


def wait_for(sqs: SQSClient, url: str, count: int = 10) -> list[str]:
    """Receive until something is there."""
    until = time.monotonic() + scaled(20)
    while time.monotonic() < until:
        found = sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=count, WaitTimeSeconds=1)
        if found.get("Messages"):
            return [one["Body"] for one in found["Messages"]]
    pytest.fail("nothing became visible")


def test_aws_01a_a_first_message_that_is_released_is_received_alone(
    sqs: SQSClient, fifo: str
) -> None:
    send(sqs, fifo, "g-1", "g-2")
    got = receive(sqs, fifo)
    assert list(got) == ["g-1", "g-2"]
    hide(sqs, fifo, got["g-1"], 0)
    assert list(receive(sqs, fifo)) == ["g-1"]
    assert list(receive(sqs, fifo)) == []


def test_aws_01a_a_first_message_that_times_out_early_is_received_alone(
    sqs: SQSClient, fifo: str
) -> None:
    send(sqs, fifo, "g-1", "g-2")
    got = receive(sqs, fifo)
    hide(sqs, fifo, got["g-1"], 1)
    assert wait_for(sqs, fifo) == ["g-1"]


@pytest.mark.parametrize(
    ("extended", "visible"),
    [("g-1", []), ("g-2", ["g-1"]), ("g-3", ["g-1", "g-2"])],
)
def test_aws_01a_an_extended_message_blocks_what_comes_after_it(
    sqs: SQSClient, fifo: str, extended: str, visible: list[str]
) -> None:
    send(sqs, fifo, "g-1", "g-2", "g-3", "other-1")
    got = receive(sqs, fifo)
    assert set(got) == {"g-1", "g-2", "g-3", "other-1"}
    hide(sqs, fifo, got[extended], 600)
    for body, receipt in got.items():
        if body != extended:
            hide(sqs, fifo, receipt, 0)
    assert list(receive(sqs, fifo)) in ([*visible, "other-1"], ["other-1", *visible])


def test_aws_01a_messages_before_an_extended_one_are_received_when_they_time_out(
    sqs: SQSClient, fifo: str
) -> None:
    send(sqs, fifo, "g-1", "g-2", "g-3")
    got = receive(sqs, fifo, visibility=VISIBILITY)
    hide(sqs, fifo, got["g-3"], 600)
    assert wait_for(sqs, fifo) == ["g-1", "g-2"]
    assert receive(sqs, fifo) == {}


def test_aws_01a_a_later_message_that_is_released_waits_for_the_first(
    sqs: SQSClient, fifo: str
) -> None:
    send(sqs, fifo, "g-1", "g-2", "g-3")
    got = receive(sqs, fifo, 2)
    hide(sqs, fifo, got["g-2"], 0)
    assert receive(sqs, fifo) == {}
    sqs.delete_message(QueueUrl=fifo, ReceiptHandle=got["g-1"])
    assert list(receive(sqs, fifo)) == ["g-2", "g-3"]


def test_aws_01b_a_receive_goes_on_behind_what_was_given_back(sqs: SQSClient, fifo: str) -> None:
    send(sqs, fifo, "g-1", "g-2", "g-3", "g-4")
    for receipt in receive(sqs, fifo, 2).values():
        hide(sqs, fifo, receipt, 0)
    assert list(receive(sqs, fifo)) == ["g-1", "g-2", "g-3", "g-4"]


def test_aws_01b_a_receive_goes_on_behind_what_timed_out(sqs: SQSClient, fifo: str) -> None:
    send(sqs, fifo, "g-1", "g-2", "g-3", "g-4")
    assert list(receive(sqs, fifo, 2, visibility=1)) == ["g-1", "g-2"]
    assert wait_for(sqs, fifo) == ["g-1", "g-2", "g-3", "g-4"]


def test_aws_01c_an_answer_goes_by_groups(sqs: SQSClient, fifo: str) -> None:
    send(sqs, fifo, "a-1", "b-1", "a-2", "a-3")
    assert list(receive(sqs, fifo)) == ["a-1", "a-2", "a-3", "b-1"]


def test_aws_01c_groups_never_received_come_before_those_that_came_back(
    sqs: SQSClient, fifo: str
) -> None:
    send(sqs, fifo, "g1-1", "g2-1", "g2-2", "g3-1", "g1-2")
    assert list(receive(sqs, fifo, 3, visibility=0)) == ["g1-1", "g1-2", "g2-1"]
    assert list(receive(sqs, fifo, 10, visibility=0)) == ["g3-1", "g1-1", "g1-2", "g2-1", "g2-2"]


def test_aws_01_what_was_right_stays(sqs: SQSClient, fifo: str) -> None:
    """One in flight blocks what follows; when all in flight are deleted the rest is received."""
    send(sqs, fifo, "g-1", "g-2", "g-3")
    got = receive(sqs, fifo, 2)
    sqs.delete_message(QueueUrl=fifo, ReceiptHandle=got["g-1"])
    assert receive(sqs, fifo) == {}
    sqs.delete_message(QueueUrl=fifo, ReceiptHandle=got["g-2"])
    assert list(receive(sqs, fifo)) == ["g-3"]


@pytest.mark.process
def test_aws_01_a_start_changes_fifo_queues_of_earlier_versions(tmp_path: Path) -> None:
    """Those that SQS made, and no others; a second start has nothing to change."""

    def rules(m: millrace.sync.Millrace) -> dict[str, str]:
        names = ("old.fifo", "native.fifo")
        return {name: m.find(name, space=_space(m)).spec().group_blocking for name in names}

    def age(m: millrace.sync.Millrace) -> None:
        m.find("old.fifo", space=_space(m)).configure(group_blocking="lease")
        m.queue("native.fifo", space=_space(m), order="group")
        assert rules(m) == {"old.fifo": "lease", "native.fifo": "lease"}

    def check(m: millrace.sync.Millrace) -> None:
        assert rules(m) == {"old.fifo": "message", "native.fifo": "lease"}

    with AwsSite(tmp_path / "data") as site:
        sqs = site.aws().sqs
        made = sqs.create_queue(QueueName="old.fifo", Attributes={"FifoQueue": "true"})
        send(sqs, made["QueueUrl"], "g-1", "g-2")
        site.edit(age)
        site.edit(check)
        sqs = site.aws().sqs
        url = sqs.get_queue_url(QueueName="old.fifo")["QueueUrl"]
        got = receive(sqs, url)
        hide(sqs, url, got["g-1"], 0)
        assert list(receive(sqs, url)) == ["g-1"]


def _space(m: millrace.sync.Millrace) -> str:
    """Return the space of the queues that SQS made."""
    return next(space for space in m.spaces() if space != "system")
