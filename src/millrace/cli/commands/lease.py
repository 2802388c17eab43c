"""`millrace lease`, `settle`, `release`, `discard` and `extend`: work with leases by receipt."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, TypeVar

import click

from millrace.cli.exit_errors import REFUSED
from millrace.cli.formatting import body_text, headers_text, key_text, message_fields, time_text
from millrace.cli.parameter_types import DURATION
from millrace.cli.shell import Shell, find_queue
from millrace.cli.verb import verb
from millrace.errors import Refused

if TYPE_CHECKING:
    from millrace import Lease


@verb(
    "lease",
    examples="""
        millrace lease mail
        millrace lease mail --count 2 --for 5m --json
        millrace lease mail --receipts | millrace settle mail -
    """,
)
@click.argument("queue")
@click.option(
    "--count", default=1, show_default=True, metavar="N", help="Maximum number of messages."
)
@click.option(
    "--for",
    "seconds",
    type=DURATION,
    default=30,
    metavar="TIME",
    help="Duration of the lease (visibility timeout). [30s]",
)
@click.option(
    "--wait",
    type=DURATION,
    default=0,
    metavar="TIME",
    help="Wait up to this time for the first message. [0]",
)
@click.option(
    "--attempt", metavar="ID", help="Id of this call: a retry with it returns the same messages."
)
@click.option("--receipts", is_flag=True, help="Print only the receipts, one per line.")
async def lease(
    shell: Shell,
    queue: str,
    *,
    count: int,
    seconds: float,
    wait: float,
    attempt: str | None,
    receipts: bool,
) -> None:
    """Lease messages of QUEUE, and print their receipts and bodies.

    With the receipt, any process can settle, release or extend the message. When the lease expires,
    the message is delivered again.
    """
    async with shell.open() as m:
        found = await find_queue(m, queue)
        leases = await found.lease(count, seconds=seconds, wait=wait, attempt=attempt)
        if receipts and not shell.out.is_json:
            for each in leases:
                shell.out.line("lease", {}, each.receipt)
            return
        for number, each in enumerate(leases):
            if number and not shell.out.is_json:
                shell.out.line("", {}, "")
            _show(shell, each)
    if not leases:
        shell.out.note(f"nothing to lease in {queue}")


def _show(shell: Shell, lease: Lease) -> None:
    """Print a lease as a list: a receipt must not be cut, as in a table."""
    fields = {
        **message_fields(lease),
        "receipt": lease.receipt,
        "deliveries": lease.deliveries,
        "failures": lease.failures,
        "deadline_ms": lease.deadline_ms,
    }
    texts = {
        "receipt": lease.receipt,
        "seq": str(lease.seq),
        "until": time_text(lease.deadline_ms),
        "delivered": f"{lease.deliveries} times, {lease.failures} failures",
        "key": key_text(lease.key),
        "headers": headers_text(lease.headers),
        "body": body_text(lease.body),
    }
    shell.out.listing("lease", fields, texts)


F = TypeVar("F", bound=Callable[..., object])


def _receipts_arguments(body: F) -> F:
    body = click.argument("receipts", nargs=-1, required=True)(body)
    return click.argument("queue")(body)


@verb("settle", examples="millrace lease mail --receipts | millrace settle mail -")
@_receipts_arguments
async def settle(shell: Shell, queue: str, *, receipts: tuple[str, ...]) -> int:
    """Settle (acknowledge) the messages of RECEIPTS: they are never delivered again.

    With - as the only receipt, read receipts from standard input, one per line.
    """
    given = _read(receipts)
    async with shell.open() as m:
        found = await find_queue(m, queue)
        return _tell(shell, "settled", given, await found.settle(_one_or_all(given)))


@verb("release", examples="millrace lease mail --receipts | millrace release mail - --failed")
@_receipts_arguments
@click.option("--failed", is_flag=True, help="Count this delivery as a failure.")
@click.option(
    "--delay",
    type=DURATION,
    default=0,
    metavar="TIME",
    help="Deliver it again after this time. [0]",
)
async def release(
    shell: Shell, queue: str, *, receipts: tuple[str, ...], failed: bool, delay: float
) -> int:
    """Return the messages of RECEIPTS to the queue; - reads receipts from standard input."""
    given = _read(receipts)
    async with shell.open() as m:
        found = await find_queue(m, queue)
        refused = await found.release(_one_or_all(given), failed=failed, delay=delay)
        return _tell(shell, "released", given, refused)


@verb("discard", examples="millrace lease mail --receipts | millrace discard mail -")
@_receipts_arguments
async def discard(shell: Shell, queue: str, *, receipts: tuple[str, ...]) -> int:
    """Move the messages of RECEIPTS to the queue's dead-letter queue.

    Without a dead-letter queue, they are dropped. With - as the only receipt, read receipts from
    standard input.
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
    help="New duration of the lease, from now. [30s]",
)
async def extend(shell: Shell, queue: str, *, receipts: tuple[str, ...], seconds: float) -> int:
    """Extend the leases of RECEIPTS; - reads receipts from standard input."""
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
    """Return a single receipt by itself, so that its refusal is raised as an error."""
    return receipts[0] if len(receipts) == 1 else receipts


def _tell(shell: Shell, done: str, receipts: list[str], refused: Mapping[int, Refused]) -> int:
    """Print the counts and each refusal; return the exit code, 0 if all succeeded."""
    count = len(receipts) - len(refused)
    shell.out.line(done, {"count": count, "refused": len(refused)}, f"{done} {count:,}")
    for seq, error in sorted(refused.items()):
        fields = {"seq": seq, "code": error.code, "message": error.message}
        shell.out.line("refused", fields, f"refused: seq {seq}: {error.message}")
    return REFUSED if refused else 0
