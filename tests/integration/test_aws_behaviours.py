"""What was recorded from AWS holds for clients of both protocols."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.integration.environments import have_python
from tests.server.aws.site import AwsSite
from tests.support.timeouts import scaled

PROGRAM = Path(__file__).with_name("behaviours.py")
OLD = "AWS.SimpleQueueService."

Ended = tuple[str, dict[str, Any]]

CLIENTS: dict[str, tuple[str, str, str, Callable[[], str | Path]]] = {
    "boto3": ("boto3", "json", "ap-south-1", lambda: sys.executable),
    "boto3-query": ("boto3", "query", "ap-south-2", lambda: have_python("boto3-query")),
    "aiobotocore": ("aiobotocore", "json", "ap-east-1", lambda: have_python("newer")),
}


@pytest.fixture(scope="module", params=CLIENTS)
def ended(site: AwsSite, request: pytest.FixtureRequest) -> Ended:
    """The protocol of a client, and what came of each behaviour."""
    kind, protocol, region, find = CLIENTS[request.param]
    run = subprocess.run(
        [find(), "-I", PROGRAM, kind, site.url, region, site.root.id, site.root.secret],
        capture_output=True,
        text=True,
        check=False,
        timeout=scaled(120),
        env={"PATH": os.environ["PATH"], "HOME": str(site.folder), "PYTHONIOENCODING": "utf-8"},
    )
    assert run.returncode == 0, run.stderr
    found: dict[str, Any] = json.loads(run.stdout)
    assert found["protocol"] == protocol
    return protocol, found["told"]


def test_aws_2_earlier_receipts_act_on_the_message(ended: Ended) -> None:
    assert ended[1]["AWS-2"] == [["a"], ["InvalidParameterValue", 400], []]


def test_aws_3_a_bad_entry_refuses_a_batch_to_a_fifo_queue(ended: Ended) -> None:
    texts = (
        "The request must contain the parameter MessageGroupId.",
        "The queue should either have ContentBasedDeduplication enabled or "
        "MessageDeduplicationId provided explicitly",
    )
    assert ended[1]["AWS-3"] == [*(["InvalidParameterValue", 400, text] for text in texts), []]


def test_aws_5_and_17_queues_by_name_and_queues_that_are_not_there(ended: Ended) -> None:
    protocol, told = ended
    text = "The specified queue does not exist"
    text += " for this wsdl version." if protocol == "query" else "."
    refusal = [f"{OLD}NonExistentQueue", 400, text]
    assert told["AWS-5"] == [["x"], refusal, refusal]


def test_aws_6_a_purge_forgets_deduplication_ids(ended: Ended) -> None:
    assert ended[1]["AWS-6"] == ["second"]


def test_aws_7_the_trace_header_is_kept(ended: Ended) -> None:
    trace = {"AWSTraceHeader": "Root=1-5759e988-bd862e3fe1be46a994272793"}
    assert ended[1]["AWS-7"] == [trace, trace]


def test_aws_9_21_22_attributes_of_messages(ended: Ended) -> None:
    assert ended[1]["AWS-9"] == [True, ["InvalidParameterValue", 400]]


def test_aws_19_20_21_24_26_attributes_of_queues(ended: Ended) -> None:
    fifo = "You can specify the DeduplicationScope only when FifoQueue is set to true."
    assert ended[1]["AWS-20"] == [
        1,
        ["2008-10-17", "arn:aws:iam::111122223333:root", "SQS:*"],
        ["InvalidAttributeName", 400, "Unknown Attribute FifoQueue."],
        ["InvalidAttributeName", 400, fifo],
    ]


def test_aws_21_the_first_id_that_is_repeated_is_named(ended: Ended) -> None:
    assert ended[1]["AWS-21"] == [f"{OLD}BatchEntryIdsNotDistinct", 400, "Id id_2 repeated."]
