"""Endpoints that are subscribed by HTTP: asked, sent to, sent to again, given up."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
from botocore.exceptions import ClientError

import millrace.sync
from tests.server.authority import Authority
from tests.server.aws.site import AwsSite
from tests.server.sns.endpoint import Endpoint
from tests.server.sns.queues import refused, taker
from tests.server.sns.test_publish_round_trip import verify
from tests.support.timeouts import scaled

if TYPE_CHECKING:
    from types_boto3_sns import SNSClient
    from types_boto3_sns.type_defs import MessageAttributeValueTypeDef
    from types_boto3_sqs import SQSClient


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    with Endpoint() as found:
        yield found


def subscribed(sns: SNSClient, topic: str, endpoint: Endpoint, **attributes: str) -> str:
    """The ARN of a subscription that was confirmed."""
    made = sns.subscribe(
        TopicArn=topic,
        Protocol="http",
        Endpoint=endpoint.url,
        ReturnSubscriptionArn=True,
        Attributes=attributes,
    )["SubscriptionArn"]
    endpoint.confirm()
    return made


def test_an_endpoint_is_asked_before_it_gets_anything(
    site: AwsSite, sns: SNSClient, topic: str, endpoint: Endpoint
) -> None:
    made = sns.subscribe(TopicArn=topic, Protocol="http", Endpoint=endpoint.url)
    assert made["SubscriptionArn"] == "pending confirmation"
    asked = endpoint.next()
    assert asked.path == "/news?a=b"
    assert asked.headers["x-amz-sns-topic-arn"] == topic
    assert asked.headers["x-amz-sns-message-id"] == asked.json["MessageId"]
    assert asked.headers["content-type"] == "text/plain; charset=UTF-8"
    [listed] = sns.list_subscriptions_by_topic(TopicArn=topic)["Subscriptions"]
    assert listed["SubscriptionArn"] == "PendingConfirmation"
    assert sns.get_topic_attributes(TopicArn=topic)["Attributes"]["SubscriptionsPending"] == "1"
    sns.publish(TopicArn=topic, Message="too early")
    with pytest.raises(ClientError) as error:
        sns.confirm_subscription(TopicArn=topic, Token="00")
    assert refused(error) == ("InvalidParameter", 400, "Invalid parameter: Token")
    token = asked.json["Token"]
    arn = sns.confirm_subscription(TopicArn=topic, Token=token)["SubscriptionArn"]
    assert sns.confirm_subscription(TopicArn=topic, Token=token)["SubscriptionArn"] == arn
    sns.publish(TopicArn=topic, Message="héllo", Subject="s")
    got = endpoint.next()
    assert got.headers["x-amz-sns-message-type"] == "Notification"
    assert got.headers["x-amz-sns-subscription-arn"] == arn
    assert (got.json["Message"], got.json["Subject"]) == ("héllo", "s")
    verify(got.json)
    subscription = bytes.fromhex(token).decode().split("/")[2]
    hidden = f"/v1/spaces/default/queues/sns.{subscription}"
    stats = site.process.ask("GET", hidden).json["stats"]
    assert isinstance(stats, dict)
    # Topics forward in order: what came before the confirmation was not kept for later, either.
    assert stats["published"] == 1
    found = sns.get_subscription_attributes(SubscriptionArn=arn)["Attributes"]
    assert (found["PendingConfirmation"], found["Protocol"]) == ("false", "http")
    assert "healthyRetryPolicy" in json.loads(found["EffectiveDeliveryPolicy"])


@pytest.mark.parametrize("authenticate", ["true", "false"])
def test_only_a_signed_request_unsubscribes_whatever_was_confirmed(
    sns: SNSClient, topic: str, endpoint: Endpoint, authenticate: str
) -> None:
    sns.subscribe(TopicArn=topic, Protocol="http", Endpoint=endpoint.url)
    arn = sns.confirm_subscription(
        TopicArn=topic,
        Token=endpoint.next().json["Token"],
        AuthenticateOnUnsubscribe=authenticate,
    )["SubscriptionArn"]
    sns.publish(TopicArn=topic, Message="x")
    with pytest.raises(HTTPError) as refusal:
        urlopen(endpoint.next().json["UnsubscribeURL"], timeout=scaled(30))
    with refusal.value:
        assert refusal.value.code == 403
        told = refusal.value.read().decode()
    assert "http://sns.amazonaws.com/doc/2010-03-31/" in told
    assert "<Code>AuthorizationError</Code>" in told
    assert "call Unsubscribe with its ARN and an access key" in told
    [listed] = sns.list_subscriptions_by_topic(TopicArn=topic)["Subscriptions"]
    assert listed["SubscriptionArn"] == arn
    sns.unsubscribe(SubscriptionArn=arn)
    assert sns.list_subscriptions_by_topic(TopicArn=topic)["Subscriptions"] == []


def test_whoever_subscribes_again_is_asked_again(
    sns: SNSClient, topic: str, endpoint: Endpoint
) -> None:
    sns.subscribe(TopicArn=topic, Protocol="http", Endpoint=endpoint.url)
    first = endpoint.next().json["Token"]
    sns.subscribe(TopicArn=topic, Protocol="http", Endpoint=endpoint.url)
    assert endpoint.confirm().json["Token"] == first
    sns.publish(TopicArn=topic, Message="x")
    assert endpoint.next().json["Message"] == "x"


@pytest.mark.process
def test_an_endpoint_that_does_not_confirm_in_time_is_subscribed_no_more(
    site: AwsSite, sns: SNSClient, topic: str, name: str, endpoint: Endpoint
) -> None:
    sns.subscribe(TopicArn=topic, Protocol="http", Endpoint=endpoint.url)
    token = endpoint.next().json["Token"]
    subscription = bytes.fromhex(token).decode().split("/")[2]

    def age(seconds: int) -> None:
        asked = {"aws.pending": str(int((time.time() - seconds) * 1000))}
        site.edit(lambda m: m.find_topic(name).configure_subscription(subscription, notes=asked))

    def listed() -> int:
        return len(sns.list_subscriptions_by_topic(TopicArn=topic)["Subscriptions"])

    age(2 * 86_400 - 60)
    assert listed() == 1
    sns.subscribe(TopicArn=topic, Protocol="http", Endpoint=endpoint.url)
    assert endpoint.next().json["Token"] == token, "asked again, from now on for two days"
    age(2 * 86_400 + 60)
    assert listed() == 0
    with pytest.raises(ClientError) as error:
        sns.confirm_subscription(TopicArn=topic, Token=token)
    assert refused(error) == ("InvalidParameter", 400, "Invalid parameter: Token")
    sns.subscribe(TopicArn=topic, Protocol="http", Endpoint=endpoint.url)
    assert endpoint.confirm().json["Token"] != token
    assert listed() == 1


@pytest.mark.process
@pytest.mark.parametrize("is_old", [False, True])
def test_sec_12_nobody_but_the_endpoint_learns_its_token(
    site: AwsSite, sns: SNSClient, topic: str, name: str, endpoint: Endpoint, *, is_old: bool
) -> None:
    sns.subscribe(TopicArn=topic, Protocol="http", Endpoint=endpoint.url)
    token = endpoint.next().json["Token"]
    subscription = bytes.fromhex(token).decode().split("/")[2]
    if is_old:
        # As a version before has made it: with the token among the notes.
        token = f"default/{name}/{subscription}/{'7' * 64}".encode().hex()
        site.edit(
            lambda m: m.find_topic(name).configure_subscription(
                subscription, notes={"aws.token": token}
            )
        )
    secret = bytes.fromhex(token).decode().rpartition("/")[2]
    path = f"/v1/spaces/default/topics/{name}"
    for shown in (path, f"{path}/subscriptions"):
        told = site.process.ask("GET", shown).body.decode()
        assert subscription in told
        assert token not in told
        assert secret not in told
    with millrace.sync.connect(site.url, token=site.process.token) as m:
        [found] = m.find_topic(name).subscriptions()
        assert "aws.endpoint" in found.notes
        assert token not in str(found)
        assert secret not in str(found)
    sns.confirm_subscription(TopicArn=topic, Token=token)
    sns.publish(TopicArn=topic, Message="x")
    assert endpoint.next().json["Message"] == "x"


def test_sec_12_an_endpoint_that_has_not_confirmed_gets_nothing(
    site: AwsSite, sns: SNSClient, topic: str, name: str, endpoint: Endpoint
) -> None:
    sns.subscribe(TopicArn=topic, Protocol="http", Endpoint=endpoint.url)
    token = endpoint.next().json["Token"]
    subscription = bytes.fromhex(token).decode().split("/")[2]
    path = f"/v1/spaces/default/topics/{name}/subscriptions/{subscription}"
    for notes in ({"aws.pending": ""}, {"aws.token": "x"}, {"aws.endpoint": "http://x"}):
        assert site.process.ask("PATCH", path, {"notes": notes}).status == 400
    assert site.process.ask("PATCH", path, {"filter": {}}).status == 200
    sns.publish(TopicArn=topic, Message="too early")
    hidden = f"/v1/spaces/default/queues/sns.{subscription}"
    end = time.monotonic() + 60
    while True:
        stats = site.process.ask("GET", hidden).json["stats"]
        assert isinstance(stats, dict)
        if stats["published"]:
            break
        assert time.monotonic() < end
    assert stats["live"] == 1, "it waits"
    # Asked again it gets the question alone.
    sns.subscribe(TopicArn=topic, Protocol="http", Endpoint=endpoint.url)
    assert endpoint.next().json["Type"] == "SubscriptionConfirmation"


def test_a_forged_yes_is_refused(
    site: AwsSite, sns: SNSClient, topic: str, name: str, endpoint: Endpoint
) -> None:
    sns.subscribe(TopicArn=topic, Protocol="http", Endpoint=endpoint.url)
    asked = bytes.fromhex(endpoint.next().json["Token"]).decode()
    forged = f"{asked.rpartition('/')[0]}/{'0' * 64}"
    for token in ("", "zz", "00", b"default/x/y/z".hex(), forged.encode().hex()):
        with pytest.raises(HTTPError) as refusal:
            urlopen(f"{site.url}/_aws/sns/confirm?Token={token}", timeout=scaled(30))
        assert refusal.value.code == 400
        refusal.value.close()
    with pytest.raises(HTTPError) as refusal:
        urlopen(f"{site.url}/_aws/sns/other.pem", timeout=scaled(30))
    assert refusal.value.code in (400, 404)
    refusal.value.close()


def test_raw_messages_filters_and_texts_of_a_protocol(
    sns: SNSClient, topic: str, endpoint: Endpoint
) -> None:
    subscribed(
        sns,
        topic,
        endpoint,
        RawMessageDelivery="true",
        FilterPolicy='{"kind": ["order"]}',
    )
    order: dict[str, MessageAttributeValueTypeDef] = {
        "kind": {"DataType": "String", "StringValue": "order"}
    }
    sns.publish(TopicArn=topic, Message="nothing")
    texts = json.dumps({"default": "d", "http": "h"})
    sns.publish(TopicArn=topic, Message=texts, MessageStructure="json", MessageAttributes=order)
    got = endpoint.next()
    assert (got.body, got.headers["x-amz-sns-rawdelivery"]) == ("h", "true")


def test_what_fails_is_sent_again_and_then_is_a_dead_letter(
    sns: SNSClient, sqs: SQSClient, topic: str, endpoint: Endpoint, name: str
) -> None:
    dead = taker(sqs, f"{name}-dead")
    policy = {"healthyRetryPolicy": {"numRetries": 2, "numNoDelayRetries": 2}}
    subscribed(
        sns,
        topic,
        endpoint,
        DeliveryPolicy=json.dumps(policy),
        RedrivePolicy=json.dumps({"deadLetterTargetArn": dead.arn}),
    )
    endpoint.answer(500, 429)
    sns.publish(TopicArn=topic, Message="third time lucky")
    assert [endpoint.next().json["Message"] for _ in range(3)] == ["third time lucky"] * 3
    endpoint.answer(500, 503, 500)
    sns.publish(TopicArn=topic, Message="given up")
    assert [endpoint.next().json["Message"] for _ in range(3)] == ["given up"] * 3
    assert dead.bodies(1) == ["given up"]
    endpoint.answer(400)
    sns.publish(TopicArn=topic, Message="refused for good")
    assert endpoint.next().json["Message"] == "refused for good"
    assert dead.bodies(1) == ["refused for good"]


def test_a_dead_letter_comes_in_what_sns_puts_around_it(
    sns: SNSClient, sqs: SQSClient, topic: str, endpoint: Endpoint, name: str
) -> None:
    dead = taker(sqs, f"{name}-dead")
    subscribed(
        sns,
        topic,
        endpoint,
        RawMessageDelivery="true",
        RedrivePolicy=json.dumps({"deadLetterTargetArn": dead.arn}),
    )
    endpoint.answer(404)
    sent = sns.publish(TopicArn=topic, Message="refused")
    assert endpoint.next().body == "refused"
    [letter] = dead.take(1)
    found = json.loads(letter["Body"])
    assert (found["MessageId"], found["Message"]) == (sent["MessageId"], "refused")
    assert "MessageAttributes" not in letter
    verify(found)


def test_a_topic_says_how_its_endpoints_are_sent_to(
    sns: SNSClient, sqs: SQSClient, topic: str, endpoint: Endpoint, name: str
) -> None:
    dead = taker(sqs, f"{name}-dead")
    made = subscribed(
        sns, topic, endpoint, RedrivePolicy=json.dumps({"deadLetterTargetArn": dead.arn})
    )
    policy = {
        "defaultHealthyRetryPolicy": {"numRetries": 0},
        "defaultThrottlePolicy": {"maxReceivesPerSecond": 50},
        "defaultRequestPolicy": {"headerContentType": "application/json"},
    }
    sns.set_topic_attributes(
        TopicArn=topic, AttributeName="DeliveryPolicy", AttributeValue=json.dumps({"http": policy})
    )
    told = sns.get_subscription_attributes(SubscriptionArn=made)["Attributes"]
    effective = json.loads(told["EffectiveDeliveryPolicy"])
    assert effective["throttlePolicy"] == {"maxReceivesPerSecond": 50}
    endpoint.answer(500)
    sns.publish(TopicArn=topic, Message="once")
    assert endpoint.next().headers["content-type"] == "application/json"
    assert dead.bodies(1) == ["once"]


@pytest.mark.process
def test_several_processes_serve_topics_and_endpoints(
    tmp_path_factory: pytest.TempPathFactory, endpoint: Endpoint
) -> None:
    with AwsSite(tmp_path_factory.mktemp("frontends"), "--frontends", "2") as site:
        topic = site.aws().sns.create_topic(Name="news")["TopicArn"]
        subscribed(site.aws().sns, topic, endpoint)
        queue = taker(site.aws().sqs, "queue")
        site.aws().sns.subscribe(TopicArn=topic, Protocol="sqs", Endpoint=queue.arn)
        sent = [site.aws().sns.publish(TopicArn=topic, Message=str(at)) for at in range(6)]
        ids = {one["MessageId"] for one in sent}
        assert {endpoint.next().json["MessageId"] for _ in sent} == ids
        got = [json.loads(one["Body"]) for one in queue.take(len(sent))]
        assert {one["MessageId"] for one in got} == ids
        for one in got:
            verify(one)


@pytest.mark.process
def test_endpoints_get_what_comes_after_a_crash_until_they_leave(
    tmp_path_factory: pytest.TempPathFactory, endpoint: Endpoint
) -> None:
    with AwsSite(tmp_path_factory.mktemp("crash")) as site:
        sns = site.aws().sns
        topic = sns.create_topic(Name="news")["TopicArn"]
        made = subscribed(sns, topic, endpoint)
        site.restart()
        aws = site.aws()
        aws.sns.publish(TopicArn=topic, Message="after")
        assert endpoint.next().json["Message"] == "after"
        assert "QueueUrls" not in aws.sqs.list_queues()
        aws.sns.unsubscribe(SubscriptionArn=made)
        other = taker(aws.sqs, "other")
        aws.sns.subscribe(TopicArn=topic, Protocol="sqs", Endpoint=other.arn)
        aws.sns.publish(TopicArn=topic, Message="later")
        assert other.bodies(1) == ["later"]
        assert queues(site) == ["other"]


def queues(site: AwsSite) -> object:
    """The queues of the space, those of endpoints too."""
    return site.process.ask("GET", "/v1/spaces/default/queues").json["names"]


@pytest.mark.process
def test_what_another_protocol_has_ended_leaves_nothing(
    tmp_path_factory: pytest.TempPathFactory, endpoint: Endpoint
) -> None:
    with AwsSite(tmp_path_factory.mktemp("ended")) as site:
        topic = site.aws().sns.create_topic(Name="news")["TopicArn"]
        own = "/v1/spaces/default/queues/sns.own"
        assert site.process.ask("PUT", own).status == 201
        told = {"queue": "sns.own"}
        subscription = "/v1/spaces/default/topics/news/subscriptions/own"
        assert site.process.ask("PUT", subscription, told).status == 200
        subscribed(site.aws().sns, topic, endpoint)
        assert len(str(queues(site))) > 40
        assert site.process.ask("DELETE", "/v1/spaces/default/topics/news").status == 200
        site.restart()
        while queues(site) != ["sns.own"]:
            """The deliverer looks at what there is when it begins."""
        sns = site.aws().sns
        assert sns.list_topics()["Topics"] == []
        topic = sns.create_topic(Name="news")["TopicArn"]
        assert site.process.ask("PUT", subscription, told).status == 200
        [listed] = sns.list_subscriptions_by_topic(TopicArn=topic)["Subscriptions"]
        assert (listed["Protocol"], listed["SubscriptionArn"]) == ("sqs", f"{topic}:own")
        sns.delete_topic(TopicArn=topic)
        assert queues(site) == ["sns.own"]


@pytest.mark.process
def test_an_endpoint_that_speaks_tls_must_be_trusted(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path_factory.mktemp("authority")
    ours, theirs = Authority(folder, "ours"), Authority(folder, "theirs")
    monkeypatch.setenv("SSL_CERT_FILE", str(ours.path))
    with (
        AwsSite(tmp_path_factory.mktemp("tls")) as site,
        Endpoint(ours.sign("127.0.0.1")) as trusted,
        Endpoint(theirs.sign("127.0.0.1")) as stranger,
    ):
        sns = site.aws().sns
        topic = sns.create_topic(Name="news")["TopicArn"]
        for one in (stranger, trusted):
            sns.subscribe(TopicArn=topic, Protocol="https", Endpoint=one.url)
        trusted.confirm()
        sns.publish(TopicArn=topic, Message="x")
        assert trusted.next().json["Message"] == "x"
        assert stranger.is_silent


def test_a_fifo_topic_has_no_endpoints(sns: SNSClient, name: str, endpoint: Endpoint) -> None:
    topic = sns.create_topic(Name=f"{name}.fifo", Attributes={"FifoTopic": "true"})["TopicArn"]
    with pytest.raises(ClientError) as error:
        sns.subscribe(TopicArn=topic, Protocol="http", Endpoint=endpoint.url)
    assert refused(error)[:2] == ("InvalidParameter", 400)
