"""boto3, of today and of the time when it spoke forms and XML, goes a round of everything."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from millrace.server.sqs.actions import SQS
from tests.integration.environments import have_python
from tests.server.aws.site import AwsSite
from tests.support.timeouts import scaled

ROUND = Path(__file__).with_name("sqs_round.py")
REGIONS = {"newer": "eu-north-1", "older": "eu-south-1"}
"""A region is a space: both rounds find it empty."""

OLD = "AWS.SimpleQueueService."
REFUSED = {
    "remove twice": ("InvalidParameterValue", 400),
    "create otherwise": ("QueueAlreadyExists", 400),
    "deleted": (f"{OLD}NonExistentQueue", 400),
    "no batch": (f"{OLD}EmptyBatchRequest", 400),
    "twice": (f"{OLD}BatchEntryIdsNotDistinct", 400),
    "eleven": (f"{OLD}TooManyEntriesInBatchRequest", 400),
    "odd id": (f"{OLD}InvalidBatchEntryId", 400),
    "large batch": (f"{OLD}BatchRequestTooLong", 400),
    "no group": ("MissingParameter", 400),
    "no suffix": ("InvalidParameterValue", 400),
    "suffix alone": ("InvalidParameterValue", 400),
    "nowhere": ("InvalidParameterValue", 400),
    "no queue": (f"{OLD}NonExistentQueue", 400),
    "no queue to receive": (f"{OLD}NonExistentQueue", 400),
    "empty": ("MissingParameter", 400),
    "control": ("InvalidMessageContents", 400),
    "too large": ("InvalidParameterValue", 400),
    "delay": ("InvalidParameterValue", 400),
    "count": ("InvalidParameterValue", 400),
    "wait": ("InvalidParameterValue", 400),
    "receipt": ("ReceiptHandleIsInvalid", 404),
    "visibility": ("ReceiptHandleIsInvalid", 404),
    "name": ("InvalidParameterValue", 400),
    "attribute": ("InvalidAttributeName", 400),
    "value": ("InvalidAttributeValue", 400),
    "attribute name": ("InvalidAttributeName", 400),
    "number": ("InvalidParameterValue", 400),
    "type": ("InvalidParameterValue", 400),
    "group": ("InvalidParameterValue", 400),
}


def go_round(site: AwsSite, python: str | Path, region: str) -> dict[str, Any]:
    """What was answered to a boto3 that runs in another process."""
    told = (site.url, region, site.root.id, site.root.secret, ",".join(SQS.actions))
    ended = subprocess.run(
        [python, "-I", str(ROUND), *told],
        capture_output=True,
        text=True,
        check=False,
        timeout=scaled(240),
        env={"PATH": os.environ["PATH"], "HOME": str(site.folder)},
    )
    assert ended.returncode == 0, ended.stderr
    found: dict[str, Any] = json.loads(ended.stdout)
    return found


@pytest.fixture(scope="module")
def newer(site: AwsSite) -> dict[str, Any]:
    return go_round(site, sys.executable, REGIONS["newer"])


@pytest.fixture(scope="module")
def older(site: AwsSite) -> dict[str, Any]:
    return go_round(site, have_python("boto3-query"), REGIONS["older"])


def test_every_action_is_asked_for(newer: dict[str, Any], older: dict[str, Any]) -> None:
    assert newer["protocol"] == "json"
    assert older["protocol"] == "query"
    assert set(newer["asked"]) == set(SQS.actions)
    assert set(older["asked"]) == set(SQS.actions)


def test_both_protocols_are_answered_alike(newer: dict[str, Any], older: dict[str, Any]) -> None:
    assert newer["told"].keys() == older["told"].keys()
    told = {step: (one, older["told"][step]) for step, one in newer["told"].items()}
    different = {step: both for step, both in told.items() if both[0] != both[1]}
    # AWS-17: of a queue that is not there, the query protocol has another text.
    text = "The specified queue does not exist"
    refusals = tuple(
        [f"{OLD}NonExistentQueue", 400, one]
        for one in (f"{text}.", f"{text} for this wsdl version.")
    )
    steps = ("deleted", "no queue", "no queue to receive")
    assert different == dict.fromkeys(steps, refusals)


def test_what_is_wrong_has_the_code_that_aws_gives_it(newer: dict[str, Any]) -> None:
    found = {step: tuple(newer["told"][step][:2]) for step in newer["refused"]}
    found.pop("cancel", None)
    assert found == REFUSED


def test_what_is_removed_or_empty_is_not_told(newer: dict[str, Any]) -> None:
    """Where there is nothing, AWS tells nothing, not an empty list."""
    told = newer["told"]
    for step in ("list none", "no attributes", "untagged", "nothing", "purge"):
        assert told[step] == {}, step
    assert "Failed" not in told["sent by resource"]
