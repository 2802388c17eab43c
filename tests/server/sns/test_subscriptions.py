"""Subscriptions of queues, as boto3 sees them."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest
from botocore.exceptions import ClientError

from millrace import limits
from tests.server.aws.site import ACCOUNT, REGION, AwsSite, make_key
from tests.server.sns.queues import refused, taker

if TYPE_CHECKING:
    from types_boto3_sns import SNSClient
    from types_boto3_sqs import SQSClient

GUID = "8a21d249-4329-4871-acc6-7be709c6ea7f"


def test_a_queue_is_subscribed_once(sns: SNSClient, sqs: SQSClient, topic: str, name: str) -> None:
    queue = taker(sqs, name)
    policy = '{"kind":["order"]}'
    made = sns.subscribe(
        TopicArn=topic, Protocol="sqs", Endpoint=queue.arn, Attributes={"FilterPolicy": policy}
    )["SubscriptionArn"]
    again = sns.subscribe(TopicArn=topic, Protocol="sqs", Endpoint=queue.arn)
    assert again["SubscriptionArn"] == made
    with pytest.raises(ClientError) as error:
        sns.subscribe(
            TopicArn=topic,
            Protocol="sqs",
            Endpoint=queue.arn,
            Attributes={"RawMessageDelivery": "true"},
        )
    assert refused(error)[2] == (
        "Invalid parameter: Attributes Reason: Subscription already exists with different "
        "attributes"
    )
    found = sns.get_subscription_attributes(SubscriptionArn=made)["Attributes"]
    assert found == {
        "SubscriptionArn": made,
        "TopicArn": topic,
        "Owner": ACCOUNT,
        "Protocol": "sqs",
        "Endpoint": queue.arn,
        "PendingConfirmation": "false",
        "ConfirmationWasAuthenticated": "true",
        "SubscriptionPrincipal": f"arn:aws:iam::{ACCOUNT}:user/ada",
        "RawMessageDelivery": "false",
        "FilterPolicy": policy,
        "FilterPolicyScope": "MessageAttributes",
    }
    assert sns.get_topic_attributes(TopicArn=topic)["Attributes"]["SubscriptionsConfirmed"] == "1"


def test_a_filter_that_asks_for_nothing_is_none(
    sns: SNSClient, sqs: SQSClient, topic: str, name: str
) -> None:
    """Terraform takes a filter away so, and asks again until it is not told any more."""
    queue = taker(sqs, name)
    arn = sns.subscribe(
        TopicArn=topic,
        Protocol="sqs",
        Endpoint=queue.arn,
        Attributes={"FilterPolicy": "{}", "FilterPolicyScope": "MessageBody"},
    )["SubscriptionArn"]

    def told() -> dict[str, str]:
        found = sns.get_subscription_attributes(SubscriptionArn=arn)["Attributes"]
        return {key: text for key, text in found.items() if key.startswith("Filter")}

    def change(policy: str) -> None:
        sns.set_subscription_attributes(
            SubscriptionArn=arn, AttributeName="FilterPolicy", AttributeValue=policy
        )

    assert told() == {}
    change('{"kind": ["order"]}')
    assert told() == {"FilterPolicy": '{"kind": ["order"]}', "FilterPolicyScope": "MessageBody"}
    change(" { } ")
    assert told() == {}


def test_subscriptions_are_listed(sns: SNSClient, sqs: SQSClient, topic: str, name: str) -> None:
    queues = [taker(sqs, f"{name}-{at}") for at in range(3)]
    made = {
        sns.subscribe(TopicArn=topic, Protocol="sqs", Endpoint=queue.arn)["SubscriptionArn"]
        for queue in queues
    }
    listed = sns.list_subscriptions_by_topic(TopicArn=topic)["Subscriptions"]
    assert {one["SubscriptionArn"] for one in listed} == made
    assert {one["Endpoint"] for one in listed} == {queue.arn for queue in queues}
    assert {(one["Protocol"], one["Owner"], one["TopicArn"]) for one in listed} == {
        ("sqs", ACCOUNT, topic)
    }
    everywhere = [
        one["SubscriptionArn"]
        for page in sns.get_paginator("list_subscriptions").paginate()
        for one in page["Subscriptions"]
    ]
    assert made <= set(everywhere)


@pytest.mark.slow
def test_subscriptions_are_listed_a_hundred_at_a_time(site: AwsSite) -> None:
    aws = site.aws(region="eu-west-8")
    topic = aws.sns.create_topic(Name="many")["TopicArn"]
    made = set()
    for at in range(limits.SNS_LIST_MAX + 1):
        aws.sqs.create_queue(QueueName=f"q{at}")
        arn = f"arn:aws:sqs:eu-west-8:{ACCOUNT}:q{at}"
        made.add(aws.sns.subscribe(TopicArn=topic, Protocol="sqs", Endpoint=arn)["SubscriptionArn"])
    for pages in (
        aws.sns.get_paginator("list_subscriptions").paginate(),
        aws.sns.get_paginator("list_subscriptions_by_topic").paginate(TopicArn=topic),
    ):
        listed = [[one["SubscriptionArn"] for one in page["Subscriptions"]] for page in pages]
        assert [len(page) for page in listed] == [limits.SNS_LIST_MAX, 1]
        assert {arn for page in listed for arn in page} == made


def test_what_has_ended_gets_nothing(sns: SNSClient, sqs: SQSClient, topic: str, name: str) -> None:
    first, second = taker(sqs, f"{name}-1"), taker(sqs, f"{name}-2")
    made = sns.subscribe(TopicArn=topic, Protocol="sqs", Endpoint=first.arn)["SubscriptionArn"]
    sns.subscribe(TopicArn=topic, Protocol="sqs", Endpoint=second.arn)
    sns.unsubscribe(SubscriptionArn=made)
    sns.unsubscribe(SubscriptionArn=made)
    sns.publish(TopicArn=topic, Message="x")
    assert second.bodies(1) == ["x"]
    assert "Messages" not in sqs.receive_message(QueueUrl=first.url)
    asks: list[Callable[[], object]] = [
        lambda: sns.get_subscription_attributes(SubscriptionArn=made),
        lambda: sns.set_subscription_attributes(
            SubscriptionArn=made, AttributeName="RawMessageDelivery", AttributeValue="true"
        ),
    ]
    for ask in asks:
        with pytest.raises(ClientError) as error:
            ask()
        assert refused(error) == ("NotFound", 404, "Subscription does not exist")


def test_what_is_no_subscription_is_refused(sns: SNSClient, topic: str) -> None:
    for arn, text in (
        ("nothing", "SubscriptionArn Reason: An ARN must have at least 6 elements, not 1"),
        (topic, "SubscriptionId"),
        (f"arn:aws:sns:mars-1:{ACCOUNT}:x:{GUID}", "SubscriptionArn"),
    ):
        with pytest.raises(ClientError) as error:
            sns.unsubscribe(SubscriptionArn=arn)
        assert refused(error) == ("InvalidParameter", 400, f"Invalid parameter: {text}")


@pytest.mark.parametrize(
    ("protocol", "endpoint", "text"),
    [
        ("pigeon", "x", "Amazon SNS does not support this protocol string: pigeon"),
        ("sqs", "x", "SQS endpoint ARN"),
        ("sqs", f"arn:aws:sns:{REGION}:{ACCOUNT}:x", "SQS endpoint ARN"),
        (
            "sqs",
            f"arn:aws:sqs:{REGION}:{ACCOUNT}:a b",
            "Endpoint Reason: queue 'a b' is no name: ASCII letters, digits, '_', '.' and '-' are",
        ),
        (
            "sqs",
            f"arn:aws:sqs:{REGION}:{ACCOUNT}:x.fifo",
            "Invalid parameter: Endpoint Reason: FIFO SQS Queues can not be subscribed to standard "
            "SNS topics",
        ),
        ("http", "https://x.example", "Endpoint must match the specified protocol"),
        ("http", "http://", "Endpoint Reason: it is no address"),
        ("http", "http://a b/", "Endpoint Reason: it is no address"),
        ("http", "http://a:port/", "Endpoint Reason: it is no address"),
        ("https", "", "Endpoint"),
    ],
)
def test_a_bad_endpoint_is_refused(
    sns: SNSClient, topic: str, protocol: str, endpoint: str, text: str
) -> None:
    with pytest.raises(ClientError) as error:
        sns.subscribe(TopicArn=topic, Protocol=protocol, Endpoint=endpoint)
    assert refused(error) == ("InvalidParameter", 400, f"Invalid parameter: {text}")


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("Colour", "red", "AttributeName"),
        ("FilterPolicy", "{", "FilterPolicy: failed to parse JSON."),
        ("FilterPolicy", '{"a": {"b": ["c"]}}', "Filter policy scope MessageAttributes does not"),
        ("FilterPolicyScope", "Both", "FilterPolicyScope: Invalid value [Both]. Please use either"),
        ("RawMessageDelivery", "yes", "RawMessageDelivery: Invalid value [yes]. Must be true or"),
        ("RedrivePolicy", "{", "RedrivePolicy: failed to parse JSON."),
        ("RedrivePolicy", "{}", "RedrivePolicy: deadLetterTargetArn is an invalid arn"),
        (
            "RedrivePolicy",
            json.dumps({"deadLetterTargetArn": f"arn:aws:sqs:mars-1:{ACCOUNT}:x"}),
            "RedrivePolicy: deadLetterTargetArn must be of the account and region",
        ),
        (
            "RedrivePolicy",
            json.dumps({"deadLetterTargetArn": f"arn:aws:sqs:{REGION}:{ACCOUNT}:none"}),
            "RedrivePolicy: deadLetterTargetArn does not exist",
        ),
        ("DeliveryPolicy", "[]", "DeliveryPolicy: failed to parse JSON."),
        (
            "DeliveryPolicy",
            '{"healthyRetryPolicy": {"numRetries": 101}}',
            "DeliveryPolicy: healthyRetryPolicy.numRetries must be between 0 and 100",
        ),
    ],
)
def test_a_bad_attribute_is_refused(
    sns: SNSClient, sqs: SQSClient, name: str, value: str, text: str
) -> None:
    topic = sns.create_topic(Name="attributes")["TopicArn"]
    queue = taker(sqs, "attributes")
    with pytest.raises(ClientError) as error:
        sns.subscribe(TopicArn=topic, Protocol="sqs", Endpoint=queue.arn, Attributes={name: value})
    code, status, message = refused(error)
    assert (code, status) == ("InvalidParameter", 400)
    assert message.startswith(f"Invalid parameter: Attributes Reason: {text}")
    made = sns.subscribe(TopicArn=topic, Protocol="sqs", Endpoint=queue.arn)["SubscriptionArn"]
    with pytest.raises(ClientError) as error:
        sns.set_subscription_attributes(
            SubscriptionArn=made, AttributeName=name, AttributeValue=value
        )
    assert refused(error)[2].startswith(f"Invalid parameter: {text}")


def test_what_is_kept_and_told_and_what_is_not_done(
    sns: SNSClient, sqs: SQSClient, topic: str, name: str
) -> None:
    queue = taker(sqs, name)
    role = "arn:aws:iam::000000000000:role/delivery"
    made = sns.subscribe(
        TopicArn=topic,
        Protocol="sqs",
        Endpoint=queue.arn,
        Attributes={"SubscriptionRoleArn": role},
    )["SubscriptionArn"]

    def told() -> str:
        found = sns.get_subscription_attributes(SubscriptionArn=made)["Attributes"]
        return found["SubscriptionRoleArn"]

    assert told() == role
    sns.set_subscription_attributes(
        SubscriptionArn=made, AttributeName="SubscriptionRoleArn", AttributeValue=f"{role}-2"
    )
    assert told() == f"{role}-2"
    replay = '{"PointType": "Timestamp", "StartingPoint": "2026-01-01T00:00:00.000Z"}'
    asks: list[Callable[[], object]] = [
        lambda: sns.set_subscription_attributes(
            SubscriptionArn=made, AttributeName="ReplayPolicy", AttributeValue=replay
        ),
        lambda: sns.subscribe(
            TopicArn=topic,
            Protocol="sqs",
            Endpoint=queue.arn,
            Attributes={"ReplayPolicy": replay},
        ),
    ]
    for ask in asks:
        with pytest.raises(ClientError) as error:
            ask()
        assert refused(error)[:2] == ("UnsupportedOperation", 400)


@pytest.mark.process
def test_a_subscription_needs_the_right_to_publish_to_its_queue(
    site: AwsSite, sqs: SQSClient, topic: str, name: str
) -> None:
    queue = taker(sqs, f"{name}-secret")
    key = make_key(site.folder, f"user-{name}", f"allow manage,publish default/{name}")
    with pytest.raises(ClientError) as error:
        site.aws(key).sns.subscribe(TopicArn=topic, Protocol="sqs", Endpoint=queue.arn)
    assert refused(error)[:2] == ("AuthorizationError", 403)


def test_a_deleted_topic_leaves_its_queues_as_others_are(
    sns: SNSClient, sqs: SQSClient, topic: str, name: str
) -> None:
    queue = taker(sqs, name)
    raw = {"RawMessageDelivery": "true"}
    sns.subscribe(TopicArn=topic, Protocol="sqs", Endpoint=queue.arn, Attributes=raw)
    sns.delete_topic(TopicArn=topic)
    assert sns.create_topic(Name=name)["TopicArn"] == topic
    sns.subscribe(TopicArn=topic, Protocol="sqs", Endpoint=queue.arn)
    sns.publish(TopicArn=topic, Message="x")
    assert queue.bodies(1) == ["x"]
