"""Purging and deleting queues, and what AWS refuses for a minute after that."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
from botocore.exceptions import ClientError

from tests.server.aws.site import AwsSite
from tests.server.sqs.codes import code_of

if TYPE_CHECKING:
    from types_boto3_sqs import SQSClient


@pytest.fixture(scope="module")
def cooled(starts_processes: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SQSClient]:
    """A client of a server that waits as AWS does."""
    folder = tmp_path_factory.mktemp("cooled")
    with AwsSite(folder, "--set", "sqs_cooldown_seconds=60") as site:
        yield site.aws().sqs


@pytest.fixture(scope="module")
def brief(starts_processes: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SQSClient]:
    """A client of a server that waits for a second."""
    folder = tmp_path_factory.mktemp("brief")
    with AwsSite(folder, "--set", "sqs_cooldown_seconds=1") as site:
        yield site.aws().sqs


def send(sqs: SQSClient, url: str, body: str, one: str = "d") -> Any:
    return sqs.send_message(
        QueueUrl=url, MessageBody=body, MessageGroupId="g", MessageDeduplicationId=one
    )


def test_aws_6_a_purge_forgets_deduplication_ids(sqs: SQSClient, fifo: str) -> None:
    send(sqs, fifo, "first")
    sqs.purge_queue(QueueUrl=fifo)
    send(sqs, fifo, "second")
    send(sqs, fifo, "third")
    got = sqs.receive_message(QueueUrl=fifo, MaxNumberOfMessages=10)["Messages"]
    assert [one["Body"] for one in got] == ["second"]


def test_aws_6_a_purge_forgets_ids_of_every_group_and_of_bodies(sqs: SQSClient, name: str) -> None:
    url = sqs.create_queue(
        QueueName=f"{name}.fifo",
        Attributes={
            "FifoQueue": "true",
            "ContentBasedDeduplication": "true",
            "DeduplicationScope": "messageGroup",
        },
    )["QueueUrl"]
    entries: Any = [{"Id": one, "MessageBody": "x", "MessageGroupId": one} for one in "ab"]
    for _ in range(2):
        sqs.send_message_batch(QueueUrl=url, Entries=entries)
        sqs.send_message_batch(QueueUrl=url, Entries=entries)
        got = sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10)["Messages"]
        assert [one["Body"] for one in got] == ["x", "x"]
        sqs.purge_queue(QueueUrl=url)


def test_a_queue_is_purged_and_made_again_at_once(sqs: SQSClient, url: str, name: str) -> None:
    sqs.purge_queue(QueueUrl=url)
    sqs.purge_queue(QueueUrl=url)
    sqs.delete_queue(QueueUrl=url)
    assert sqs.create_queue(QueueName=name)["QueueUrl"] == url


def test_a_queue_is_not_purged_again_within_a_minute_where_that_is_set(
    cooled: SQSClient, name: str
) -> None:
    url = cooled.create_queue(QueueName=name)["QueueUrl"]
    other = cooled.create_queue(QueueName=f"{name}-other")["QueueUrl"]
    cooled.send_message(QueueUrl=url, MessageBody="x")
    cooled.purge_queue(QueueUrl=url)
    assert "Messages" not in cooled.receive_message(QueueUrl=url)
    cooled.send_message(QueueUrl=url, MessageBody="y")
    with pytest.raises(ClientError) as error:
        cooled.purge_queue(QueueUrl=url)
    assert code_of(error) == ("AWS.SimpleQueueService.PurgeQueueInProgress", 403)
    text = f"Only one PurgeQueue operation on {name} is allowed every 60 seconds."
    assert error.value.response["Error"]["Message"] == text
    with pytest.raises(cooled.exceptions.PurgeQueueInProgress):
        cooled.purge_queue(QueueUrl=url)
    assert cooled.receive_message(QueueUrl=url)["Messages"]
    cooled.purge_queue(QueueUrl=other)


def test_a_queue_is_not_made_again_within_a_minute_where_that_is_set(
    cooled: SQSClient, name: str
) -> None:
    url = cooled.create_queue(QueueName=name)["QueueUrl"]
    assert cooled.create_queue(QueueName=name)["QueueUrl"] == url
    cooled.delete_queue(QueueUrl=url)
    with pytest.raises(cooled.exceptions.QueueDeletedRecently) as error:
        cooled.create_queue(QueueName=name)
    assert code_of(error) == ("AWS.SimpleQueueService.QueueDeletedRecently", 400)
    cooled.create_queue(QueueName=f"{name}-other")


def test_a_queue_is_purged_and_made_again_when_the_time_is_over(
    brief: SQSClient, name: str
) -> None:
    url = brief.create_queue(QueueName=name)["QueueUrl"]
    brief.purge_queue(QueueUrl=url)
    for ask in (
        lambda: brief.purge_queue(QueueUrl=url),
        lambda: brief.delete_queue(QueueUrl=url),
        lambda: brief.create_queue(QueueName=name),
    ):
        until_done(brief, url, ask)
    assert brief.get_queue_url(QueueName=name)["QueueUrl"] == url


def until_done(sqs: SQSClient, url: str, ask: Any) -> None:
    """Ask again and again until a second is over."""
    while True:
        try:
            ask()
        except (sqs.exceptions.PurgeQueueInProgress, sqs.exceptions.QueueDeletedRecently):
            # A receive of a queue that is there or not: the server is asked, and time passes.
            sqs.list_queues()
            continue
        return
