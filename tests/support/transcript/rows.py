"""Rows in the words of transcripts, and what is said about them."""

from __future__ import annotations

import re
from collections.abc import Sequence

from millrace import limits
from millrace.core.commands import (
    ProducerMode,
    ProducerNumber,
    RowSchedule,
    RowTtl,
)
from millrace.core.model import GROUP_HEADER, NewMessage
from tests.support.transcript.options import millis


def numbered(options: dict[str, str]) -> ProducerNumber | None:
    if "producer" not in options:
        return None
    if "spans" in options:
        spans = _spans(options["spans"])
        after, upto = (sum(ends) for ends in zip(*spans, strict=True))
        return ProducerNumber(options["producer"], upto, "range", after, spans)
    modes: dict[str, ProducerMode] = {"dense": "dense", "rising": "rising", "range": "range"}
    return ProducerNumber(
        options["producer"],
        int(options["number"]),
        modes[options.get("mode", "dense")],
        int(options.get("after", 0)),
    )


def _spans(text: str) -> tuple[tuple[int, int], ...]:
    """A range over several places: `0-5,3-3`."""
    pairs = [one.split("-") for one in text.split(",")]
    return tuple((int(after), int(upto)) for after, upto in pairs)


def ids(options: dict[str, str]) -> tuple[tuple[str | None, ...], bool]:
    """De-duplication ids, row by row, and that rows without one may have that of their body."""
    given = options.get("ids")
    return tuple(one or None for one in given.split(",")) if given else (), True


def lives(options: dict[str, str]) -> tuple[RowTtl, ...]:
    """How long rows live, one by one: `ttl:5s,,10s`."""
    given = options.get("ttl", "").split(",")
    return tuple(RowTtl(at, 1, millis(ttl)) for at, ttl in enumerate(given) if ttl)


def rows(words: Sequence[str]) -> tuple[NewMessage, ...]:
    return tuple(_message(_TURN.sub("", word)) for word in words)


_TURN = re.compile(r"(?:\^(\d))?(?:~(\w+))?$")


def aside(words: Sequence[str]) -> tuple[RowSchedule, ...]:
    """The priorities and delays of rows that have their own."""
    found: list[RowSchedule] = []
    for at, word in enumerate(words):
        turn = _TURN.search(word)
        priority, delay = turn.groups() if turn else (None, None)
        if priority or delay:
            found.append(
                RowSchedule(
                    at,
                    1,
                    int(priority) if priority else limits.PRIORITY_DEFAULT,
                    millis(delay) if delay else None,
                )
            )
    return tuple(found)


def _message(word: str) -> NewMessage:
    word, is_grouped, group = word.partition("@")
    text, _, rest = word.partition("{")
    headers = tuple(
        (name, value.encode())
        for name, _, value in (pair.partition(":") for pair in rest.rstrip("}").split(",") if pair)
    )
    if is_grouped:
        headers = (*headers, (GROUP_HEADER, group.encode()))
    if text.endswith("!"):
        return NewMessage(None, text[:-1].encode() or None, headers)
    key, found, body = text.rpartition("=")
    return NewMessage(body.encode(), key.encode() if found else None, headers)
