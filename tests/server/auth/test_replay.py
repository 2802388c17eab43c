"""What the messages of the book add up to."""

from __future__ import annotations

from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.server.auth import records
from millrace.server.auth.access import (
    AccessKey,
    Quota,
    Token,
    User,
    digest_of,
    parse_rule,
)
from millrace.server.auth.records import (
    AccessRecord,
    CreationRecord,
    UndecodableRecord,
    UserRights,
)
from millrace.server.auth.replay import AccessReplay

DIGEST = digest_of("x")
EXAMPLES: dict[str, AccessRecord] = {
    records.user_key("ada"): User("ada", (parse_rule("allow read a/*"),), Quota(pins=3)),
    records.rights_key("1f"): UserRights((parse_rule("allow read a/*"),), Quota(pins=3)),
    records.token_key(DIGEST): Token("ada", "laptop", DIGEST, 5, 9),
    records.access_key("MRAK"): AccessKey("MRAK", "ada", "boto", 5),
    records.made_key("queues", "a/b"): CreationRecord("ada"),
}


@pytest.mark.parametrize("key", EXAMPLES)
def test_records_read_as_they_were_written(key: str) -> None:
    body = records.encode(EXAMPLES[key])
    assert records.decode(key, body) == EXAMPLES[key]


@pytest.mark.parametrize(
    ("key", "body"),
    [
        ("", b"{}"),
        ("cat/tom", b"{}"),
        ("user/ada", b""),
        ("user/ada", b"{}"),
        ("user/ada", b'{"rules": ["fly */*"]}'),
        ("user/ada", b'{"rules": [], "powers": 1}'),
        ("user/ada", b'{"rules": [], "quota": {"cats": 1}}'),
        ("rights/1f", b"{}"),
        ("rights/1f", b'{"rules": [], "powers": 1}'),
        ("token/xyz", b'{"user": "a", "name": "b", "made_ms": 1}'),
        ("token/00", b'{"user": "a", "name": "b", "made_ms": 1}'),
        ("key/MRAK", b'{"user": "a", "name": "b", "made_ms": "1"}'),
        ("made/queues/a", b"[]"),
    ],
)
def test_what_cannot_be_read_makes_nobody_known(key: str, body: bytes) -> None:
    with pytest.raises(UndecodableRecord):
        records.decode(key, body)
    ledger = AccessReplay()
    ledger.read(key, 1, body)
    assert list(ledger.unread) == [key]
    assert not ledger.roll.users
    assert not ledger.roll.secrets
    ledger.read(key, 2, None)
    assert not ledger.unread


@given(st.binary(max_size=50), st.text(max_size=20))
def test_any_message_is_read(body: bytes, key: str) -> None:
    ledger = AccessReplay()
    ledger.read(key, 1, body)
    ledger.read(f"user/{key}", 2, body)
    ledger.read(f"token/{key}", 3, body)


def test_a_user_that_can_no_longer_be_read_is_no_longer_known() -> None:
    ledger = AccessReplay()
    ledger.read("user/ada", 1, b'{"rules": ["allow * */*"]}')
    assert ledger.roll.user("ada")
    ledger.read("user/ada", 2, b'{"rules": ["allow * */*"], "deny_all": true}')
    assert ledger.roll.user("ada") is None


def test_rights_that_cannot_be_read_make_their_user_unknown() -> None:
    ledger = AccessReplay()
    ledger.read("user/ada", 1, b'{"rules": ["allow * */*"], "id": "1f"}')
    ledger.read("rights/1f", 2, b'{"rules": ["allow read a/*"]}')
    found = ledger.roll.user("ada")
    assert found == User("ada", (parse_rule("allow read a/*"),), id="1f")
    ledger.read("rights/1f", 3, b'{"rules": [], "powers": 1}')
    assert ledger.roll.user("ada") is None
    assert list(ledger.unread) == ["rights/1f"]
    ledger.read("rights/1f", 4, b'{"rules": []}')
    assert ledger.roll.user("ada") == User("ada", id="1f")


def test_rights_are_those_of_one_id_whatever_is_heard_first() -> None:
    rows = [
        ("user/ada", 1, b'{"rules": ["allow * */*"], "id": "1f"}'),
        ("user/ada", 2, None),
        ("user/ada", 3, b'{"rules": ["allow * */*"], "id": "2f"}'),
        ("rights/1f", 4, b'{"rules": []}'),
        ("rights/2f", 5, b'{"rules": ["allow read a/*"]}'),
    ]
    for order in permutations(rows):
        ledger = AccessReplay()
        for row in order:
            ledger.read(*row)
        found = ledger.roll.user("ada")
        assert found == User("ada", (parse_rule("allow read a/*"),), id="2f")
        assert ledger.rights_without(found) == [key for key, _, _ in order if key[0] == "r"]


KEYS = st.sampled_from(["user/a", "user/b", "made/queues/x/y"])
BODIES = st.sampled_from([None, b'{"rules": []}', b'{"user": "a"}', b"?"])


def state(ledger: AccessReplay) -> tuple[object, ...]:
    return ledger.roll.users, ledger.maker("queues", "x/y"), ledger.unread


@given(st.lists(st.tuples(KEYS, BODIES), max_size=12), st.randoms(use_true_random=False))
def test_the_newest_counts_in_whatever_order_they_are_heard_of(
    written: list[tuple[str, bytes | None]], chance: object
) -> None:
    rows = [(key, seq, body) for seq, (key, body) in enumerate(written, 1)]
    in_order = AccessReplay()
    for row in rows:
        in_order.read(*row)
    heard = [*rows, *rows]
    chance.shuffle(heard)  # type: ignore[attr-defined]
    shuffled = AccessReplay()
    for row in heard:
        shuffled.read(*row)
    assert state(shuffled) == state(in_order)


@given(
    st.lists(st.tuples(KEYS, BODIES), max_size=12),
    st.integers(0, 12),
    st.lists(st.integers(1, 12)),
)
def test_reading_everything_anew_leaves_what_is_there(
    written: list[tuple[str, bytes | None]], boundary: int, before: list[int]
) -> None:
    """Whatever was known, with messages after the boundary among it."""
    rows = [(key, seq, body) for seq, (key, body) in enumerate(written, 1)]
    ledger = AccessReplay()
    for seq in before:
        if seq <= len(rows):
            ledger.read(*rows[seq - 1])
    newest = {key: (key, seq, body) for key, seq, body in rows if seq <= boundary}
    # Deletes are shown for some days, then they are gone.
    ledger.replace([row for row in newest.values() if row[2] is not None], boundary)
    expected = AccessReplay()
    for row in rows:
        if row[1] <= boundary or row[1] in before:
            expected.read(*row)
    assert state(ledger) == state(expected)


def test_what_was_deleted_is_forgotten_once_all_before_it_was_read() -> None:
    ledger = AccessReplay()
    ledger.read("user/ada", 5, None)
    ledger.read("user/ada", 3, b'{"rules": []}')
    assert not ledger.roll.users
    ledger.forget_gone(4)
    ledger.read("user/ada", 4, b'{"rules": []}')
    assert not ledger.roll.users
    ledger.forget_gone(5)
    assert not ledger._seqs


def test_what_was_made_is_counted_by_who_made_it() -> None:
    ledger = AccessReplay()
    for seq, name in enumerate(["queues/a/x", "queues/a/xy", "cursors/a/x/c", "cursors/a/xy/c"], 1):
        ledger.read(f"made/{name}", seq, b'{"user": "ada"}')
    assert ledger.made_by("ada", "queues") == ledger.made_by("ada", "cursors") == 2
    assert ledger.made_by("bob", "queues") == 0
    assert ledger.made_within("queues", "a/x") == ["made/queues/a/x", "made/cursors/a/x/c"]
    assert ledger.made_within("cursors", "a/x/c") == ["made/cursors/a/x/c"]
