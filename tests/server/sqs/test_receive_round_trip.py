"""A message goes its way: sent, received, held, deleted, by boto3."""

from __future__ import annotations

import urllib.error
import urllib.request
from base64 import b64encode
from hashlib import md5
from typing import TYPE_CHECKING
from xml.etree import ElementTree

import pytest
from botocore.exceptions import ClientError

from tests.server.aws.site import ACCOUNT, NOBODY, Aws, AwsSite, Key, make_key
from tests.server.sqs.codes import code_of

if TYPE_CHECKING:
    from types_boto3_sqs import SQSClient


def test_a_message_is_sent_received_and_deleted(sqs: SQSClient, url: str, name: str) -> None:
    assert url.endswith(f"/{ACCOUNT}/{name}")
    sent = sqs.send_message(
        QueueUrl=url,
        MessageBody="héllo <&> ☃",
        MessageAttributes={
            "n": {"DataType": "Number", "StringValue": "5"},
            "b": {"DataType": "Binary", "BinaryValue": b"\x00\xff"},
            "s": {"DataType": "String.json", "StringValue": "{}"},
        },
        MessageSystemAttributes={
            "AWSTraceHeader": {"DataType": "String", "StringValue": "Root=1-x"}
        },
    )
    [got] = sqs.receive_message(
        QueueUrl=url, MessageSystemAttributeNames=["All"], MessageAttributeNames=["All"]
    )["Messages"]
    assert got["Body"] == "héllo <&> ☃"
    assert got["MessageId"] == sent["MessageId"]
    assert got["MD5OfMessageAttributes"] == sent["MD5OfMessageAttributes"]
    assert got["MessageAttributes"]["b"] == {"DataType": "Binary", "BinaryValue": b"\x00\xff"}
    assert got["MessageAttributes"]["s"] == {"DataType": "String.json", "StringValue": "{}"}
    assert got["Attributes"]["AWSTraceHeader"] == "Root=1-x"
    assert got["Attributes"]["ApproximateReceiveCount"] == "1"
    assert got["Attributes"]["SenderId"] == "ada"
    sqs.delete_message(QueueUrl=url, ReceiptHandle=got["ReceiptHandle"])
    assert "Messages" not in sqs.receive_message(QueueUrl=url)


def test_a_message_that_is_given_back_comes_again(sqs: SQSClient, url: str) -> None:
    sqs.send_message(QueueUrl=url, MessageBody="x")
    [first] = sqs.receive_message(QueueUrl=url)["Messages"]
    assert "Messages" not in sqs.receive_message(QueueUrl=url)
    sqs.change_message_visibility(
        QueueUrl=url, ReceiptHandle=first["ReceiptHandle"], VisibilityTimeout=0
    )
    [again] = sqs.receive_message(QueueUrl=url, AttributeNames=["ApproximateReceiveCount"])[
        "Messages"
    ]
    assert again["MessageId"] == first["MessageId"]
    assert again["Attributes"] == {"ApproximateReceiveCount": "2"}


def test_what_rest_publishes_is_received_here(
    site: AwsSite, sqs: SQSClient, url: str, name: str
) -> None:
    answer = site.process.ask(
        "POST",
        f"/v1/spaces/default/queues/{name}/messages",
        {"body": "from REST", "headers": {"colour": "red"}},
    )
    assert answer.status == 201
    [got] = sqs.receive_message(QueueUrl=url, MessageAttributeNames=["colour"])["Messages"]
    assert got["Body"] == "from REST"
    assert got["MessageAttributes"] == {"colour": {"DataType": "String", "StringValue": "red"}}


def test_who_signs_with_another_secret_is_refused(site: AwsSite) -> None:
    forged = Aws(site.url, Key(site.root.id, "x" * 40))
    with pytest.raises(ClientError) as error:
        forged.sqs.list_queues()
    assert code_of(error) == ("SignatureDoesNotMatch", 403)


def test_who_is_not_known_is_refused(site: AwsSite) -> None:
    with pytest.raises(ClientError) as error:
        site.aws(NOBODY).sqs.list_queues()
    assert code_of(error) == ("InvalidClientTokenId", 403)


def test_who_says_nothing_is_told_what_is_missing(site: AwsSite, url: str) -> None:
    with pytest.raises(urllib.error.HTTPError) as error:
        urllib.request.urlopen(f"{site.url}/_aws/sqs/messages?QueueUrl={url}")
    text = error.value.read()
    assert error.value.code == 403
    assert b"<Code>MissingAuthenticationToken</Code>" in text
    assert b"millrace key new" in text


def test_rules_hold_for_keys_as_for_tokens(
    site: AwsSite, sqs: SQSClient, url: str, name: str
) -> None:
    key = make_key(site.folder, f"user-{name}", f"allow publish default/{name}")
    other = site.aws(key).sqs
    other.send_message(QueueUrl=url, MessageBody="x")
    with pytest.raises(ClientError) as error:
        other.receive_message(QueueUrl=url)
    assert code_of(error) == ("AccessDenied", 403)
    assert other.list_queues()["QueueUrls"] == [url]
    assert site.aws(key).sts.get_caller_identity()["Arn"].endswith(f":user/user-{name}")


def test_a_region_is_a_space_of_its_own(site: AwsSite, sqs: SQSClient, url: str, name: str) -> None:
    there = site.aws(region="eu-west-1").sqs
    with pytest.raises(ClientError) as error:
        there.get_queue_url(QueueName=name)
    assert code_of(error) == ("AWS.SimpleQueueService.NonExistentQueue", 400)
    elsewhere = there.create_queue(QueueName=name)["QueueUrl"]
    there.send_message(QueueUrl=elsewhere, MessageBody="x")
    assert "Messages" not in sqs.receive_message(QueueUrl=url)


@pytest.mark.parametrize(
    ("body", "in_json", "in_xml"),
    [
        (b"\xff\xfe", "\ufffd\ufffd", "\ufffd\ufffd"),
        (b"a\x00\x01b", "a\x00\x01b", "a\ufffd\ufffdb"),
        ("é".encode(), "é", "é"),
    ],
    ids=["bytes", "controls", "text"],
)
def test_what_is_told_of_a_body_has_the_digest_that_is_told(
    site: AwsSite, sqs: SQSClient, url: str, name: str, body: bytes, in_json: str, in_xml: str
) -> None:
    """SDKs compare them, and refuse all that came with one that differs."""
    path = f"/v1/spaces/default/queues/{name}/messages"
    for _ in range(2):
        sent = site.process.ask("POST", path, {"body_base64": b64encode(body).decode()})
        assert sent.status == 201
    [got] = sqs.receive_message(QueueUrl=url)["Messages"]
    assert (got["Body"], got["MD5OfBody"]) == (in_json, md5(in_json.encode()).hexdigest())
    answer = site.process.ask("GET", f"/?Action=ReceiveMessage&QueueUrl={url}")
    told = ElementTree.fromstring(answer.body)
    found = {one.tag.rpartition("}")[2]: one.text for one in told.iter()}
    assert (found["Body"], found["MD5OfBody"]) == (in_xml, md5(in_xml.encode()).hexdigest())
