"""How large messages and batches may be, as their topic says."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from botocore.exceptions import ClientError

from millrace import limits
from tests.server.aws.site import ACCOUNT, AwsSite
from tests.server.sns.queues import refused, taker

if TYPE_CHECKING:
    from types_boto3_sns import SNSClient
    from types_boto3_sns.type_defs import PublishBatchRequestEntryTypeDef
    from types_boto3_sqs import SQSClient

SIZE = "MaximumMessageSize"


def allow(sns: SNSClient, topic: str, size: int | str) -> None:
    """Have a topic take messages of so many bytes."""
    sns.set_topic_attributes(TopicArn=topic, AttributeName=SIZE, AttributeValue=str(size))


def batch(*texts: str) -> list[PublishBatchRequestEntryTypeDef]:
    return [{"Id": str(at), "Message": text} for at, text in enumerate(texts)]


def test_a_topic_takes_256_kib_unless_it_says_otherwise(sns: SNSClient, topic: str) -> None:
    assert SIZE not in sns.get_topic_attributes(TopicArn=topic)["Attributes"]
    most = limits.SNS_MESSAGE_BYTES
    sns.publish(TopicArn=topic, Message="x" * most)
    with pytest.raises(ClientError) as error:
        sns.publish(TopicArn=topic, Message="x" * (most + 1))
    assert refused(error) == ("InvalidParameter", 400, "Invalid parameter: Message too long")
    allow(sns, topic, 1024)
    assert sns.get_topic_attributes(TopicArn=topic)["Attributes"][SIZE] == "1024"
    with pytest.raises(ClientError) as error:
        sns.publish(
            TopicArn=topic,
            Message="x" * 1014,
            MessageAttributes={"name": {"DataType": "String", "StringValue": "v"}},
        )
    assert refused(error)[2] == "Invalid parameter: Message too long"
    allow(sns, topic, "")
    sns.publish(TopicArn=topic, Message="x" * most)


def test_a_topic_may_take_a_mebibyte(sns: SNSClient, sqs: SQSClient, name: str) -> None:
    most = limits.SNS_MESSAGE_BYTES_MAX
    topic = sns.create_topic(Name=name, Attributes={SIZE: str(most)})["TopicArn"]
    queue = taker(sqs, name)
    sns.subscribe(TopicArn=topic, Protocol="sqs", Endpoint=queue.arn)
    sns.publish(TopicArn=topic, Message="x" * most)
    assert [len(body) for body in queue.bodies(1)] == [most]
    half = "y" * (most // 2)
    done = sns.publish_batch(TopicArn=topic, PublishBatchRequestEntries=batch(half, half))
    assert len(done["Successful"]) == 2
    assert queue.bodies(2) == [half, half]


@pytest.mark.parametrize("sizes", [(600, 425), (1025,), (1025, 1), (1, 1, 1023)])
def test_a_batch_is_as_large_as_all_its_entries(
    sns: SNSClient, topic: str, sizes: tuple[int, ...]
) -> None:
    allow(sns, topic, 1024)
    entries = batch(*("x" * size for size in sizes))
    with pytest.raises(ClientError) as error:
        sns.publish_batch(TopicArn=topic, PublishBatchRequestEntries=entries)
    assert refused(error)[:2] == ("BatchRequestTooLong", 400)
    entries[0]["Subject"] = "bad\nsubject"
    with pytest.raises(ClientError) as error:
        sns.publish_batch(TopicArn=topic, PublishBatchRequestEntries=entries)
    assert refused(error)[:2] == ("BatchRequestTooLong", 400)


def test_large_messages_go_to_queues_only(sns: SNSClient, name: str) -> None:
    large = limits.SNS_MESSAGE_BYTES + 1
    topic = sns.create_topic(Name=name, Attributes={SIZE: str(large)})["TopicArn"]
    endpoint = "http://127.0.0.1:9/"
    with pytest.raises(ClientError) as error:
        sns.subscribe(TopicArn=topic, Protocol="http", Endpoint=endpoint)
    assert refused(error) == (
        "InvalidParameter",
        400,
        "Invalid parameter: MaximumMessageSize Reason: a topic whose MaximumMessageSize is above "
        "262144 has no subscriptions but those of queues",
    )
    allow(sns, topic, large - 1)
    sns.subscribe(TopicArn=topic, Protocol="http", Endpoint=endpoint)
    with pytest.raises(ClientError) as error:
        allow(sns, topic, large)
    assert refused(error)[0] == "InvalidParameter"


@pytest.mark.slow
def test_large_messages_go_to_a_hundred_queues(site: AwsSite) -> None:
    aws = site.aws(region="eu-west-7")
    most = limits.SNS_LARGE_SUBSCRIPTIONS_MAX
    large = str(limits.SNS_MESSAGE_BYTES_MAX)
    topic = aws.sns.create_topic(Name="large", Attributes={SIZE: large})["TopicArn"]
    sns, sqs = aws.sns, aws.sqs

    def subscribe(at: int) -> None:
        sqs.create_queue(QueueName=f"q{at}")
        arn = f"arn:aws:sqs:eu-west-7:{ACCOUNT}:q{at}"
        sns.subscribe(TopicArn=topic, Protocol="sqs", Endpoint=arn)

    for at in range(most):
        subscribe(at)
    subscribe(0)
    with pytest.raises(ClientError) as error:
        subscribe(most)
    assert refused(error)[2].endswith("is above 262144 has up to 100 subscriptions")
    allow(sns, topic, "")
    subscribe(most)
    with pytest.raises(ClientError) as error:
        allow(sns, topic, large)
    assert refused(error)[0] == "InvalidParameter"
