"""Every action of SQS and SNS once, asked by whatever client there is.

A client is a program that reads calls from its input, one a line as JSON (`service`, `action` and
`input`), and writes for each what was answered: `{"told": …}` or `{"refused": "code"}`.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tests.server.aws.site import ACCOUNT

Told = dict[str, Any]
Ask = Callable[[str, str, Told], Told]
"""Service, action and input; returns what was answered.

Raises:
    Refused: the call was.
"""


class Refused(Exception):
    """A call was refused, with this code."""


class Client:
    """A client in another process."""

    def __init__(self, command: Sequence[object], environment: Mapping[str, str], **more: Any):
        self._process = subprocess.Popen(
            [str(word) for word in command],
            env=dict(environment),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            **more,
        )

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()

    def ask(self, service: str, action: str, told: Told) -> Told:
        """What is answered to a call."""
        asked, answers = self._process.stdin, self._process.stdout
        assert asked is not None
        assert answers is not None
        asked.write(json.dumps({"service": service, "action": action, "input": told}) + "\n")
        asked.flush()
        answer = json.loads(answers.readline())
        if "refused" in answer:
            raise Refused(answer["refused"])
        found: Told = answer["told"]
        return found


def go_round(ask: Ask, region: str) -> set[str]:
    """Ask for everything; returns the actions, each after its service."""
    done: set[str] = set()

    def sqs(action: str, **told: object) -> Told:
        done.add(f"sqs:{action}")
        return ask("sqs", action, told)

    def sns(action: str, **told: object) -> Told:
        done.add(f"sns:{action}")
        return ask("sns", action, told)

    _queues(sqs, region)
    _topics(sns, sqs, region)
    return done


def _is_refused(ask: Callable[[], object]) -> bool:
    try:
        ask()
    except Refused as refused:
        # Some clients tell the name of the shape, some the code of the older protocol.
        return str(refused).startswith("InvalidParameter")
    return False


def _queues(sqs: Callable[..., Told], region: str) -> None:
    dead = sqs("CreateQueue", QueueName="every-dead")["QueueUrl"]
    url = sqs("CreateQueue", QueueName="every", Attributes={"DelaySeconds": "0"})["QueueUrl"]
    at = {"QueueUrl": url}
    assert sqs("GetQueueUrl", QueueName="every") == at
    assert sqs("ListQueues", QueueNamePrefix="every")["QueueUrls"] == [url, dead]
    arn = f"arn:aws:sqs:{region}:{ACCOUNT}:every-dead"
    policy = json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": 3})
    sqs("SetQueueAttributes", **at, Attributes={"RedrivePolicy": policy})
    found = sqs("GetQueueAttributes", **at, AttributeNames=["RedrivePolicy"])["Attributes"]
    assert found == {"RedrivePolicy": policy}
    assert sqs("ListDeadLetterSourceQueues", QueueUrl=dead)["queueUrls"] == [url]
    sqs("TagQueue", **at, Tags={"team": "grün", "more": "x"})
    sqs("UntagQueue", **at, TagKeys=["more"])
    assert sqs("ListQueueTags", **at)["Tags"] == {"team": "grün"}
    sqs("AddPermission", **at, Label="one", AWSAccountIds=[ACCOUNT], Actions=["SendMessage"])
    sqs("RemovePermission", **at, Label="one")
    attributes = {"colour": {"DataType": "String", "StringValue": "<röt>"}}
    sent = sqs("SendMessage", **at, MessageBody="héllo <&> ☃", MessageAttributes=attributes)
    [got] = sqs("ReceiveMessage", **at, MessageAttributeNames=["All"])["Messages"]
    assert (got["Body"], got["MessageId"]) == ("héllo <&> ☃", sent["MessageId"])
    assert got["MessageAttributes"]["colour"]["StringValue"] == "<röt>"
    receipt = got["ReceiptHandle"]
    sqs("ChangeMessageVisibility", **at, ReceiptHandle=receipt, VisibilityTimeout=60)
    given_back = {"Id": "a", "ReceiptHandle": receipt, "VisibilityTimeout": 0}
    changed = sqs("ChangeMessageVisibilityBatch", **at, Entries=[given_back])
    assert [one["Id"] for one in changed["Successful"]] == ["a"]
    [again] = sqs("ReceiveMessage", **at, WaitTimeSeconds=10)["Messages"]
    sqs("DeleteMessage", **at, ReceiptHandle=again["ReceiptHandle"])
    entries = [{"Id": one, "MessageBody": one} for one in ("1", "2")]
    assert len(sqs("SendMessageBatch", **at, Entries=entries)["Successful"]) == 2
    both = sqs("ReceiveMessage", **at, MaxNumberOfMessages=10)["Messages"]
    assert [one["Body"] for one in both] == ["1", "2"]
    ends = [{"Id": one["Body"], "ReceiptHandle": one["ReceiptHandle"]} for one in both]
    assert len(sqs("DeleteMessageBatch", **at, Entries=ends)["Successful"]) == 2
    assert sqs("StartMessageMoveTask", SourceArn=arn)["TaskHandle"]
    [task] = sqs("ListMessageMoveTasks", SourceArn=arn)["Results"]
    assert task["SourceArn"] == arn
    assert _is_refused(lambda: sqs("CancelMessageMoveTask", TaskHandle="none"))
    sqs("PurgeQueue", **at)
    sqs("DeleteQueue", QueueUrl=dead)


def _topics(sns: Callable[..., Told], sqs: Callable[..., Told], region: str) -> None:
    url = sqs("GetQueueUrl", QueueName="every")["QueueUrl"]
    arn = sns("CreateTopic", Name="every", Attributes={"DisplayName": "é"})["TopicArn"]
    at = {"TopicArn": arn}
    assert sns("ListTopics")["Topics"] == [at]
    sns("SetTopicAttributes", **at, AttributeName="DisplayName", AttributeValue="<news>")
    assert sns("GetTopicAttributes", **at)["Attributes"]["DisplayName"] == "<news>"
    tags = [{"Key": "team", "Value": "grün"}, {"Key": "more", "Value": "x"}]
    sns("TagResource", ResourceArn=arn, Tags=tags)
    sns("UntagResource", ResourceArn=arn, TagKeys=["more"])
    assert sns("ListTagsForResource", ResourceArn=arn)["Tags"] == tags[:1]
    sns("AddPermission", **at, Label="one", AWSAccountId=[ACCOUNT], ActionName=["Publish"])
    sns("RemovePermission", **at, Label="one")
    queue = f"arn:aws:sqs:{region}:{ACCOUNT}:every"
    subscription = sns("Subscribe", **at, Protocol="sqs", Endpoint=queue)["SubscriptionArn"]
    of = {"SubscriptionArn": subscription}
    sns(
        "SetSubscriptionAttributes", **of, AttributeName="RawMessageDelivery", AttributeValue="true"
    )
    found = sns("GetSubscriptionAttributes", **of)["Attributes"]
    assert (found["RawMessageDelivery"], found["Endpoint"]) == ("true", queue)
    for listed in (sns("ListSubscriptions"), sns("ListSubscriptionsByTopic", **at)):
        assert [one["SubscriptionArn"] for one in listed["Subscriptions"]] == [subscription]
    assert _is_refused(lambda: sns("ConfirmSubscription", **at, Token="none"))
    attributes = {"colour": {"DataType": "String", "StringValue": "röt"}}
    assert sns("Publish", **at, Message="héllo <&>", MessageAttributes=attributes)["MessageId"]
    entries = [{"Id": "1", "Message": "two"}, {"Id": "2", "Message": "", "Subject": "x"}]
    # One bad entry refuses the batch.
    assert _is_refused(lambda: sns("PublishBatch", **at, PublishBatchRequestEntries=entries))
    published = sns("PublishBatch", **at, PublishBatchRequestEntries=entries[:1])
    assert [one["Id"] for one in published["Successful"]] == ["1"]
    assert not published.get("Failed")
    bodies: list[str] = []
    while len(bodies) < 2:
        got = sqs("ReceiveMessage", QueueUrl=url, MaxNumberOfMessages=10, WaitTimeSeconds=20)
        bodies += [one["Body"] for one in got["Messages"]]
    assert bodies == ["héllo <&>", "two"]
    sns("Unsubscribe", **of)
    sns("DeleteTopic", **at)
    sqs("DeleteQueue", QueueUrl=url)
