"""Notes of what was done."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace import Millrace, limits
from millrace.server.audit import Actor, Audit, plain
from tests.client.harness import embedded

ADA = Actor("ada", "192.0.2.1")


async def notes(m: Millrace) -> list[dict[str, object]]:
    rows = await (await m.find("audit", space="system")).peek(1000)
    return [json.loads(row.body or b"") for row in rows]


@embedded
async def test_a_note_says_who_what_when_how_and_from_where(m: Millrace) -> None:
    audit = await Audit.open(m, lambda: 5)
    await audit.note(ADA, "queue.delete", "default/orders", outcome="failed", detail="no\nsuch")
    assert await notes(m) == [
        {
            "time_ms": 5,
            "who": "ada",
            "act": "queue.delete",
            "target": "default/orders",
            "outcome": "failed",
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
async def test_whoever_may_do_nothing_cannot_fill_the_disk(m: Millrace) -> None:
    now = [0]
    audit = await Audit.open(m, lambda: now[0])
    for _ in range(limits.AUDIT_DENIED_PER_SECOND + 7):
        await audit.note(ADA, "queue.delete", "default/orders", outcome="denied")
    assert len(await notes(m)) == limits.AUDIT_DENIED_PER_SECOND
    await audit.note(ADA, "queue.delete", "default/orders")
    assert (await notes(m))[-1]["unnoted"] == 7
    now[0] = 10_000
    await audit.note(ADA, "queue.delete", "default/orders", outcome="denied")
    assert "unnoted" not in (await notes(m))[-1]


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
