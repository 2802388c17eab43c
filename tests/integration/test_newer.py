"""aiobotocore, the AWS CLI and dramatiq, in an environment of their own."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.integration.environments import have_python
from tests.server.aws.site import ACCOUNT, REGION, AwsSite
from tests.support.timeouts import scaled

HERE = Path(__file__).parent


def run(site: AwsSite, *words: object) -> str:
    """What a program says that finds the key in its environment."""
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(site.folder),
        "AWS_ACCESS_KEY_ID": site.root.id,
        "AWS_SECRET_ACCESS_KEY": site.root.secret,
        "AWS_DEFAULT_REGION": REGION,
        "AWS_PAGER": "",
    }
    ended = subprocess.run(
        [str(word) for word in (have_python("newer"), "-I", *words)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=scaled(200),
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def aws(site: AwsSite, *words: object) -> dict[str, Any]:
    """What the AWS CLI answers."""
    said = run(site, "-m", "awscli", "--output", "json", "--endpoint-url", site.url, *words)
    found: dict[str, Any] = json.loads(said) if said.strip() else {}
    return found


def test_the_command_line(site: AwsSite, tmp_path: Path) -> None:
    identity = aws(site, "sts", "get-caller-identity")
    assert identity["Account"] == ACCOUNT
    url = aws(site, "sqs", "create-queue", "--queue-name", "cli", "--tags", "team=blue")["QueueUrl"]
    at = ("--queue-url", url)
    attributes = '{"n":{"DataType":"Number","StringValue":"5"}}'
    sent = aws(
        *(site, "sqs", "send-message", *at, "--message-body", "hello <&> é"),
        *("--message-attributes", attributes),
    )
    got = aws(
        *(site, "sqs", "receive-message", *at, "--wait-time-seconds", 5),
        *("--message-attribute-names", "All", "--message-system-attribute-names", "All"),
    )
    [message] = got["Messages"]
    assert message["Body"] == "hello <&> é"
    assert message["MessageId"] == sent["MessageId"]
    assert message["MessageAttributes"]["n"]["StringValue"] == "5"
    aws(site, "sqs", "delete-message", *at, "--receipt-handle", message["ReceiptHandle"])
    told = aws(site, "sqs", "get-queue-attributes", *at, "--attribute-names", "All")["Attributes"]
    assert told["ApproximateNumberOfMessages"] == "0"
    assert told["ApproximateNumberOfMessagesNotVisible"] == "0"
    assert aws(site, "sqs", "list-queues")["QueueUrls"] == [url]


@pytest.mark.long
def test_the_command_line_of_the_rest(site: AwsSite) -> None:
    url = aws(
        *(site, "sqs", "create-queue", "--queue-name", "rest.fifo"),
        *("--attributes", "FifoQueue=true,ContentBasedDeduplication=true"),
    )["QueueUrl"]
    at = ("--queue-url", url)
    entries = json.dumps(
        [
            {"Id": str(number), "MessageBody": str(number), "MessageGroupId": "g"}
            for number in (1, 2)
        ]
    )
    sent = aws(site, "sqs", "send-message-batch", *at, "--entries", entries)
    assert [one["Id"] for one in sent["Successful"]] == ["1", "2"]
    found = aws(site, "sqs", "receive-message", *at, "--max-number-of-messages", 10)["Messages"]
    assert [one["Body"] for one in found] == ["1", "2"]
    receipt = ("--receipt-handle", found[0]["ReceiptHandle"])
    aws(site, "sqs", "change-message-visibility", *at, *receipt, "--visibility-timeout", 0)
    ends = json.dumps(
        [{"Id": "a", "ReceiptHandle": found[1]["ReceiptHandle"]}, {"Id": "b", "ReceiptHandle": "x"}]
    )
    ended = aws(site, "sqs", "delete-message-batch", *at, "--entries", ends)
    assert [one["Id"] for one in ended["Successful"]] == ["a"]
    assert ended["Failed"][0]["Code"] == "ReceiptHandleIsInvalid"
    aws(site, "sqs", "tag-queue", *at, "--tags", "a=b")
    assert aws(site, "sqs", "list-queue-tags", *at) == {"Tags": {"a": "b"}}
    aws(site, "sqs", "set-queue-attributes", *at, "--attributes", "VisibilityTimeout=7")
    aws(site, "sqs", "purge-queue", *at)
    aws(site, "sqs", "delete-queue", *at)
    topic = aws(site, "sns", "create-topic", "--name", "cli-news")["TopicArn"]
    assert topic in [one["TopicArn"] for one in aws(site, "sns", "list-topics")["Topics"]]
    assert aws(site, "sns", "publish", "--topic-arn", topic, "--message", "x")["MessageId"]
    aws(site, "sns", "delete-topic", "--topic-arn", topic)


def test_aiobotocore(site: AwsSite) -> None:
    told = run(site, HERE / "aio_round.py", site.url, site.root.id, site.root.secret)
    assert json.loads(told) == {
        "bodies": list(range(50)),
        "bytes": "00ff",
        "left": "0",
        "listed": 1,
        "refused": "AWS.SimpleQueueService.NonExistentQueue",
    }


def test_a_worker_of_dramatiq(site: AwsSite) -> None:
    told = run(site, HERE / "dramatiq_round.py", site.url, site.root.id, site.root.secret)
    assert json.loads(told) == {"done": list(range(10)), "tries": [3]}
