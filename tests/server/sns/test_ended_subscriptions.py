"""Endpoints whose subscription has ended: they are told, and may have it back."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random
from string import ascii_letters, digits
from typing import TYPE_CHECKING
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
from botocore.exceptions import ClientError

from millrace import limits
from millrace.server.sns.signing import open_signer
from millrace.server.sns.subscription_tokens import (
    EndedSubscription,
    is_of_ended,
    read_ended,
    token_of,
)
from tests.server.aws.site import AwsSite
from tests.server.sns.endpoint import WAIT_SECONDS, Endpoint, Posted
from tests.server.sns.queues import refused
from tests.server.sns.test_endpoint_delivery import queues, subscribed
from tests.server.sns.test_publish_round_trip import verify

if TYPE_CHECKING:
    from types_boto3_sns import SNSClient


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    with Endpoint() as found:
        yield found


def ended(sns: SNSClient, topic: str, endpoint: Endpoint, **attributes: str) -> tuple[str, Posted]:
    """The ARN of a subscription that has ended, and what its endpoint was told."""
    made = subscribed(sns, topic, endpoint, **attributes)
    sns.unsubscribe(SubscriptionArn=made)
    return made, endpoint.next()


def audited(site: AwsSite) -> list[dict[str, str]]:
    """What the audit has noted."""
    seen = site.process.ask("GET", "/v1/spaces/system/queues/audit/messages?count=1000")
    return [json.loads(one["body"]) for one in json.loads(seen.body)["messages"]]


def visit(url: str) -> int:
    """What an address answers."""
    try:
        with urlopen(url, timeout=WAIT_SECONDS) as answer:
            return int(answer.status)
    except HTTPError as error:
        with error:
            return error.code


def test_an_endpoint_is_told_that_its_subscription_has_ended(
    sns: SNSClient, topic: str, endpoint: Endpoint
) -> None:
    made, told = ended(sns, topic, endpoint)
    assert told.headers["x-amz-sns-message-type"] == "UnsubscribeConfirmation"
    assert told.headers["x-amz-sns-message-id"] == told.json["MessageId"]
    assert told.headers["x-amz-sns-topic-arn"] == topic
    assert told.headers["x-amz-sns-subscription-arn"] == made
    assert (told.json["Type"], told.json["TopicArn"]) == ("UnsubscribeConfirmation", topic)
    assert told.json["Message"].startswith(f"You have chosen to deactivate subscription {made}.")
    assert told.json["SubscribeURL"].endswith(f"&Token={told.json['Token']}")
    verify(told.json)
    assert sns.list_subscriptions_by_topic(TopicArn=topic)["Subscriptions"] == []


def test_whoever_visits_the_address_has_the_subscription_back(
    site: AwsSite, sns: SNSClient, topic: str, endpoint: Endpoint
) -> None:
    given = {"FilterPolicy": '{"kind": ["order"]}', "RawMessageDelivery": "true"}
    made, told = ended(sns, topic, endpoint, **given)
    sns.publish(TopicArn=topic, Message="lost")
    for _ in range(2):
        assert visit(told.json["SubscribeURL"]) == 200
    [listed] = sns.list_subscriptions_by_topic(TopicArn=topic)["Subscriptions"]
    assert (listed["SubscriptionArn"], listed["Endpoint"]) == (made, endpoint.url)
    name = topic.rpartition(":")[2]
    noted = [one for one in audited(site) if one["target"].endswith(name) and "outcome" not in one]
    assert [one["act"] for one in noted][-2:] == ["Unsubscribe", "ConfirmSubscription"]
    found = sns.get_subscription_attributes(SubscriptionArn=made)["Attributes"]
    assert {name: found[name] for name in given} == given
    assert found["PendingConfirmation"] == "false"
    sns.publish(TopicArn=topic, Message="passed over")
    sns.publish(
        TopicArn=topic,
        Message="back",
        MessageAttributes={"kind": {"DataType": "String", "StringValue": "order"}},
    )
    assert endpoint.next().body == "back"


def test_a_token_has_the_subscription_back_where_its_topic_is_the_same(
    sns: SNSClient, topic: str, name: str, endpoint: Endpoint
) -> None:
    made, told = ended(sns, topic, endpoint)
    token = told.json["Token"]
    other = sns.create_topic(Name=f"{name}-other")["TopicArn"]
    with pytest.raises(ClientError) as error:
        sns.confirm_subscription(TopicArn=other, Token=token)
    assert refused(error) == ("InvalidParameter", 400, "Invalid parameter: Token")
    again = sns.confirm_subscription(TopicArn=topic, Token=token)["SubscriptionArn"]
    assert again == made
    sns.delete_topic(TopicArn=topic)
    assert sns.create_topic(Name=name)["TopicArn"] == topic
    with pytest.raises(ClientError) as error:
        sns.confirm_subscription(TopicArn=topic, Token=token)
    assert refused(error) == ("InvalidParameter", 400, "Invalid parameter: Token")
    assert visit(told.json["SubscribeURL"]) == 400


def test_a_subscription_with_many_attributes_is_had_back_by_its_token(
    sns: SNSClient, topic: str, endpoint: Endpoint
) -> None:
    chance = Random(1)
    texts = ["".join(chance.choices(ascii_letters + digits, k=48)) for _ in range(140)]
    retries = {"healthyRetryPolicy": {"numRetries": 7}}
    given = {
        "FilterPolicy": json.dumps({"kind": ["order", *texts]}),
        "DeliveryPolicy": json.dumps(retries | {"x": "".join(chance.choices(digits, k=4000))}),
    }
    made, told = ended(sns, topic, endpoint, **given)
    assert len(told.json["SubscribeURL"]) > limits.HTTP_URL_BYTES_MAX
    assert visit(told.json["SubscribeURL"]) == 414
    again = sns.confirm_subscription(TopicArn=topic, Token=told.json["Token"])
    assert again["SubscriptionArn"] == made
    found = sns.get_subscription_attributes(SubscriptionArn=made)["Attributes"]
    assert {name: found[name] for name in given} == given


def test_an_endpoint_that_was_subscribed_anew_is_not_subscribed_twice(
    sns: SNSClient, topic: str, endpoint: Endpoint
) -> None:
    made, told = ended(sns, topic, endpoint)
    anew = sns.subscribe(
        TopicArn=topic, Protocol="http", Endpoint=endpoint.url, ReturnSubscriptionArn=True
    )["SubscriptionArn"]
    assert endpoint.next().json["Type"] == "SubscriptionConfirmation"
    confirmed = sns.confirm_subscription(TopicArn=topic, Token=told.json["Token"])
    assert confirmed["SubscriptionArn"] == anew != made
    sns.publish(TopicArn=topic, Message="once")
    assert endpoint.next().json["Message"] == "once"
    sns.publish(TopicArn=topic, Message="then")
    assert endpoint.next().json["Message"] == "then"


def test_who_did_not_confirm_is_not_told(sns: SNSClient, topic: str, endpoint: Endpoint) -> None:
    made = sns.subscribe(
        TopicArn=topic, Protocol="http", Endpoint=endpoint.url, ReturnSubscriptionArn=True
    )["SubscriptionArn"]
    assert endpoint.next().json["Type"] == "SubscriptionConfirmation"
    sns.unsubscribe(SubscriptionArn=made)
    subscribed(sns, topic, endpoint)
    sns.publish(TopicArn=topic, Message="x")
    assert endpoint.next().json["Type"] == "Notification"


@pytest.mark.process
def test_an_endpoint_that_is_away_keeps_nobody_waiting(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    with AwsSite(tmp_path_factory.mktemp("away")) as site:
        sns = site.aws().sns
        topic = sns.create_topic(Name="news")["TopicArn"]
        with Endpoint() as endpoint:
            made = subscribed(sns, topic, endpoint)
        sns.unsubscribe(SubscriptionArn=made)
        assert sns.list_subscriptions_by_topic(TopicArn=topic)["Subscriptions"] == []
        assert queues(site) == []


def test_a_token_holds_what_was_and_is_good_for_two_days(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    signer, other = open_signer(tmp_path), open_signer(tmp_path / "other")
    now = int(time.time() * 1000)
    was = EndedSubscription(
        "default", "news", 7, "name", now, {"aws.endpoint": "http://x", "aws.token": "t"}
    )
    token = token_of(was, signer)
    assert is_of_ended(token)
    found = read_ended(token, signer)
    assert found == EndedSubscription(
        "default", "news", 7, "name", now, {"aws.endpoint": "http://x"}
    )
    assert read_ended(token, other) is None
    assert token_of(was, signer) != token, "nobody sees that two are the same"
    for wrong in ("ended-", "ended-☃", "ended-a", token[:-4], f"{token}AAAA"):
        assert read_ended(wrong, signer) is None
    late = now - limits.SNS_PENDING_SECONDS_MAX * 1000 - 1000
    old = EndedSubscription("default", "news", 7, "name", late, {})
    assert read_ended(token_of(old, signer), signer) is None
