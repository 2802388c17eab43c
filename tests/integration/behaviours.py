"""Behaviours of SQS that were recorded from AWS, asked by boto3 of any age or by aiobotocore.

Run as `python behaviours.py boto3|aiobotocore URL REGION KEY SECRET`; prints as JSON the protocol
of the client and what came of each. It imports nothing of this project: it runs in environments
that have a client of AWS and nothing else.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable
from typing import Any

import botocore.exceptions

Answer = dict[str, Any]
OLD = "AWS.SimpleQueueService."


class Asks:
    """Calls actions of SQS one after the other, whichever client does so."""

    def __init__(self, kind: str, url: str, region: str, key: str, secret: str) -> None:
        options: Answer = {
            "endpoint_url": url,
            "region_name": region,
            "aws_access_key_id": key,
            "aws_secret_access_key": secret,
        }
        self._loop = asyncio.new_event_loop()
        self.close: Callable[[], object]
        if kind == "aiobotocore":
            from aiobotocore.session import get_session  # type: ignore[import-not-found]

            context = get_session().create_client("sqs", **options)
            self._sqs = self._loop.run_until_complete(context.__aenter__())
            self.close = lambda: self._loop.run_until_complete(context.__aexit__(None, None, None))
        else:
            import boto3

            self._sqs = boto3.client("sqs", **options)
            self.close = self._loop.close
        self.protocol = self._sqs.meta.service_model.metadata["protocol"]
        self._sqs.meta.events.register("before-call.sqs", self._trace)
        self.trace = ""

    def _trace(self, params: Answer, **_: object) -> None:
        if self.trace:
            params["headers"]["X-Amzn-Trace-Id"] = self.trace

    def __call__(self, action: str, **words: Any) -> Answer:
        """Return what an action is answered."""
        answer = getattr(self._sqs, action)(**words)
        if asyncio.iscoroutine(answer):
            answer = self._loop.run_until_complete(answer)
        found: Answer = answer
        return found

    def refused(self, action: str, **words: Any) -> list[Any]:
        """Return code, status and text of a refusal."""
        try:
            answer = self(action, **words)
        except botocore.exceptions.ClientError as error:
            status = error.response["ResponseMetadata"]["HTTPStatusCode"]
            told = error.response["Error"]
            return [told["Code"], status, told["Message"]]
        return ["answered", 200, str(answer)]

    def queue(self, name: str, **attributes: str) -> str:
        """Return the address of a new queue."""
        url: str = self("create_queue", QueueName=name, Attributes=attributes)["QueueUrl"]
        return url

    def received(self, url: str, **words: Any) -> list[Answer]:
        """Return the messages of a receive."""
        got = self("receive_message", QueueUrl=url, MaxNumberOfMessages=10, **words)
        messages: list[Answer] = got.get("Messages", [])
        return messages


def earlier_receipts(ask: Asks) -> object:
    url = ask.queue("aws-2")
    ask("send_message", QueueUrl=url, MessageBody="x")
    [first] = ask.received(url, VisibilityTimeout=0)
    ask.received(url, VisibilityTimeout=600)
    handle = first["ReceiptHandle"]
    ask("change_message_visibility", QueueUrl=url, ReceiptHandle=handle, VisibilityTimeout=0)
    [third] = ask.received(url, VisibilityTimeout=600)
    entries = [{"Id": "a", "ReceiptHandle": handle}]
    deleted = ask("delete_message_batch", QueueUrl=url, Entries=entries)
    gone = ask.refused(
        "change_message_visibility",
        QueueUrl=url,
        ReceiptHandle=third["ReceiptHandle"],
        VisibilityTimeout=0,
    )
    return [[one["Id"] for one in deleted["Successful"]], gone[:2], ask.received(url)]


def fifo_batches(ask: Asks) -> object:
    url = ask.queue("aws-3.fifo", FifoQueue="true")
    told: list[object] = []
    for lacks in ("MessageGroupId", "MessageDeduplicationId"):
        entries = [
            {"Id": one, "MessageBody": one, "MessageGroupId": "g", "MessageDeduplicationId": one}
            for one in "ab"
        ]
        del entries[1][lacks]
        told.append(ask.refused("send_message_batch", QueueUrl=url, Entries=entries))
    return [*told, ask.received(url)]


def addresses(ask: Asks) -> object:
    ask.queue("aws-5")
    ask("send_message", QueueUrl="aws-5", MessageBody="x")
    bodies = [one["Body"] for one in ask.received("aws-5")]
    told = [
        ask.refused("send_message", QueueUrl=bad, MessageBody="x")
        for bad in ("http://whatever", "unknown")
    ]
    return [bodies, *told]


def purges(ask: Asks) -> object:
    url = ask.queue("aws-6.fifo", FifoQueue="true")
    words = {"QueueUrl": url, "MessageGroupId": "g", "MessageDeduplicationId": "d"}
    ask("send_message", MessageBody="first", **words)
    ask("purge_queue", QueueUrl=url)
    ask("send_message", MessageBody="second", **words)
    return [one["Body"] for one in ask.received(url)]


def traces(ask: Asks) -> object:
    url = ask.queue("aws-7")
    ask.trace = "Root=1-5759e988-bd862e3fe1be46a994272793"
    ask("send_message", QueueUrl=url, MessageBody="x")
    entries = [{"Id": "a", "MessageBody": "y"}]
    ask("send_message_batch", QueueUrl=url, Entries=entries)
    ask.trace = ""
    return [one["Attributes"] for one in ask.received(url, AttributeNames=["AWSTraceHeader"])]


def attributes(ask: Asks) -> object:
    url = ask.queue("aws-9")
    given = {one: {"DataType": "String", "StringValue": one} for one in ("a", "grün")}
    ask("send_message", QueueUrl=url, MessageBody="x", MessageAttributes=given)
    [got] = ask.received(url, MessageAttributeNames=["*"])
    bad = {"a": {"DataType": "String", "StringValue": "\x01"}}
    words: Answer = {"QueueUrl": url, "MessageBody": "x", "MessageAttributes": bad}
    return [got["MessageAttributes"] == given, ask.refused("send_message", **words)[:2]]


def settings(ask: Asks) -> object:
    url = ask.queue("aws-24")
    told = ask("get_queue_attributes", QueueUrl=url, AttributeNames=["QueueArn"])
    arn = told["Attributes"]["QueueArn"]
    policy = json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": "1"})
    given = {"RedrivePolicy": policy}
    ask("set_queue_attributes", QueueUrl=url, Attributes=given)
    ask("add_permission", QueueUrl=url, Label="a", AWSAccountIds=["111122223333"], Actions=["*"])
    found = ask("get_queue_attributes", QueueUrl=url, AttributeNames=["All"])["Attributes"]
    written = json.loads(found["Policy"])
    [statement] = written["Statement"]
    return [
        json.loads(found["RedrivePolicy"])["maxReceiveCount"],
        [written["Version"], statement["Principal"]["AWS"], statement["Action"]],
        ask.refused("set_queue_attributes", QueueUrl=url, Attributes={"FifoQueue": "false"}),
        ask.refused("create_queue", QueueName="aws-21", Attributes={"DeduplicationScope": "queue"}),
    ]


def repeated_ids(ask: Asks) -> object:
    url = ask.queue("aws-21")
    entries = [{"Id": f"id_{one}", "MessageBody": "x"} for one in (1, 2, 2, 1)]
    return ask.refused("send_message_batch", QueueUrl=url, Entries=entries)


BEHAVIOURS: dict[str, Callable[[Asks], object]] = {
    "AWS-2": earlier_receipts,
    "AWS-3": fifo_batches,
    "AWS-5": addresses,
    "AWS-6": purges,
    "AWS-7": traces,
    "AWS-9": attributes,
    "AWS-20": settings,
    "AWS-21": repeated_ids,
}


def main(*words: str) -> None:
    """Print what came of every behaviour."""
    ask = Asks(*words)
    try:
        told = {name: behaviour(ask) for name, behaviour in BEHAVIOURS.items()}
    finally:
        ask.close()
    print(json.dumps({"protocol": ask.protocol, "told": told}))


if __name__ == "__main__":
    main(*sys.argv[1:])
