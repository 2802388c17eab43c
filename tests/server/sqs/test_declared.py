"""Queues of SQS that the settings declare: they are there when the server answers."""

from __future__ import annotations

from pathlib import Path

import pytest

from millrace.errors import Invalid
from millrace.server.config import load
from tests.server.aws.site import AwsSite

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
