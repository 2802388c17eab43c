"""A server in a process of its own, users with access keys, and clients of AWS for it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import boto3
from botocore.config import Config

import millrace.sync
from tests.server.rest.harness import SMALL
from tests.server.server_process import Process
from tests.support.timeouts import scaled

if TYPE_CHECKING:
    from types_boto3_sns import SNSClient
    from types_boto3_sqs import SQSClient
    from types_boto3_sts import STSClient

    from millrace.sync import Millrace

REGION = "us-east-1"
ACCOUNT = "000000000000"


@dataclass(frozen=True, slots=True)
class Key:
    """An access key."""

    id: str
    secret: str


NOBODY = Key("MRAKNOBODY", "nothing")


def run(*words: object) -> dict[str, object]:
    """What `millrace` says of a command, in JSON."""
    command = [sys.executable, "-m", "millrace.cli", *map(str, words), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout.splitlines()[-1]))


def make_key(folder: Path, user: str, *rules: str) -> Key:
    """A user with these rules, and an access key of theirs."""
    options = [word for rule in rules for word in ("--rule", rule)]
    run("user", "add", user, *options, "--data", folder)
    made = run("key", "new", user, "--data", folder)
    return Key(str(made["id"]), str(made["secret"]))


class Aws:
    """Clients of one who has an access key."""

    def __init__(self, url: str, key: Key, region: str = REGION) -> None:
        self.url = url
        self.key = key
        self._session = boto3.Session(
            aws_access_key_id=key.id, aws_secret_access_key=key.secret, region_name=region
        )
        # An error is told at once; what is tried again would hide it.
        self._config = Config(retries={"total_max_attempts": 1}, read_timeout=scaled(40))

    @property
    def sqs(self) -> SQSClient:
        return self._session.client("sqs", endpoint_url=self.url, config=self._config)

    @property
    def sns(self) -> SNSClient:
        return self._session.client("sns", endpoint_url=self.url, config=self._config)

    @property
    def sts(self) -> STSClient:
        return self._session.client("sts", endpoint_url=self.url, config=self._config)


class AwsSite:
    """A server, and one who may do everything."""

    def __init__(self, folder: Path, *options: object) -> None:
        self.folder = folder
        if not any("sns_endpoints" in str(option) for option in options):
            # Endpoints of tests are on this machine.
            options = (*options, "--set", "sns_endpoints=any")
        self._options = options
        self.process = Process(folder, *options)

    def __enter__(self) -> AwsSite:
        self.process.__enter__()
        self.root = make_key(self.folder, "ada", "allow * */*")
        return self

    def __exit__(self, *_: object) -> None:
        self.process.close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.process.port}"

    def aws(self, key: Key | None = None, region: str = REGION) -> Aws:
        """The clients of whoever has this key."""
        return Aws(self.url, key or self.root, region)

    def restart(self) -> None:
        """Kill it, and start it anew at another port."""
        self.process.close()
        self.process = Process(self.folder, *self._options)
        self.process.__enter__()

    def edit(self, change: Callable[[Millrace], object]) -> None:
        """Change the folder as only the server could, or one before it: it is killed, and started
        anew at the same address."""
        port = self.process.port
        self.process.close()
        with millrace.sync.open(self.folder, settings=SMALL) as m:
            change(m)
        self.process = Process(self.folder, "--listen", f"127.0.0.1:{port}", *self._options)
        self.process.__enter__()
