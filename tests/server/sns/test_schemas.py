"""Small parts: pages of lists, waits between retries, attributes that are refused."""

from __future__ import annotations

import json

import pytest

from millrace import limits
from millrace.core import validate
from millrace.server.aws.fault import Fault
from millrace.server.aws.topic_headers import SUBJECT
from millrace.server.sns.delivery_policy import (
    DeliveryPolicy,
    RetryPolicy,
    delivery_of,
    see_policy,
    see_topic_policy,
)
from millrace.server.sns.message import TopicPublishSettings, publishable
from millrace.server.sns.resource_lookup import page_of
from millrace.server.sns.schemas import SnsAttributeValue, SnsMessageIn

PLAIN = TopicPublishSettings("arn", False, False, False, "1")
FIFO = TopicPublishSettings("arn", True, False, False, "1")


def test_pages_go_on_where_the_last_one_ended() -> None:
    names = [f"n{number:03d}" for number in range(250)]
    found: list[str] = []
    token: str | None = ""
    while token is not None:
        page, token = page_of(names, token)
        assert len(page) <= limits.SNS_LIST_MAX
        found += page
    assert found == names


@pytest.mark.parametrize(
    ("retries", "seconds"),
    [
        (RetryPolicy(), [20, 20, 20]),
        (RetryPolicy(10, 20, 5, 1, 1, 1), [0, 10, 10, 20, 20]),
        (RetryPolicy(10, 30, 3), [10, 20, 30]),
        (RetryPolicy(10, 30, 3, backoff_function="arithmetic"), [10, 15, 30]),
        (RetryPolicy(10, 40, 3, backoff_function="exponential"), [10, 20, 40]),
    ],
)
def test_waits_follow_the_policy(retries: RetryPolicy, seconds: list[float]) -> None:
    found = [retries.seconds(failures) for failures in range(1, retries.num_retries + 1)]
    assert found == seconds


def test_a_subscription_s_policy_comes_before_its_topic_s() -> None:
    own = json.dumps(
        {
            "healthyRetryPolicy": {"numRetries": 7, "minDelayTarget": 30},
            "throttlePolicy": {"maxReceivesPerSecond": 9},
        }
    )
    general = {
        "defaultHealthyRetryPolicy": {"numRetries": 5, "maxDelayTarget": 40},
        "defaultRequestPolicy": {"headerContentType": "application/json"},
    }
    topic = json.dumps({"http": general})
    assert delivery_of("", "") == DeliveryPolicy()
    assert delivery_of("", own) == DeliveryPolicy(RetryPolicy(30, 30, 7), 9)
    assert delivery_of(topic, own) == DeliveryPolicy(RetryPolicy(30, 40, 7), 9, "application/json")
    strict = json.dumps({"http": {**general, "disableSubscriptionOverrides": True}})
    assert delivery_of(strict, own) == DeliveryPolicy(RetryPolicy(20, 40, 5), 0, "application/json")


@pytest.mark.parametrize(
    ("policy", "text"),
    [
        ({"healthyRetryPolicy": 5}, "healthyRetryPolicy must be an object"),
        ({"healthyRetryPolicy": {"numRetries": 101}}, "healthyRetryPolicy.numRetries must be"),
        ({"healthyRetryPolicy": {"numRetries": True}}, "healthyRetryPolicy.numRetries must be"),
        ({"healthyRetryPolicy": {"minDelayTarget": 0}}, "healthyRetryPolicy.minDelayTarget must"),
        (
            {"healthyRetryPolicy": {"minDelayTarget": 9, "maxDelayTarget": 8}},
            "healthyRetryPolicy.minDelayTarget must be less than or equal to maxDelayTarget",
        ),
        ({"healthyRetryPolicy": {"backoffFunction": "wild"}}, "healthyRetryPolicy.backoffFunction"),
        ({"throttlePolicy": {"maxReceivesPerSecond": 0}}, "throttlePolicy.maxReceivesPerSecond"),
        ({"requestPolicy": {"headerContentType": "x/y"}}, "requestPolicy.headerContentType"),
        (
            {"requestPolicy": {"headerContentType": "text/plain; x\r\nevil: 1"}},
            "requestPolicy.headerContentType",
        ),
    ],
)
def test_a_bad_policy_of_delivery_is_refused(policy: dict[str, object], text: str) -> None:
    with pytest.raises(Fault) as refused:
        see_policy(policy, "Attributes Reason: ")
    start = f"Invalid parameter: Attributes Reason: DeliveryPolicy: {text}"
    assert refused.value.message.startswith(start)
    with pytest.raises(Fault):
        see_topic_policy(
            {"http": {f"default{name[0].upper()}{name[1:]}": part for name, part in policy.items()}}
        )


def value(kind: str, text: str | None = None, data: bytes | None = None) -> SnsAttributeValue:
    return SnsAttributeValue(kind, text, data)


@pytest.mark.parametrize(
    ("name", "given", "text"),
    [
        ("", value("String", "x"), "Length of message attribute name"),
        ("x" * 257, value("String", "x"), "Length of message attribute name"),
        (".a", value("String", "x"), "Invalid message attribute name starting with character '.'"),
        ("a.", value("String", "x"), "Invalid message attribute name ending with character '.'"),
        ("a b", value("String", "x"), "Invalid non-alphanumeric character '#x20' was found"),
        ("a..b", value("String", "x"), "Message attribute name can not have successive '.'"),
        ("AWS.x", value("String", "x"), "The message attribute name 'AWS.x' must not start with"),
        ("millrace-group", value("String", "x"), "The message attribute name 'millrace-group'"),
        ("a", value("Text", "x"), "The message attribute 'a' has an invalid message attribute"),
        ("a", value("String", ""), "The message attribute 'a' must contain non-empty message"),
        ("a", value("Binary", "x"), "The message attribute 'a' with type 'Binary' must use field"),
        ("a", value("Number", "five"), "Could not cast message attribute 'a' value to number."),
        ("a", value("String.Array", str(list(range(41)))), "A message has up to 40 attributes"),
    ],
)
def test_a_bad_attribute_is_refused(name: str, given: SnsAttributeValue, text: str) -> None:
    with pytest.raises(Fault) as refused:
        publishable(SnsMessageIn("x", message_attributes={name: given}), PLAIN)
    assert refused.value.query == "ParameterValueInvalid"
    assert refused.value.message.startswith(text)


@pytest.mark.parametrize(
    ("told", "topic", "text"),
    [
        (SnsMessageIn(""), PLAIN, "Empty message"),
        (SnsMessageIn("x", subject=""), PLAIN, "Subject"),
        (SnsMessageIn("x", subject="a\nb"), PLAIN, "Subject"),
        (SnsMessageIn("x", subject="a\x7fb"), PLAIN, "Subject"),
        (SnsMessageIn("x", subject="a\u2028b"), PLAIN, "Subject"),
        (SnsMessageIn("x", subject="s" * 101), PLAIN, "Subject"),
        (SnsMessageIn("x" * (256 * 1024 + 1)), PLAIN, "Message too long"),
        (SnsMessageIn("x" * 1025), PLAIN._replace(bytes_max=1024), "Message too long"),
        (SnsMessageIn("x", message_structure="xml"), PLAIN, "MessageStructure"),
        (
            SnsMessageIn("x", message_structure="json"),
            PLAIN,
            "Message Structure - JSON message body",
        ),
        (
            SnsMessageIn("{}", message_structure="json"),
            PLAIN,
            "Message Structure - No default entry",
        ),
        (
            SnsMessageIn("[]", message_structure="json"),
            PLAIN,
            "Message Structure - No default entry",
        ),
        (SnsMessageIn("x", message_deduplication_id="d"), PLAIN, "MessageDeduplicationId Reason"),
        (SnsMessageIn("x"), FIFO, "The MessageGroupId parameter is required for FIFO topics"),
        (SnsMessageIn("x", message_group_id="g"), FIFO, "The topic should either have Content"),
        (SnsMessageIn("x", message_group_id="a b"), FIFO, "MessageGroupId Reason"),
    ],
)
def test_a_bad_message_is_refused(
    told: SnsMessageIn, topic: TopicPublishSettings, text: str
) -> None:
    with pytest.raises(Fault) as refused:
        publishable(told, topic)
    assert refused.value.query == "InvalidParameter"
    assert refused.value.message.startswith(f"Invalid parameter: {text}")


@pytest.mark.parametrize(
    ("position", "place"),
    [(None, ""), (2, "publishBatchRequestEntries.2.member.")],
)
def test_aws_3_an_attribute_without_a_type_is_a_validation_error(
    position: int | None, place: str
) -> None:
    message = SnsMessageIn("x", message_attributes={"a": SnsAttributeValue(string_value="x")})
    with pytest.raises(Fault) as refused:
        publishable(message, PLAIN, position)
    fault = refused.value
    assert (fault.query, fault.status) == ("ValidationError", 400)
    assert fault.message.startswith(
        f"1 validation error detected: Value null at '{place}messageAttributes.a.member.dataType'"
    )


@pytest.mark.parametrize(
    ("value", "elements"),
    [
        ("100", [b"100"]),
        ("true", [b"true"]),
        ('"x"', [b"x"]),
        ('["x", 5]', [b"x", b"5"]),
        ("{}", [b"{}"]),
        ("x", [b"x"]),
    ],
)
def test_aws_25_a_single_value_of_json_is_an_array_of_one(
    value: str, elements: list[bytes]
) -> None:
    array = SnsAttributeValue("String.Array", value)
    message = publishable(SnsMessageIn("x", message_attributes={"a": array}), PLAIN).message
    headers = validate.headers(message.headers)
    assert [one for name, one in headers if name == "a"] == elements


def test_a_subject_is_any_text_of_a_line() -> None:
    for subject in ("Ünïcödé ☃ 😀", "é" * 100, " ", "<&>"):
        message = publishable(SnsMessageIn("x", subject=subject), PLAIN).message
        assert (SUBJECT, subject.encode()) in message.headers


def test_a_group_tells_repeats_apart_where_the_topic_says_so() -> None:
    told = SnsMessageIn("x", message_group_id="g", message_deduplication_id="d")
    assert publishable(told, FIFO).message.dedup == "d"
    assert publishable(told, FIFO._replace(dedup_by_group=True)).message.dedup == "g\nd"
