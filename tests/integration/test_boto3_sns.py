"""boto3, of today and of three years ago, goes a round of SNS, by its client and its resources."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from millrace.server.sns.actions import SNS
from millrace.server.sns.unsupported import UNSUPPORTED
from tests.integration.environments import have_python
from tests.server.aws.site import AwsSite
from tests.support.timeouts import scaled

ROUND = Path(__file__).with_name("sns_round.py")
REGIONS = {"newer": "eu-north-1", "older": "eu-south-1"}
"""A region is a space: both rounds find it empty."""


def go_round(site: AwsSite, python: str | Path, region: str) -> dict[str, Any]:
    """What was answered to a boto3 that runs in another process."""
    ended = subprocess.run(
        [python, "-I", str(ROUND), site.url, region, site.root.id, site.root.secret],
        capture_output=True,
        text=True,
        check=False,
        timeout=scaled(240),
        env={"PATH": os.environ["PATH"], "HOME": str(site.folder), "PYTHONIOENCODING": "utf-8"},
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


def test_every_action_is_asked_for(newer: dict[str, Any]) -> None:
    assert set(newer["asked"]) == set(SNS.actions) - set(UNSUPPORTED)


def test_what_comes_is_what_was_sent(newer: dict[str, Any]) -> None:
    told = newer["told"]
    [around] = told["around"]
    assert (around["Message"], around["MessageAttributes"]["text"]["Value"]) == ("x☃", "grün <&>")
    assert told["raw"][0] == "one"
    assert told["raw"][1]["bytes"]["BinaryValue"] == bytes(range(256)).hex()
    assert (told["got by resource"]["Message"], told["got by resource"]["Subject"]) == (
        "by resource",
        "s",
    )


def test_what_is_wrong_has_the_code_that_aws_gives_it(newer: dict[str, Any]) -> None:
    told = newer["told"]
    assert not told["batch"].get("Failed")
    refused = ("token", "bad entry", "long", "empty", "protocol", "gone", "token by resource")
    assert {step: tuple(told[step][:2]) for step in refused} == {
        "token": ("InvalidParameter", 400),
        "bad entry": ("InvalidParameter", 400),
        "long": ("InvalidParameter", 400),
        "empty": ("EmptyBatchRequest", 400),
        "protocol": ("InvalidParameter", 400),
        "gone": ("NotFound", 404),
        "token by resource": ("InvalidParameter", 400),
    }


def test_an_older_boto3_is_answered_alike(newer: dict[str, Any], older: dict[str, Any]) -> None:
    assert older["version"] != newer["version"]
    assert older["asked"] == newer["asked"]
    told = {step: (one, older["told"].get(step)) for step, one in newer["told"].items()}
    assert {step: both for step, both in told.items() if both[0] != both[1]} == {}
