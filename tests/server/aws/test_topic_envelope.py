"""What SNS puts around messages: its fields, their order, what is signed."""

from __future__ import annotations

import json
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from millrace.server.aws.envelope_delivery import (
    envelope_of,
    is_raw,
    subscription_of,
    topic_of,
)
from millrace.server.aws.message_attributes import AttributeValue
from millrace.server.aws.topic_envelope import (
    EnvelopeContext,
    Notification,
    confirmation,
    notification,
)
from millrace.server.aws.topic_headers import ID, SUBJECT, TOPIC
from millrace.server.sns.signing import open_signer

TOPIC_ARN = "arn:aws:sns:us-east-1:000000000000:news"
AROUND = EnvelopeContext(
    lambda text, version: f"{version}:{text}", "http://host:1", "/_aws/sns/x.pem"
)


def test_the_fields_are_those_of_sns_in_their_order() -> None:
    note = Notification(
        "id", TOPIC_ARN, "body", 1_700_000_000_007, "subject", {"a": ("String", "x")}
    )
    text = notification(note, AROUND, f"{TOPIC_ARN}:sub")
    assert text == (
        "{\n"
        '  "Type" : "Notification",\n'
        '  "MessageId" : "id",\n'
        f'  "TopicArn" : "{TOPIC_ARN}",\n'
        '  "Subject" : "subject",\n'
        '  "Message" : "body",\n'
        '  "Timestamp" : "2023-11-14T22:13:20.007Z",\n'
        '  "SignatureVersion" : "1",\n'
        '  "Signature" : "1:Message\\nbody\\nMessageId\\nid\\nSubject\\nsubject\\nTimestamp\\n'
        f'2023-11-14T22:13:20.007Z\\nTopicArn\\n{TOPIC_ARN}\\nType\\nNotification\\n",\n'
        '  "SigningCertURL" : "http://host:1/_aws/sns/x.pem",\n'
        '  "UnsubscribeURL" : "http://host:1/?Action=Unsubscribe&SubscriptionArn='
        f'{TOPIC_ARN}:sub",\n'
        '  "MessageAttributes" : {"a":{"Type":"String","Value":"x"}}\n'
        "}"
    )


def test_what_a_fifo_topic_has_is_not_signed() -> None:
    note = Notification("id", f"{TOPIC_ARN}.fifo", "body", 0, "subject", sequence="1", version="2")
    found = json.loads(notification(note, AROUND, f"{TOPIC_ARN}.fifo:sub"))
    assert list(found) == [
        "Type",
        "MessageId",
        "SequenceNumber",
        "TopicArn",
        "Subject",
        "Message",
        "Timestamp",
        "UnsubscribeURL",
    ]


@given(st.text(), st.none() | st.text(), st.integers(0, 2**41))
def test_any_text_is_told_as_it_is(message: str, subject: str | None, time_ms: int) -> None:
    note = Notification("id", TOPIC_ARN, message, time_ms, subject, version="2")
    found = json.loads(notification(note, AROUND, "sub"))
    assert (found["Message"], found.get("Subject")) == (message, subject)
    assert f"Message\n{message}\nMessageId\n" in found["Signature"]
    assert ("Subject\n" in found["Signature"].split("MessageId\nid\n")[1]) >= (subject is not None)


def test_a_question_is_signed_with_its_token_and_address() -> None:
    found = json.loads(confirmation("id", TOPIC_ARN, "token", "http://yes", 0, AROUND))
    assert found["Type"] == "SubscriptionConfirmation"
    assert (found["Token"], found["SubscribeURL"]) == ("token", "http://yes")
    assert TOPIC_ARN in found["Message"]
    assert "SubscribeURL\nhttp://yes\nTimestamp\n" in found["Signature"]
    assert "Token\ntoken\nTopicArn\n" in found["Signature"]


def test_what_has_ended_is_told_as_sns_tells_it() -> None:
    arn = f"{TOPIC_ARN}:sub"
    found = json.loads(confirmation("id", TOPIC_ARN, "token", "http://yes", 0, AROUND, ended=arn))
    assert found.pop("Signature").endswith(
        f"TopicArn\n{TOPIC_ARN}\nType\nUnsubscribeConfirmation\n"
    )
    assert found == {
        "Type": "UnsubscribeConfirmation",
        "MessageId": "id",
        "Token": "token",
        "TopicArn": TOPIC_ARN,
        "Message": f"You have chosen to deactivate subscription {arn}.\nTo cancel this operation "
        "and restore the subscription, visit the SubscribeURL included in this message.",
        "SubscribeURL": "http://yes",
        "Timestamp": "1970-01-01T00:00:00.000Z",
        "SignatureVersion": "1",
        "SigningCertURL": "http://host:1/_aws/sns/x.pem",
    }


def test_a_message_is_handed_out_by_its_headers_and_the_queue_s_notes() -> None:
    headers = ((TOPIC, TOPIC_ARN.encode()), (ID, b"id"), (SUBJECT, b"s"), ("colour", b"red"))
    assert topic_of(headers) == TOPIC_ARN
    assert topic_of((("colour", b"red"),)) is None
    assert is_raw({f"raw:{TOPIC_ARN}": "1"}, TOPIC_ARN)
    assert not is_raw({}, TOPIC_ARN)
    notes = {f"subscription:{TOPIC_ARN}": "sub"}
    assert subscription_of(notes, TOPIC_ARN) == f"{TOPIC_ARN}:sub"
    attributes = {"b": AttributeValue(binary_value=b"\x00", data_type="Binary")}
    found = json.loads(envelope_of(b"\xff", headers, attributes, 0, "sub", AROUND))
    assert (found["MessageId"], found["Subject"], found["Message"]) == ("id", "s", "\ufffd")
    assert found["MessageAttributes"] == {"b": {"Type": "Binary", "Value": "AA=="}}


def test_a_folder_has_one_key_that_nobody_else_may_read(tmp_path: Path) -> None:
    first, second = open_signer(tmp_path), open_signer(tmp_path)
    assert first.path == second.path
    assert first.sign("text", "1") == second.sign("text", "1")
    assert first.sign("text", "1") != first.sign("text", "2")
    [file] = tmp_path.iterdir()
    assert (file.name, file.stat().st_mode & 0o777) == ("sns.key", 0o600)
