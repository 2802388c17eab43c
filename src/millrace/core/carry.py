"""Priority and delay on their way through a topic: headers of the row, until its queue reads them.

A topic has one order, so that neither means anything there. They stay with the message as headers,
and the queue that it is forwarded to treats it as if it had been published there with them.
"""

from __future__ import annotations

from collections.abc import Sequence

from millrace import limits
from millrace.core.block import Block
from millrace.core.commands import Aside
from millrace.core.model import Headers, Message

PRIORITY = "millrace-priority"
DELAY = "millrace-delay-ms"
_NAMES = (PRIORITY, DELAY)


def pack(block: Block, aside: Sequence[Aside]) -> Block:
    """The rows with their priorities and delays as headers."""
    if not aside:
        return block
    added: dict[int, Headers] = {}
    for run in aside:
        pairs: Headers = ()
        if run.priority != limits.PRIORITY_DEFAULT:
            pairs += ((PRIORITY, str(run.priority).encode()),)
        if run.delay_ms is not None:
            pairs += ((DELAY, str(run.delay_ms).encode()),)
        added.update(dict.fromkeys(range(run.at, run.at + run.count), pairs))
    return Block.of_messages(
        [
            Message(row.body, row.key, row.headers + added.get(at, ()))
            for at, row in enumerate(block.rows(0, block.count, 0, 0))
        ]
    )


def unpack(block: Block, times: Sequence[tuple[int, int]], now: int) -> tuple[Aside, ...]:
    """How the rows wait in a queue; `times`: of so many rows each, when they were published.

    A delay counts from there, and not from when they were forwarded.
    """
    if block.header_names is None:
        return ()
    names = bytes(block.header_names.data)
    if not any(name.encode() in names for name in _NAMES):
        return ()
    published = [time_ms for count, time_ms in times for _ in range(count)]
    runs: list[Aside] = []
    for at, time_ms in enumerate(published):
        found = dict(block.headers_of(at))
        priority = _number(found.get(PRIORITY), limits.PRIORITY_MAX)
        delay = _number(found.get(DELAY), limits.DELAY_MS_MAX)
        if priority is None and delay is None:
            continue
        rank = limits.PRIORITY_DEFAULT if priority is None else priority
        left = None if delay is None else max(0, time_ms + delay - now)
        before = runs[-1] if runs else None
        if before and (before.at + before.count, before.priority, before.delay_ms) == (
            at,
            rank,
            left,
        ):
            runs[-1] = Aside(before.at, before.count + 1, rank, left)
        else:
            runs.append(Aside(at, 1, rank, left))
    return tuple(runs)


def _number(value: bytes | None, most: int) -> int | None:
    """What the header says; one that says nothing of the kind is a header like any other."""
    if value is None or not value.isdigit() or len(value) > len(str(most)):
        return None
    return int(value) if int(value) <= most else None
