"""Looking at messages without receiving them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from millrace import limits
from tests.server.aws.site import ACCOUNT, REGION, AwsSite

if TYPE_CHECKING:
    from types_boto3_sqs import SQSClient


def look(site: AwsSite, where: str, **more: str) -> list[dict[str, Any]]:
    asked = "&".join(f"{name}={text}" for name, text in more.items())
    seen = site.process.ask("GET", f"/_aws/sqs/messages{where}{asked}", accept="application/json")
    assert seen.status == 200, seen.body
    told = json.loads(seen.body)["ReceiveMessageResponse"]["ReceiveMessageResult"]
    return list(told["Message"])


def told(message: dict[str, Any]) -> dict[str, str]:
    return {one["Name"]: one["Value"] for one in message["Attribute"]}


def test_what_is_visible_is_shown_behind_whatever_is_not(
    site: AwsSite, sqs: SQSClient, name: str, url: str
) -> None:
    count = limits.SQS_PEEK_MAX
    body: Any = {"messages": [{"body": str(one)} for one in range(count + 3)]}
    path = f"/v1/spaces/default/queues/{name}"
    assert site.process.ask("POST", f"{path}/messages", body).status == 201
    assert site.process.ask("POST", f"{path}/leases", {"count": count}).status == 200
    where = f"?QueueUrl=/{ACCOUNT}/{name}&"
    assert [one["Body"] for one in look(site, where)] == [str(count + one) for one in range(3)]
    assert len(look(site, where, ShowInvisible="true")) == count
    of_region = f"/{REGION}/{ACCOUNT}/{name}?"
    assert look(site, of_region) == look(site, where)


def test_it_is_told_when_a_message_was_received_first(
    site: AwsSite, sqs: SQSClient, name: str, url: str
) -> None:
    where = f"?QueueUrl=/{ACCOUNT}/{name}&"
    sqs.send_message(QueueUrl=url, MessageBody="a")
    [waiting] = look(site, where)
    assert "ApproximateFirstReceiveTimestamp" not in told(waiting)
    for _ in range(2):
        [got] = sqs.receive_message(QueueUrl=url, MessageSystemAttributeNames=["All"])["Messages"]
        [seen] = look(site, where, ShowInvisible="true")
        for attribute in ("ApproximateFirstReceiveTimestamp", "ApproximateReceiveCount"):
            assert told(seen)[attribute] == got["Attributes"][attribute]
        sqs.change_message_visibility(
            QueueUrl=url, ReceiptHandle=got["ReceiptHandle"], VisibilityTimeout=0
        )


@pytest.mark.parametrize("name_of", ["ShowInvisible", "ShowDelayed"])
def test_what_is_neither_yes_nor_no_is_refused(
    site: AwsSite, name: str, url: str, name_of: str
) -> None:
    seen = site.process.ask("GET", f"/_aws/sqs/messages?QueueUrl=/{ACCOUNT}/{name}&{name_of}=maybe")
    assert seen.status == 400
    assert b"Must be true or false" in seen.body
