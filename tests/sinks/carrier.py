"""A process that carries made-up spans into a sink, and is killed while it does.

`python -m tests.sinks.carrier ADDRESS SPANS` opens the sink, goes on where it stands, and says how
far it is after each span. Whoever does not answer is asked again, for as long as it takes.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import TypeVar

from millrace.errors import Retry
from millrace.sinks.base import DELETE, PUT, Sink, Task
from millrace.sinks.boundary import Span
from millrace.sinks.kinds import parse_sink
from millrace.testing.check_sink import (
    FLOW,
    SCHEMA,
    Rig,
    Row,
    SinkChange,
    batch_of,
    span,
)

ROOT = Path(__file__).parents[2]

ROWS = 150
"""Of each span."""

KEYS = 400

T = TypeVar("T")


def changes_of(number: int) -> list[SinkChange]:
    """The rows of a span, the same whoever asks."""
    chance, after = Random(number), number * ROWS
    return [
        SinkChange(f"k{chance.randrange(KEYS)}", None, DELETE, seq)
        if chance.random() < 0.2
        else SinkChange(f"k{chance.randrange(KEYS)}", f"{number}-{seq}", PUT, seq)
        for seq in range(after + 1, after + ROWS + 1)
    ]


def span_of(number: int) -> Span:
    return span(number * ROWS, (number + 1) * ROWS)


def expected(spans: int) -> dict[str, Row]:
    """What is left of so many spans."""
    left: dict[str, Row] = {}
    for number in range(spans):
        for change in changes_of(number):
            left.pop(change.key, None)
            if change.op == PUT:
                left[change.key] = Row(change.key, change.value)
    return left


def left(rig: Rig) -> dict[str, Row]:
    """What is left, as far as somebody answers."""
    return {row.key: row for row in insist(rig.rows)}


def insist(call: Callable[[], T]) -> T:
    while True:
        try:
            return call()
        except Retry:
            time.sleep(0.01)


def carry(sink: Sink, spans: int) -> None:
    """Carry spans until there are so many."""
    held = insist(lambda: sink.open(FLOW, SCHEMA))
    while True:
        done = 0 if held.boundary is None else held.boundary.number // ROWS
        if done >= spans:
            return
        piece, changes = span_of(done), changes_of(done)
        try:
            task = Task(held, piece, f"{held.fence}-{done}")
            held = sink.commit(held, piece, [sink.stage(task, [batch_of(changes)])])
        except Retry:
            held = insist(lambda: sink.open(FLOW, SCHEMA))
            continue
        print(done + 1, flush=True)


def start(address: str, spans: int) -> subprocess.Popen[str]:
    """A process of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "tests.sinks.carrier", address, str(spans)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )


def carry_with_kills(
    address: str, *, kills: int, spans: int, seed: int, strike: Callable[[int], None] | None = None
) -> None:
    """Have it carried by processes of which each is killed in the middle of a span; or, with
    `strike`, by one that goes on while something else is struck."""
    chance, far = Random(seed), 0
    process = start(address, spans)
    for kill in range(kills):
        wanted = min(far + chance.randint(1, max(1, (spans - far) // 3)), spans - 1)
        far = _read_until(process, wanted)
        if strike is not None:
            strike(kill)
            continue
        process.send_signal(signal.SIGKILL)
        process.communicate()
        process = start(address, spans)
    _read_until(process, spans)
    process.communicate()
    assert process.returncode == 0


def _read_until(process: subprocess.Popen[str], wanted: int) -> int:
    assert process.stdout is not None
    for line in process.stdout:
        if int(line) >= wanted:
            return int(line)
    process.wait()
    assert process.returncode == 0, "it ended by itself"
    return wanted


def main(arguments: Sequence[str]) -> None:
    address, spans = arguments
    with suppress(KeyboardInterrupt):
        carry(parse_sink(address), int(spans))


if __name__ == "__main__":
    main(sys.argv[1:])
