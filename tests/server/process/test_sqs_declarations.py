"""Queues of SQS that the settings declare: they are there when the server answers."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import millrace.sync
from millrace.errors import Invalid
from millrace.server.process.server_settings import load
from millrace.server.sqs import attributes
from tests.cli.program import start
from tests.server.aws.site import AwsSite
from tests.server.rest.harness import SMALL

if TYPE_CHECKING:
    from types_boto3_sqs import SQSClient

GUIDE = Path(__file__).parents[3] / "docs" / "guide" / "sqs.md"

DECLARED = """
[queues."orders.fifo"]
sqs = { VisibilityTimeout = 60, ContentBasedDeduplication = true }

[queues.dead]
sqs = {}

[queues.invoices]
sqs = { DelaySeconds = 2 }
dead_letter = "dead"
max_deliveries = 5
"""


@pytest.mark.process
def test_declared_queues_are_as_sqs_would_make_them(tmp_path: Path) -> None:
    file = tmp_path / "millrace.toml"
    file.write_text(DECLARED, encoding="utf-8")
    with AwsSite(tmp_path / "data", "--config", file) as site:
        sqs = site.aws().sqs
        url = sqs.get_queue_url(QueueName="orders.fifo")["QueueUrl"]
        found = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
        assert found["FifoQueue"] == found["ContentBasedDeduplication"] == "true"
        assert (found["VisibilityTimeout"], found["MessageRetentionPeriod"]) == ("60", "345600")
        sqs.send_message(QueueUrl=url, MessageBody="x", MessageGroupId="g")
        invoices = sqs.create_queue(QueueName="invoices")["QueueUrl"]
        found = sqs.get_queue_attributes(QueueUrl=invoices, AttributeNames=["All"])["Attributes"]
        assert found["DelaySeconds"] == "2"
        assert '"maxReceiveCount":5' in found["RedrivePolicy"]


@pytest.mark.parametrize(
    ("name", "given"),
    [("a", "{ VisibilityTimeout = 50_000 }"), ("a", "{ Colour = 1 }"), ("a", "3"), ("ä", "{}")],
)
def test_what_sqs_would_refuse_is_refused_with_its_place(
    tmp_path: Path, name: str, given: str
) -> None:
    file = tmp_path / "millrace.toml"
    file.write_text(f'[queues."{name}"]\nsqs = {given}\n', encoding="utf-8")
    with pytest.raises(Invalid, match=r"millrace\.toml"):
        load(file)


def attributes_of(sqs: SQSClient, name: str) -> dict[str, str]:
    """What a queue is like."""
    url = sqs.get_queue_url(QueueName=name)["QueueUrl"]
    found = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
    return {str(attribute): text for attribute, text in found.items()}


def sent(sqs: SQSClient, name: str) -> str:
    """The id of a message that is sent."""
    url = sqs.get_queue_url(QueueName=name)["QueueUrl"]
    return sqs.send_message(QueueUrl=url, MessageBody="x")["MessageId"]


def salt_of(folder: Path, name: str) -> str:
    """What the ids of messages are made of."""
    with millrace.sync.open(folder) as m:
        return dict(m.find(name).spec().notes)["aws.salt"]


@pytest.mark.process
def test_message_ids_of_declared_queues_are_those_of_one_folder(tmp_path: Path) -> None:
    """Whoever knows messages again by their ids would take those of another server for repeats."""
    file = tmp_path / "millrace.toml"
    file.write_text("[queues.orders]\nsqs = {}\n", encoding="utf-8")
    ids = set()
    for name in ("one", "other"):
        with AwsSite(tmp_path / name, "--config", file) as site:
            ids.add(sent(site.aws().sqs, "orders"))
    assert len(ids) == 2


@pytest.mark.process
def test_a_start_with_the_same_file_changes_nothing_of_a_declared_queue(tmp_path: Path) -> None:
    file, folder = tmp_path / "millrace.toml", tmp_path / "data"
    file.write_text(DECLARED, encoding="utf-8")
    names = ("orders.fifo", "dead", "invoices")
    with AwsSite(folder, "--config", file) as site:
        before = {name: attributes_of(site.aws().sqs, name) for name in names}
        salts = {name: salt_of(folder, name) for name in names}

        def age(m: millrace.sync.Millrace) -> None:
            """As if they had been made long ago."""
            for name in names:
                m.find(name).configure(notes={"aws.created": "7", "aws.modified": "8"})

        site.edit(age)
        assert site.process.reload()["now"] == []
        for name in names:
            found = attributes_of(site.aws().sqs, name)
            assert (found.pop("CreatedTimestamp"), found.pop("LastModifiedTimestamp")) == ("7", "8")
            assert int(before[name].pop("CreatedTimestamp")) > 1_000_000_000
            assert int(before[name].pop("LastModifiedTimestamp")) > 1_000_000_000
            assert found == before[name]
        assert salts == {name: salt_of(folder, name) for name in names}
        assert len(set(salts.values())) == len(names)
        file.write_text(DECLARED.replace("= 5", "= 6"), encoding="utf-8")
        assert site.process.reload()["now"] == ["queues"]
        found = attributes_of(site.aws().sqs, "invoices")
        assert found["CreatedTimestamp"] == "7"
        assert int(found["LastModifiedTimestamp"]) > 1_000_000_000
        assert attributes_of(site.aws().sqs, "dead")["LastModifiedTimestamp"] == "8"


@pytest.mark.process
def test_a_queue_that_is_there_without_a_salt_gets_one(tmp_path: Path) -> None:
    file, folder = tmp_path / "millrace.toml", tmp_path / "data"
    file.write_text('[queues.orders]\nsqs = {}\nnotes = { team = "till" }\n', encoding="utf-8")
    with millrace.sync.open(folder, settings=SMALL) as m:
        m.queue("orders")
    with AwsSite(folder, "--config", file) as site:
        assert salt_of(folder, "orders")
        assert int(attributes_of(site.aws().sqs, "orders")["CreatedTimestamp"]) > 0
        with millrace.sync.open(folder) as m:
            assert dict(m.find("orders").spec().notes)["team"] == "till"


@pytest.mark.process
def test_a_declared_queue_that_became_fair_stays_so_at_the_next_start(tmp_path: Path) -> None:
    file, folder = tmp_path / "millrace.toml", tmp_path / "data"
    file.write_text("[queues.orders]\nsqs = {}\n", encoding="utf-8")
    with AwsSite(folder, "--config", file) as site:
        sqs = site.aws().sqs
        url = sqs.get_queue_url(QueueName="orders")["QueueUrl"]
        sqs.send_message(QueueUrl=url, MessageBody="x", MessageGroupId="g")
        site.restart()
        assert site.process.reload()["now"] == []
        with millrace.sync.open(folder) as m:
            assert m.find("orders").spec().order == "fair"


@pytest.mark.parametrize(
    ("name", "beside", "said"),
    [
        ("a.fifo", 'order = "none"', "order is 'none' beside sqs, and a FIFO queue .* 'group'"),
        ("a.fifo", 'order = "fair"', "a FIFO queue of SQS has 'group'"),
        ("a", 'order = "group"', "a standard queue of SQS has 'none' or 'fair'"),
        ("a", "keyed = true", "keyed is True beside sqs"),
        ("a", 'retention = "log"', "retention is 'log' beside sqs"),
        ("a", 'delivery = "partitions"', "delivery is 'partitions' beside sqs"),
        ("a", "shards = 2", "shards is 2 beside sqs"),
        ("a", 'route = "key"', "a queue of SQS has one shard"),
        ("a.fifo", "dedup = 0", "for 300 seconds"),
        ("a.fifo", 'dead_letter = "b"', "dead letters of a FIFO queue go to a FIFO queue"),
        ("a", 'dead_letter = "b.fifo"', "dead letters of a standard queue"),
    ],
)
def test_what_no_queue_of_sqs_is_like_is_refused_beside_sqs(
    tmp_path: Path, name: str, beside: str, said: str
) -> None:
    file = tmp_path / "millrace.toml"
    file.write_text(f'[queues."{name}"]\nsqs = {{}}\n{beside}\n', encoding="utf-8")
    with pytest.raises(Invalid, match=rf"millrace\.toml, line 3: .*{said}"):
        load(file)


@pytest.mark.parametrize(
    "beside", ["keyed = false", "shards = 1", "dedup = 600", 'order = "none"', "rate = 5"]
)
def test_what_a_queue_of_sqs_may_be_like_stands_beside_sqs(tmp_path: Path, beside: str) -> None:
    file = tmp_path / "millrace.toml"
    file.write_text(f"[queues.a]\nsqs = {{ FifoQueue = false }}\n{beside}\n", encoding="utf-8")
    assert load(file).settings.queues[0].is_sqs


@pytest.mark.parametrize(
    ("name", "given", "said"),
    [
        ("a", "{ FifoQueue = true }", "the name of a FIFO queue must end with '.fifo': 'a'"),
        ("a.fifo", "{ FifoQueue = false }", "must not end with '.fifo'"),
        (
            "a",
            '{ RedrivePolicy = { deadLetterTargetArn = "b", maxReceiveCount = 3 } }',
            "name dead_letter and max_deliveries beside sqs, or write it as JSON",
        ),
        ("a", "{ Policy = {} }", "Policy is no text; write it as JSON"),
        ("a", "{ VisibilityTimeout = 99999 }", "is 99999, not a whole number from 0 to 43200"),
        ("a", "{ SqsManagedSseEnabled = 3 }", "SqsManagedSseEnabled is 3, not true or false"),
        ("a.fifo", '{ DeduplicationScope = "x" }', "is 'x', not messageGroup or queue"),
        ("a", "{ VisibilityTimout = 3 }", "did you mean 'VisibilityTimeout'?"),
    ],
)
def test_attributes_that_cannot_be_so_are_told_in_the_words_of_the_file(
    tmp_path: Path, name: str, given: str, said: str
) -> None:
    file = tmp_path / "millrace.toml"
    file.write_text(f'[queues."{name}"]\nsqs = {given}\n', encoding="utf-8")
    with pytest.raises(Invalid, match=rf"millrace\.toml, line 2: .*{re.escape(said)}"):
        load(file)


@pytest.mark.process
def test_the_hint_leads_to_where_all_attributes_are_listed(tmp_path: Path) -> None:
    file = tmp_path / "millrace.toml"
    file.write_text("[queues.a]\nsqs = { VisibilityTimeout = 99999 }\n", encoding="utf-8")
    refused = start("serve", "--config", file, "--data", tmp_path / "data")
    assert refused.returncode == 1
    assert "Hint: docs/guide/sqs.md lists the attributes of declared queues" in refused.stderr
    text = GUIDE.read_text(encoding="utf-8")
    section = text.split("## Declared queues")[1].split("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("| `")]
    listed = {name: line for line in lines for name in re.findall(r"`([A-Z]\w+)`", line)}
    assert set(listed) == set(attributes.SETTABLE)
    for name, line in listed.items():
        assert attributes.refused(name, "?") in line
