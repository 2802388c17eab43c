"""The texts that are signed, and what is read of addresses."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from millrace.server.cassieq.route_table import LETTERS, QUEUES, ROUTES
from millrace.server.cassieq.signature import (
    LEVELS,
    SignedRights,
    is_same,
    letters_of,
    read_rights,
    read_time,
    request_text,
    rights_text,
    sign,
    write_rights,
    write_time,
)

KEY = "a" * 40
NOON = datetime(2016, 1, 31, 12, tzinfo=UTC)
MORROW = datetime(2016, 2, 1, 12, tzinfo=UTC)
PATH = "/api/v1/accounts/acme/queues/jobs/messages/next"


def test_signatures_are_those_that_openssl_makes_of_the_same_texts() -> None:
    request = request_text("acme", "GET", PATH, NOON)
    assert request == f"acme\nGET\n{PATH}\n2016-01-31T12:00:00Z"
    assert sign(KEY, request) == "M7eCEz7T_lG7SxHOmk_PiYLJNLjxEY66GRm-IKvrPvc"
    rights = SignedRights("rp", NOON, MORROW, "jobs")
    text = "acme\nrp\nstartTime:2016-01-31T12:00:00Z\nendTime:2016-02-01T12:00:00Z\nq:jobs"
    assert rights_text("acme", rights) == text
    assert sign(KEY, text) == "KGY3P8dLw9lDrIeq1izZQ2XTMq1XQeUd1GO_fKD043Y"
    assert rights_text("acme", SignedRights("rpuagcd")) == "acme\nrpuagcd"
    assert sign(KEY, "acme\nrpuagcd") == "MAqccPachPSnRurg60BKKPZIFJ4kdzG6aJHEAJCkEhI"


def test_slashes_around_a_path_are_not_signed() -> None:
    assert request_text("acme", "GET", f"{PATH}/", NOON) == request_text("acme", "GET", PATH, NOON)


@pytest.mark.parametrize(
    "rights",
    [
        SignedRights("r"),
        SignedRights("rpuagcd", NOON),
        SignedRights("a", None, MORROW),
        SignedRights("gd", NOON, MORROW, "a.b-c_1"),
    ],
)
def test_what_is_written_into_an_address_is_read_from_it(rights: SignedRights) -> None:
    query = write_rights("acme", rights, KEY)
    assert read_rights(query) == (rights, sign(KEY, rights_text("acme", rights)))
    assert read_rights(f"popReceipt=x&{query}") == read_rights(query)


@pytest.mark.parametrize(
    "query",
    [
        "sig=x&sig=x",
        "auth=r&sig=x&auth=p",
        "auth=r&st=yesterday&sig=x",
        "auth=r&et=2016-13-01T00:00:00Z&sig=x",
        "auth=r&q=a/b&sig=x",
        "auth=r&q=*&sig=x",
        f"auth=r&q={'q' * 81}&sig=x",
        "sig=x&novalue",
        "&".join(f"a{number}=1" for number in range(40)) + "&sig=x",
    ],
)
def test_an_address_that_nobody_can_have_signed_has_no_rights(query: str) -> None:
    assert read_rights(query) is None


def test_letters_have_one_order_and_unknown_ones_leave_none() -> None:
    assert letters_of("dcgaupr") == "rpuagcd" == "".join(level.letter for level in LEVELS)
    assert letters_of("rrp") == "rp"
    for text in ("", "n", "rn", "rx", "R", "r p"):
        assert letters_of(text) == ""


@pytest.mark.parametrize(
    ("text", "time"),
    [
        ("2016-01-31T12:00:00Z", NOON),
        ("2016-01-31T14:00:00+02:00", NOON),
        ("2016-01-31T12:00:00.999Z", NOON),
        ("2016-01-31T12:00:00", None),
        ("2016-01-31 12:00:00Z", None),
        ("2016-02-30T12:00:00Z", None),
        ("0001-01-01T00:00:00+23:00", None),
        ("٢016-01-31T12:00:00Z", None),
        ("", None),
    ],
)
def test_times_are_read_to_the_second_in_utc(text: str, time: datetime | None) -> None:
    assert read_time(text) == time
    if time is not None:
        assert write_time(time) == "2016-01-31T12:00:00Z"


def test_anything_can_be_compared_with_a_secret() -> None:
    assert is_same(KEY, KEY)
    for text in ("", "a" * 39, "ä" * 40, "\udc80", KEY + "="):
        assert not is_same(text, KEY)


def test_every_route_of_queues_takes_one_letter_and_no_other_does() -> None:
    known = {(route.method, route.path) for route in ROUTES.all}
    assert set(LETTERS) <= known
    assert {at for at in known if at[1].startswith(QUEUES)} == set(LETTERS)
    assert set(LETTERS.values()) == {level.letter for level in LEVELS}
