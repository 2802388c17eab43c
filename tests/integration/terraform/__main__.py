"""Terraform's AWS provider makes queues and topics, changes them and ends them: what it reads back
is what it asked for, so that a plan after each step has nothing to do.

`python -m tests.integration.terraform [--plugins FOLDER] [--moto]`: `terraform` is the one on the
PATH; the provider is built from its source (`provider.py`), or comes from a folder that holds one.
With `--moto`, its server is asked in place of ours: there a plan has something to do, which shows
that the provider would see it here.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tests.integration.terraform.provider import have_provider
from tests.server.aws.site import REGION, Aws, AwsSite, Key
from tests.services.missing import Missing
from tests.services.moto import Moto

HERE = Path(__file__).parent
NOTHING, CHANGES = 0, 2
"""What a plan ends with: there is nothing to do; there is something."""

OF_MOTO = ("aws_sqs_queue.plain", "aws_sns_topic.news")
"""What is made there. For others the provider waits until they are as they were asked for, which
they never are."""


class Differs(Exception):
    """What is there is not what was asked for."""


class Terraform:
    """A copy of the configuration, with a state of its own."""

    def __init__(self, folder: Path, plugins: Path) -> None:
        """Raises Missing: Terraform or its provider is not here."""
        program = shutil.which("terraform")
        if program is None:
            raise Missing("terraform is not on the PATH: install Terraform 1.5 or newer")
        self._program = program
        self._folder = folder
        for file in HERE.glob("*.tf"):
            shutil.copy(file, folder)
        self._kept = {
            name: text
            for name, text in os.environ.items()
            if not name.startswith(("AWS_", "TF_VAR_", "TF_CLI_ARGS", "TF_LOG"))
        }
        self.endpoint = ""
        self.key = Key("test", "test")
        ended = self._run("init", f"-plugin-dir={plugins.resolve()}")
        if ended.returncode != 0:
            raise Missing(f"there is no provider in {plugins}:\n{ended.stderr}")

    def _run(self, verb: str, *options: str) -> subprocess.CompletedProcess[str]:
        """Run it without any settings for AWS but these."""
        since = time.monotonic()
        ended = subprocess.run(
            [self._program, verb, "-input=false", "-no-color", *options],
            cwd=self._folder,
            env={
                **self._kept,
                "AWS_ENDPOINT_URL": self.endpoint,
                "AWS_ACCESS_KEY_ID": self.key.id,
                "AWS_SECRET_ACCESS_KEY": self.key.secret,
                "AWS_REGION": REGION,
                "AWS_CONFIG_FILE": os.devnull,
                "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
                "AWS_EC2_METADATA_DISABLED": "true",
                "TF_IN_AUTOMATION": "1",
            },
            capture_output=True,
            text=True,
            check=False,
            timeout=900,
        )
        spent = time.monotonic() - since
        print(f"terraform {verb}: {ended.returncode} after {spent:.0f} s", file=sys.stderr)
        return ended

    def do(self, verb: str, *, is_changed: bool, only: Sequence[str] = ()) -> None:
        """Apply or destroy all of it, or what is named.

        Raises:
            Differs: it could not.
        """
        ended = self._run(verb, "-auto-approve", *_options(only, is_changed=is_changed))
        if ended.returncode != 0:
            raise Differs(f"terraform {verb} failed:\n{ended.stdout}\n{ended.stderr}")

    def plan(self, wanted: int, *, is_changed: bool, only: Sequence[str] = ()) -> None:
        """See that a plan of all of it, or of what is named, ends so.

        Raises:
            Differs: it does not.
        """
        ended = self._run("plan", "-detailed-exitcode", *_options(only, is_changed=is_changed))
        if ended.returncode != wanted:
            what = f"terraform plan ended with {ended.returncode}, not {wanted}"
            raise Differs(f"{what}:\n{ended.stdout}\n{ended.stderr}")


def _options(only: Sequence[str], *, is_changed: bool) -> list[str]:
    targets = [f"-target={one}" for one in only]
    return [f"-var=changed={'true' if is_changed else 'false'}", *targets]


def go_round(terraform: Terraform, site: AwsSite) -> None:
    """Make everything, change it, end it.

    Raises:
        Differs: a plan had something to do, or something was left.
    """
    terraform.endpoint, terraform.key = site.url, site.root
    terraform.do("apply", is_changed=False)
    terraform.plan(NOTHING, is_changed=False)
    spoil(site.aws())
    terraform.plan(CHANGES, is_changed=False)
    terraform.do("apply", is_changed=True)
    # Its address is another one now; what Terraform knows queues by is the old one.
    site.restart()
    terraform.endpoint = site.url
    terraform.plan(NOTHING, is_changed=True)
    terraform.do("destroy", is_changed=True)
    see_nothing(site.aws())


def spoil(aws: Aws) -> None:
    """Change something behind its back: a plan that does not see it sees nothing."""
    queue = aws.sqs.get_queue_url(QueueName="orders")["QueueUrl"]
    aws.sqs.set_queue_attributes(QueueUrl=queue, Attributes={"DelaySeconds": "1"})


def see_nothing(aws: Aws) -> None:
    """See that nothing is left.

    Raises:
        Differs: something is.
    """
    left = [
        *aws.sqs.list_queues().get("QueueUrls", []),
        *(topic["TopicArn"] for topic in aws.sns.list_topics()["Topics"]),
        *(one["SubscriptionArn"] for one in aws.sns.list_subscriptions()["Subscriptions"]),
    ]
    if left:
        raise Differs(f"still there: {', '.join(left)}")


def main() -> int:
    """Go the round; 1: something differs, 2: something is missing."""
    parser = argparse.ArgumentParser(prog="terraform")
    parser.add_argument("--plugins", type=Path, help="a folder that holds the provider")
    parser.add_argument("--moto", action="store_true", help="ask moto's server, not ours")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="terraform-") as made:
        folder = Path(made)
        try:
            terraform = Terraform(folder, args.plugins or have_provider())
            if args.moto:
                with Moto() as moto:
                    terraform.endpoint = f"http://127.0.0.1:{moto.port}"
                    terraform.do("apply", is_changed=False, only=OF_MOTO)
                    terraform.plan(CHANGES, is_changed=False, only=OF_MOTO)
            else:
                with AwsSite(folder / "data") as site:
                    go_round(terraform, site)
        except Missing as error:
            print(f"terraform: {error}", file=sys.stderr)
            return 2
        except Differs as error:
            print(f"terraform: {error}", file=sys.stderr)
            return 1
    print("terraform: every plan had what it should have to do", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
