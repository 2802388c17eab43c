"""A message goes its way: published to a topic, received from queues, by boto3."""

from __future__ import annotations

import json
from base64 import b64decode
from typing import TYPE_CHECKING
from urllib.request import urlopen

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.hazmat.primitives.hashes import SHA1, SHA256

from tests.server.aws.site import AwsSite
from tests.server.sns.queues import taker
from tests.support.timeouts import scaled

if TYPE_CHECKING:
    from types_boto3_sns import SNSClient
    from types_boto3_sns.type_defs import MessageAttributeValueTypeDef
    from types_boto3_sqs import SQSClient


def verify(envelope: dict[str, str]) -> None:
    """See that a message was signed by the key of the certificate that it names."""
    names = ["Message", "MessageId", "Subject", "Timestamp", "TopicArn", "Type"]
    if envelope["Type"] != "Notification":
        names = ["Message", "MessageId", "SubscribeURL", "Timestamp", "Token", "TopicArn", "Type"]
    text = "".join(f"{name}\n{envelope[name]}\n" for name in names if name in envelope)
    with urlopen(envelope["SigningCertURL"], timeout=scaled(30)) as answer:
        certificate = x509.load_pem_x509_certificate(answer.read())
    key = certificate.public_key()
    assert isinstance(key, RSAPublicKey)
    digest = SHA256() if envelope["SignatureVersion"] == "2" else SHA1()
    key.verify(b64decode(envelope["Signature"]), text.encode(), PKCS1v15(), digest)


def test_a_message_comes_in_what_sns_puts_around_it(
    sns: SNSClient, sqs: SQSClient, topic: str, name: str
) -> None:
    queue = taker(sqs, name)
    made = sns.subscribe(TopicArn=topic, Protocol="sqs", Endpoint=queue.arn)["SubscriptionArn"]
    assert made.startswith(f"{topic}:")
    sent = sns.publish(
        TopicArn=topic,
        Message="héllo <&> ☃",
        Subject="greetings",
        MessageAttributes={
            "n": {"DataType": "Number", "StringValue": "5"},
            "b": {"DataType": "Binary", "BinaryValue": b"\x00\xff"},
            "a": {"DataType": "String.Array", "StringValue": '["x", 5, true, null]'},
        },
    )
    [got] = queue.take(1)
    assert "MessageAttributes" not in got
    envelope = json.loads(got["Body"])
    assert envelope["Type"] == "Notification"
    assert envelope["MessageId"] == sent["MessageId"]
    assert envelope["TopicArn"] == topic
    assert envelope["Subject"] == "greetings"
    assert envelope["Message"] == "héllo <&> ☃"
    assert envelope["UnsubscribeURL"].endswith(f"/?Action=Unsubscribe&SubscriptionArn={made}")
    assert envelope["MessageAttributes"] == {
        "a": {"Type": "String.Array", "Value": '["x", 5, true, null]'},
        "b": {"Type": "Binary", "Value": "AP8="},
        "n": {"Type": "Number", "Value": "5"},
    }
    verify(envelope)


def test_a_topic_may_sign_by_the_second_version(
    sns: SNSClient, sqs: SQSClient, topic: str, name: str
) -> None:
    queue = taker(sqs, name)
    sns.subscribe(TopicArn=topic, Protocol="sqs", Endpoint=queue.arn)
    sns.set_topic_attributes(TopicArn=topic, AttributeName="SignatureVersion", AttributeValue="2")
    sns.publish(TopicArn=topic, Message="x")
    [got] = queue.take(1)
    envelope = json.loads(got["Body"])
    assert (envelope["SignatureVersion"], "Subject" in envelope) == ("2", False)
    verify(envelope)


def test_raw_delivery_may_be_chosen_and_changed(
    sns: SNSClient, sqs: SQSClient, topic: str, name: str
) -> None:
    queue = taker(sqs, name)
    made = sns.subscribe(
        TopicArn=topic,
        Protocol="sqs",
        Endpoint=queue.arn,
        Attributes={"RawMessageDelivery": "true"},
    )["SubscriptionArn"]
    attributes: dict[str, MessageAttributeValueTypeDef] = {
        "colour": {"DataType": "String", "StringValue": "red"},
        "a": {"DataType": "String.Array", "StringValue": '["x",  "y"]'},
    }
    sns.publish(TopicArn=topic, Message="raw", MessageAttributes=attributes)
    [got] = queue.take(1)
    assert (got["Body"], got["MessageAttributes"]) == ("raw", attributes)
    sns.set_subscription_attributes(
        SubscriptionArn=made, AttributeName="RawMessageDelivery", AttributeValue="false"
    )
    sns.publish(TopicArn=topic, Message="within")
    assert queue.bodies(1) == ["within"]


def test_dead_letters_of_a_raw_queue_are_raw(
    sns: SNSClient, sqs: SQSClient, topic: str, name: str
) -> None:
    dead, queue = taker(sqs, f"{name}-dead"), taker(sqs, name)
    made = sns.subscribe(
        TopicArn=topic,
        Protocol="sqs",
        Endpoint=queue.arn,
        Attributes={"RawMessageDelivery": "true"},
    )["SubscriptionArn"]
    policy = json.dumps({"deadLetterTargetArn": dead.arn, "maxReceiveCount": 1})
    sqs.set_queue_attributes(QueueUrl=queue.url, Attributes={"RedrivePolicy": policy})
    for is_raw in (True, False):
        sns.set_subscription_attributes(
            SubscriptionArn=made,
            AttributeName="RawMessageDelivery",
            AttributeValue="true" if is_raw else "false",
        )
        sns.publish(TopicArn=topic, Message="x")
        [got] = sqs.receive_message(QueueUrl=queue.url, WaitTimeSeconds=20)["Messages"]
        sqs.change_message_visibility(
            QueueUrl=queue.url, ReceiptHandle=got["ReceiptHandle"], VisibilityTimeout=0
        )
        assert "Messages" not in sqs.receive_message(QueueUrl=queue.url), "once too often"
        [letter] = dead.take(1)
        assert (letter["Body"] == "x") is is_raw
        if not is_raw:
            times = [json.loads(one["Body"])["Timestamp"] for one in (got, letter)]
            assert times[0] == times[1], "when it was published, wherever it is"


@pytest.mark.process
def test_what_was_answered_is_there_after_a_kill(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    with AwsSite(tmp_path_factory.mktemp("killed")) as site:
        aws = site.aws()
        topic = aws.sns.create_topic(Name="news")["TopicArn"]
        queue = taker(aws.sqs, "queue")
        aws.sns.subscribe(TopicArn=topic, Protocol="sqs", Endpoint=queue.arn)
        sent = [aws.sns.publish(TopicArn=topic, Message=str(at))["MessageId"] for at in range(20)]
        site.restart()
        again = taker(site.aws().sqs, "queue")
        found = [json.loads(one["Body"]) for one in again.take(len(sent))]
        assert [one["MessageId"] for one in found] == sent
        verify(found[0])
        assert "Messages" not in site.aws().sqs.receive_message(QueueUrl=again.url)


def test_every_queue_gets_what_its_policy_lets_pass(
    sns: SNSClient, sqs: SQSClient, topic: str, name: str
) -> None:
    by_attribute, by_body = taker(sqs, f"{name}-a"), taker(sqs, f"{name}-b")
    sns.subscribe(
        TopicArn=topic,
        Protocol="sqs",
        Endpoint=by_attribute.arn,
        Attributes={"FilterPolicy": json.dumps({"tags": ["x", {"prefix": "y"}]})},
    )
    sns.subscribe(
        TopicArn=topic,
        Protocol="sqs",
        Endpoint=by_body.arn,
        Attributes={
            "FilterPolicyScope": "MessageBody",
            "FilterPolicy": json.dumps({"a": {"n": [{"numeric": [">", 5]}]}}),
        },
    )
    for body, tags in (
        ('{"a": {"n": 6}}', '["z", "x"]'),
        ('{"a": {"n": 5}}', '["z", "yes"]'),
        ('{"a": {"n": 7}}', '["z"]'),
    ):
        sns.publish(
            TopicArn=topic,
            Message=body,
            MessageAttributes={"tags": {"DataType": "String.Array", "StringValue": tags}},
        )
    assert by_attribute.bodies(2) == ['{"a": {"n": 6}}', '{"a": {"n": 5}}']
    assert by_body.bodies(2) == ['{"a": {"n": 6}}', '{"a": {"n": 7}}']


def test_a_policy_knows_the_types_of_attributes(
    sns: SNSClient, sqs: SQSClient, topic: str, name: str
) -> None:
    queue = taker(sqs, name)
    policy = {"price": [{"numeric": [">", 5]}, "cheap"]}
    sns.subscribe(
        TopicArn=topic,
        Protocol="sqs",
        Endpoint=queue.arn,
        Attributes={"FilterPolicy": json.dumps(policy)},
    )
    for message, kind, value in (
        ("a number", "Number", "6"),
        ("a text of digits", "String", "6"),
        ("a number of one kind", "Number.int", "7"),
        ("a number in an array", "String.Array", "[1, 8]"),
        ("a text in an array", "String.Array", '["9"]'),
        ("a small number", "Number", "5"),
        ("the word", "String", "cheap"),
    ):
        sns.publish(
            TopicArn=topic,
            Message=message,
            MessageAttributes={"price": {"DataType": kind, "StringValue": value}},
        )
    sns.publish(
        TopicArn=topic,
        Message="bytes",
        MessageAttributes={"price": {"DataType": "Binary", "BinaryValue": b"cheap"}},
    )
    assert queue.bodies(4) == [
        "a number",
        "a number of one kind",
        "a number in an array",
        "the word",
    ]


def test_a_policy_may_be_changed_and_taken_away(
    sns: SNSClient, sqs: SQSClient, topic: str, name: str
) -> None:
    queue = taker(sqs, name)
    made = sns.subscribe(
        TopicArn=topic,
        Protocol="sqs",
        Endpoint=queue.arn,
        Attributes={"FilterPolicy": '{"kind": ["order"]}'},
    )["SubscriptionArn"]
    sns.publish(TopicArn=topic, Message="lost")
    sns.publish(
        TopicArn=topic,
        Message="order",
        MessageAttributes={"kind": {"DataType": "String", "StringValue": "order"}},
    )
    assert queue.bodies(1) == ["order"]
    sns.set_subscription_attributes(
        SubscriptionArn=made, AttributeName="FilterPolicy", AttributeValue="{}"
    )
    sns.publish(TopicArn=topic, Message="all")
    assert queue.bodies(1) == ["all"]


def test_a_message_may_have_a_text_for_each_protocol(
    sns: SNSClient, sqs: SQSClient, topic: str, name: str
) -> None:
    queue = taker(sqs, name)
    sns.subscribe(TopicArn=topic, Protocol="sqs", Endpoint=queue.arn)
    for texts in ({"default": "d", "sqs": "s"}, {"default": "d", "http": "h"}):
        sns.publish(TargetArn=topic, Message=json.dumps(texts), MessageStructure="json")
    assert queue.bodies(2) == ["s", "d"]


def test_a_batch_is_published(sns: SNSClient, sqs: SQSClient, topic: str, name: str) -> None:
    queue = taker(sqs, name)
    sns.subscribe(TopicArn=topic, Protocol="sqs", Endpoint=queue.arn)
    done = sns.publish_batch(
        TopicArn=topic,
        PublishBatchRequestEntries=[
            {"Id": "a", "Message": "one", "Subject": "s"},
            {
                "Id": "b",
                "Message": "two",
                "MessageAttributes": {"n": {"DataType": "Number", "StringValue": "5"}},
            },
        ],
    )
    assert [one["Id"] for one in done["Successful"]] == ["a", "b"]
    assert not done["Failed"]
    found = [json.loads(one["Body"]) for one in queue.take(2)]
    assert [one["Message"] for one in found] == ["one", "two"]
    assert [one["MessageId"] for one in found] == [one["MessageId"] for one in done["Successful"]]


def test_a_fifo_topic_keeps_groups_and_drops_repeats(
    sns: SNSClient, sqs: SQSClient, name: str
) -> None:
    topic = sns.create_topic(Name=f"{name}.fifo", Attributes={"FifoTopic": "true"})["TopicArn"]
    queue = taker(sqs, f"{name}.fifo", FifoQueue="true")
    sns.subscribe(
        TopicArn=topic,
        Protocol="sqs",
        Endpoint=queue.arn,
        Attributes={"RawMessageDelivery": "true"},
    )
    first = sns.publish(TopicArn=topic, Message="1", MessageGroupId="g", MessageDeduplicationId="a")
    again = sns.publish(TopicArn=topic, Message="1", MessageGroupId="g", MessageDeduplicationId="a")
    assert len(first["SequenceNumber"]) == 20
    assert again["SequenceNumber"] == first["SequenceNumber"]
    second = sns.publish(
        TopicArn=topic, Message="2", MessageGroupId="g", MessageDeduplicationId="b"
    )
    assert second["SequenceNumber"] > first["SequenceNumber"]
    found = queue.take(2)
    assert [one["Body"] for one in found] == ["1", "2"]
    assert found[0]["Attributes"]["MessageGroupId"] == "g"
    assert found[1]["Attributes"]["MessageDeduplicationId"] == "b"


def test_a_fifo_topic_may_tell_repeats_by_their_content(
    sns: SNSClient, sqs: SQSClient, name: str
) -> None:
    topic = sns.create_topic(
        Name=f"{name}.fifo",
        Attributes={"FifoTopic": "true", "ContentBasedDeduplication": "true"},
    )["TopicArn"]
    queue = taker(sqs, name)
    sns.subscribe(TopicArn=topic, Protocol="sqs", Endpoint=queue.arn)
    for text in ("x", "x", "y"):
        sns.publish(TopicArn=topic, Message=text, MessageGroupId="g")
    found = [json.loads(one["Body"]) for one in queue.take(2)]
    assert [one["Message"] for one in found] == ["x", "y"]
    fields = ["Type", "MessageId", "SequenceNumber", "TopicArn", "Message", "Timestamp"]
    assert list(found[0]) == [*fields, "UnsubscribeURL"]
    numbers = [one["SequenceNumber"] for one in found]
    assert sorted(set(numbers)) == numbers
    assert {len(number) for number in numbers} == {20}
