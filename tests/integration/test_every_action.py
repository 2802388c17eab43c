"""Clients of every kind ask for everything that SQS and SNS do."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from millrace.server.sns.actions import SNS
from millrace.server.sns.unsupported import UNSUPPORTED
from millrace.server.sqs.actions import SQS
from millrace.spark.java import find_java
from tests.integration.environments import NODE, have_java, have_node, have_python
from tests.integration.every_action import Client, Refused, Told, go_round
from tests.server.aws.site import AwsSite
from tests.services.packages import have_program
from tests.support.timeouts import scaled

HERE = Path(__file__).parent
ALL = {f"sqs:{name}" for name in SQS.actions} | {
    f"sns:{name}" for name in SNS.actions if name not in UNSUPPORTED
}


def environment(site: AwsSite) -> dict[str, str]:
    """Where clients find their key, and nothing of whoever runs the tests."""
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(site.folder),
        "AWS_ACCESS_KEY_ID": site.root.id,
        "AWS_SECRET_ACCESS_KEY": site.root.secret,
        "AWS_EC2_METADATA_DISABLED": "true",
        "PYTHONIOENCODING": "utf-8",
    }


def aio(site: AwsSite, region: str, folder: Path) -> Client:
    command = (have_python("newer"), "-I", HERE / "aio_client.py", site.url, region)
    return Client(command, environment(site))


def javascript(site: AwsSite, region: str, folder: Path) -> Client:
    (folder / "node_modules").symlink_to(have_node())
    (folder / "client.mjs").write_bytes((NODE / "client.mjs").read_bytes())
    command = (have_program("node", "nodejs"), "client.mjs", site.url, region)
    return Client(command, environment(site), cwd=folder)


def java(site: AwsSite, region: str, folder: Path) -> Client:
    options = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
    command = (find_java().executable, *options, "-cp", have_java(), "Client", site.url, region)
    return Client(command, environment(site))


@pytest.mark.parametrize(
    ("make", "region"),
    [(aio, "eu-west-1"), (javascript, "eu-west-2"), (java, "eu-west-3")],
    ids=["aiobotocore", "javascript", "java"],
)
def test_a_client_asks_for_everything(
    site: AwsSite, tmp_path: Path, make: Callable[[AwsSite, str, Path], Client], region: str
) -> None:
    with make(site, region, tmp_path) as client:
        assert go_round(client.ask, region) == ALL


@pytest.mark.long
def test_the_command_line_asks_for_everything(site: AwsSite) -> None:
    region = "eu-central-1"
    where = ("--output", "json", "--endpoint-url", site.url, "--region", region)

    def ask(service: str, action: str, told: Told) -> Told:
        verb = re.sub(r"(?<!^)(?=[A-Z])", "-", action).lower()
        words = (*where, service, verb, "--cli-input-json", json.dumps(told))
        ended = subprocess.run(
            [str(have_python("newer")), "-I", "-m", "awscli", *words],
            env=environment(site),
            capture_output=True,
            text=True,
            check=False,
            timeout=scaled(60),
        )
        refused = re.search(r"An error occurred \((\w+)\)", ended.stderr)
        if refused is not None:
            raise Refused(refused.group(1))
        assert ended.returncode == 0, ended.stderr
        found: Told = json.loads(ended.stdout) if ended.stdout.strip() else {}
        return found

    assert go_round(ask, region) == ALL
