"""Behaviours of SQS that were recorded from AWS, by their numbers."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

import pytest
from botocore.exceptions import ClientError

from tests.server.aws.site import ACCOUNT, REGION, AwsSite
from tests.server.sqs.codes import code_of
from tests.server.sqs.queries import query

if TYPE_CHECKING:
    from types_boto3_sns import SNSClient
    from types_boto3_sqs import SQSClient

NO_QUEUE = "AWS.SimpleQueueService.NonExistentQueue"


def refused(ask: Callable[[], object]) -> tuple[str, int, str]:
    """Return code, status and text of the refusal."""
    with pytest.raises(ClientError) as error:
        ask()
    return *code_of(error), error.value.response["Error"]["Message"]


def received(sqs: SQSClient, url: str, **words: Any) -> list[Any]:
    got = sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10, **words)
    return got.get("Messages", [])


# --- AWS-3: batches to FIFO queues -------------------------------------------------------------


@pytest.mark.parametrize(
    ("lacks", "text"),
    [
        ("MessageGroupId", "The request must contain the parameter MessageGroupId."),
        (
            "MessageDeduplicationId",
            "The queue should either have ContentBasedDeduplication enabled or "
            "MessageDeduplicationId provided explicitly",
        ),
    ],
)
def test_aws_3_an_entry_without_group_or_id_refuses_the_whole_batch(
    sqs: SQSClient, fifo: str, lacks: str, text: str
) -> None:
    entries: list[Any] = [
        {"Id": one, "MessageBody": one, "MessageGroupId": "g", "MessageDeduplicationId": one}
        for one in "ab"
    ]
    del entries[1][lacks]
    told = refused(lambda: sqs.send_message_batch(QueueUrl=fifo, Entries=entries))
    assert told == ("InvalidParameterValue", 400, text)
    assert received(sqs, fifo) == []


def test_aws_3_a_batch_without_ids_is_sent_by_content(sqs: SQSClient, name: str) -> None:
    url = sqs.create_queue(
        QueueName=f"{name}.fifo",
        Attributes={"FifoQueue": "true", "ContentBasedDeduplication": "true"},
    )["QueueUrl"]
    entries: Any = [{"Id": one, "MessageBody": one, "MessageGroupId": "g"} for one in "ab"]
    sent = sqs.send_message_batch(QueueUrl=url, Entries=entries)
    assert [one["Id"] for one in sent["Successful"]] == ["a", "b"]
    assert [one["Body"] for one in received(sqs, url)] == ["a", "b"]


def test_aws_3_other_errors_refuse_an_entry_alone(sqs: SQSClient, fifo: str) -> None:
    entries: list[Any] = [
        {"Id": one, "MessageBody": one, "MessageGroupId": "g", "MessageDeduplicationId": one}
        for one in "ab"
    ]
    entries[1]["MessageGroupId"] = "a b"
    sent = sqs.send_message_batch(QueueUrl=fifo, Entries=entries)
    assert [one["Id"] for one in sent["Successful"]] == ["a"]
    assert [one["Id"] for one in sent["Failed"]] == ["b"]


# --- AWS-5: addresses --------------------------------------------------------------------------


def test_aws_5_a_queue_is_found_by_its_bare_name(
    site: AwsSite, sqs: SQSClient, name: str, url: str
) -> None:
    sqs.send_message(QueueUrl=name, MessageBody="x")
    sqs.send_message_batch(QueueUrl=name, Entries=[{"Id": "a", "MessageBody": "y"}])
    told = sqs.get_queue_attributes(QueueUrl=name, AttributeNames=["QueueArn"])
    assert told["Attributes"]["QueueArn"] == f"arn:aws:sqs:{REGION}:{ACCOUNT}:{name}"
    got = received(sqs, name)
    assert sorted(one["Body"] for one in got) == ["x", "y"]
    handle = got[0]["ReceiptHandle"]
    sqs.change_message_visibility(QueueUrl=name, ReceiptHandle=handle, VisibilityTimeout=60)
    sqs.delete_message(QueueUrl=name, ReceiptHandle=handle)
    sqs.set_queue_attributes(QueueUrl=name, Attributes={"DelaySeconds": "1"})
    sqs.tag_queue(QueueUrl=name, Tags={"a": "b"})
    assert sqs.list_queue_tags(QueueUrl=name)["Tags"] == {"a": "b"}
    asked = query(site, site.url, Action="GetQueueAttributes", QueueUrl=name)
    assert asked.status == 200
    sqs.purge_queue(QueueUrl=name)
    sqs.delete_queue(QueueUrl=name)
    assert refused(lambda: sqs.send_message(QueueUrl=name, MessageBody="x"))[0] == NO_QUEUE


def test_aws_5_a_bare_name_is_of_the_region_that_is_signed_for(
    site: AwsSite, name: str, url: str
) -> None:
    elsewhere = site.aws(region="eu-west-3").sqs
    assert refused(lambda: elsewhere.send_message(QueueUrl=name, MessageBody="x"))[0] == NO_QUEUE
    elsewhere.create_queue(QueueName=name)
    elsewhere.send_message(QueueUrl=name, MessageBody="there")
    assert [one["Body"] for one in received(elsewhere, name)] == ["there"]
    assert received(site.aws().sqs, name) == []


@pytest.mark.parametrize(
    "bad",
    [
        "http://whatever",
        "unknown",
        "no name",
        "a/b/c",
        "..",
        "x" * 81,
        "x" * 2000,
        "http://whatever/000000000000/no%20name",
        "/queue/no%20region/000000000000/x",
    ],
)
def test_aws_5_what_names_no_queue_is_no_queue(site: AwsSite, sqs: SQSClient, bad: str) -> None:
    for ask in (
        lambda: sqs.send_message(QueueUrl=bad, MessageBody="x"),
        lambda: sqs.receive_message(QueueUrl=bad),
        lambda: sqs.get_queue_attributes(QueueUrl=bad, AttributeNames=["All"]),
    ):
        assert refused(ask) == (NO_QUEUE, 400, "The specified queue does not exist.")
    told = query(site, site.url, Action="ReceiveMessage", QueueUrl=bad)
    assert (told.status, NO_QUEUE in told.text) == (400, True)


# --- AWS-7: traces -----------------------------------------------------------------------------

TRACE = "Root=1-5759e988-bd862e3fe1be46a994272793;Parent=53995c3f42cd8ad8;Sampled=1"


def traced(site: AwsSite, trace: str) -> SQSClient:
    sqs = site.aws().sqs

    def add(params: Any, **_: object) -> None:
        params["headers"]["X-Amzn-Trace-Id"] = trace

    sqs.meta.events.register("before-call.sqs", add)
    return sqs


def traces(sqs: SQSClient, url: str) -> list[str | None]:
    got = received(sqs, url, MessageSystemAttributeNames=["AWSTraceHeader"])
    return [one.get("Attributes", {}).get("AWSTraceHeader") for one in got]


def test_aws_7_the_trace_header_of_a_request_is_kept(
    site: AwsSite, sqs: SQSClient, url: str
) -> None:
    client = traced(site, TRACE)
    client.send_message(QueueUrl=url, MessageBody="x")
    client.send_message_batch(
        QueueUrl=url,
        Entries=[{"Id": one, "MessageBody": one, "MessageAttributes": {}} for one in "ab"],
    )
    assert traces(sqs, url) == [TRACE] * 3


def test_aws_7_a_message_of_its_own_trace_keeps_it(site: AwsSite, sqs: SQSClient, url: str) -> None:
    traced(site, TRACE).send_message(
        QueueUrl=url,
        MessageBody="x",
        MessageSystemAttributes={"AWSTraceHeader": {"DataType": "String", "StringValue": "mine"}},
    )
    assert traces(sqs, url) == ["mine"]


def test_aws_7_a_trace_header_that_is_too_long_is_ignored(
    site: AwsSite, sqs: SQSClient, url: str
) -> None:
    traced(site, "x" * 1025).send_message(QueueUrl=url, MessageBody="x")
    traced(site, "x" * 1024).send_message(QueueUrl=url, MessageBody="y")
    assert traces(sqs, url) == [None, "x" * 1024]


# --- AWS-9: names of attributes ----------------------------------------------------------------


@pytest.mark.parametrize("names", [["All"], [".*"], ["*"]])
def test_aws_9_a_receive_asks_for_every_attribute(
    sqs: SQSClient, url: str, names: list[str]
) -> None:
    given: Any = {one: {"DataType": "String", "StringValue": one} for one in ("a", "b.c")}
    sqs.send_message(QueueUrl=url, MessageBody="x", MessageAttributes=given)
    [got] = received(sqs, url, MessageAttributeNames=names)
    assert got["MessageAttributes"] == given


# --- AWS-13: FIFO topics and standard queues ---------------------------------------------------


@pytest.mark.parametrize("is_raw", [True, False])
def test_aws_13_a_standard_queue_tells_nothing_of_a_fifo_topic(
    sqs: SQSClient, sns: SNSClient, name: str, url: str, *, is_raw: bool
) -> None:
    topic = sns.create_topic(Name=f"{name}.fifo", Attributes={"FifoTopic": "true"})["TopicArn"]
    arn = f"arn:aws:sqs:{REGION}:{ACCOUNT}:{name}"
    raw = str(is_raw).lower()
    sns.subscribe(
        TopicArn=topic, Protocol="sqs", Endpoint=arn, Attributes={"RawMessageDelivery": raw}
    )
    sns.publish(TopicArn=topic, Message="x", MessageGroupId="g", MessageDeduplicationId="d")
    [got] = received(sqs, url, MessageSystemAttributeNames=["All"], WaitTimeSeconds=20)
    told = {"MessageGroupId", "MessageDeduplicationId", "SequenceNumber"} & got["Attributes"].keys()
    assert told == set()


# --- AWS-17, AWS-18: the query protocol --------------------------------------------------------


def error_of(text: str) -> tuple[str | None, str | None]:
    root = ElementTree.fromstring(text)
    spaces = {"q": root.tag[1:].partition("}")[0]}
    return root.findtext(".//q:Code", None, spaces), root.findtext(".//q:Message", None, spaces)


def test_aws_17_a_query_is_told_otherwise_that_there_is_no_queue(
    site: AwsSite, sqs: SQSClient
) -> None:
    text = "The specified queue does not exist"
    told = query(site, site.url, Action="GetQueueUrl", QueueName="gone")
    assert told.status == 400
    assert error_of(told.text) == (NO_QUEUE, f"{text} for this wsdl version.")
    assert refused(lambda: sqs.get_queue_url(QueueName="gone")) == (NO_QUEUE, 400, f"{text}.")


@pytest.mark.parametrize("action", ["CreateQueue", "ListQueues", "Nothing"])
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_aws_18_some_actions_are_not_valid_at_a_queue(
    site: AwsSite, url: str, action: str, method: str
) -> None:
    told = query(site, url, method, Action=action, QueueName="x")
    assert told.status == 400
    text = f"The action {action} is not valid for this endpoint."
    assert error_of(told.text) == ("InvalidAction", text)


def test_aws_18_the_address_of_a_queue_tells_those_of_others(
    site: AwsSite, sqs: SQSClient, name: str, url: str
) -> None:
    other = sqs.create_queue(QueueName=f"{name}-other")["QueueUrl"]
    for asked, expected in ((name, url), (f"{name}-other", other)):
        told = query(site, url, Action="GetQueueUrl", QueueName=asked)
        assert told.status == 200
        assert f"<QueueUrl>{expected}</QueueUrl>" in told.text


@pytest.mark.parametrize("accept", ["*/*", "application/json", "application/xml"])
def test_aws_18_a_get_without_an_action_is_no_operation(
    site: AwsSite, url: str, accept: str
) -> None:
    told = query(site, url, "GET", accept=accept)
    assert (told.status, told.text) == (404, "<UnknownOperationException/>")
    assert told.type.startswith("text/xml")


def test_aws_18_a_get_is_answered_in_json_where_that_is_accepted(
    site: AwsSite, sqs: SQSClient, name: str, url: str
) -> None:
    def ask(at: str, action: str, **params: str) -> Any:
        told = query(site, at, "GET", accept="application/json", Action=action, **params)
        assert (told.status, told.type) == (200, "application/json")
        answer = json.loads(told.text)[f"{action}Response"]
        assert answer["ResponseMetadata"]["RequestId"]
        return answer.get(f"{action}Result")

    listed = ask(site.url, "ListQueues", QueueNamePrefix=name)
    assert listed == {"queueUrls": [url]}
    found = ask(url, "GetQueueAttributes", **{"AttributeName.1": "QueueArn"})
    arn = f"arn:aws:sqs:{REGION}:{ACCOUNT}:{name}"
    assert found == {"Attributes": [{"Name": "QueueArn", "Value": arn}]}
    ask(url, "SendMessage", MessageBody="x")
    [message] = ask(url, "ReceiveMessage")["messages"]
    assert message["Body"] == "x"
    assert ask(url, "DeleteMessage", ReceiptHandle=message["ReceiptHandle"]) is None
    told = query(site, url, "GET", accept="application/json", Action="Nothing")
    assert told.status == 400
    assert json.loads(told.text)["Error"]["Code"] == "InvalidAction"


# --- AWS-19: policies --------------------------------------------------------------------------


def test_aws_19_a_permission_is_written_as_aws_writes_it(sqs: SQSClient, url: str) -> None:
    one, two = "111122223333", "444455556666"
    sqs.add_permission(QueueUrl=url, Label="a", AWSAccountIds=[one], Actions=["SendMessage"])
    sqs.add_permission(
        QueueUrl=url, Label="b", AWSAccountIds=[one, two], Actions=["SendMessage", "GetQueueUrl"]
    )
    told = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["Policy"])["Attributes"]
    policy = json.loads(told["Policy"])
    assert policy["Version"] == "2008-10-17"
    first, second = policy["Statement"]
    assert first["Principal"] == {"AWS": f"arn:aws:iam::{one}:root"}
    assert first["Action"] == "SQS:SendMessage"
    roots = [f"arn:aws:iam::{account}:root" for account in (one, two)]
    assert second["Principal"] == {"AWS": roots}
    assert second["Action"] == ["SQS:SendMessage", "SQS:GetQueueUrl"]


def test_aws_19_a_policy_keeps_its_own_version(sqs: SQSClient, url: str) -> None:
    policy = json.dumps({"Version": "2012-10-17", "Statement": []})
    sqs.set_queue_attributes(QueueUrl=url, Attributes={"Policy": policy})
    sqs.add_permission(
        QueueUrl=url, Label="a", AWSAccountIds=["111122223333"], Actions=["SendMessage"]
    )
    told = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["Policy"])["Attributes"]
    assert json.loads(told["Policy"])["Version"] == "2012-10-17"


# --- AWS-20, AWS-21, AWS-22: codes and texts ---------------------------------------------------


@pytest.mark.parametrize("flag", ["true", "false"])
def test_aws_20_a_standard_queue_has_no_attribute_fifo_queue(
    sqs: SQSClient, url: str, flag: str
) -> None:
    told = refused(lambda: sqs.set_queue_attributes(QueueUrl=url, Attributes={"FifoQueue": flag}))
    assert told == ("InvalidAttributeName", 400, "Unknown Attribute FifoQueue.")


def test_aws_20_a_fifo_queue_stays_one(sqs: SQSClient, fifo: str) -> None:
    sqs.set_queue_attributes(QueueUrl=fifo, Attributes={"FifoQueue": "true"})
    told = refused(
        lambda: sqs.set_queue_attributes(QueueUrl=fifo, Attributes={"FifoQueue": "false"})
    )
    assert told[:2] == ("InvalidAttributeValue", 400)
    assert "Modifying queue type is not supported" in told[2]


@pytest.mark.parametrize(
    ("attribute", "value"),
    [("DeduplicationScope", "queue"), ("FifoThroughputLimit", "perQueue")],
)
def test_aws_21_a_standard_queue_is_not_created_with_fifo_attributes(
    sqs: SQSClient, name: str, attribute: Any, value: str
) -> None:
    told = refused(lambda: sqs.create_queue(QueueName=name, Attributes={attribute: value}))
    text = f"You can specify the {attribute} only when FifoQueue is set to true."
    assert told == ("InvalidAttributeName", 400, text)


def test_aws_21_a_control_character_in_an_attribute_is_a_wrong_value(
    sqs: SQSClient, url: str
) -> None:
    bad: Any = {"a": {"DataType": "String", "StringValue": "x\x01y"}}
    told = refused(lambda: sqs.send_message(QueueUrl=url, MessageBody="x", MessageAttributes=bad))
    assert told[:2] == ("InvalidParameterValue", 400)
    assert refused(lambda: sqs.send_message(QueueUrl=url, MessageBody="\x01"))[:2] == (
        "InvalidMessageContents",
        400,
    )


def test_aws_21_a_task_is_not_cancelled_without_its_handle(site: AwsSite, sqs: SQSClient) -> None:
    text = "Value for parameter TaskHandle is invalid."
    told = refused(lambda: sqs.cancel_message_move_task(TaskHandle=""))
    assert told == ("InvalidParameterValue", 400, text)
    asked = query(site, site.url, Action="CancelMessageMoveTask")
    assert (asked.status, error_of(asked.text)) == (400, ("InvalidParameterValue", text))


def test_aws_21_the_first_id_that_occurs_a_second_time_is_named(sqs: SQSClient, url: str) -> None:
    ids = ("id_1", "id_2", "id_2", "id_1")
    entries: Any = [{"Id": one, "MessageBody": "x"} for one in ids]
    told = refused(lambda: sqs.send_message_batch(QueueUrl=url, Entries=entries))
    code = "AWS.SimpleQueueService.BatchEntryIdsNotDistinct"
    assert told == (code, 400, "Id id_2 repeated.")


@pytest.mark.parametrize("attribute", ["grün", "straße", "ø", "名前"])
def test_aws_22_names_of_attributes_may_have_any_letters(
    sqs: SQSClient, url: str, attribute: str
) -> None:
    given: Any = {attribute: {"DataType": "String", "StringValue": "x"}}
    sqs.send_message(QueueUrl=url, MessageBody="x", MessageAttributes=given)
    [got] = received(sqs, url, MessageAttributeNames=["All"])
    assert got["MessageAttributes"] == given
    bad: Any = {f"{attribute} {attribute}": given[attribute]}
    told = refused(lambda: sqs.send_message(QueueUrl=url, MessageBody="x", MessageAttributes=bad))
    assert told[:2] == ("InvalidParameterValue", 400)


# --- AWS-24, AWS-26: redrive policies ----------------------------------------------------------


def test_aws_24_the_count_of_a_redrive_policy_is_a_number(
    sqs: SQSClient, name: str, url: str
) -> None:
    sqs.create_queue(QueueName=f"{name}-dead")
    arn = f"arn:aws:sqs:{REGION}:{ACCOUNT}:{name}-dead"
    for count in ("1", 2):
        given = json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": count})
        sqs.set_queue_attributes(QueueUrl=url, Attributes={"RedrivePolicy": given})
        told = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["RedrivePolicy"])
        policy = json.loads(told["Attributes"]["RedrivePolicy"])
        assert policy == {"deadLetterTargetArn": arn, "maxReceiveCount": int(count)}


@pytest.mark.parametrize("is_new", [True, False])
def test_aws_26_a_redrive_policy_may_name_the_queue_itself(
    sqs: SQSClient, name: str, *, is_new: bool
) -> None:
    arn = f"arn:aws:sqs:{REGION}:{ACCOUNT}:{name}"
    policy = json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": 1})
    attributes: Any = {"RedrivePolicy": policy}
    if is_new:
        url = sqs.create_queue(QueueName=name, Attributes=attributes)["QueueUrl"]
        # It is the same when it is made again.
        assert sqs.create_queue(QueueName=name, Attributes=attributes)["QueueUrl"] == url
    else:
        url = sqs.create_queue(QueueName=name)["QueueUrl"]
        sqs.set_queue_attributes(QueueUrl=url, Attributes=attributes)
    told = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["RedrivePolicy"])
    assert json.loads(told["Attributes"]["RedrivePolicy"]) == json.loads(policy)
    assert sqs.list_dead_letter_source_queues(QueueUrl=url)["queueUrls"] == [url]
    sqs.send_message(QueueUrl=url, MessageBody="x")
    for _ in range(3):
        assert [one["Body"] for one in received(sqs, url, VisibilityTimeout=0)] == ["x"]
    # Another one takes its place.
    sqs.create_queue(QueueName=f"{name}-dead")
    other = json.dumps({"deadLetterTargetArn": f"{arn}-dead", "maxReceiveCount": 100})
    sqs.set_queue_attributes(QueueUrl=url, Attributes={"RedrivePolicy": other})
    assert sqs.list_dead_letter_source_queues(QueueUrl=url)["queueUrls"] == []
