"""Signatures are those of botocore, whatever is signed."""

from __future__ import annotations

import string
from datetime import UTC, datetime
from urllib.parse import quote, urlsplit

import pytest
from botocore.auth import SigV4Auth, SigV4QueryAuth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from hypothesis import given
from hypothesis import strategies as st

from millrace.server.aws.fault import Fault
from millrace.server.aws.sigv4 import (
    ParsedSignature,
    StatedCredential,
    read_signed,
    see_signature,
    see_time,
    signature_of,
    signing_key,
)

SECRET = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"
NOW = datetime(2026, 11, 16, 12, 0, tzinfo=UTC).timestamp()
names = st.text(string.ascii_letters + string.digits + "-_.", min_size=1, max_size=20)
texts = st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=30)
queries = st.dictionaries(texts.filter(bool), texts, max_size=4)
headers = st.dictionaries(
    st.sampled_from(["X-Amz-Target", "X-Amz-Thing", "X-Other", "Content-Type"]),
    st.text(string.printable.strip(), min_size=1, max_size=30).map(str.strip).filter(bool),
)


def signed_by_botocore(
    method: str,
    path: str,
    query: dict[str, str],
    sent: dict[str, str],
    body: bytes,
    *,
    presigned: bool = False,
) -> AWSRequest:
    url = f"http://127.0.0.1:7070{path}"
    if query:
        url += "?" + "&".join(
            f"{quote(name, safe='-_.~')}={quote(text, safe='-_.~')}" for name, text in query.items()
        )
    request = AWSRequest(method, url, headers=sent, data=body)
    credentials = Credentials("MRAKTEST", SECRET)
    kind = SigV4QueryAuth if presigned else SigV4Auth
    kind(credentials, "sqs", "us-east-1").add_auth(request)
    return request


def read(request: AWSRequest) -> tuple[ParsedSignature, str, str, dict[str, str]]:
    parts = urlsplit(str(request.url))
    sent = {name.lower(): value for name, value in request.headers.items()}
    sent.setdefault("host", parts.netloc)
    signed = read_signed(sent, parts.query)
    assert signed is not None
    return signed, parts.path, parts.query, sent


def prove(request: AWSRequest, body: bytes, secret: str = SECRET) -> None:
    signed, path, query, sent = read(request)
    key = signing_key(secret, signed.stated.scope)
    expected = signature_of(signed, key, str(request.method), path, query, sent, body)
    see_signature(expected, signed)


@given(
    st.sampled_from(["GET", "POST"]),
    st.lists(names, max_size=3).map(lambda parts: "/" + "/".join(parts)),
    queries,
    headers,
    st.binary(max_size=200),
    st.booleans(),
)
def test_what_botocore_signs_is_signed_here_as_well(
    method: str,
    path: str,
    query: dict[str, str],
    sent: dict[str, str],
    body: bytes,
    presigned: bool,  # noqa: FBT001
) -> None:
    # Of what is signed in an address, the body is not; those that are sent have none.
    body = b"" if presigned else body
    request = signed_by_botocore(
        method, path, query, {} if presigned else sent, body, presigned=presigned
    )
    prove(request, body)
    with pytest.raises(Fault, match="does not match"):
        prove(request, body + b"x")
    with pytest.raises(Fault, match="does not match"):
        prove(request, body, SECRET + "x")


def test_every_part_of_a_request_is_signed() -> None:
    request = signed_by_botocore("POST", "/a", {"b": "c"}, {"X-Amz-Target": "AmazonSQS.X"}, b"{}")
    signed, path, query, sent = read(request)
    key = signing_key(SECRET, signed.stated.scope)
    good = signature_of(signed, key, "POST", path, query, sent, b"{}")
    assert good == signed.signature
    elsewhere = signed._replace(stated=signed.stated._replace(region="eu-west-1"))
    others = (
        signature_of(signed, key, "GET", path, query, sent, b"{}"),
        signature_of(signed, key, "POST", "/b", query, sent, b"{}"),
        signature_of(signed, key, "POST", path, "b=d", sent, b"{}"),
        signature_of(signed, key, "POST", path, query, {**sent, "host": "other"}, b"{}"),
        signature_of(
            signed, key, "POST", path, query, {**sent, "x-amz-target": "AmazonSQS.Y"}, b"{}"
        ),
        signature_of(elsewhere, key, "POST", path, query, sent, b"{}"),
    )
    assert good not in others


def test_a_header_that_means_something_must_be_signed() -> None:
    request = signed_by_botocore("POST", "/", {}, {"X-Amz-Target": "AmazonSQS.X"}, b"{}")
    sent = {name.lower(): value for name, value in request.headers.items()}
    sent["host"] = "127.0.0.1:7070"
    assert read_signed(sent, "") is not None
    with pytest.raises(Fault, match="x-amz-security-token"):
        read_signed({**sent, "x-amz-security-token": "x"}, "")
    without_host = sent["authorization"].replace("host;", "")
    with pytest.raises(Fault, match="Host"):
        read_signed({**sent, "authorization": without_host}, "")


def test_so_must_one_beside_an_address_that_is_signed() -> None:
    request = signed_by_botocore("GET", "/", {"Action": "GetQueueUrl"}, {}, b"", presigned=True)
    query = urlsplit(str(request.url)).query
    assert read_signed({"host": "127.0.0.1:7070"}, query) is not None
    with pytest.raises(Fault, match="x-amz-target"):
        read_signed({"host": "127.0.0.1:7070", "x-amz-target": "AmazonSQS.ListQueues"}, query)


def test_a_plus_that_means_a_space_is_not_signed_as_a_plus() -> None:
    request = signed_by_botocore("GET", "/", {"MessageBody": "1+1"}, {}, b"", presigned=True)
    prove(request, b"")
    request.url = str(request.url).replace("1%2B1", "1+1")
    with pytest.raises(Fault, match="does not match"):
        prove(request, b"")


@pytest.mark.parametrize(
    "given",
    [
        "AWS4-HMAC-SHA256",
        "AWS4-HMAC-SHA256 Credential=a/b",
        "AWS4-HMAC-SHA256 Credential=a/20261116/r/s/aws4_request, SignedHeaders=host",
        "AWS4-HMAC-SHA256 Credential=a/20261116/r/s/aws4_request, SignedHeaders=host, Signature=zz",
    ],
)
def test_what_cannot_be_read_is_told_as_incomplete(given: str) -> None:
    with pytest.raises(Fault) as caught:
        read_signed({"authorization": given, "x-amz-date": "20261116T120000Z"}, "")
    assert caught.value.kind == "IncompleteSignature"


def test_without_a_signature_of_this_kind_there_is_none() -> None:
    assert read_signed({}, "") is None
    assert read_signed({"authorization": "Bearer mr_x"}, "") is None


@pytest.mark.parametrize(
    ("query", "text"),
    [
        ("X-Amz-Signature=a", "needs"),
        (
            "X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential=a/20261116/r/sqs/aws4_request"
            "&X-Amz-Date=20261116T120000Z&X-Amz-Expires=604801&X-Amz-SignedHeaders=host"
            f"&X-Amz-Signature={'0' * 64}",
            "X-Amz-Expires",
        ),
        (
            "X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Signature=a",
            "twice",
        ),
    ],
)
def test_an_address_that_is_signed_badly_is_refused(query: str, text: str) -> None:
    with pytest.raises(Fault, match=text):
        read_signed({}, query)


@pytest.mark.parametrize(
    ("time", "seconds", "text"),
    [
        ("20261116T114500Z", 0, None),
        ("20261116T114459Z", 0, "expired"),
        ("20261116T121500Z", 0, None),
        ("20261116T121501Z", 0, "not yet"),
        ("20261116T110000Z", 3600, None),
        ("20261116T110000Z", 3599, "expired"),
        ("20261116T256199Z", 0, "no time"),
        ("20261115T120000Z", 86_400, "does not match"),
    ],
)
def test_a_signature_is_good_around_its_time(time: str, seconds: int, text: str | None) -> None:
    signed = ParsedSignature(
        StatedCredential("a", "20261116", "r", "sqs", "host"), "0" * 64, time, seconds
    )
    if text is None:
        see_time(signed, NOW)
        return
    with pytest.raises(Fault, match=text):
        see_time(signed, NOW)
