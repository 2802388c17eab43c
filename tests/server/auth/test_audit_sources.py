"""The audit, by every way in: what was denied, and what was done beside requests."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from botocore.exceptions import ClientError

import millrace
from millrace import sync
from millrace.client.millrace import engine_of
from millrace.core.commands import Purge
from millrace.core.model import ShardId
from millrace.errors import Denied, NotFound
from tests.server.aws.site import ACCOUNT, REGION, AwsSite, Key, make_key, run

QUEUES = "/v1/spaces/default/queues"
READS = ("allow read,watch default/*",)


@pytest.fixture(scope="module")
def site(starts_processes: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[AwsSite]:
    with AwsSite(tmp_path_factory.mktemp("audited") / "data") as site:
        for name in ("orders", "orders-dead"):
            assert site.process.ask("PUT", f"{QUEUES}/{name}", {}).status == 201
        assert site.process.ask("PUT", "/v1/spaces/default/topics/news", {}).status == 201
        yield site


def connected(site: AwsSite, token: str) -> sync.Millrace:
    return sync.connect(site.url, token=token)


def notes(site: AwsSite, who: str) -> list[tuple[str, str, str]]:
    """Act, target and outcome of all that is noted of a user."""
    with connected(site, site.process.token) as m:
        rows = m.find("audit", space="system").peek(10_000)
    found = [json.loads(row.body or b"") for row in rows]
    return [
        (note["act"], note.get("target", ""), note.get("outcome", "done"))
        for note in found
        if note["who"] == who
    ]


def noted(site: AwsSite, who: str, count: int) -> list[tuple[str, str, str]]:
    """The same, once there are so many: what was denied is noted beside the answer."""
    until = time.monotonic() + 20
    while len(found := notes(site, who)) < count and time.monotonic() < until:
        pass
    return found


def test_sec_15_acts_that_were_denied_by_calls_are_noted(site: AwsSite, tmp_path: Path) -> None:
    make_key(site.folder, "caller", *READS)
    token = str(run("token", "new", "caller", "--name", "t", "--data", site.folder)["token"])
    with connected(site, token) as m:
        orders = m.find("orders")
        denied: list[Callable[[], object]] = [
            orders.purge,
            lambda: orders.configure(delay=5),
            lambda: m.delete_queue("orders"),
            lambda: m.delete_topic("news"),
            lambda: m.backup(tmp_path / "vault"),
        ]
        for act in denied:
            with pytest.raises(Denied):
                act()
        assert noted(site, "caller", 5) == [
            ("purge", "default/orders", "denied"),
            ("configure_queue", "default/orders", "denied"),
            ("delete_queue", "default/orders", "denied"),
            ("delete_topic", "default/news", "denied"),
            ("backup", str(tmp_path / "vault"), "denied"),
        ]


def test_sec_15_acts_on_queues_that_are_not_seen_are_noted(site: AwsSite) -> None:
    make_key(site.folder, "blind", "allow read other/*")
    token = str(run("token", "new", "blind", "--name", "t", "--data", site.folder)["token"])

    async def main() -> None:
        async with millrace.connect(site.url, token=site.process.token) as m:
            orders = (await m.find("orders")).shards.first
        async with millrace.connect(site.url, token=token) as m:
            for shard in (orders, ShardId(10_000)):
                with pytest.raises(NotFound, match="was deleted, or never was"):
                    await engine_of(m).ask(shard, Purge(), object)

    asyncio.run(main())
    assert noted(site, "blind", 1) == [("purge", "default/orders", "denied")]


def test_sec_15_acts_that_were_denied_by_aws_are_noted(site: AwsSite) -> None:
    key: Key = make_key(site.folder, "clerk", *READS)
    aws = site.aws(key)
    sqs, sns = aws.sqs, aws.sns
    url = f"{site.url}/{ACCOUNT}/orders"
    arn = f"arn:aws:sns:{REGION}:{ACCOUNT}:news"
    denied: list[Callable[[], object]] = [
        lambda: sqs.create_queue(QueueName="mine"),
        lambda: sqs.set_queue_attributes(QueueUrl=url, Attributes={"DelaySeconds": "5"}),
        lambda: sqs.purge_queue(QueueUrl=url),
        lambda: sqs.delete_queue(QueueUrl=url),
        lambda: sns.create_topic(Name="mine"),
        lambda: sns.delete_topic(TopicArn=arn),
    ]
    for act in denied:
        with pytest.raises(ClientError) as caught:
            act()
        assert caught.value.response["ResponseMetadata"]["HTTPStatusCode"] == 403
    assert noted(site, "clerk", 6) == [
        ("create_queue", "default/mine", "denied"),
        ("set_queue_attributes", "default/orders", "denied"),
        ("purge_queue", "default/orders", "denied"),
        ("delete_queue", "default/orders", "denied"),
        ("CreateTopic", "default/mine", "denied"),
        ("DeleteTopic", "default/news", "denied"),
    ]


def test_sec_15_acts_that_were_denied_by_cassieq_and_rest_are_noted(site: AwsSite) -> None:
    make_key(site.folder, "page", "allow read acme/*")
    token = str(run("token", "new", "page", "--name", "t", "--data", site.folder)["token"])
    asked: tuple[tuple[str, str, object], ...] = (
        ("POST", "/api/v1/accounts/acme/queues", {"queueName": "jobs"}),
        ("POST", "/api/v1/accounts", {"accountName": "acme"}),
        ("PUT", "/v1/spaces/acme/queues/jobs", {}),
    )
    for method, path, body in asked:
        answer = site.process.ask(method, path, body, token=token)
        assert answer.status == 403, answer
    assert noted(site, "page", 3) == [
        ("create_queue", "acme/jobs", "denied"),
        ("create_account", "", "denied"),
        ("make_queue", "acme/jobs", "denied"),
    ]


def test_sec_15_what_is_moved_is_noted(site: AwsSite) -> None:
    site.process.ask("POST", f"{QUEUES}/orders-dead/messages", {"body": "x"})
    redrive = {"to": "orders", "wait": 50}
    done = site.process.ask("POST", f"{QUEUES}/orders-dead/redrives", redrive)
    assert done.json["moved"] == 1, done
    counted = {**redrive, "dry_run": True}
    assert site.process.ask("POST", f"{QUEUES}/orders-dead/redrives", counted).status == 202
    sqs = site.aws().sqs
    letters = sqs.create_queue(QueueName="letters")["QueueUrl"]
    arn = f"arn:aws:sqs:{REGION}:{ACCOUNT}:letters"
    policy = json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": 1})
    sqs.create_queue(QueueName="work", Attributes={"RedrivePolicy": policy})
    sqs.send_message(QueueUrl=letters, MessageBody="x")
    to = f"arn:aws:sqs:{REGION}:{ACCOUNT}:work"
    sqs.start_message_move_task(SourceArn=arn, DestinationArn=to)
    wanted = [("redrive", "default/orders-dead", outcome) for outcome in ("begun", "done")]
    found = [one for one in notes(site, "admin") if one[0] == "redrive"]
    assert found == wanted
    moved: list[tuple[str, str, str]] = []
    while len(moved) < 2:
        moved = [one for one in notes(site, "ada") if one[0] == "start_message_move_task"]
    assert [outcome for _, _, outcome in moved] == ["begun", "done"]
    with suppress(ClientError):
        sqs.delete_queue(QueueUrl=letters)
