"""`millrace settle`, `release`, `discard` and `extend`: what becomes of leases, by receipt."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import TypeVar

import click

from millrace.cli.ending import REFUSED
from millrace.cli.kinds import DURATION
from millrace.cli.shell import Shell, find_queue
from millrace.cli.verb import verb
from millrace.errors import Refused

F = TypeVar("F", bound=Callable[..., object])


def _receipts_arguments(body: F) -> F:
    body = click.argument("receipts", nargs=-1, required=True)(body)
    return click.argument("queue")(body)


@verb("settle", examples="millrace lease mail --receipts | millrace settle mail -")
@_receipts_arguments
async def settle(shell: Shell, queue: str, *, receipts: tuple[str, ...]) -> int:
    """The work is done: end the messages of these RECEIPTS for good.

    When this returns, they are never handed out again. With - as the only receipt, they are read
    from standard input, one on each line.
    """
    given = _read(receipts)
    async with shell.open() as m:
        found = await find_queue(m, queue)
        return _tell(shell, "settled", given, await found.settle(_one_or_all(given)))


@verb("release", examples="millrace lease mail --receipts | millrace release mail - --failed")
@_receipts_arguments
@click.option("--failed", is_flag=True, help="Count it as a failure of the message.")
@click.option("--delay", type=DURATION, default=0, metavar="TIME", help="Nobody gets it before.")
async def release(
    shell: Shell, queue: str, *, receipts: tuple[str, ...], failed: bool, delay: float
) -> int:
    """Give the messages of these RECEIPTS back; - reads them from standard input."""
    given = _read(receipts)
    async with shell.open() as m:
        found = await find_queue(m, queue)
        refused = await found.release(_one_or_all(given), failed=failed, delay=delay)
        return _tell(shell, "released", given, refused)


@verb("discard", examples="millrace lease mail --receipts | millrace discard mail -")
@_receipts_arguments
async def discard(shell: Shell, queue: str, *, receipts: tuple[str, ...]) -> int:
    """Nobody will ever do these: make dead letters of the messages of these RECEIPTS.

    They go to the queue's dead-letter queue, or are dropped if it has none. With - as the only
    receipt, they are read from standard input.
    """
    given = _read(receipts)
    async with shell.open() as m:
        found = await find_queue(m, queue)
        return _tell(shell, "discarded", given, await found.discard(_one_or_all(given)))


@verb("extend", examples="millrace lease mail --receipts | millrace extend mail - --for 10m")
@_receipts_arguments
@click.option(
    "--for",
    "seconds",
    type=DURATION,
    default=30,
    metavar="TIME",
    help="How long from now they are to be held. [30s]",
)
async def extend(shell: Shell, queue: str, *, receipts: tuple[str, ...], seconds: float) -> int:
    """Hold the messages of these RECEIPTS for longer; - reads them from standard input."""
    given = _read(receipts)
    async with shell.open() as m:
        found = await find_queue(m, queue)
        refused = await found.extend(_one_or_all(given), seconds)
        return _tell(shell, "extended", given, refused)


def _read(receipts: tuple[str, ...]) -> list[str]:
    if receipts != ("-",):
        return list(receipts)
    return sys.stdin.read().split()


def _one_or_all(receipts: list[str]) -> str | list[str]:
    """A single one that is refused says why as an error."""
    return receipts[0] if len(receipts) == 1 else receipts


def _tell(shell: Shell, done: str, receipts: list[str], refused: Mapping[int, Refused]) -> int:
    """Say how many were done and which were not; the exit code says whether all were."""
    count = len(receipts) - len(refused)
    shell.out.line(done, {"count": count, "refused": len(refused)}, f"{done} {count:,}")
    for seq, error in sorted(refused.items()):
        fields = {"seq": seq, "code": error.code, "message": error.message}
        shell.out.line("refused", fields, f"refused: seq {seq}: {error.message}")
    return REFUSED if refused else 0
