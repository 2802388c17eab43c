"""Notes of what was done."""

from __future__ import annotations

import asyncio
import json
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace import Millrace, limits
from millrace.errors import Denied, Full, Invalid, Unknown
from millrace.server.auth.audit import (
    Actor,
    Audit,
    carry_out,
    plain,
)
from tests.client.harness import embedded

ADA = Actor("ada", "192.0.2.1")


async def notes(m: Millrace) -> list[dict[str, object]]:
    rows = await (await m.find("audit", space="system")).peek(1000)
    return [json.loads(row.body or b"") for row in rows]


@embedded
async def test_a_note_says_who_what_when_how_and_from_where(m: Millrace) -> None:
    audit = await Audit.open(m, lambda: 5)
    await audit.note(ADA, "queue.delete", "default/orders", outcome="refused", detail="no\nsuch")
    assert await notes(m) == [
        {
            "time_ms": 5,
            "who": "ada",
            "act": "queue.delete",
            "target": "default/orders",
            "outcome": "refused",
            "address": "192.0.2.1",
            "detail": "no\\nsuch",
        }
    ]


@embedded
async def test_notes_are_kept_by_age_and_size(m: Millrace) -> None:
    audit = await Audit.open(m, lambda: 5, keep=3600)
    spec = await (await m.find("audit", space="system")).spec()
    assert (spec.retention, spec.keep_ms) == ("log", 3_600_000)
    assert spec.keep_bytes == limits.AUDIT_KEEP_BYTES
    await audit.keep(60)
    assert (await (await m.find("audit", space="system")).spec()).keep_ms == 60_000
    await Audit.open(m, lambda: 5, keep=7200)
    assert (await (await m.find("audit", space="system")).spec()).keep_ms == 60_000


@embedded
async def test_sec_15_whoever_may_do_nothing_cannot_fill_the_audit(m: Millrace) -> None:
    now = [0]
    audit = await Audit.open(m, lambda: now[0])

    async def try_all(who: str, count: int) -> None:
        for _ in range(count):
            audit.denied(Actor(who), "queue.delete", "default/orders")
            await audit.close()

    burst = limits.AUDIT_USER_DENIED_BURST
    await try_all("eve", burst + 7)
    assert len(await notes(m)) == burst
    # Another user is noted all the same.
    await try_all("bob", 1)
    [*_, last] = await notes(m)
    assert (last["who"], last["outcome"], last["unnoted"]) == ("bob", "denied", 7)
    now[0] = 60_000
    await try_all("eve", 5)
    [*rest, last] = await notes(m)
    assert (len(rest), last["who"]) == (burst + 1, "eve")
    assert "unnoted" not in last
    # However many there are, a day of it is a small part of what is kept.
    for number in range(limits.AUDIT_DENIED_BURST):
        await try_all(f"user-{number}", 1)
    assert len(await notes(m)) <= limits.AUDIT_DENIED_BURST + burst


@embedded
async def test_an_act_is_on_record_before_it_is_done_and_how_it_ended_after(m: Millrace) -> None:
    audit = await Audit.open(m, lambda: 5)
    seen: list[list[dict[str, object]]] = []

    async def act(error: BaseException | None = None) -> str:
        seen.append(await notes(m))
        if error is not None:
            raise error
        return "made"

    begun = await audit.begin(ADA, "purge", "default/orders")
    assert await carry_out(begun, act, lambda: "3 gone") == "made"
    for error, outcome in (
        (Invalid("no"), "refused"),
        (Full("no"), "refused"),
        (Denied("no"), "denied"),
        (Unknown("lost"), "unknown"),
        (asyncio.CancelledError(), "unknown"),
        (ZeroDivisionError(), "unknown"),
    ):
        begun = await audit.begin(ADA, "purge", "default/orders")
        with pytest.raises(type(error)):
            await carry_out(begun, partial(act, error))
        await audit.close()
        first, last = (await notes(m))[-2:]
        assert (first["outcome"], last["outcome"]) == ("begun", outcome)
        assert first["id"] == last["id"]
        assert seen[-1][-1] == first
    assert "outcome" not in (await notes(m))[1]
    assert (await notes(m))[1]["detail"] == "3 gone"
    assert len({str(note["id"]) for note in await notes(m)}) == 7


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain", "plain"),
        ("a\nb\x1b[31m", "a\\nb\\x1b[31m"),
        ("a\\nb", "a\\\\nb"),
        ("ü", "ü"),
        ("\u202e", "\\u202e"),
        ("\udc80", "\\udc80"),
    ],
)
def test_what_is_not_printable_is_escaped(text: str, shown: str) -> None:
    assert plain(text) == shown


@given(st.text(st.characters()))
def test_notes_are_one_line_of_a_bounded_length(text: str) -> None:
    shown = plain(text * 200)
    assert shown.isprintable()
    assert len(shown) <= limits.AUDIT_TEXT_CHARS_MAX
    shown.encode()
