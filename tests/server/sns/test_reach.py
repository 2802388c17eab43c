"""Where messages may be sent by HTTP."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from botocore.exceptions import ClientError

from millrace.errors import Invalid
from millrace.server.config import ServerSettings, load
from millrace.server.sns.reach import Reach, Unreachable, read_place
from tests.server.aws.site import AwsSite
from tests.server.sns.endpoint import Endpoint

if TYPE_CHECKING:
    from types_boto3_sns import SNSClient

NAMES = {
    "hooks.example.com": ["203.0.113.9", "93.184.216.34"],
    "inner.example.com": ["10.1.2.3"],
    "metadata.example.net": ["169.254.169.254", "fe80::1%eth0"],
}


async def resolve(host: str) -> list[str]:
    return NAMES.get(host, [host])


def address(places: tuple[str, ...], host: str) -> str | None:
    """Where is connected to for a host; None: nothing may be sent there."""
    try:
        return asyncio.run(Reach(places, resolve).address(host))
    except Unreachable:
        return None


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1",
        "10.0.0.1",
        "172.16.0.1",
        "192.168.1.1",
        "100.64.0.1",
        "169.254.169.254",
        "0.0.0.0",
        "224.0.0.1",
        "255.255.255.255",
        "::1",
        "::",
        "fe80::1",
        "fd00::1",
        "fec0::1",
        "ff02::1",
        "::ffff:127.0.0.1",
        "64:ff9b::7f00:1",
        "2002:7f00:1::",
        "inner.example.com",
        "metadata.example.net",
        "not an address",
    ],
)
def test_what_is_not_public_is_not_sent_to(host: str) -> None:
    assert address(("public",), host) is None
    assert address(("any",), host) == host


def test_the_address_that_was_judged_is_the_one_that_is_used() -> None:
    assert address(("public",), "hooks.example.com") == "93.184.216.34"
    assert address(("public",), "2606:2800:220:1::1") == "2606:2800:220:1::1"
    assert address(("10.0.0.0/8",), "inner.example.com") == "10.1.2.3"
    assert address(("10.1.0.0/16", "public"), "10.2.0.1") is None
    assert address(("10.0.0.0/8",), "::ffff:10.0.0.1") == "::ffff:10.0.0.1"
    assert address(("10.0.0.0/8",), "93.184.216.34") is None


def test_hosts_are_sent_to_wherever_they_are() -> None:
    assert address(("inner.example.com",), "Inner.Example.com.") == "Inner.Example.com."
    assert address(("*.example.com",), "inner.example.com") == "inner.example.com"
    assert address(("*.example.com",), "example.com") is None
    assert address(("*.example.com",), "inner.example.com.evil.net") is None


def test_what_may_not_be_sent_to_is_named_once() -> None:
    for host, told in (
        ("127.0.0.1", "127.0.0.1"),
        ("::1", "::1"),
        ("metadata.example.net", "metadata.example.net (169.254.169.254, fe80::1%eth0)"),
    ):
        with pytest.raises(Unreachable) as refused:
            asyncio.run(Reach(("public",), resolve).address(host))
        why = f"nothing is sent to {told}, which is none of sns_endpoints"
        assert str(refused.value) == why


@pytest.mark.parametrize("text", ["", "*", "10.0.0.0/99", "10.0.0", "a..b", "http://x", "a b", "ä"])
def test_what_is_no_place_is_refused(text: str) -> None:
    with pytest.raises(Invalid, match="sns_endpoints"):
        read_place("sns_endpoints", text)


def test_servers_that_others_reach_send_to_public_addresses_unless_they_say_otherwise() -> None:
    assert ServerSettings().sns_places == ("any",)
    assert ServerSettings(listen=("0.0.0.0:7070",), plain=True).sns_places == ("public",)
    given = {"MILLRACE_SNS_ENDPOINTS": "public; 10.0.0.0/8; *.Example.com"}
    found = load(environ=given).settings
    assert found.sns_places == ("public", "10.0.0.0/8", "*.example.com")


def test_an_endpoint_that_may_not_be_sent_to_is_refused(tmp_path: Path) -> None:
    def subscribe(sns: SNSClient, endpoint: Endpoint) -> None:
        topic = sns.create_topic(Name="news")["TopicArn"]
        sns.subscribe(TopicArn=topic, Protocol="http", Endpoint=endpoint.url)

    with Endpoint() as endpoint:
        with AwsSite(tmp_path / "a", "--set", "sns_endpoints=public") as site:
            with pytest.raises(ClientError) as error:
                subscribe(site.aws().sns, endpoint)
            told = error.value.response["Error"]
            assert told["Code"] == "InvalidParameter"
            assert "127.0.0.1" in told["Message"]
        with AwsSite(tmp_path / "b", "--set", "sns_endpoints=127.0.0.0/8") as site:
            subscribe(site.aws().sns, endpoint)
            assert endpoint.next().json["Type"] == "SubscriptionConfirmation"
