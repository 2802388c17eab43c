"""Where messages may be sent by HTTP."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from botocore.exceptions import ClientError

from millrace.errors import Invalid
from millrace.server.http.listener import parse_address
from millrace.server.process.server_settings import ServerSettings, load
from millrace.server.sns.endpoint_delivery import EndpointPost, _head
from millrace.server.sns.endpoint_policy import EndpointPolicy, Unreachable, read_place
from tests.server.aws.site import AwsSite
from tests.server.sns.endpoint import Endpoint

if TYPE_CHECKING:
    from types_boto3_sns import SNSClient

NAMES = {
    "hooks.example.com": ["10.9.9.9", "93.184.216.34"],
    "inner.example.com": ["10.1.2.3"],
    "metadata.example.net": ["169.254.169.254", "fe80::1%eth0"],
}


async def resolve(host: str) -> list[str]:
    return NAMES.get(host, [host])


def address(places: tuple[str, ...], host: str) -> str | None:
    """Where is connected to for a host; None: nothing may be sent there."""
    try:
        return asyncio.run(EndpointPolicy(places, resolve).address(host, 80))
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
    assert address(("any",), host) == NAMES.get(host, [host])[0]


SPECIAL = [
    "0.1.2.3",
    "192.0.0.192",
    "192.0.0.1",
    "192.0.2.1",
    "192.31.196.1",
    "192.88.99.1",
    "192.175.48.1",
    "198.18.0.1",
    "198.51.100.1",
    "203.0.113.9",
    "100.100.100.200",
    "168.63.129.16",
    "240.0.0.1",
    "fd00:ec2::254",
    "fd20:ce::254",
    "100::1",
    "2001:2::1",
    "2001:10::1",
    "2001:db8::1",
    "2620:4f:8000::1",
    "3fff::1",
    "4000::1",
    "5f00::1",
    "fe80::a9fe:a9fe",
    "::2",
    "::127.0.0.1",
    "::ffff:169.254.169.254",
    "::ffff:168.63.129.16",
    "::ffff:0:10.0.0.1",
    "64:ff9b::a9fe:a9fe",
    "64:ff9b::c000:c0",
    "64:ff9b:1::a00:1",
    "2002:a9fe:a9fe::1",
    "2002:a00:1::",
    "2001:0:4136:e378:8000:63bf:f5ff:fffe",
]


@pytest.mark.parametrize("host", SPECIAL)
def test_sec_18_addresses_of_a_special_purpose_are_not_public(host: str) -> None:
    assert address(("public",), host) is None


@pytest.mark.parametrize(
    "host",
    [
        "1.1.1.1",
        "93.184.216.34",
        "168.63.129.17",
        "192.0.1.1",
        "100.128.0.1",
        "172.32.0.1",
        "2606:2800:220:1::1",
        "2a00:1450:4001::1",
        "::ffff:93.184.216.34",
        "64:ff9b::5db8:d822",
    ],
)
def test_sec_18_addresses_of_the_internet_are_public(host: str) -> None:
    assert address(("public",), host) == host


LISTENING = {
    "127.0.0.1:7070": ["127.0.0.1", "0.0.0.0", "::", "::ffff:127.0.0.1"],
    "0.0.0.0:7070": ["127.0.0.1", "127.9.9.9", "0.0.0.0", "::1", "::ffff:127.0.0.1"],
    "[::]:7070": ["127.0.0.1", "::1", "::"],
    "[::1]:7070": ["::1", "::", "0.0.0.0"],
    "10.1.2.3:7070": ["inner.example.com", "10.1.2.3", "::ffff:10.1.2.3", "64:ff9b::a01:203"],
    "localhost:7070": ["127.0.0.1", "0.0.0.0"],
}


@pytest.mark.parametrize("places", [("any",), ("10.0.0.0/8", "127.0.0.0/8", "*.example.com")])
@pytest.mark.parametrize("listening", LISTENING)
def test_sec_06_nothing_is_sent_to_the_server_itself(
    listening: str, places: tuple[str, ...]
) -> None:
    reach = EndpointPolicy(places, resolve)
    reach.own = (parse_address(listening, "listen"), parse_address("127.0.0.1:7", "listen"))
    for host in LISTENING[listening]:
        with pytest.raises(Unreachable):
            asyncio.run(reach.address(host, 7070))
    assert asyncio.run(reach.address("127.0.0.1", 7071)) == "127.0.0.1"
    assert asyncio.run(reach.address("10.1.2.4", 7070)) == "10.1.2.4"


@pytest.mark.process
def test_sec_06_a_server_is_no_endpoint_of_itself_or_another(tmp_path: Path) -> None:
    """As behind a proxy, where `anonymous` would let in what comes from the machine itself."""
    with AwsSite(tmp_path / "a", "--set", "anonymous=true") as site:
        sns = site.aws().sns
        topic = sns.create_topic(Name="news")["TopicArn"]
        for host in ("127.0.0.1", "localhost", "0.0.0.0", "[::ffff:127.0.0.1]"):
            path = f"http://{host}:{site.process.port}/v1/spaces/default/queues/q/purge"
            with pytest.raises(ClientError) as error:
                sns.subscribe(TopicArn=topic, Protocol="http", Endpoint=path)
            told = error.value.response["Error"]
            assert told["Code"] == "InvalidParameter"
            assert "listens itself" in told["Message"]
        # Where an address in between hides that it is this server, it says so itself.
        head = _head(EndpointPost("http://x/", "{}", "Notification", "id", topic), 2).decode()
        headers = dict(line.split(": ", 1) for line in head.split("\r\n")[1:] if line)
        headers["host"] = f"127.0.0.1:{site.process.port}"
        for method, where in (("POST", "/v1/spaces/default/queues/q/purge"), ("GET", "/v1")):
            connection = site.process.connect()
            connection.request(method, where, b"{}", headers)
            answer = connection.getresponse()
            assert (answer.status, b"no endpoint of SNS" in answer.read()) == (403, True)
            connection.close()


def test_the_address_that_was_judged_is_the_one_that_is_used() -> None:
    assert address(("public",), "hooks.example.com") == "93.184.216.34"
    assert address(("public",), "2606:2800:220:1::1") == "2606:2800:220:1::1"
    assert address(("10.0.0.0/8",), "inner.example.com") == "10.1.2.3"
    assert address(("10.1.0.0/16", "public"), "10.2.0.1") is None
    assert address(("10.0.0.0/8",), "::ffff:10.0.0.1") == "::ffff:10.0.0.1"
    assert address(("10.0.0.0/8",), "93.184.216.34") is None


def test_hosts_are_sent_to_wherever_they_are() -> None:
    assert address(("inner.example.com",), "inner.example.com") == "10.1.2.3"
    assert address(("inner.example.com",), "Inner.Example.com.") == "Inner.Example.com."
    assert address(("*.example.com",), "inner.example.com") == "10.1.2.3"
    assert address(("*.example.com",), "example.com") is None
    assert address(("*.example.com",), "inner.example.com.evil.net") is None


def test_what_may_not_be_sent_to_is_named_once() -> None:
    for host, told in (
        ("127.0.0.1", "127.0.0.1"),
        ("::1", "::1"),
        ("metadata.example.net", "metadata.example.net (169.254.169.254, fe80::1%eth0)"),
    ):
        with pytest.raises(Unreachable) as refused:
            asyncio.run(EndpointPolicy(("public",), resolve).address(host, 80))
        why = f"nothing is sent to {told}, which is none of sns_endpoints"
        assert str(refused.value) == why


@pytest.mark.parametrize("text", ["", "*", "10.0.0.0/99", "10.0.0", "a..b", "http://x", "a b", "ä"])
def test_what_is_no_place_is_refused(text: str) -> None:
    with pytest.raises(Invalid, match="sns_endpoints"):
        read_place("sns_endpoints", text)


def test_sec_06_servers_send_to_public_addresses_unless_they_say_otherwise() -> None:
    assert ServerSettings().sns_places == ("public",)
    assert ServerSettings(listen=("0.0.0.0:7070",), plain=True).sns_places == ("public",)
    given = {"MILLRACE_SNS_ENDPOINTS": "public; 10.0.0.0/8; *.Example.com"}
    found = load(environ=given).settings
    assert found.sns_places == ("public", "10.0.0.0/8", "*.example.com")


@pytest.mark.process
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
