"""What there may be too much of: entries of a batch, topics, subscriptions, what waits."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from botocore.exceptions import ClientError

from millrace import limits
from tests.server.aws.site import ACCOUNT, REGION, AwsSite, Key, run
from tests.server.sns.queues import refused, taker

if TYPE_CHECKING:
    from types_boto3_sns import SNSClient


@pytest.mark.parametrize(
    ("ids", "code"),
    [
        ([], "EmptyBatchRequest"),
        ([f"{at}" for at in range(limits.SNS_BATCH_MAX + 1)], "TooManyEntriesInBatchRequest"),
        (["a", "b", "a"], "BatchEntryIdsNotDistinct"),
        (["a", "b c"], "InvalidBatchEntryId"),
        (["a", "b" * (limits.SNS_ENTRY_ID_CHARS_MAX + 1)], "InvalidBatchEntryId"),
        (["a", ""], "InvalidBatchEntryId"),
    ],
)
def test_a_batch_that_cannot_be_so_is_refused_as_a_whole(
    sns: SNSClient, topic: str, ids: list[str], code: str
) -> None:
    with pytest.raises(ClientError) as error:
        sns.publish_batch(
            TopicArn=topic,
            PublishBatchRequestEntries=[{"Id": one, "Message": "x"} for one in ids],
        )
    assert refused(error)[:2] == (code, 400)


@pytest.mark.process
def test_who_has_as_many_topics_as_they_may_makes_no_more(site: AwsSite, name: str) -> None:
    user = f"user-{name}"
    bounds = ("--rule", "allow * */*", "--quota", "topics=2")
    run("user", "add", user, *bounds, "--data", site.folder)
    key = run("key", "new", user, "--data", site.folder)
    sns = site.aws(Key(str(key["id"]), str(key["secret"]))).sns
    first = sns.create_topic(Name=f"{name}-1")["TopicArn"]
    sns.create_topic(Name=f"{name}-2")
    with pytest.raises(ClientError) as error:
        sns.create_topic(Name=f"{name}-3")
    code, status, message = refused(error)
    assert (code, status) == ("TopicLimitExceeded", 403)
    assert message == f"{user} has 2 topics, as many as they may; delete one first"
    assert sns.create_topic(Name=f"{name}-1")["TopicArn"] == first
    sns.delete_topic(TopicArn=first)
    sns.create_topic(Name=f"{name}-3")


@pytest.mark.process
def test_a_user_makes_no_more_subscriptions_than_their_quota(site: AwsSite, name: str) -> None:
    user = f"user-{name}"
    bounds = ("--rule", "allow * */*", "--quota", "subscriptions=1")
    run("user", "add", user, *bounds, "--data", site.folder)
    key = run("key", "new", user, "--data", site.folder)
    aws = site.aws(Key(str(key["id"]), str(key["secret"])))
    topic = aws.sns.create_topic(Name=name)["TopicArn"]
    one, other = taker(aws.sqs, f"{name}-one"), taker(aws.sqs, f"{name}-other")
    aws.sns.subscribe(TopicArn=topic, Protocol="sqs", Endpoint=one.arn)
    with pytest.raises(ClientError) as error:
        aws.sns.subscribe(TopicArn=topic, Protocol="sqs", Endpoint=other.arn)
    code, status, message = refused(error)
    assert (code, status) == ("SubscriptionLimitExceeded", 403)
    assert message == f"{user} has 1 subscriptions, as many as they may; delete one first"


@pytest.mark.process
def test_a_topic_has_no_more_subscriptions_than_it_may(tmp_path: Path) -> None:
    with AwsSite(tmp_path / "data") as site:
        aws = site.aws()
        topic = aws.sns.create_topic(Name="news")["TopicArn"]
        one, other = taker(aws.sqs, "one"), taker(aws.sqs, "other")
        for at in range(limits.SUBSCRIPTIONS_MAX):
            path = f"/v1/spaces/default/topics/news/subscriptions/s{at}"
            assert site.process.ask("PUT", path, {"queue": "one"}).status == 200
        again = aws.sns.subscribe(TopicArn=topic, Protocol="sqs", Endpoint=one.arn)
        assert again["SubscriptionArn"] == f"{topic}:s0"
        with pytest.raises(ClientError) as error:
            aws.sns.subscribe(TopicArn=topic, Protocol="sqs", Endpoint=other.arn)
        assert refused(error)[:2] == ("SubscriptionLimitExceeded", 403)


def test_a_topic_whose_queue_takes_no_more_takes_no_more(
    site: AwsSite, sns: SNSClient, topic: str, name: str
) -> None:
    queue = f"/v1/spaces/default/queues/{name}"
    assert site.process.ask("PUT", queue, {"max_messages": 1}).status == 201
    lag = {"max_lag": 1}
    assert site.process.ask("PATCH", f"/v1/spaces/default/topics/{name}", lag).status == 200
    arn = f"arn:aws:sqs:{REGION}:{ACCOUNT}:{name}"
    sns.subscribe(TopicArn=topic, Protocol="sqs", Endpoint=arn)

    def publish_many() -> None:
        for _ in range(1000):
            sns.publish(TopicArn=topic, Message="x")

    with pytest.raises(ClientError) as error:
        publish_many()
    code, status, message = refused(error)
    assert (code, status) == ("Throttled", 429)
    assert "messages wait for the subscription" in message
    with pytest.raises(ClientError) as error:
        sns.publish_batch(TopicArn=topic, PublishBatchRequestEntries=[{"Id": "a", "Message": "x"}])
    assert refused(error)[:2] == ("Throttled", 429)
    sns.delete_topic(TopicArn=topic)
