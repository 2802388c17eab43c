"""A round of everything that SQS can be asked, by boto3 of any age.

Run as `python sqs_round.py URL REGION KEY SECRET ACTIONS`, the last the actions that the server
has; prints as JSON what was answered, with what
differs from run to run (ids, receipts, times, hosts) left out. It imports nothing of this project:
it runs in environments that have boto3 and nothing else.
"""

from __future__ import annotations

import json
import re
import sys
import threading
import time
import urllib.error
import urllib.request
from typing import Any
from urllib.parse import urlencode

import boto3
from botocore.auth import SigV4QueryAuth
from botocore.awsrequest import AWSRequest
from botocore.config import Config
from botocore.exceptions import ClientError

Told = dict[str, Any]

VOLATILE = frozenset(
    {
        "MessageId",
        "ReceiptHandle",
        "ResponseMetadata",
        "SequenceNumber",
        "SentTimestamp",
        "ApproximateFirstReceiveTimestamp",
        "CreatedTimestamp",
        "LastModifiedTimestamp",
        "StartedTimestamp",
        "TaskHandle",
        "NextToken",
    }
)
BODIES = ("plain", "<a>&amp;\"'</a>", "line\nand\ttab\r\n", "é☃😀", " spaces ", '{"json": [1]}')
ATTRIBUTES = {
    "text": {"DataType": "String", "StringValue": "grün <&>"},
    "number": {"DataType": "Number", "StringValue": "-1.5"},
    "bytes": {"DataType": "Binary", "BinaryValue": bytes(range(256))},
    "custom": {"DataType": "Number.int", "StringValue": "7"},
}


class Round:
    """Asks, and keeps what was answered."""

    def __init__(self, url: str, region: str, key: str, secret: str) -> None:
        self.url, self.region = url, region
        self.session = boto3.Session(
            aws_access_key_id=key, aws_secret_access_key=secret, region_name=region
        )
        self.options: Told = {
            "endpoint_url": url,
            "config": Config(retries={"total_max_attempts": 1}, read_timeout=60),
        }
        self.sqs: Any = self.session.client("sqs", **self.options)
        self.told: dict[str, Any] = {}
        self.asked: set[str] = set()
        self.refusals: list[str] = []
        self.sqs.meta.events.register("before-call.sqs", self._note)
        self.protocol = self.sqs.meta.service_model.metadata["protocol"]

    def _note(self, model: Any, **_: object) -> None:
        self.asked.add(model.name)

    def tell(self, step: str, found: object) -> None:
        """Keep what a step came to."""
        assert step not in self.told, step
        self.told[step] = self.plain(found)

    def plain(self, found: object) -> Any:
        """What was answered, without what differs from run to run."""
        if isinstance(found, dict):
            return {
                name: "…" if name in VOLATILE else self.plain(value)
                for name, value in sorted(found.items())
                if name != "ResponseMetadata"
            }
        if isinstance(found, (list, tuple)):
            return [self.plain(one) for one in found]
        if isinstance(found, bytes):
            return found.hex()
        if isinstance(found, str):
            return found.replace(self.url, "URL").replace(self.region, "REGION")
        return found

    def refused(self, step: str, action: str, **words: object) -> None:
        """Keep how a call is refused."""
        try:
            found = getattr(self.sqs, action)(**words)
        except ClientError as error:
            response = error.response
            told = response["Error"]
            message = re.sub(r"[A-Za-z0-9_=-]{60,}", "…", told.get("Message", ""))
            status = response["ResponseMetadata"]["HTTPStatusCode"]
            self.tell(step, [told["Code"], status, message])
            self.refusals.append(step)
        else:
            raise AssertionError(f"{step} was not refused: {found}")

    def make(self, name: str, **attributes: str) -> str:
        """A queue; returns its address."""
        made = self.sqs.create_queue(QueueName=name, Attributes=attributes)
        url: str = made["QueueUrl"]
        return url

    def arn(self, url: str) -> str:
        """The name of a queue in policies."""
        found = self.sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])
        arn: str = found["Attributes"]["QueueArn"]
        return arn

    def take(self, url: str, count: int = 10, **words: Any) -> list[Told]:
        """Messages of a queue."""
        words = {"MaxNumberOfMessages": count, "WaitTimeSeconds": 0, **words}
        found: list[Told] = self.sqs.receive_message(QueueUrl=url, **words).get("Messages", [])
        return found

    def take_all(self, url: str, count: int, **words: Any) -> list[Told]:
        """As many messages as there must be, in the order of their bodies."""
        found: list[Told] = []
        deadline = time.monotonic() + 30
        while len(found) < count and time.monotonic() < deadline:
            found += self.take(url, WaitTimeSeconds=1, **words)
        assert len(found) == count, (len(found), count)
        return sorted(found, key=lambda one: str(one["Body"]))

    # --- Queues ---------------------------------------------------------------------------------

    def queues(self) -> None:
        """Queues are made, found, listed, changed, tagged and removed."""
        sqs = self.sqs
        self.tell(
            "create",
            sqs.create_queue(
                QueueName="first",
                Attributes={"VisibilityTimeout": "20", "DelaySeconds": "0"},
                tags={"team": "blue", "empty": ""},
            ),
        )
        self.tell(
            "create again",
            sqs.create_queue(QueueName="first", Attributes={"VisibilityTimeout": "20"}),
        )
        url = sqs.get_queue_url(QueueName="first")["QueueUrl"]
        self.tell("url", sqs.get_queue_url(QueueName="first"))
        for number in range(5):
            self.make(f"many-{number}")
        self.tell("list", sqs.list_queues(QueueNamePrefix="many-"))
        self.tell("list some", sqs.list_queues(QueueNamePrefix="many-", MaxResults=2))
        pages = sqs.get_paginator("list_queues").paginate(
            QueueNamePrefix="many-", PaginationConfig={"PageSize": 2}
        )
        self.tell("pages", [page.get("QueueUrls") for page in pages])
        self.tell("list none", sqs.list_queues(QueueNamePrefix="nothing-"))
        self.tell("attributes", sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["All"]))
        self.tell("no attributes", sqs.get_queue_attributes(QueueUrl=url))
        policy = {
            "Version": "2012-10-17",
            "Statement": [
                {
                    "Effect": "Allow",
                    "Principal": "*",
                    "Action": "sqs:SendMessage",
                    "Resource": self.arn(url),
                }
            ],
        }
        sqs.set_queue_attributes(
            QueueUrl=url,
            Attributes={
                "MessageRetentionPeriod": "600",
                "MaximumMessageSize": "2048",
                "ReceiveMessageWaitTimeSeconds": "1",
                "Policy": json.dumps(policy),
                "KmsMasterKeyId": "alias/aws/sqs",
                "KmsDataKeyReusePeriodSeconds": "120",
            },
        )
        self.tell("set", sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["All"]))
        self.tell("tags", sqs.list_queue_tags(QueueUrl=url))
        sqs.tag_queue(QueueUrl=url, Tags={"team": "red", "more": "<&> é"})
        sqs.untag_queue(QueueUrl=url, TagKeys=["empty"])
        self.tell("tagged", sqs.list_queue_tags(QueueUrl=url))
        sqs.untag_queue(QueueUrl=url, TagKeys=["team", "more"])
        self.tell("untagged", sqs.list_queue_tags(QueueUrl=url))
        sqs.add_permission(
            QueueUrl=url,
            Label="lend",
            AWSAccountIds=["123456789012", "210987654321"],
            Actions=["SendMessage", "ReceiveMessage"],
        )
        self.tell("allowed", sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["Policy"]))
        sqs.remove_permission(QueueUrl=url, Label="lend")
        self.tell("disallowed", sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["Policy"]))
        self.refused("remove twice", "remove_permission", QueueUrl=url, Label="lend")
        self.refused(
            "create otherwise",
            "create_queue",
            QueueName="first",
            Attributes={"VisibilityTimeout": "21"},
        )
        sqs.delete_queue(QueueUrl=url)
        self.refused("deleted", "get_queue_url", QueueName="first")

    # --- Messages -------------------------------------------------------------------------------

    def messages(self) -> None:
        """Messages are sent, received, kept for longer, given back and deleted."""
        sqs, url = self.sqs, self.make("messages")
        for number, body in enumerate(BODIES):
            self.tell(f"send {number}", sqs.send_message(QueueUrl=url, MessageBody=body))
        found = self.take_all(url, len(BODIES), AttributeNames=["All"])
        self.tell("bodies", found)
        assert {one["Body"] for one in found} == set(BODIES)
        for one in found:
            sqs.delete_message(QueueUrl=url, ReceiptHandle=one["ReceiptHandle"])
        self.tell(
            "send attributes",
            sqs.send_message(
                QueueUrl=url,
                MessageBody="x",
                MessageAttributes=ATTRIBUTES,
                MessageSystemAttributes={
                    "AWSTraceHeader": {"DataType": "String", "StringValue": "Root=1-2-3"}
                },
            ),
        )
        [got] = self.take_all(url, 1, AttributeNames=["All"], MessageAttributeNames=["All"])
        assert got["MessageAttributes"] == ATTRIBUTES, got
        self.tell("attributes of a message", got)
        receipt = got["ReceiptHandle"]
        sqs.change_message_visibility(QueueUrl=url, ReceiptHandle=receipt, VisibilityTimeout=0)
        [got] = self.take_all(url, 1, AttributeNames=["ApproximateReceiveCount"])
        self.tell("again", got)
        receipt = got["ReceiptHandle"]
        sqs.change_message_visibility(QueueUrl=url, ReceiptHandle=receipt, VisibilityTimeout=0)
        [got] = self.take_all(url, 1, MessageAttributeNames=["t*", "number"])
        self.tell("some attributes", got)
        counts = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
        found = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=counts)
        self.tell("in flight", found)
        sqs.delete_message(QueueUrl=url, ReceiptHandle=got["ReceiptHandle"])
        self.tell("nothing", sqs.receive_message(QueueUrl=url))

    def batches(self) -> None:
        """Ten at a time, and what is wrong with some of them."""
        sqs, url = self.sqs, self.make("batches")
        entries: list[Told] = [
            {"Id": f"id-{number}", "MessageBody": f"body {number}"} for number in range(10)
        ]
        entries[3]["MessageAttributes"] = ATTRIBUTES
        entries[4]["DelaySeconds"] = 0
        entries[5]["MessageBody"] = "\x01"
        entries[6]["DelaySeconds"] = 901
        self.tell("send batch", sqs.send_message_batch(QueueUrl=url, Entries=entries))
        found = self.take_all(url, 8, AttributeNames=["SenderId"], MessageAttributeNames=["All"])
        self.tell("received batch", found)
        longer = [
            {
                "Id": str(number),
                "ReceiptHandle": one["ReceiptHandle"],
                "VisibilityTimeout": 100 if number < 6 else 50_000,
            }
            for number, one in enumerate(found)
        ]
        longer[2]["ReceiptHandle"] = "none"
        changed = sqs.change_message_visibility_batch(QueueUrl=url, Entries=longer)
        self.tell("longer batch", changed)
        ends = [
            {"Id": str(number), "ReceiptHandle": one["ReceiptHandle"]}
            for number, one in enumerate(found)
        ]
        ends[1]["ReceiptHandle"] = "none"
        self.tell("delete batch", sqs.delete_message_batch(QueueUrl=url, Entries=ends))
        self.refused("no batch", "send_message_batch", QueueUrl=url, Entries=[])
        twice = [{"Id": "a", "MessageBody": "x"}, {"Id": "a", "MessageBody": "y"}]
        self.refused("twice", "send_message_batch", QueueUrl=url, Entries=twice)
        many = [{"Id": str(number), "MessageBody": "x"} for number in range(11)]
        self.refused("eleven", "send_message_batch", QueueUrl=url, Entries=many)
        odd = [{"Id": "a b", "MessageBody": "x"}]
        self.refused("odd id", "send_message_batch", QueueUrl=url, Entries=odd)
        large = [{"Id": str(number), "MessageBody": "x" * 600_000} for number in range(2)]
        self.refused("large batch", "send_message_batch", QueueUrl=url, Entries=large)

    def waits(self) -> None:
        """Polls wait for messages, delays and purges do what they say."""
        sqs, url = self.sqs, self.make("waits")
        began = time.monotonic()
        assert not self.take(url, WaitTimeSeconds=1)
        assert 0.9 < time.monotonic() - began < 15
        found: list[Told] = []
        poll = threading.Thread(target=lambda: found.extend(self.take(url, WaitTimeSeconds=20)))
        poll.start()
        began = time.monotonic()
        sqs.send_message(QueueUrl=url, MessageBody="wakes")
        poll.join()
        assert time.monotonic() - began < 15
        self.tell("woken", found)
        sent = time.monotonic()
        sqs.send_message(QueueUrl=url, MessageBody="late", DelaySeconds=1)
        self.tell("late", self.take_all(url, 1))
        assert time.monotonic() - sent > 0.9
        for number in range(3):
            sqs.send_message(QueueUrl=url, MessageBody=str(number))
        self.tell("purge", sqs.purge_queue(QueueUrl=url))
        self.tell("purged", self.take(url, WaitTimeSeconds=0))

    # --- FIFO, dead letters ---------------------------------------------------------------------

    def fifo(self) -> None:
        """Order within groups, one delivery of what was sent twice."""
        sqs = self.sqs
        url = self.make("order.fifo", FifoQueue="true", ContentBasedDeduplication="true")
        for group in "ab":
            for number in range(3):
                sqs.send_message(QueueUrl=url, MessageBody=f"{group}{number}", MessageGroupId=group)
        sent = sqs.send_message(QueueUrl=url, MessageBody="a0", MessageGroupId="a")
        assert sent["SequenceNumber"].isdigit()
        assert len(sent["SequenceNumber"]) == 20
        self.tell("sent twice", sent)
        attempt = "attempt-1"
        first = self.take(url, 2, AttributeNames=["All"], ReceiveRequestAttemptId=attempt)
        again = self.take(url, 2, AttributeNames=["All"], ReceiveRequestAttemptId=attempt)
        assert [one["MessageId"] for one in first] == [one["MessageId"] for one in again]
        seen = [one["Body"] for one in again]
        for one in again:
            sqs.delete_message(QueueUrl=url, ReceiptHandle=one["ReceiptHandle"])
        while rest := self.take(url, AttributeNames=["MessageGroupId"]):
            seen += [one["Body"] for one in rest]
            entries = [
                {"Id": str(number), "ReceiptHandle": one["ReceiptHandle"]}
                for number, one in enumerate(rest)
            ]
            sqs.delete_message_batch(QueueUrl=url, Entries=entries)
        assert [one for one in seen if one[0] == "a"] == ["a0", "a1", "a2"], seen
        assert [one for one in seen if one[0] == "b"] == ["b0", "b1", "b2"], seen
        self.tell("first of a group", first)
        entries = [
            {
                "Id": str(number),
                "MessageBody": str(number),
                "MessageGroupId": "g",
                "MessageDeduplicationId": "same" if number else "first",
            }
            for number in range(3)
        ]
        found = sqs.send_message_batch(QueueUrl=url, Entries=entries)
        self.tell("batch in order", found)
        places = [one["SequenceNumber"] for one in found["Successful"]]
        assert places[1] == places[2] > places[0]
        assert [one["Body"] for one in self.take(url)] == ["0", "1"]
        self.tell("order", sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["All"]))
        self.refused("no group", "send_message", QueueUrl=url, MessageBody="x")
        plain = {"Attributes": {"FifoQueue": "true"}}
        self.refused("no suffix", "create_queue", QueueName="order", **plain)
        self.refused("suffix alone", "create_queue", QueueName="other.fifo")
        fast = {"DeduplicationScope": "messageGroup", "FifoThroughputLimit": "perMessageGroupId"}
        sqs.set_queue_attributes(QueueUrl=url, Attributes=fast)
        for group in "cd":
            sqs.send_message(
                QueueUrl=url,
                MessageBody=group,
                MessageGroupId=group,
                MessageDeduplicationId="one",
            )
        found = [one["Body"] for one in self.take_all(url, 2)]
        self.tell("scope", found)

    def letters(self) -> None:
        """What was received too often is a dead letter."""
        sqs = self.sqs
        dead = self.make("letters-dead")
        policy = {"deadLetterTargetArn": self.arn(dead), "maxReceiveCount": 1}
        url = self.make("letters", RedrivePolicy=json.dumps(policy))
        self.tell("sources", sqs.list_dead_letter_source_queues(QueueUrl=dead))
        none = sqs.list_dead_letter_source_queues(QueueUrl=url)
        self.tell("no sources", none.get("queueUrls", []))
        sqs.send_message(QueueUrl=url, MessageBody="bad", MessageAttributes=ATTRIBUTES)
        [got] = self.take_all(url, 1)
        sqs.change_message_visibility(
            QueueUrl=url, ReceiptHandle=got["ReceiptHandle"], VisibilityTimeout=0
        )
        assert not self.take(url)
        [letter] = self.take_all(dead, 1, AttributeNames=["All"], MessageAttributeNames=["All"])
        assert letter["MessageAttributes"] == ATTRIBUTES
        self.tell("letter", letter)
        self.tell("redrive", sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["All"]))
        nowhere = {"deadLetterTargetArn": f"{self.arn(dead)}-none", "maxReceiveCount": 1}
        self.refused(
            "nowhere",
            "set_queue_attributes",
            QueueUrl=url,
            Attributes={"RedrivePolicy": json.dumps(nowhere)},
        )
        sqs.change_message_visibility(
            QueueUrl=dead, ReceiptHandle=letter["ReceiptHandle"], VisibilityTimeout=0
        )

    def moves(self) -> None:
        """Dead letters go back where they came from."""
        sqs = self.sqs
        dead = sqs.get_queue_url(QueueName="letters-dead")["QueueUrl"]
        url = sqs.get_queue_url(QueueName="letters")["QueueUrl"]
        self.tell("start", sqs.start_message_move_task(SourceArn=self.arn(dead)))
        [back] = self.take_all(url, 1)
        self.tell("moved back", back)
        deadline = time.monotonic() + 30
        while True:
            found = sqs.list_message_move_tasks(SourceArn=self.arn(dead))
            if found["Results"][0]["Status"] != "RUNNING" or time.monotonic() > deadline:
                break
        self.tell("moves", found)
        self.refused("cancel", "cancel_message_move_task", TaskHandle="none")

    # --- Errors ---------------------------------------------------------------------------------

    def errors(self) -> None:
        """What is wrong is told by the codes of AWS."""
        url = self.make("errors")
        gone = f"{url}-gone"
        self.refused("no queue", "send_message", QueueUrl=gone, MessageBody="x")
        self.refused("no queue to receive", "receive_message", QueueUrl=gone)
        self.refused("empty", "send_message", QueueUrl=url, MessageBody="")
        self.refused("control", "send_message", QueueUrl=url, MessageBody="\x00")
        self.refused("too large", "send_message", QueueUrl=url, MessageBody="x" * 1_048_577)
        self.refused("delay", "send_message", QueueUrl=url, MessageBody="x", DelaySeconds=901)
        self.refused("count", "receive_message", QueueUrl=url, MaxNumberOfMessages=11)
        self.refused("wait", "receive_message", QueueUrl=url, WaitTimeSeconds=21)
        self.refused("receipt", "delete_message", QueueUrl=url, ReceiptHandle="none")
        self.refused(
            "visibility",
            "change_message_visibility",
            QueueUrl=url,
            ReceiptHandle="none",
            VisibilityTimeout=0,
        )
        self.refused("name", "create_queue", QueueName="a b")
        self.refused("attribute", "create_queue", QueueName="a", Attributes={"Colour": "red"})
        self.refused(
            "value", "set_queue_attributes", QueueUrl=url, Attributes={"DelaySeconds": "no"}
        )
        self.refused(
            "attribute name", "get_queue_attributes", QueueUrl=url, AttributeNames=["Colour"]
        )
        bad = {"n": {"DataType": "Number", "StringValue": "x"}}
        self.refused("number", "send_message", QueueUrl=url, MessageBody="x", MessageAttributes=bad)
        bad = {"n": {"DataType": "Float", "StringValue": "x"}}
        self.refused("type", "send_message", QueueUrl=url, MessageBody="x", MessageAttributes=bad)
        self.refused("group", "send_message", QueueUrl=url, MessageBody="x", MessageGroupId="a b")

    # --- Addresses that are signed, resources ---------------------------------------------------

    def presigned(self) -> None:
        """An address that was signed for somebody else does what it says."""
        url = self.make("presigned")
        self.sqs.send_message(QueueUrl=url, MessageBody="by address")
        if self.protocol == "query":
            sign = self.sqs.generate_presigned_url
            found = sign("get_queue_url", {"QueueName": "presigned"}, HttpMethod="GET")
            asked = {"QueueUrl": url, "MessageAttributeNames": ["All"]}
            taken = sign("receive_message", asked, HttpMethod="GET")
        else:
            # What botocore signs for the newer protocol says nothing of the action.
            found = self.sign({"Action": "GetQueueUrl", "QueueName": "presigned"})
            words = {"Action": "ReceiveMessage", "QueueUrl": url}
            taken = self.sign({**words, "MessageAttributeName.1": "All"})
        [told] = re.findall("<QueueUrl>(.*)</QueueUrl>", fetch(found))
        self.tell("address by address", told)
        self.tell("body by address", re.findall("<Body>(.*)</Body>", fetch(taken)))
        try:
            fetch(found.replace("presigned", "forged"))
        except urllib.error.HTTPError as error:
            self.tell(
                "forged", [error.code, re.findall("<Code>(.*)</Code>", error.read().decode())]
            )

    def sign(self, words: dict[str, str]) -> str:
        """The address of a call that may be made for a minute."""
        request = AWSRequest("GET", f"{self.url}/?{urlencode(words)}")
        credentials = self.session.get_credentials()
        assert credentials is not None
        SigV4QueryAuth(credentials, "sqs", self.region, 60).add_auth(request)
        return str(request.url)

    def resources(self) -> None:
        """Queues and messages as objects."""
        sqs: Any = self.session.resource("sqs", **self.options)
        dead = sqs.create_queue(QueueName="resource-dead")
        arn = dead.attributes["QueueArn"]
        policy = json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": 3})
        queue = sqs.create_queue(QueueName="resource", Attributes={"RedrivePolicy": policy})
        assert sqs.get_queue_by_name(QueueName="resource").url == queue.url
        queue.set_attributes(Attributes={"VisibilityTimeout": "40"})
        queue.reload()
        self.tell("resource", queue.attributes)
        self.tell("filtered", [one.url for one in sqs.queues.filter(QueueNamePrefix="resource")])
        self.tell("of letters", [one.url for one in dead.dead_letter_source_queues.all()])
        entries = [{"Id": str(number), "MessageBody": f"{number}"} for number in range(4)]
        self.tell("sent by resource", queue.send_messages(Entries=entries))
        found: list[Any] = []
        while len(found) < 4:
            found += queue.receive_messages(
                MaxNumberOfMessages=10, AttributeNames=["All"], WaitTimeSeconds=5
            )
        found.sort(key=lambda one: one.body)
        self.tell("by resource", [[one.body, one.md5_of_body, one.attributes] for one in found])
        found[0].delete()
        found[1].change_visibility(VisibilityTimeout=0)
        ends = [{"Id": one.body, "ReceiptHandle": one.receipt_handle} for one in found[2:]]
        self.tell("deleted by resource", queue.delete_messages(Entries=ends))
        [last] = queue.receive_messages(WaitTimeSeconds=5)
        assert last.body == "1"
        sqs.Message(queue.url, last.receipt_handle).delete()
        queue.purge()
        queue.delete()


def fetch(url: str) -> str:
    """What an address answers."""
    with urllib.request.urlopen(url, timeout=60) as answer:
        text: str = answer.read().decode()
        return text


def main(url: str, region: str, key: str, secret: str, actions: str) -> None:
    """Go all the way round, and tell."""
    round_ = Round(url, region, key, secret)
    round_.queues()
    round_.messages()
    round_.batches()
    round_.waits()
    round_.fifo()
    round_.letters()
    if "StartMessageMoveTask" in actions.split(","):
        round_.moves()
    round_.errors()
    round_.presigned()
    round_.resources()
    told = {
        "version": boto3.__version__,
        "protocol": round_.protocol,
        "asked": sorted(round_.asked),
        "refused": round_.refusals,
        "told": round_.told,
    }
    print(json.dumps(told, ensure_ascii=False))


if __name__ == "__main__":
    main(*sys.argv[1:])
