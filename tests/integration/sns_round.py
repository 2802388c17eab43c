"""A round of SNS by boto3 of any age: every action by its client, and all that its resources do.

Run as `python sns_round.py URL REGION KEY SECRET`;
prints as JSON what was answered, with what differs from run to run (ids, signatures, times,
hosts, regions) left out. It imports nothing of this project: it runs in environments that have
boto3 and nothing else.
"""

from __future__ import annotations

import json
import re
import sys
from typing import Any

import boto3
from botocore.config import Config
from botocore.exceptions import ClientError

Told = dict[str, Any]

VOLATILE = frozenset(
    {
        "MessageId",
        "NextToken",
        "ResponseMetadata",
        "SequenceNumber",
        "Signature",
        "SigningCertURL",
        "SubscriptionArn",
        "Timestamp",
        "UnsubscribeURL",
    }
)
ATTRIBUTES = {
    "text": {"DataType": "String", "StringValue": "grün <&>"},
    "number": {"DataType": "Number", "StringValue": "-1.5"},
    "bytes": {"DataType": "Binary", "BinaryValue": bytes(range(256))},
    "list": {"DataType": "String.Array", "StringValue": '["a", 1, true]'},
}


class Round:
    """Asks, and keeps what was answered."""

    def __init__(self, url: str, region: str, key: str, secret: str) -> None:
        self.url, self.region = url, region
        session = boto3.Session(
            aws_access_key_id=key, aws_secret_access_key=secret, region_name=region
        )
        config = Config(retries={"total_max_attempts": 1}, read_timeout=60)
        options: Told = {"endpoint_url": url, "config": config}
        self.sns: Any = session.client("sns", **options)
        self.sqs: Any = session.client("sqs", **options)
        self.resource: Any = session.resource("sns", **options)
        self.told: Told = {}
        self.asked: set[str] = set()
        for client in (self.sns, self.resource.meta.client):
            client.meta.events.register("before-call.sns", self._note)

    def _note(self, model: Any, **_: object) -> None:
        self.asked.add(model.name)

    def tell(self, step: str, found: object) -> None:
        """Keep what a step came to."""
        assert step not in self.told, step
        self.told[step] = self.plain(found)

    def plain(self, found: object) -> Any:
        """What was answered, as JSON has it, without what differs from run to run."""
        if isinstance(found, dict):
            return {name: self.plain(one) for name, one in found.items() if name not in VOLATILE}
        if isinstance(found, list | tuple):
            return [self.plain(one) for one in found]
        if isinstance(found, bytes):
            return found.hex()
        if not isinstance(found, str):
            return found
        text = found.replace(self.url, "URL").replace(self.region, "REGION")
        return re.sub(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", "ID", text)

    def refuse(self, step: str, ask: Any, **told: object) -> None:
        """Keep as what a step was refused."""
        try:
            ask(**told)
        except ClientError as error:
            found = error.response
            status = found["ResponseMetadata"]["HTTPStatusCode"]
            self.tell(step, [found["Error"]["Code"], status, found["Error"]["Message"]])
        else:
            raise AssertionError(f"{step} was not refused")

    def queue(self, name: str) -> tuple[str, str]:
        """Address and ARN of a new queue."""
        url = self.sqs.create_queue(QueueName=name)["QueueUrl"]
        asked = self.sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])
        return url, asked["Attributes"]["QueueArn"]

    def take(self, url: str, count: int) -> list[Told]:
        """The next messages of a queue, which are deleted."""
        found: list[Told] = []
        while len(found) < count:
            got = self.sqs.receive_message(
                QueueUrl=url,
                MaxNumberOfMessages=10,
                WaitTimeSeconds=20,
                MessageAttributeNames=["All"],
            )["Messages"]
            for one in got:
                self.sqs.delete_message(QueueUrl=url, ReceiptHandle=one["ReceiptHandle"])
            found += got
        return found

    def clients(self) -> None:
        """Every action, by the client."""
        sns = self.sns
        tags = [{"Key": "team", "Value": "grün"}, {"Key": "empty", "Value": ""}]
        arn = sns.create_topic(Name="news", Attributes={"DisplayName": "é <&>"}, Tags=tags)
        topic = arn["TopicArn"]
        self.tell("made", arn)
        self.tell("made again", sns.create_topic(Name="news"))
        self.tell("topics", sns.list_topics())
        self.tell("attributes", sns.get_topic_attributes(TopicArn=topic))
        sns.set_topic_attributes(
            TopicArn=topic, AttributeName="MaximumMessageSize", AttributeValue="2048"
        )
        self.tell("sized", sns.get_topic_attributes(TopicArn=topic)["Attributes"])
        sns.tag_resource(ResourceArn=topic, Tags=[{"Key": "more", "Value": "x"}])
        sns.untag_resource(ResourceArn=topic, TagKeys=["empty"])
        self.tell("tags", sns.list_tags_for_resource(ResourceArn=topic))
        sns.add_permission(
            TopicArn=topic, Label="one", AWSAccountId=["000000000000"], ActionName=["Publish"]
        )
        self.tell("permitted", sns.get_topic_attributes(TopicArn=topic)["Attributes"]["Policy"])
        sns.remove_permission(TopicArn=topic, Label="one")
        url, queue = self.queue("news")
        made = sns.subscribe(TopicArn=topic, Protocol="sqs", Endpoint=queue)["SubscriptionArn"]
        self.tell("subscriptions", sns.list_subscriptions())
        self.tell("of topic", sns.list_subscriptions_by_topic(TopicArn=topic))
        self.tell("sent", sns.publish(TopicArn=topic, Message="x☃", MessageAttributes=ATTRIBUTES))
        self.tell("around", [json.loads(one["Body"]) for one in self.take(url, 1)])
        sns.set_subscription_attributes(
            SubscriptionArn=made, AttributeName="RawMessageDelivery", AttributeValue="true"
        )
        self.tell("subscription", sns.get_subscription_attributes(SubscriptionArn=made))
        entries = [
            {"Id": "a", "Message": "one", "Subject": "Grüße", "MessageAttributes": ATTRIBUTES},
            {"Id": "b", "Message": ""},
        ]
        # One bad entry refuses the batch.
        self.refuse(
            "bad entry", sns.publish_batch, TopicArn=topic, PublishBatchRequestEntries=entries
        )
        good = entries[:1]
        self.tell("batch", sns.publish_batch(TopicArn=topic, PublishBatchRequestEntries=good))
        [raw] = self.take(url, 1)
        self.tell("raw", [raw["Body"], raw["MessageAttributes"]])
        self.refuse("token", sns.confirm_subscription, TopicArn=topic, Token="none")
        self.refuse("long", sns.publish, TopicArn=topic, Message="x" * 2049)
        self.refuse("empty", sns.publish_batch, TopicArn=topic, PublishBatchRequestEntries=[])
        self.refuse("protocol", sns.subscribe, TopicArn=topic, Protocol="pigeon", Endpoint="x")
        sns.unsubscribe(SubscriptionArn=made)
        sns.delete_topic(TopicArn=topic)
        self.refuse("gone", sns.get_topic_attributes, TopicArn=topic)

    def resources(self) -> None:
        """All that resources do."""
        sns = self.resource
        topic = sns.create_topic(Name="resource")
        assert [one.arn for one in sns.topics.all()] == [topic.arn]
        topic.set_attributes(AttributeName="DisplayName", AttributeValue="by resource")
        topic.reload()
        self.tell("resource", topic.attributes)
        account = topic.arn.split(":")[4]
        topic.add_permission(Label="one", AWSAccountId=[account], ActionName=["Publish"])
        topic.remove_permission(Label="one")
        url, queue = self.queue("resource")
        made = topic.subscribe(Protocol="sqs", Endpoint=queue, ReturnSubscriptionArn=True)
        for found in (sns.subscriptions.all(), topic.subscriptions.all()):
            assert [one.arn for one in found] == [made.arn]
        made.set_attributes(
            AttributeName="FilterPolicy", AttributeValue='{"text": [{"prefix": "g"}]}'
        )
        made.reload()
        self.tell("subscription of resource", made.attributes)
        topic.publish(Message="passed over")
        sent = topic.publish(Message="by resource", MessageAttributes=ATTRIBUTES, Subject="s")
        [got] = [json.loads(one["Body"]) for one in self.take(url, 1)]
        assert got["MessageId"] == sent["MessageId"]
        self.tell("got by resource", got)
        self.refuse("token by resource", topic.confirm_subscription, Token="none")
        assert sns.Subscription(made.arn).attributes["Endpoint"] == queue
        made.delete()
        assert list(topic.subscriptions.all()) == []
        topic.delete()
        assert list(sns.topics.all()) == []


def main(url: str, region: str, key: str, secret: str) -> None:
    """Go all the way round, and tell."""
    round_ = Round(url, region, key, secret)
    round_.clients()
    round_.resources()
    told = {"version": boto3.__version__, "asked": sorted(round_.asked), "told": round_.told}
    print(json.dumps(told, ensure_ascii=False))


if __name__ == "__main__":
    main(*sys.argv[1:])
