"""Topics, their attributes, tags and permissions, as boto3 sees them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec
import pytest
from botocore.exceptions import ClientError

from millrace import limits
from millrace.server.sns.actions import SNS
from millrace.server.sns.unsupported import UNSUPPORTED
from tests.server.aws.site import ACCOUNT, REGION, AwsSite, make_key
from tests.server.sns.queues import refused, taker

if TYPE_CHECKING:
    from types_boto3_sns import SNSClient
    from types_boto3_sns.type_defs import TagTypeDef
    from types_boto3_sqs import SQSClient

NOWHERE = f"arn:aws:sns:{REGION}:{ACCOUNT}:nowhere"


@pytest.mark.process
def test_notes_that_others_have_written_spoil_no_topic(
    site: AwsSite, sns: SNSClient, name: str
) -> None:
    notes = {"aws.Policy": "x", "aws.DeliveryPolicy": "{", "aws.MaximumMessageSize": "9999999"}
    site.edit(lambda m: m.topic(name, notes=notes))
    topic = sns.create_topic(Name=name)["TopicArn"]
    for attribute in ("Policy", "DeliveryPolicy"):
        with pytest.raises(ClientError) as error:
            sns.create_topic(Name=name, Attributes={attribute: "{}"})
        assert refused(error)[:2] == ("InvalidParameter", 400)
    too_long = "x" * (limits.SNS_MESSAGE_BYTES + 1)
    with pytest.raises(ClientError) as error:
        sns.publish(TopicArn=topic, Message=too_long)
    assert refused(error)[:2] == ("InvalidParameter", 400)
    sns.publish(TopicArn=topic, Message=too_long[1:])


def test_a_topic_is_made_once(sns: SNSClient, name: str) -> None:
    given = {"DisplayName": "News", "SignatureVersion": "2"}
    tags = [{"Key": "team", "Value": "a"}, {"Key": "empty", "Value": ""}]
    made = sns.create_topic(Name=name, Attributes=given, Tags=tags)["TopicArn"]  # type: ignore[arg-type]
    assert made == f"arn:aws:sns:{REGION}:{ACCOUNT}:{name}"
    again = sns.create_topic(Name=name, Attributes=given, Tags=tags)["TopicArn"]  # type: ignore[arg-type]
    assert sns.create_topic(Name=name)["TopicArn"] == again == made
    with pytest.raises(ClientError) as error:
        sns.create_topic(Name=name, Attributes={"DisplayName": "Other"})
    assert refused(error) == (
        "InvalidParameter",
        400,
        "Invalid parameter: Attributes Reason: Topic already exists with different attributes",
    )
    with pytest.raises(ClientError) as error:
        sns.create_topic(Name=name, Tags=[{"Key": "team", "Value": "b"}])
    assert refused(error)[2] == (
        "Invalid parameter: Tags Reason: Topic already exists with different tags"
    )
    found = {
        one["Key"]: one["Value"] for one in sns.list_tags_for_resource(ResourceArn=made)["Tags"]
    }
    assert found == {"team": "a", "empty": ""}


@pytest.mark.parametrize("ending", ["", ".fifo"])
def test_what_holds_anyway_may_be_named_when_a_topic_is_made_again(
    sns: SNSClient, name: str, ending: str
) -> None:
    kind = {"FifoTopic": "true"} if ending else {}
    made = sns.create_topic(Name=name + ending, Attributes=kind)["TopicArn"]
    policy = json.loads(sns.get_topic_attributes(TopicArn=made)["Attributes"]["Policy"])
    usual = {
        "DisplayName": "",
        "SignatureVersion": "1",
        "TracingConfig": "PassThrough",
        "MaximumMessageSize": "262144",
        "Policy": json.dumps(policy, indent=1),
    }
    if ending:
        usual |= {"ContentBasedDeduplication": "false", "FifoThroughputScope": "Topic"}
    again = sns.create_topic(Name=name + ending, Attributes={**kind, **usual})["TopicArn"]
    assert again == made
    sns.set_topic_attributes(TopicArn=made, AttributeName="SignatureVersion", AttributeValue="2")
    with pytest.raises(ClientError) as error:
        sns.create_topic(Name=name + ending, Attributes={**kind, **usual})
    assert refused(error)[2].endswith("Topic already exists with different attributes")


@pytest.mark.parametrize(
    ("name", "attributes", "text"),
    [
        ("a b", {}, "Topic Name"),
        ("", {}, "Topic Name"),
        ("a.b", {}, "Topic Name"),
        ("a.fifo", {}, "Topic Name"),
        ("x" * 257, {}, "Topic Name"),
        ("x" * 252 + ".fifo", {"FifoTopic": "true"}, "Fifo Topic names must end with .fifo"),
        ("a", {"FifoTopic": "yes"}, "Attributes Reason: FifoTopic"),
        ("a", {"Colour": "red"}, "AttributeName"),
        ("a", {"ContentBasedDeduplication": "true"}, "ContentBasedDeduplication Reason"),
        ("a", {"SignatureVersion": "3"}, "SignatureVersion: Invalid value [3]"),
        ("a", {"MaximumMessageSize": "1023"}, "MaximumMessageSize: Invalid value [1023]. Must be"),
        ("a", {"MaximumMessageSize": "1048577"}, "MaximumMessageSize: Invalid value [1048577]."),
        ("a", {"MaximumMessageSize": "many"}, "MaximumMessageSize: Invalid value [many]. Must be"),
        ("a", {"DeliveryPolicy": "{"}, "DeliveryPolicy: failed to parse JSON."),
        ("a", {"Policy": "[]"}, "Policy Error: null"),
        ("a", {"SQSSuccessFeedbackSampleRate": "101"}, "SQSSuccessFeedbackSampleRate: Invalid"),
        ("a", {"HTTPSuccessFeedbackSampleRate": "-1"}, "HTTPSuccessFeedbackSampleRate: Invalid"),
    ],
)
def test_a_bad_topic_is_refused(
    sns: SNSClient, name: str, attributes: dict[str, str], text: str
) -> None:
    with pytest.raises(ClientError) as error:
        sns.create_topic(Name=name, Attributes=attributes)
    code, status, message = refused(error)
    assert (code, status) == ("InvalidParameter", 400)
    assert message.startswith(f"Invalid parameter: {text}")


@pytest.mark.parametrize(
    ("ending", "attributes"), [("", {}), (".fifo", {"FifoTopic": "true"})], ids=["standard", "fifo"]
)
def test_a_name_has_up_to_256_characters(
    sns: SNSClient, sqs: SQSClient, name: str, ending: str, attributes: dict[str, str]
) -> None:
    longest = name.ljust(256 - len(ending), "-") + ending
    made = sns.create_topic(Name=longest, Attributes=attributes)["TopicArn"]
    assert made == f"arn:aws:sns:{REGION}:{ACCOUNT}:{longest}"
    queue = taker(sqs, name + ending, **({"FifoQueue": "true"} if ending else {}))
    made_with = sns.subscribe(TopicArn=made, Protocol="sqs", Endpoint=queue.arn)
    ids = {"MessageGroupId": "g", "MessageDeduplicationId": "d"} if ending else {}
    sns.publish(TopicArn=made, Message="hello", **ids)  # type: ignore[arg-type]
    [message] = queue.take(1)
    around = json.loads(message["Body"])
    assert (around["TopicArn"], around["Message"]) == (made, "hello")
    [listed] = sns.list_subscriptions_by_topic(TopicArn=made)["Subscriptions"]
    assert listed["SubscriptionArn"] == made_with["SubscriptionArn"]
    sns.delete_topic(TopicArn=made)
    with pytest.raises(ClientError) as error:
        sns.get_topic_attributes(TopicArn=made)
    assert refused(error)[0] == "NotFound"


def test_attributes_are_told_and_changed(sns: SNSClient, topic: str) -> None:
    found = sns.get_topic_attributes(TopicArn=topic)["Attributes"]
    assert (found["TopicArn"], found["Owner"], found["DisplayName"]) == (topic, ACCOUNT, "")
    assert (found["SubscriptionsConfirmed"], found["SubscriptionsPending"]) == ("0", "0")
    statement = json.loads(found["Policy"])["Statement"][0]
    assert (statement["Resource"], "SNS:Publish" in statement["Action"]) == (topic, True)
    effective = json.loads(found["EffectiveDeliveryPolicy"])["http"]
    assert effective["defaultHealthyRetryPolicy"]["numRetries"] == 3
    policy = json.dumps({"http": {"disableSubscriptionOverrides": True}})
    for name, value in (("DisplayName", "News"), ("DeliveryPolicy", policy)):
        sns.set_topic_attributes(TopicArn=topic, AttributeName=name, AttributeValue=value)
    found = sns.get_topic_attributes(TopicArn=topic)["Attributes"]
    assert (found["DisplayName"], found["DeliveryPolicy"]) == ("News", policy)
    assert json.loads(found["EffectiveDeliveryPolicy"])["http"]["disableSubscriptionOverrides"]
    with pytest.raises(ClientError) as error:
        sns.set_topic_attributes(TopicArn=topic, AttributeName="Owner", AttributeValue="1")
    assert refused(error) == ("InvalidParameter", 400, "Invalid parameter: AttributeName")


@pytest.mark.parametrize(
    ("attribute", "values", "wrong"),
    [
        ("TracingConfig", ("Active", "PassThrough"), "Passive"),
        ("ContentBasedDeduplication", ("true", "false"), "yes"),
        ("FifoThroughputScope", ("MessageGroup", "Topic"), "Group"),
        ("SignatureVersion", ("2", "1"), "3"),
        ("MaximumMessageSize", ("1024", "1048576"), "1"),
        ("KmsMasterKeyId", ("alias/aws/sns",), ""),
        ("HTTPSuccessFeedbackSampleRate", ("0", "100"), "101"),
        ("SQSFailureFeedbackRoleArn", ("arn:aws:iam::000000000000:role/x",), ""),
    ],
)
def test_an_attribute_is_told_as_it_was_set(
    sns: SNSClient, name: str, attribute: str, values: tuple[str, ...], wrong: str
) -> None:
    made = sns.create_topic(Name=f"{name}.fifo", Attributes={"FifoTopic": "true"})["TopicArn"]

    def change(value: str) -> None:
        sns.set_topic_attributes(TopicArn=made, AttributeName=attribute, AttributeValue=value)

    for value in values:
        change(value)
        assert sns.get_topic_attributes(TopicArn=made)["Attributes"][attribute] == value
    if wrong:
        with pytest.raises(ClientError) as error:
            change(wrong)
        assert refused(error)[2].startswith(f"Invalid parameter: {attribute}: Invalid value [")


@pytest.mark.parametrize("attribute", ["ContentBasedDeduplication", "FifoThroughputScope"])
def test_a_standard_topic_has_nothing_of_a_fifo_topic(
    sns: SNSClient, topic: str, attribute: str
) -> None:
    with pytest.raises(ClientError) as error:
        sns.set_topic_attributes(TopicArn=topic, AttributeName=attribute, AttributeValue="x")
    assert refused(error) == (
        "InvalidParameter",
        400,
        f"Invalid parameter: {attribute} Reason: {attribute} is only supported for FIFO topics",
    )


def test_a_fifo_topic_says_that_it_is_one(sns: SNSClient, name: str) -> None:
    made = sns.create_topic(Name=f"{name}.fifo", Attributes={"FifoTopic": "true"})["TopicArn"]
    found = sns.get_topic_attributes(TopicArn=made)["Attributes"]
    assert (found["FifoTopic"], found["ContentBasedDeduplication"]) == ("true", "false")


def test_topics_are_listed_a_hundred_at_a_time(site: AwsSite) -> None:
    elsewhere = site.aws(region="eu-west-9").sns
    for number in range(limits.SNS_LIST_MAX + 1):
        elsewhere.create_topic(Name=f"t{number:03d}")
    first = elsewhere.list_topics()
    assert len(first["Topics"]) == limits.SNS_LIST_MAX
    rest = elsewhere.list_topics(NextToken=first["NextToken"])
    assert [one["TopicArn"] for one in rest["Topics"]] == [
        f"arn:aws:sns:eu-west-9:{ACCOUNT}:t{limits.SNS_LIST_MAX:03d}"
    ]
    assert "NextToken" not in rest
    with pytest.raises(ClientError) as error:
        elsewhere.list_topics(NextToken="\u2603")
    assert refused(error)[2] == "Invalid parameter: NextToken"


def test_a_topic_is_deleted_and_deleted_again(sns: SNSClient, topic: str) -> None:
    sns.delete_topic(TopicArn=topic)
    sns.delete_topic(TopicArn=topic)
    assert topic not in [one["TopicArn"] for one in sns.list_topics()["Topics"]]
    asks: list[Callable[[], object]] = [
        lambda: sns.get_topic_attributes(TopicArn=topic),
        lambda: sns.publish(TopicArn=topic, Message="x"),
        lambda: sns.list_subscriptions_by_topic(TopicArn=topic),
        lambda: sns.set_topic_attributes(
            TopicArn=topic, AttributeName="DisplayName", AttributeValue="x"
        ),
        lambda: sns.subscribe(TopicArn=topic, Protocol="sqs", Endpoint=topic),
    ]
    for ask in asks:
        with pytest.raises(ClientError) as error:
            ask()
        assert refused(error) == ("NotFound", 404, "Topic does not exist")


@pytest.mark.parametrize(
    ("arn", "text"),
    [
        ("nothing", "TopicArn Reason: An ARN must have at least 6 elements, not 1"),
        (f"arn:aws:sqs:{REGION}:{ACCOUNT}:x", "TopicArn"),
        (f"arn:aws:sns:mars-1:{ACCOUNT}:x", "TopicArn"),
        (f"arn:aws:sns:{REGION}:5:x", "TopicArn"),
    ],
)
def test_what_is_no_topic_is_refused(sns: SNSClient, arn: str, text: str) -> None:
    with pytest.raises(ClientError) as error:
        sns.get_topic_attributes(TopicArn=arn)
    assert refused(error) == ("InvalidParameter", 400, f"Invalid parameter: {text}")


def test_tags_come_and_go(sns: SNSClient, topic: str) -> None:
    sns.tag_resource(
        ResourceArn=topic, Tags=[{"Key": "a", "Value": "1"}, {"Key": "b", "Value": ""}]
    )
    sns.tag_resource(ResourceArn=topic, Tags=[{"Key": "a", "Value": "2"}])
    found = sns.list_tags_for_resource(ResourceArn=topic)["Tags"]
    assert {one["Key"]: one["Value"] for one in found} == {"a": "2", "b": ""}
    sns.untag_resource(ResourceArn=topic, TagKeys=["b", "none"])
    assert sns.list_tags_for_resource(ResourceArn=topic)["Tags"] == [{"Key": "a", "Value": "2"}]
    many = [{"Key": f"k{at}", "Value": "x"} for at in range(limits.SNS_TAGS_MAX)]
    with pytest.raises(ClientError) as error:
        sns.tag_resource(ResourceArn=topic, Tags=many)  # type: ignore[arg-type]
    assert refused(error)[:2] == ("TagLimitExceeded", 400)
    with pytest.raises(ClientError) as error:
        sns.tag_resource(
            ResourceArn=topic, Tags=[{"Key": "c", "Value": "1"}, {"Key": "c", "Value": "2"}]
        )
    assert refused(error)[2] == "Invalid parameter: Duplicated keys are not allowed."
    for key in ("aws:team", "AWS:team"):
        with pytest.raises(ClientError) as error:
            sns.tag_resource(ResourceArn=topic, Tags=[{"Key": key, "Value": "x"}])
        assert refused(error) == (
            "InvalidParameter",
            400,
            "Invalid parameter: TagKey Reason: a key does not begin with aws:",
        )
    with pytest.raises(ClientError) as error:
        sns.list_tags_for_resource(ResourceArn=NOWHERE)
    assert refused(error) == ("ResourceNotFound", 404, "Resource does not exist")


def test_a_topic_has_no_more_tags_than_it_may(sns: SNSClient, topic: str) -> None:
    def give(name: str) -> None:
        tags: list[TagTypeDef] = [{"Key": f"{name}{at}", "Value": ""} for at in range(30)]
        sns.tag_resource(ResourceArn=topic, Tags=tags)

    give("a")
    with pytest.raises(ClientError) as error:
        give("b")
    assert error.value.response["Error"]["Code"] == "TagLimitExceeded"
    assert len(sns.list_tags_for_resource(ResourceArn=topic)["Tags"]) == 30
    give("a")


def test_permissions_are_statements_of_the_policy(sns: SNSClient, topic: str) -> None:
    sns.add_permission(
        TopicArn=topic, Label="friends", AWSAccountId=["111111111111"], ActionName=["Publish"]
    )
    policy = json.loads(sns.get_topic_attributes(TopicArn=topic)["Attributes"]["Policy"])
    assert policy["Statement"][1] == {
        "Sid": "friends",
        "Effect": "Allow",
        "Principal": {"AWS": "arn:aws:iam::111111111111:root"},
        "Action": "SNS:Publish",
        "Resource": topic,
    }
    with pytest.raises(ClientError) as error:
        sns.add_permission(
            TopicArn=topic, Label="friends", AWSAccountId=["111111111111"], ActionName=["Publish"]
        )
    assert refused(error)[2] == "Invalid parameter: Statement already exists"
    with pytest.raises(ClientError) as error:
        sns.add_permission(TopicArn=topic, Label="x", AWSAccountId=["1"], ActionName=["Fly"])
    assert refused(error)[2] == "Invalid parameter: Policy statement action out of service scope!"
    sns.remove_permission(TopicArn=topic, Label="friends")
    policy = json.loads(sns.get_topic_attributes(TopicArn=topic)["Attributes"]["Policy"])
    assert len(policy["Statement"]) == 1
    with pytest.raises(ClientError) as error:
        sns.remove_permission(TopicArn=topic, Label="friends")
    assert refused(error)[:2] == ("InvalidParameter", 400)


@pytest.mark.process
def test_who_may_not_is_told_so(site: AwsSite, sns: SNSClient, topic: str, name: str) -> None:
    key = make_key(site.folder, f"user-{name}", f"allow publish default/{name}")
    other = site.aws(key).sns
    other.publish(TopicArn=topic, Message="x")
    asks: list[Callable[[], object]] = [
        lambda: other.delete_topic(TopicArn=topic),
        lambda: other.get_topic_attributes(TopicArn=topic),
        lambda: other.create_topic(Name=f"{name}-more"),
        lambda: other.publish(TopicArn=NOWHERE, Message="x"),
    ]
    for ask in asks:
        with pytest.raises(ClientError) as error:
            ask()
        code, status, message = refused(error)
        assert (code, status) == ("AuthorizationError", 403)
        assert message.startswith(f"User: user-{name} is not authorized to perform: SNS:")
        assert re.search(r" because no rule allows (manage|read|publish)$", message)
    assert [one["TopicArn"] for one in other.list_topics()["Topics"]] == [topic]


@pytest.mark.process
def test_every_action_needs_its_verb(site: AwsSite, sns: SNSClient, topic: str, name: str) -> None:
    arn = sns.subscribe(
        TopicArn=topic,
        Protocol="sqs",
        Endpoint=taker(site.aws().sqs, name).arn,
    )["SubscriptionArn"]
    other = site.aws(make_key(site.folder, f"user-{name}", f"allow publish other/{name}")).sns
    permission = {"AWSAccountId": [ACCOUNT], "ActionName": ["Publish"]}
    asks: dict[str, Callable[[], object]] = {
        "manage TagResource": lambda: other.tag_resource(ResourceArn=topic, Tags=[]),
        "manage UntagResource": lambda: other.untag_resource(ResourceArn=topic, TagKeys=[]),
        "read ListTagsForResource": lambda: other.list_tags_for_resource(ResourceArn=topic),
        "manage AddPermission": lambda: other.add_permission(
            TopicArn=topic,
            Label="x",
            **permission,
        ),
        "manage RemovePermission": lambda: other.remove_permission(TopicArn=topic, Label="x"),
        "read GetSubscriptionAttributes": lambda: other.get_subscription_attributes(
            SubscriptionArn=arn
        ),
        "manage SetSubscriptionAttributes": lambda: other.set_subscription_attributes(
            SubscriptionArn=arn, AttributeName="RawMessageDelivery", AttributeValue="true"
        ),
        "read ListSubscriptionsByTopic": lambda: other.list_subscriptions_by_topic(TopicArn=topic),
        "manage SetTopicAttributes": lambda: other.set_topic_attributes(
            TopicArn=topic, AttributeName="DisplayName", AttributeValue="x"
        ),
        "manage Unsubscribe": lambda: other.unsubscribe(SubscriptionArn=arn),
        "publish PublishBatch": lambda: other.publish_batch(
            TopicArn=topic, PublishBatchRequestEntries=[{"Id": "a", "Message": "x"}]
        ),
    }
    for what, ask in asks.items():
        verb, action = what.split(" ")
        with pytest.raises(ClientError) as error:
            ask()
        code, status, message = refused(error)
        assert (code, status) == ("AuthorizationError", 403), what
        assert f"is not authorized to perform: SNS:{action} on resource:" in message
        assert message.endswith(f"because no rule allows {verb}")
    assert other.list_topics()["Topics"] == []
    assert other.list_subscriptions()["Subscriptions"] == []


def test_every_action_of_the_model_is_known(sns: SNSClient) -> None:
    assert set(SNS.actions) == set(sns.meta.service_model.operation_names)


@pytest.mark.parametrize("name", sorted(set(SNS.actions) - set(UNSUPPORTED)))
def test_an_action_takes_and_gives_what_its_model_says(sns: SNSClient, name: str) -> None:
    action, model = SNS.actions[name], sns.meta.service_model.operation_model(name)
    taken = {one.encode_name for one in msgspec.structs.fields(action.takes)}
    assert model.input_shape is not None
    assert taken == set(model.input_shape.members)
    assert (action.gives is None) is (model.output_shape is None)
    if action.gives is not None and model.output_shape is not None:
        given = {one.encode_name for one in msgspec.structs.fields(action.gives)}
        assert given == set(model.output_shape.members)


@pytest.mark.parametrize(
    ("changed", "code"),
    [
        ({"Colour": "red"}, "UnsupportedOperation"),
        ({"Tags.member.1.Key": "a"}, "InvalidParameter"),
        ({"Action": "MakeTopic"}, "UnsupportedOperation"),
        ({"Action": "SendMessage"}, "UnsupportedOperation"),
    ],
)
def test_what_is_not_listed_is_refused_and_not_passed_over(
    site: AwsSite, name: str, changed: dict[str, str], code: str
) -> None:
    sns = site.aws().sns

    def change(params: dict[str, dict[str, str]], **_: object) -> None:
        params["body"].update(changed)

    sns.meta.events.register("before-call.sns.CreateTopic", change)
    with pytest.raises(ClientError) as error:
        sns.create_topic(Name=name)
    assert refused(error)[:2] == (code, 400)
    assert name not in str(sns.list_topics()["Topics"])


def test_what_is_not_done_here_says_so(sns: SNSClient, topic: str) -> None:
    asks: list[Callable[[], object]] = [
        lambda: sns.get_data_protection_policy(ResourceArn=topic),
        lambda: sns.list_platform_applications(),
        lambda: sns.publish(PhoneNumber="+41790000000", Message="x"),
        lambda: sns.subscribe(TopicArn=topic, Protocol="email", Endpoint="a@b.example"),
        lambda: sns.get_sms_attributes(),
        lambda: sns.create_topic(Name="kept", DataProtectionPolicy="{}"),
        lambda: sns.create_topic(
            Name="kept.fifo", Attributes={"FifoTopic": "true", "ArchivePolicy": "{}"}
        ),
        lambda: sns.set_topic_attributes(
            TopicArn=sns.create_topic(Name="now.fifo", Attributes={"FifoTopic": "true"})[
                "TopicArn"
            ],
            AttributeName="ArchivePolicy",
            AttributeValue='{"MessageRetentionPeriod": "30"}',
        ),
    ]
    for ask in asks:
        with pytest.raises(ClientError) as error:
            ask()
        assert refused(error)[:2] == ("UnsupportedOperation", 400)
