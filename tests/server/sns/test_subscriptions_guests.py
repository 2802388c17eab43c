"""Users who may publish to a queue subscribe it, and leave its owner room."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from botocore.exceptions import ClientError

from millrace import limits
from tests.server.aws.site import ACCOUNT, REGION, AwsSite, make_key
from tests.server.sns.queues import refused

if TYPE_CHECKING:
    from types_boto3_sqs import SQSClient

pytestmark = pytest.mark.process


def test_sec_17_subscriptions_of_guests_leave_the_owner_room(
    site: AwsSite, sqs: SQSClient, name: str
) -> None:
    url = sqs.create_queue(QueueName=name)["QueueUrl"]
    queue = f"arn:aws:sqs:{REGION}:{ACCOUNT}:{name}"
    rules = (f"allow * default/{name}-t*", f"allow publish default/{name}*")
    guest = site.aws(make_key(site.folder, f"guest-{name}", *rules)).sns
    topics = [
        guest.create_topic(Name=f"{name}-t{number}")["TopicArn"]
        for number in range(limits.SNS_GUEST_SUBSCRIPTIONS_MAX + 1)
    ]
    made = [
        guest.subscribe(
            TopicArn=topic,
            Protocol="sqs",
            Endpoint=queue,
            Attributes={"RawMessageDelivery": "true"},
        )["SubscriptionArn"]
        for topic in topics[:-1]
    ]
    with pytest.raises(ClientError) as error:
        guest.subscribe(TopicArn=topics[-1], Protocol="sqs", Endpoint=queue)
    assert refused(error)[0] == "SubscriptionLimitExceeded"
    assert not guest.list_subscriptions_by_topic(TopicArn=topics[-1])["Subscriptions"]
    # The owner has all that a queue may have.
    sqs.tag_queue(QueueUrl=url, Tags={f"tag-{number}": "x" for number in range(50)})
    sqs.set_queue_attributes(QueueUrl=url, Attributes={"VisibilityTimeout": "7"})
    owner = site.aws().sns
    own = owner.create_topic(Name=f"{name}-own")["TopicArn"]
    owner.subscribe(TopicArn=own, Protocol="sqs", Endpoint=queue)
    # What comes is told as it was, and one that goes makes room.
    guest.publish(TopicArn=topics[0], Message="raw")
    [got] = sqs.receive_message(QueueUrl=url, WaitTimeSeconds=20)["Messages"]
    assert got["Body"] == "raw"
    guest.set_subscription_attributes(
        SubscriptionArn=made[0], AttributeName="RawMessageDelivery", AttributeValue="false"
    )
    guest.publish(TopicArn=topics[0], Message="told")
    [got] = sqs.receive_message(QueueUrl=url, WaitTimeSeconds=20)["Messages"]
    told = json.loads(got["Body"])
    assert told["Message"] == "told"
    assert made[0] in told["UnsubscribeURL"]
    guest.unsubscribe(SubscriptionArn=made[0])
    guest.subscribe(TopicArn=topics[-1], Protocol="sqs", Endpoint=queue)
