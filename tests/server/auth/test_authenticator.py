"""Who is let in."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace import limits
from millrace.errors import Exhausted, MillraceError, Unauthenticated
from millrace.server.auth.access import (
    Principal,
    Token,
    User,
    digest_of,
    make_token,
    parse_rule,
)
from millrace.server.auth.authenticator import (
    Authenticator,
    FailureLimiter,
    credentials,
    is_own,
)
from millrace.server.auth.index import PrincipalIndex
from millrace.server.http.proxy_headers import is_loopback

TEXT = make_token(bytes(range(32)))
DIGEST = digest_of(TEXT)
BEARER = {"authorization": f"Bearer {TEXT}", "host": "localhost:1"}
OWN = {"host": "localhost:7070"}


def guard(*, anonymous: bool = False, expires_ms: int = 0, now_ms: int = 50) -> Authenticator:
    roll = PrincipalIndex()
    roll.put_user("ada", User("ada"))
    roll.put_token(DIGEST, Token("ada", "laptop", DIGEST, 1, expires_ms))
    return Authenticator(lambda: roll, lambda: now_ms, anonymous=anonymous)


def name_of(found: Principal | MillraceError) -> str | None:
    return found.name if isinstance(found, Principal) else None


def is_unknown(found: Principal | MillraceError) -> bool:
    """Whether it is the one answer that there is for all who are not known."""
    return found == guard().fail("") and isinstance(found, Unauthenticated)


def basic(user: str, token: str) -> dict[str, str]:
    return {"authorization": "Basic " + b64encode(f"{user}:{token}".encode()).decode()}


@pytest.mark.parametrize(
    "headers",
    [
        BEARER,
        {"authorization": f"bearer  {TEXT} "},
        basic("ada", TEXT),
        basic("", TEXT),
    ],
)
def test_a_good_token_is_let_in(headers: dict[str, str]) -> None:
    assert name_of(guard().admit(headers, "192.0.2.1")) == "ada"


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"authorization": ""},
        {"authorization": "Bearer"},
        {"authorization": "Bearer mr_wrong"},
        {"authorization": TEXT},
        {"authorization": f"Bearer {TEXT}, Bearer {TEXT}"},
        {"authorization": f"Digest {TEXT}"},
        {"authorization": "Basic !!!"},
        {"authorization": "Basic \u0662\u0662\u0662\u0662"},
        {"authorization": "Basic \xff\xff\xff\xff"},
        {"authorization": "Basic " + b64encode(b"\xff:\xff").decode()},
        {"authorization": "Bearer " + TEXT + "x" * limits.CREDENTIAL_CHARS_MAX},
        basic("bob", TEXT),
        basic("ada", "mr_wrong"),
    ],
)
def test_all_else_is_refused_in_the_same_words(headers: dict[str, str]) -> None:
    assert is_unknown(guard().admit(headers, "192.0.2.1"))


def test_an_expired_token_is_refused_in_the_same_words() -> None:
    assert is_unknown(guard(expires_ms=50).admit(BEARER))
    assert name_of(guard(expires_ms=51).admit(BEARER)) == "ada"


def test_it_is_told_when_someone_may_have_lost_the_right_to_ask() -> None:
    roll, now = PrincipalIndex(), [50]
    gate = Authenticator(lambda: roll, lambda: now[0])
    seen = {gate.version()}

    def has_changed() -> bool:
        was, version = len(seen), gate.version()
        seen.add(version)
        assert gate.version() == version
        return len(seen) > was

    changes: tuple[Callable[[], None], ...] = (
        lambda: roll.put_user("ada", User("ada")),
        lambda: roll.put_token(DIGEST, Token("ada", "laptop", DIGEST, 1, 60)),
        lambda: roll.put_user("ada", User("ada", (parse_rule("allow read */*"),))),
        lambda: gate.configure(anonymous=True, anonymous_rules=()),
    )
    for change in changes:
        change()
        assert has_changed()
    now[0] = 59
    assert not has_changed()
    now[0] = 60
    assert has_changed(), "the token has expired"
    roll.put_token(DIGEST, None)
    assert has_changed()


@pytest.mark.parametrize("address", ["127.0.0.1", "::1", "127.9.9.9", "::ffff:127.0.0.1", "::1%lo"])
def test_without_credentials_only_from_here_and_only_where_allowed(address: str) -> None:
    assert is_unknown(guard().admit(OWN, address))
    assert name_of(guard(anonymous=True).admit(OWN, address)) == "anonymous"


@pytest.mark.parametrize("address", ["", "192.0.2.1", "::2", "localhost", "::ffff:192.0.2.1", "x"])
def test_nobody_else_is_let_in_without_credentials(address: str) -> None:
    assert is_unknown(guard(anonymous=True).admit(OWN, address))


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"host": "evil.example"},
        {"host": "localhost.evil.example:7070"},
        {**OWN, "x-forwarded-for": "192.0.2.1"},
        {**OWN, "forwarded": "for=192.0.2.1"},
        {**OWN, "via": "1.1 proxy"},
        {**OWN, "x-real-ip": "127.0.0.1"},
        {**OWN, "origin": "https://evil.example"},
        {**OWN, "origin": "null"},
        {**OWN, "sec-fetch-site": "cross-site"},
        {**OWN, "authorization": "Bearer mr_wrong"},
    ],
)
def test_someone_behind_the_request_is_not_let_in_without_credentials(
    headers: dict[str, str],
) -> None:
    assert is_unknown(guard(anonymous=True).admit(headers, "127.0.0.1"))


@pytest.mark.parametrize(
    "name",
    [
        "x-forwarded-proto",
        "x-forwarded-port",
        "x-forwarded-server",
        "x-forwarded",
        "x-original-forwarded-for",
        "x-client-ip",
        "x-cluster-client-ip",
        "true-client-ip",
        "fastly-client-ip",
        "cf-connecting-ip",
        "cf-ray",
        "cdn-loop",
        "x-envoy-external-address",
        "x-azure-clientip",
        "x-appengine-user-ip",
        "x-proxyuser-ip",
        "x-remote-addr",
        "x-remote-user",
        "x-amzn-trace-id",
        "x-amz-cf-id",
        "fly-client-ip",
        "x-ssl-client-cert",
    ],
)
def test_sec_21_headers_of_any_proxy_keep_anonymous_out(name: str) -> None:
    assert is_unknown(guard(anonymous=True).admit({**OWN, name: "127.0.0.1"}, "127.0.0.1"))


@pytest.mark.parametrize(
    "referer",
    ["https://evil.example/", "http://localhost:70701/", "null", "http://localhost:8000/"],
)
def test_sec_21_pages_of_other_sites_keep_anonymous_out(referer: str) -> None:
    assert is_unknown(guard(anonymous=True).admit({**OWN, "referer": referer}, "127.0.0.1"))


@pytest.mark.parametrize(
    "headers",
    [
        {"host": "127.0.0.1"},
        {**OWN, "referer": "http://localhost:7070/v1?a=b"},
        {**OWN, "referer": "http://localhost:7070"},
        {**OWN, "x-request-id": "1", "x-amz-target": "AmazonSQS.SendMessage"},
        {"host": "[::1]:7070"},
        {**OWN, "origin": "http://localhost:7070", "sec-fetch-site": "same-origin"},
    ],
)
def test_the_same_machine_is_its_own(headers: dict[str, str]) -> None:
    assert is_own(headers)


def test_who_need_not_say_who_they_are_may_not_touch_the_servers_own_space() -> None:
    found = guard(anonymous=True).admit(OWN, "127.0.0.1")
    assert isinstance(found, Principal)
    assert found.may("manage", "default", "orders")
    assert not found.may("admin", "default", "orders")
    assert not found.may("read", "system", "access")


def test_what_is_allowed_without_credentials_can_be_changed() -> None:
    gate = guard(anonymous=True)
    gate.configure(anonymous=True, anonymous_rules=("allow read */*",))
    found = gate.admit(OWN, "127.0.0.1")
    assert isinstance(found, Principal)
    assert not found.may("publish", "default", "orders")
    gate.configure(anonymous=False, anonymous_rules=())
    assert is_unknown(gate.admit(OWN, "127.0.0.1"))


def test_failures_are_limited_for_each_address_and_right_ones_are_not() -> None:
    gate = guard()
    for _ in range(limits.FAILURES_BURST):
        assert is_unknown(gate.admit({}, "192.0.2.1"))
    refused = gate.admit({}, "192.0.2.1")
    assert isinstance(refused, Exhausted)
    assert refused.after_ms == 1000
    assert gate.fail("192.0.2.1") == refused
    assert is_unknown(gate.admit({}, "192.0.2.2"))
    assert name_of(gate.admit(BEARER, "192.0.2.1")) == "ada"


def test_failures_pass_with_time() -> None:
    failures = FailureLimiter()
    for _ in range(limits.FAILURES_BURST):
        assert failures.count("192.0.2.1", 0) == 0
    after_ms = failures.count("192.0.2.1", 0)
    assert after_ms == 1000
    assert failures.count("192.0.2.1", after_ms - 1) > 0
    assert failures.count("192.0.2.1", after_ms) == 0


def test_a_network_of_ipv6_is_one_address() -> None:
    failures = FailureLimiter()
    for number in range(limits.FAILURES_BURST):
        assert failures.count(f"2001:db8::{number:x}", 0) == 0
    assert failures.count("2001:db8::ffff", 0) > 0
    assert failures.count("2001:db8:0:1::1", 0) == 0
    assert failures.count("::ffff:192.0.2.1", 0) == 0
    assert len(failures) == 3


def test_the_table_of_addresses_is_bounded() -> None:
    failures = FailureLimiter(most=3)
    for _ in range(limits.FAILURES_BURST):
        failures.count("10.0.0.1", 0)
    failures.count("10.0.0.2", 0)
    assert failures.count("10.0.0.1", 0) > 0
    for number in (3, 4):
        failures.count(f"10.0.0.{number}", 0)
    assert len(failures) == 3
    assert failures.count("10.0.0.1", 0) > 0, "one that goes on is not forgotten"


@given(st.text())
def test_any_header_is_read(text: str) -> None:
    user, token = credentials(text)
    assert isinstance(user + token, str)
    assert isinstance(is_loopback(text), bool)
    assert isinstance(is_own({"host": text, "origin": text}), bool)
