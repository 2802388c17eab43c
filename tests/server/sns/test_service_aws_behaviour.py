"""Behaviours of AWS's SNS that were recorded from it, by boto3."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
from botocore.exceptions import ClientError

import millrace.sync
from millrace import limits
from tests.server.aws.site import ACCOUNT, REGION, AwsSite, make_key
from tests.server.sns.queues import Taker, refused, taker
from tests.server.sns.test_publish_round_trip import verify
from tests.support.timeouts import scaled

if TYPE_CHECKING:
    from types_boto3_sns import SNSClient
    from types_boto3_sns.type_defs import (
        MessageAttributeValueTypeDef,
        PublishBatchRequestEntryTypeDef,
    )
    from types_boto3_sqs import SQSClient

FIFO = {"FifoTopic": "true"}
ALL_PUBLISH = "allow publish default/*"
IN_BODY = {"FilterPolicyScope": "MessageBody"}


def changed(site: AwsSite, operation: str, change: Callable[[dict[str, Any]], None]) -> SNSClient:
    """A client whose requests for an operation are changed after boto3 has made them."""
    sns = site.aws().sns

    def call(params: dict[str, Any], **_: object) -> None:
        change(params)

    sns.meta.events.register(f"before-call.sns.{operation}", call)
    return sns


def batch(sns: SNSClient, topic: str, bad: PublishBatchRequestEntryTypeDef) -> tuple[str, int, str]:
    """Publish a good entry and a bad one; returns how the batch is refused."""
    good: PublishBatchRequestEntryTypeDef = {
        "Id": "good",
        "Message": "good",
        "MessageGroupId": "g",
    }
    if topic.endswith(".fifo"):
        good["MessageDeduplicationId"] = "good"
    with pytest.raises(ClientError) as error:
        sns.publish_batch(TopicArn=topic, PublishBatchRequestEntries=[good, bad])
    return refused(error)


# --- 3: batches ----------------------------------------------------------------------------------


def text_of(data_type: str, **value: str | bytes) -> dict[str, MessageAttributeValueTypeDef]:
    return {"a": {"DataType": data_type, **value}}  # type: ignore[typeddict-item]


@pytest.mark.parametrize(
    ("entry", "code", "text"),
    [
        ({"MessageStructure": "json"}, "InvalidParameter", "Message Structure - JSON message body"),
        (
            {"MessageStructure": "json", "Message": '{"sqs": "x"}'},
            "InvalidParameter",
            "Message Structure - No default entry in JSON message body",
        ),
        ({"MessageDeduplicationId": "x"}, "InvalidParameter", "MessageDeduplicationId Reason"),
        (
            {"MessageAttributes": text_of("String", StringValue="")},
            "ParameterValueInvalid",
            "must contain non-empty message attribute value",
        ),
        (
            {"MessageAttributes": text_of("String")},
            "ParameterValueInvalid",
            "must contain non-empty message attribute value",
        ),
        (
            {"MessageAttributes": text_of("String", BinaryValue=b"x")},
            "ParameterValueInvalid",
            "must use field 'String'",
        ),
        (
            {"MessageAttributes": text_of("Text", StringValue="x")},
            "ParameterValueInvalid",
            "has an invalid message attribute type",
        ),
        (
            {"MessageAttributes": {"a b": {"DataType": "String", "StringValue": "x"}}},
            "ParameterValueInvalid",
            "Invalid non-alphanumeric character '#x20'",
        ),
    ],
)
def test_aws_3_a_bad_entry_refuses_its_whole_batch(
    sns: SNSClient, sqs: SQSClient, topic: str, name: str, entry: Any, code: str, text: str
) -> None:
    queue = taker(sqs, name)
    sns.subscribe(TopicArn=topic, Protocol="sqs", Endpoint=queue.arn)
    alone = {"Message": "bad", **entry}
    with pytest.raises(ClientError) as error:
        sns.publish(TopicArn=topic, **alone)
    published = refused(error)
    assert (published[:2], text in published[2]) == ((code, 400), True)
    assert batch(sns, topic, {"Id": "bad", **alone}) == published  # type: ignore[typeddict-item]
    sns.publish(TopicArn=topic, Message="last")
    assert queue.bodies(1) == ["last"], "of the batch nothing was published"


def test_aws_3_a_fifo_batch_needs_groups_and_ids_of_all_entries(
    sns: SNSClient, sqs: SQSClient, name: str
) -> None:
    topic = sns.create_topic(Name=f"{name}.fifo", Attributes=FIFO)["TopicArn"]
    queue = taker(sqs, f"{name}.fifo", FifoQueue="true")
    sns.subscribe(TopicArn=topic, Protocol="sqs", Endpoint=queue.arn)
    assert batch(sns, topic, {"Id": "bad", "Message": "bad", "MessageDeduplicationId": "bad"}) == (
        "InvalidParameter",
        400,
        "Invalid parameter: The MessageGroupId parameter is required for FIFO topics",
    )
    assert batch(sns, topic, {"Id": "bad", "Message": "bad", "MessageGroupId": "g"}) == (
        "InvalidParameter",
        400,
        "Invalid parameter: The topic should either have ContentBasedDeduplication enabled or "
        "MessageDeduplicationId provided explicitly",
    )
    # The id of the entry that was refused with its batch is not taken for one that was published.
    sns.publish(TopicArn=topic, Message="again", MessageGroupId="g", MessageDeduplicationId="good")
    assert queue.bodies(1) == ["again"]


# --- 7: traces -----------------------------------------------------------------------------------

TRACE = "Root=1-5759e988-bd862e3fe1be46a994272793;Parent=53995c3f42cd8ad8;Sampled=1"


@pytest.mark.parametrize("raw", ["true", "false"])
def test_aws_7_the_trace_header_of_a_publish_comes_with_its_message(
    site: AwsSite, sqs: SQSClient, topic: str, name: str, raw: str
) -> None:
    def trace(params: dict[str, Any]) -> None:
        params["headers"]["X-Amzn-Trace-Id"] = TRACE

    queue = taker(sqs, name)
    for operation in ("Publish", "PublishBatch"):
        sns = changed(site, operation, trace)
        sns.subscribe(
            TopicArn=topic,
            Protocol="sqs",
            Endpoint=queue.arn,
            Attributes={"RawMessageDelivery": raw},
        )
        if operation == "Publish":
            sns.publish(TopicArn=topic, Message="x")
        else:
            sns.publish_batch(
                TopicArn=topic, PublishBatchRequestEntries=[{"Id": "a", "Message": "x"}]
            )
        [got] = queue.take(1)
        assert got["Attributes"]["AWSTraceHeader"] == TRACE
        assert "MessageAttributes" not in got


def test_aws_7_a_publish_without_the_header_has_no_trace(
    sns: SNSClient, sqs: SQSClient, topic: str, name: str
) -> None:
    queue = taker(sqs, name)
    sns.subscribe(TopicArn=topic, Protocol="sqs", Endpoint=queue.arn)
    sns.publish(TopicArn=topic, Message="x")
    [got] = queue.take(1)
    assert "AWSTraceHeader" not in got["Attributes"]


def test_a_trace_header_that_is_too_long_is_ignored(
    site: AwsSite, sqs: SQSClient, topic: str, name: str
) -> None:
    def trace(params: dict[str, Any]) -> None:
        params["headers"]["X-Amzn-Trace-Id"] = "x" * (limits.SQS_TRACE_CHARS_MAX + 1)

    queue = taker(sqs, name)
    sns = changed(site, "Publish", trace)
    sns.subscribe(TopicArn=topic, Protocol="sqs", Endpoint=queue.arn)
    sns.publish(TopicArn=topic, Message="x")
    [got] = queue.take(1)
    assert "AWSTraceHeader" not in got["Attributes"]


# --- 8, 10, 25: filters --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("policy", "bodies"),
    [
        (
            {"object.nested": ["v"]},
            ['{"object": {"nested": "v"}}', '{"object.nested": "v"}'],
        ),
        (
            {"a.b.c": ["v"]},
            [
                '{"a": {"b": {"c": "v"}}}',
                '{"a.b.c": "v"}',
                '{"a.b": {"c": "v"}}',
                '{"a": {"b.c": "v"}}',
            ],
        ),
        (
            {"a": {"b.c": ["v"]}, "d.e": {"f": ["w"]}},
            [
                '{"a": {"b": {"c": "v"}}, "d": {"e": {"f": "w"}}}',
                '{"a.b": {"c": "v"}, "d.e.f": "w"}',
            ],
        ),
    ],
)
def test_aws_8_a_dot_in_a_key_of_a_body_is_a_path(
    sns: SNSClient,
    sqs: SQSClient,
    topic: str,
    name: str,
    policy: dict[str, object],
    bodies: list[str],
) -> None:
    queue = taker(sqs, name)
    attributes = {**IN_BODY, "FilterPolicy": json.dumps(policy)}
    sns.subscribe(TopicArn=topic, Protocol="sqs", Endpoint=queue.arn, Attributes=attributes)
    for body in bodies:
        sns.publish(TopicArn=topic, Message=body.replace('"v"', '"other"'))
        sns.publish(TopicArn=topic, Message=body)
    assert queue.bodies(len(bodies)) == bodies


def test_aws_10_numbers_are_compared_to_five_digits(
    sns: SNSClient, sqs: SQSClient, topic: str, name: str
) -> None:
    by_attribute, by_body = taker(sqs, f"{name}-a"), taker(sqs, f"{name}-b")
    policy = '{"price": [100.123456789]}'
    for queue, scope in ((by_attribute, {}), (by_body, IN_BODY)):
        attributes = {**scope, "FilterPolicy": policy}
        sns.subscribe(TopicArn=topic, Protocol="sqs", Endpoint=queue.arn, Attributes=attributes)
    for number in ("100.1234", "100.1234567", "[1, 100.1234567]"):
        kind = "String.Array" if number.startswith("[") else "Number"
        sns.publish(
            TopicArn=topic,
            Message=f'{{"price": {number}}}',
            MessageAttributes={"price": {"DataType": kind, "StringValue": number}},
        )
    for queue in (by_attribute, by_body):
        assert queue.bodies(2) == ['{"price": 100.1234567}', '{"price": [1, 100.1234567]}']


def test_aws_25_an_array_may_be_a_single_number(
    sns: SNSClient, sqs: SQSClient, topic: str, name: str
) -> None:
    queue = taker(sqs, name)
    attributes = {"FilterPolicy": '{"n": [100]}', "RawMessageDelivery": "true"}
    sns.subscribe(TopicArn=topic, Protocol="sqs", Endpoint=queue.arn, Attributes=attributes)
    for value in ("99", '"100"', "100"):
        array: MessageAttributeValueTypeDef = {"DataType": "String.Array", "StringValue": value}
        sns.publish(TopicArn=topic, Message=value, MessageAttributes={"n": array})
    [got] = queue.take(1)
    assert got["MessageAttributes"] == {"n": {"DataType": "String.Array", "StringValue": "100"}}


def test_aws_25_words_of_attributes_have_letters_of_any_case(sns: SNSClient, name: str) -> None:
    made = sns.create_topic(Name=f"{name}.fifo", Attributes={"FifoTopic": "True"})["TopicArn"]
    assert sns.get_topic_attributes(TopicArn=made)["Attributes"]["FifoTopic"] == "true"


# --- 11: what is there already --------------------------------------------------------------------


def test_aws_11_a_topic_may_be_made_again_with_some_of_its_tags(sns: SNSClient, name: str) -> None:
    def make(*tags: str) -> str:
        pairs = [tag.split("=") for tag in tags]
        given = [{"Key": key, "Value": value} for key, value in pairs]
        return sns.create_topic(Name=name, Tags=given)["TopicArn"]  # type: ignore[arg-type]

    made = make("a=1", "b=2")
    assert make() == make("b=2") == make("b=2", "a=1") == made
    for tags in (("c=3",), ("a=1", "c=3"), ("a=2",)):
        with pytest.raises(ClientError) as error:
            make(*tags)
        assert refused(error) == (
            "InvalidParameter",
            400,
            "Invalid parameter: Tags Reason: Topic already exists with different tags",
        )


def test_aws_11_defaults_may_be_named_when_a_queue_is_subscribed_again(
    sns: SNSClient, sqs: SQSClient, topic: str, name: str
) -> None:
    queue = taker(sqs, name)
    attributes = {"FilterPolicy": '{"kind": ["order"]}'}

    def subscribe(**given: str) -> str:
        return sns.subscribe(TopicArn=topic, Protocol="sqs", Endpoint=queue.arn, Attributes=given)[
            "SubscriptionArn"
        ]

    scope = {"FilterPolicyScope": "MessageAttributes"}
    made = subscribe(**attributes)
    assert subscribe(**scope) == subscribe(**attributes, **scope) == made
    assert subscribe(RawMessageDelivery="false") == made
    with pytest.raises(ClientError) as error:
        subscribe(**IN_BODY)
    assert refused(error)[2] == (
        "Invalid parameter: Attributes Reason: Subscription already exists with different "
        "attributes"
    )


# --- 14, 15, 16: what is answered -----------------------------------------------------------------


def test_aws_14_errors_have_no_detail(site: AwsSite, topic: str) -> None:
    aws, texts = site.aws(), []

    def note(http_response: Any, **_: object) -> None:
        texts.append(http_response.text)

    sns = aws.sns
    sns.meta.events.register("after-call.sns.GetTopicAttributes", note)
    with pytest.raises(ClientError) as error:
        sns.get_topic_attributes(TopicArn=f"{topic}-none")
    assert "Detail" not in error.value.response["Error"]
    [text] = texts
    assert (
        "<Error><Type>Sender</Type><Code>NotFound</Code><Message>Topic does not exist</Message>"
        "</Error>" in text
    )


@pytest.mark.process
def test_aws_15_the_principal_is_the_user_who_subscribed(
    site: AwsSite, sqs: SQSClient, topic: str, name: str
) -> None:
    queue = taker(sqs, name)
    user = f"user-{name}"
    aws = site.aws(make_key(site.folder, user, f"allow manage,publish,read default/{name}"))
    made = aws.sns.subscribe(TopicArn=topic, Protocol="sqs", Endpoint=queue.arn)["SubscriptionArn"]
    found = aws.sns.get_subscription_attributes(SubscriptionArn=made)["Attributes"]
    assert found["SubscriptionPrincipal"] == f"arn:aws:iam::{ACCOUNT}:user/{user}"
    assert found["SubscriptionPrincipal"] == aws.sts.get_caller_identity()["Arn"]


def test_aws_16_the_throughput_scope_is_told_where_it_was_set(sns: SNSClient, name: str) -> None:
    made = sns.create_topic(Name=f"{name}.fifo", Attributes=FIFO)["TopicArn"]

    def told() -> str | None:
        return sns.get_topic_attributes(TopicArn=made)["Attributes"].get("FifoThroughputScope")

    assert told() is None
    for scope in ("MessageGroup", "Topic"):
        sns.set_topic_attributes(
            TopicArn=made, AttributeName="FifoThroughputScope", AttributeValue=scope
        )
        assert told() == scope


# --- Documented differences that are none any more ------------------------------------------------


def test_aws_d_all_queues_of_a_fifo_topic_get_the_number_that_its_publish_answers(
    sns: SNSClient, sqs: SQSClient, name: str
) -> None:
    topic = sns.create_topic(Name=f"{name}.fifo", Attributes=FIFO)["TopicArn"]
    all, some = (taker(sqs, f"{name}-{at}.fifo", FifoQueue="true") for at in ("all", "some"))
    sns.subscribe(TopicArn=topic, Protocol="sqs", Endpoint=all.arn)
    sns.subscribe(
        TopicArn=topic,
        Protocol="sqs",
        Endpoint=some.arn,
        Attributes={"FilterPolicy": '{"odd": ["1"]}'},
    )
    numbers = []
    for at in range(4):
        sent = sns.publish(
            TopicArn=topic,
            Message=str(at),
            MessageGroupId="g",
            MessageDeduplicationId=str(at),
            MessageAttributes={"odd": {"DataType": "String", "StringValue": str(at % 2)}},
        )
        numbers.append(sent["SequenceNumber"])
    done = sns.publish_batch(
        TopicArn=topic,
        PublishBatchRequestEntries=[
            {
                "Id": str(at),
                "Message": str(at),
                "MessageGroupId": "g",
                "MessageDeduplicationId": str(at),
            }
            for at in range(2, 6)
        ],
    )
    batch = [one["SequenceNumber"] for one in done["Successful"]]
    assert batch[:2] == numbers[2:], "repeats have the number of the first"
    numbers += batch[2:]
    assert sorted(set(numbers)) == numbers

    def told(queue: Taker, count: int) -> list[str]:
        return [json.loads(one["Body"])["SequenceNumber"] for one in queue.take(count)]

    assert told(all, 6) == numbers
    assert told(some, 2) == [numbers[1], numbers[3]]


def states(site: AwsSite, name: str) -> list[tuple[int, int, int]]:
    """Of each subscription of a topic: messages that were forwarded, dead letters, dropped."""
    with millrace.sync.connect(site.url, token=site.process.token) as m:
        found = m.find_topic(name).subscriptions()
        return [(one.forwarded, one.dead_lettered, one.dropped) for one in found]


def until(site: AwsSite, name: str, expected: list[tuple[int, int, int]]) -> None:
    """Wait until the subscriptions of a topic are so."""
    waiting = threading.Event()
    for _ in range(round(scaled(600))):
        if states(site, name) == expected:
            return
        waiting.wait(0.1)
    assert states(site, name) == expected


def raw(topic: str, sns: SNSClient, arn: str, **attributes: str) -> str:
    """Subscribe a queue that gets messages as they are."""
    return sns.subscribe(
        TopicArn=topic,
        Protocol="sqs",
        Endpoint=arn,
        Attributes={"RawMessageDelivery": "true", **attributes},
    )["SubscriptionArn"]


def test_aws_a_a_queue_may_be_subscribed_before_it_is_made(
    site: AwsSite, sns: SNSClient, sqs: SQSClient, topic: str, name: str
) -> None:
    arn = f"arn:aws:sqs:{REGION}:{ACCOUNT}:{name}"
    made = raw(topic, sns, arn)
    assert raw(topic, sns, arn) == made
    [listed] = sns.list_subscriptions_by_topic(TopicArn=topic)["Subscriptions"]
    assert (listed["SubscriptionArn"], listed["Endpoint"]) == (made, arn)
    sns.publish(TopicArn=topic, Message="lost")
    until(site, name, [(0, 0, 1)])
    queue = taker(sqs, name, VisibilityTimeout="10")
    sns.publish(TopicArn=topic, Message="x")
    [got] = queue.take(1)
    assert got["Body"] == "x", "as it was subscribed: raw"
    assert states(site, name) == [(1, 0, 1)]
    sns.set_subscription_attributes(
        SubscriptionArn=made, AttributeName="RawMessageDelivery", AttributeValue="false"
    )
    sns.publish(TopicArn=topic, Message="y")
    [got] = queue.take(1)
    envelope = json.loads(got["Body"])
    assert envelope["Message"] == "y"
    assert envelope["UnsubscribeURL"].endswith(made)


def test_aws_b_a_subscription_outlives_its_queue(
    site: AwsSite, sns: SNSClient, sqs: SQSClient, topic: str, name: str
) -> None:
    queue = taker(sqs, name)
    made = raw(topic, sns, queue.arn)
    sns.publish(TopicArn=topic, Message="first")
    assert [one["Body"] for one in queue.take(1)] == ["first"]
    for at in range(2):
        sqs.delete_queue(QueueUrl=queue.url)
        listed = sns.list_subscriptions_by_topic(TopicArn=topic)["Subscriptions"]
        assert [one["SubscriptionArn"] for one in listed] == [made]
        sns.publish(TopicArn=topic, Message="lost")
        until(site, name, [(1 + at, 0, 1 + at)])
        queue = taker(sqs, name)
        sns.publish(TopicArn=topic, Message="again")
        assert [one["Body"] for one in queue.take(1)] == ["again"]
    sqs.delete_queue(QueueUrl=queue.url)
    # What is changed meanwhile holds for the next queue.
    sns.set_subscription_attributes(
        SubscriptionArn=made, AttributeName="RawMessageDelivery", AttributeValue="false"
    )
    queue = taker(sqs, name)
    sns.publish(TopicArn=topic, Message="within")
    assert queue.bodies(1) == ["within"]
    sqs.delete_queue(QueueUrl=queue.url)
    sns.unsubscribe(SubscriptionArn=made)
    queue = taker(sqs, name)
    sns.publish(TopicArn=topic, Message="to nobody")
    assert states(site, name) == []
    assert "Messages" not in sqs.receive_message(QueueUrl=queue.url)


def test_aws_c_what_has_no_queue_is_a_dead_letter_of_its_subscription(
    site: AwsSite, sns: SNSClient, sqs: SQSClient, topic: str, name: str
) -> None:
    queue, dead = taker(sqs, name), taker(sqs, f"{name}-dead")
    policy = json.dumps({"deadLetterTargetArn": dead.arn})
    made = sns.subscribe(
        TopicArn=topic, Protocol="sqs", Endpoint=queue.arn, Attributes={"RedrivePolicy": policy}
    )["SubscriptionArn"]
    sqs.delete_queue(QueueUrl=queue.url)
    sent = sns.publish(TopicArn=topic, Message="x", Subject="s")
    [letter] = dead.take(1)
    envelope = json.loads(letter["Body"])
    assert (envelope["Message"], envelope["Subject"]) == ("x", "s")
    assert envelope["MessageId"] == sent["MessageId"]
    verify(envelope)
    assert states(site, name) == [(0, 1, 0)]
    queue = taker(sqs, name)
    sns.publish(TopicArn=topic, Message="y")
    assert queue.bodies(1) == ["y"]
    sqs.delete_queue(QueueUrl=queue.url)
    # Without the policy they are dropped, and with it, where its queue is gone.
    sns.set_subscription_attributes(
        SubscriptionArn=made, AttributeName="RedrivePolicy", AttributeValue=""
    )
    sns.publish(TopicArn=topic, Message="lost")
    until(site, name, [(1, 1, 1)])
    sns.set_subscription_attributes(
        SubscriptionArn=made, AttributeName="RedrivePolicy", AttributeValue=policy
    )
    sns.publish(TopicArn=topic, Message="z")
    assert dead.bodies(1) == ["z"]
    sqs.delete_queue(QueueUrl=dead.url)
    sns.publish(TopicArn=topic, Message="lost")
    until(site, name, [(1, 2, 2)])


def test_aws_c_what_is_too_large_for_its_queue_is_a_dead_letter_of_its_subscription(
    site: AwsSite, sns: SNSClient, sqs: SQSClient, topic: str, name: str
) -> None:
    queue, dead = taker(sqs, name, MaximumMessageSize="1024"), taker(sqs, f"{name}-dead")
    policy = json.dumps({"deadLetterTargetArn": dead.arn})
    made = raw(topic, sns, queue.arn, RedrivePolicy=policy)
    around: dict[str, MessageAttributeValueTypeDef] = {
        "a": {"DataType": "String", "StringValue": "x"}
    }
    # An attribute counts with its name and value, and what the server notes of a message does not.
    fits, large = "f" * 1022, "l" * 1023
    for text in (fits, large, fits):
        sns.publish(TopicArn=topic, Message=text, MessageAttributes=around)
    assert [one["Body"] for one in queue.take(2)] == [fits, fits]
    assert dead.bodies(1) == [large]
    until(site, name, [(2, 1, 0)])
    # The attribute as it is now: a message that fits is forwarded.
    sqs.set_queue_attributes(QueueUrl=queue.url, Attributes={"MaximumMessageSize": "1025"})
    sns.publish(TopicArn=topic, Message=large, MessageAttributes=around)
    assert [one["Body"] for one in queue.take(1)] == [large]
    # What SNS puts around a message is not counted.
    sns.set_subscription_attributes(
        SubscriptionArn=made, AttributeName="RawMessageDelivery", AttributeValue="false"
    )
    sns.publish(TopicArn=topic, Message=fits)
    assert queue.bodies(1) == [fits]
    sns.publish(TopicArn=topic, Message="l" * 1026)
    assert dead.bodies(1) == ["l" * 1026]
    # Without the policy it is discarded; another queue of the name has a bound of its own.
    sns.set_subscription_attributes(
        SubscriptionArn=made, AttributeName="RedrivePolicy", AttributeValue=""
    )
    sns.publish(TopicArn=topic, Message="l" * 1026)
    until(site, name, [(4, 2, 1)])
    sqs.delete_queue(QueueUrl=queue.url)
    queue = taker(sqs, name)
    sns.publish(TopicArn=topic, Message="l" * 1026)
    assert queue.bodies(1) == ["l" * 1026]
    assert "Messages" not in sqs.receive_message(QueueUrl=dead.url)


def test_aws_c_what_is_too_large_for_a_fifo_queue_is_discarded_without_a_policy(
    site: AwsSite, sns: SNSClient, sqs: SQSClient, name: str
) -> None:
    topic = sns.create_topic(Name=f"{name}.fifo", Attributes=FIFO)["TopicArn"]
    queue = taker(sqs, f"{name}.fifo", FifoQueue="true", MaximumMessageSize="1024")
    raw(topic, sns, queue.arn)
    sns.publish_batch(
        TopicArn=topic,
        PublishBatchRequestEntries=[
            {
                "Id": str(at),
                "Message": str(at) * size,
                "MessageGroupId": "g",
                "MessageDeduplicationId": str(at),
            }
            for at, size in enumerate((1, 1025, 1024, 1025, 1))
        ],
    )
    assert [one["Body"] for one in queue.take(3)] == ["0", "2" * 1024, "4"]
    assert states(site, f"{name}.fifo") == [(3, 0, 2)]


@pytest.mark.process
def test_aws_a_what_waits_for_its_queue_does_so_after_a_kill(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    with AwsSite(tmp_path_factory.mktemp("killed")) as site:
        aws = site.aws()
        topic = aws.sns.create_topic(Name="news")["TopicArn"]
        dead, queue = taker(aws.sqs, "dead"), taker(aws.sqs, "queue")
        policy = json.dumps({"deadLetterTargetArn": dead.arn})
        raw(topic, aws.sns, queue.arn, RedrivePolicy=policy)
        aws.sqs.delete_queue(QueueUrl=queue.url)
        for at in range(5):
            aws.sns.publish(TopicArn=topic, Message=str(at))
        site.restart()
        aws = site.aws()
        assert taker(aws.sqs, "dead").bodies(5) == [str(at) for at in range(5)]
        queue = taker(aws.sqs, "queue")
        aws.sns.publish(TopicArn=topic, Message="x")
        assert [one["Body"] for one in queue.take(1)] == ["x"]
        until(site, "news", [(1, 5, 0)])


@pytest.mark.process
def test_aws_b_a_start_makes_subscriptions_of_earlier_versions_durable(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """Those of users who may manage the queue, and no others."""
    with AwsSite(tmp_path_factory.mktemp("aged")) as site:
        aws = site.aws()
        topic = aws.sns.create_topic(Name="news")["TopicArn"]
        for name in ("mine", "theirs", "dead"):
            taker(aws.sqs, name)
        mine, theirs, dead = (
            f"arn:aws:sqs:{REGION}:{ACCOUNT}:{name}" for name in ("mine", "theirs", "dead")
        )
        policy = json.dumps({"deadLetterTargetArn": dead})
        made = raw(topic, aws.sns, mine, RedrivePolicy=policy)
        guest = make_key(site.folder, "bob", "allow manage,publish default/news", ALL_PUBLISH)
        raw(topic, site.aws(guest).sns, theirs)

        def age(m: millrace.sync.Millrace) -> None:
            """Have the subscription as an earlier version has made it."""
            news = m.find_topic("news")
            [older] = [one for one in news.subscriptions() if one.queue == "default/mine"]
            assert news.unsubscribe(older.name)
            news.subscribe("mine", name=older.name, notes=older.notes)

        site.edit(age)
        aws = site.aws()
        for name in ("mine", "theirs"):
            aws.sqs.delete_queue(QueueUrl=aws.sqs.get_queue_url(QueueName=name)["QueueUrl"])
        listed = aws.sns.list_subscriptions_by_topic(TopicArn=topic)["Subscriptions"]
        assert [one["SubscriptionArn"] for one in listed] == [made]
        aws.sns.publish(TopicArn=topic, Message="x")
        assert taker(aws.sqs, "dead").bodies(1) == ["x"]
        queue = taker(aws.sqs, "mine")
        aws.sns.publish(TopicArn=topic, Message="y")
        assert [one["Body"] for one in queue.take(1)] == ["y"]


@pytest.mark.process
def test_sec_a_guest_s_subscription_ends_with_its_queue(
    site: AwsSite, sns: SNSClient, sqs: SQSClient, topic: str, name: str
) -> None:
    queue = taker(sqs, f"{name}-theirs")
    rules = (f"allow manage,publish,read default/{name}", f"allow publish default/{name}-*")
    guest = site.aws(make_key(site.folder, f"user-{name}", *rules)).sns
    with pytest.raises(ClientError) as error:
        guest.subscribe(TopicArn=topic, Protocol="sqs", Endpoint=f"{queue.arn}-none")
    assert refused(error) == (
        "InvalidParameter",
        400,
        f"Invalid parameter: Endpoint Reason: there is no queue {queue.arn}-none",
    )
    raw(topic, guest, queue.arn)
    sns.publish(TopicArn=topic, Message="x")
    assert [one["Body"] for one in queue.take(1)] == ["x"]
    sqs.delete_queue(QueueUrl=queue.url)
    assert sns.list_subscriptions_by_topic(TopicArn=topic)["Subscriptions"] == []
    queue = taker(sqs, f"{name}-theirs")
    sns.publish(TopicArn=topic, Message="x")
    assert "Messages" not in sqs.receive_message(QueueUrl=queue.url)


# --- 23: texts -----------------------------------------------------------------------------------


def test_aws_23_a_fifo_topic_is_named_fifo(sns: SNSClient, name: str) -> None:
    with pytest.raises(ClientError) as error:
        sns.create_topic(Name=name, Attributes=FIFO)
    assert refused(error) == ("InvalidParameter", 400, "Invalid parameter: Topic Name")


def test_aws_23_an_empty_arn_is_not_a_missing_one(site: AwsSite, sns: SNSClient) -> None:
    for parameter in ("TopicArn", "TargetArn"):
        with pytest.raises(ClientError) as error:
            sns.publish(Message="x", **{parameter: ""})  # type: ignore[arg-type]
        assert refused(error) == (
            "InvalidParameter",
            400,
            f"Invalid parameter: {parameter} Reason: An ARN must have at least 6 elements, not 1",
        )
    with pytest.raises(ClientError) as error:
        sns.publish(Message="x")
    assert refused(error) == (
        "InvalidParameter",
        400,
        "Invalid parameter: TopicArn or TargetArn Reason: no value for required parameter",
    )

    def without(params: dict[str, Any]) -> None:
        del params["body"]["SubscriptionArn"]

    with pytest.raises(ClientError) as error:
        changed(site, "Unsubscribe", without).unsubscribe(SubscriptionArn="x")
    assert refused(error) == (
        "InvalidParameter",
        400,
        "Invalid parameter: SubscriptionArn Reason: no value for required parameter",
    )


@pytest.mark.parametrize(
    ("entries", "code", "text"),
    [
        (
            [("a", "x" * 150_000), ("b", "x" * 150_000)],
            "BatchRequestTooLong",
            "The length of all the messages put together is more than the limit.",
        ),
        (
            [("a.b", "x")],
            "InvalidBatchEntryId",
            "The Id of a batch entry in the batch request contains an impermissible character: a.b",
        ),
        (
            [("a" * 81, "x")],
            "InvalidBatchEntryId",
            f"The Id of a batch entry in the batch request is too long: {'a' * 81}",
        ),
    ],
)
def test_aws_23_a_batch_that_cannot_be_so(
    sns: SNSClient, topic: str, entries: list[tuple[str, str]], code: str, text: str
) -> None:
    given: list[PublishBatchRequestEntryTypeDef] = [
        {"Id": id, "Message": message} for id, message in entries
    ]
    with pytest.raises(ClientError) as error:
        sns.publish_batch(TopicArn=topic, PublishBatchRequestEntries=given)
    assert refused(error) == (code, 400, text)


# --- 26: filter policies --------------------------------------------------------------------------


@pytest.mark.parametrize("scope", ["MessageAttributes", "MessageBody"])
@pytest.mark.parametrize(
    ("policy", "text"),
    [
        ({"key": [{"anything-but": {"prefix": False}}]}, "prefix match pattern must be a string"),
        ({"key": {"suffix": "v"}}, '"suffix" must be an object or an array'),
    ],
)
def test_aws_26_what_is_wrong_with_a_policy(
    sns: SNSClient,
    sqs: SQSClient,
    topic: str,
    name: str,
    scope: str,
    policy: dict[str, object],
    text: str,
) -> None:
    queue = taker(sqs, name)
    attributes = {"FilterPolicyScope": scope, "FilterPolicy": json.dumps(policy)}
    with pytest.raises(ClientError) as error:
        sns.subscribe(TopicArn=topic, Protocol="sqs", Endpoint=queue.arn, Attributes=attributes)
    assert refused(error) == (
        "InvalidParameter",
        400,
        f"Invalid parameter: Attributes Reason: FilterPolicy: {text}",
    )


def test_aws_26_anything_but_a_suffix_is_a_policy(
    sns: SNSClient, sqs: SQSClient, topic: str, name: str
) -> None:
    queue = taker(sqs, name)
    policy = {"file": [{"anything-but": {"suffix": [".tmp", ".bak"]}}]}
    attributes = {**IN_BODY, "FilterPolicy": json.dumps(policy)}
    sns.subscribe(TopicArn=topic, Protocol="sqs", Endpoint=queue.arn, Attributes=attributes)
    for file in ("a.tmp", "b.bak", "c.txt"):
        sns.publish(TopicArn=topic, Message=json.dumps({"file": file}))
    assert queue.bodies(1) == ['{"file": "c.txt"}']
