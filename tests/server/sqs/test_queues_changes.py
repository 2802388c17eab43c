"""What is changed through another API of the same process, SQS knows at once."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from botocore.exceptions import ClientError

import millrace.sync
from tests.server.aws.site import AwsSite

if TYPE_CHECKING:
    from types_boto3_sqs import SQSClient


def receives(sqs: SQSClient, url: str) -> int:
    """How many messages are received."""
    return len(sqs.receive_message(QueueUrl=url).get("Messages", ()))


@pytest.mark.parametrize("way", ["rest", "calls"])
def test_a_change_through_another_api_is_seen_at_once(
    site: AwsSite, sqs: SQSClient, name: str, url: str, way: str
) -> None:
    sqs.send_message(QueueUrl=url, MessageBody="x")
    sqs.send_message(QueueUrl=url, MessageBody="y")
    assert receives(sqs, url) == 1
    if way == "rest":
        path = f"/v1/spaces/default/queues/{name}"
        assert site.process.ask("PATCH", path, {"max_in_flight": 1}).status == 200
    else:
        with millrace.sync.connect(site.url, token=site.process.token) as found:
            found.find(name).configure(max_in_flight=1)
    with pytest.raises(ClientError, match="up to 1 of a queue") as error:
        receives(sqs, url)
    assert error.value.response["Error"]["Code"] == "OverLimit"


@pytest.mark.process
def test_a_change_of_what_is_declared_is_seen_at_once(tmp_path: Path) -> None:
    file = tmp_path / "millrace.toml"
    file.write_text("[queues.orders]\nsqs = { VisibilityTimeout = 60 }\n", encoding="utf-8")
    with AwsSite(tmp_path / "data", "--config", file) as site:
        sqs = site.aws().sqs
        url = sqs.get_queue_url(QueueName="orders")["QueueUrl"]
        sqs.send_message(QueueUrl=url, MessageBody="x")
        sqs.send_message(QueueUrl=url, MessageBody="y")
        assert receives(sqs, url) == 1
        file.write_text("[queues.orders]\nsqs = { VisibilityTimeout = 0 }\n", encoding="utf-8")
        assert site.process.reload()["type"] == "reloaded"
        for _ in range(3):
            assert receives(sqs, url) == 1, "it is held for no time"
