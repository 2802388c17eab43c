"""`millrace publish`: messages from the command line, a file or a pipe."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator
from typing import IO, TYPE_CHECKING

import click

from millrace import limits
from millrace.cli.bounds import BATCH_BYTES, BATCH_LINES
from millrace.cli.ending import Ended
from millrace.cli.kinds import DURATION, HEADER, exact
from millrace.cli.lines import begun, read_lines
from millrace.cli.progress import Bar
from millrace.cli.shell import Shell, find_queue, shown_name
from millrace.cli.verb import verb

if TYPE_CHECKING:
    from millrace import Message, Queue


@verb(
    "publish",
    examples="""
        millrace publish mail 'hello'
        millrace publish orders '{"item": "nails"}' --key order-7 --header source=till-4
        millrace publish orders --delete --key order-7
        printf 'one\\ntwo\\n' | millrace publish mail --lines
        millrace publish mail 'paid' --producer till-4 --number 1
        millrace publish mail 'remember' --delay 1h --priority 7
        millrace publish mail 'welcome' --dedup user-7
        millrace publish mail 'To Ada: again' --group ada
    """,
)
@click.argument("queue")
@click.argument("body", required=False)
@click.option(
    "--file",
    type=click.File("rb"),
    metavar="PATH",
    help="Read the body, or the lines, from this file; - is standard input.",
)
@click.option("--lines", is_flag=True, help="One message per line.")
@click.option("--key", help="The key of the message; of every line with --lines.")
@click.option(
    "--key-separator",
    metavar="TEXT",
    help="With --lines: what stands before the first TEXT of a line is its key.",
)
@click.option(
    "--header", "headers", type=HEADER, multiple=True, help="A header; may be given repeatedly."
)
@click.option("--group", help="Whom it waits for, where the queue's order asks. [its key]")
@click.option("--delete", is_flag=True, help="Delete the key: a message without a body.")
@click.option(
    "--priority", type=int, metavar="N", help="From 0 to 9; workers get the highest first. [4]"
)
@click.option(
    "--delay", type=DURATION, metavar="TIME", help="So long nobody gets it. [as the queue says]"
)
@click.option(
    "--ttl", type=DURATION, metavar="TIME", help="It expires unless it is settled within this."
)
@click.option(
    "--dedup", metavar="ID", help="Its id: another one with it, for a while, is a repeat of it."
)
@click.option(
    "--producer", metavar="NAME", help="Who publishes: its repeats are told by their number."
)
@click.option(
    "--number",
    type=click.IntRange(min=1),
    metavar="N",
    help="The producer's number of this message, or of the first lines; the next one if left out.",
)
async def publish(
    shell: Shell,
    queue: str,
    *,
    body: str | None,
    file: IO[bytes] | None,
    lines: bool,
    key: str | None,
    key_separator: str | None,
    headers: tuple[tuple[str, bytes], ...],
    group: str | None,
    delete: bool,
    priority: int | None,
    delay: float | None,
    ttl: float | None,
    dedup: str | None,
    producer: str | None,
    number: int | None,
) -> None:
    """Publish BODY to QUEUE; without one, what comes from --file or from a pipe.

    When this prints a seq, the message is on disk. With --lines, lines are published as they
    come, up to 1,000 at once. With a producer, each 1,000 lines take one of its numbers, so that
    the same file with the same numbers can be published again without doubling a line.
    """
    _judge(body, file, key, key_separator, lines=lines, delete=delete)
    if dedup is not None and lines:
        raise click.UsageError("--dedup is the id of one message, not of --lines")
    if number is not None and producer is None:
        raise click.UsageError("--number is a producer's; give --producer, too")
    # First the input, then the folder: what is piped in may come from a verb that still has it.
    source = file if file is not None else sys.stdin.buffer
    content, chunks = None, None
    if lines:
        chunks = await begun(read_lines(source))
    elif not delete:
        # One byte too many is enough to be refused.
        content = exact(body) if body is not None else source.read(limits.BODY_BYTES_MAX + 1)
        if not content and body is None and file is None:
            raise click.UsageError("nothing was piped in; give '' as BODY to publish no bytes")
    async with shell.open() as m:
        found = await find_queue(m, queue)
        if producer is not None and number is None:
            number = await found.producer(producer) + 1
        whole_key = None if key is None else exact(key)
        whole_group = None if group is None else exact(group)
        if chunks is not None:
            cutter = Cutter(
                whole_key, key_separator, headers, whole_group, is_exact=producer is not None
            )
            batches = cutter.batches(chunks)
            await _publish_lines(
                shell, found, batches, _size(source), priority, delay, ttl, producer, number
            )
            return
        seq = await found.publish(
            content,
            key=whole_key,
            headers=headers,
            group=whole_group,
            priority=priority,
            delay=delay,
            dedup=dedup,
            ttl=ttl,
            producer=producer,
            number=number,
        )
    fields = {"queue": shown_name(found), "seq": _exact(found, seq)}
    text = str(seq) if seq is not None else "published before, its seq is forgotten"
    shell.out.line("published", fields, text)


def _judge(
    body: str | None,
    file: IO[bytes] | None,
    key: str | None,
    key_separator: str | None,
    *,
    lines: bool,
    delete: bool,
) -> None:
    given = (body is not None) + (file is not None) + delete
    if given > 1:
        raise click.UsageError("give one of BODY, --file and --delete")
    if lines and (body is not None or delete):
        raise click.UsageError("--lines takes its messages from --file or from a pipe")
    if delete and key is None:
        raise click.UsageError("--delete needs the --key that is to be deleted")
    if key_separator is not None and (not lines or key is not None or not key_separator):
        raise click.UsageError("--key-separator goes with --lines, instead of --key")
    if not given and sys.stdin.isatty():
        raise click.UsageError("there is no body; give BODY or --file, or pipe it in")


class Cutter:
    """Cuts lines into batches, and makes messages of them."""

    def __init__(
        self,
        key: bytes | None,
        key_separator: str | None,
        headers: tuple[tuple[str, bytes], ...],
        group: bytes | None = None,
        *,
        is_exact: bool,
    ) -> None:
        self._key = key
        self._separator = None if key_separator is None else exact(key_separator)
        self._headers = headers
        self._group = group
        self._is_exact = is_exact
        """The same lines are always cut at the same places, however they come."""
        self._line = 0

    async def batches(self, chunks: AsyncIterator[list[bytes]]) -> AsyncIterator[list[Message]]:
        """The messages; without `is_exact`, lines that came are not kept waiting for others."""
        batch: list[Message] = []
        size = 0
        async for lines in chunks:
            for line in lines:
                if batch and (len(batch) == BATCH_LINES or size + len(line) > BATCH_BYTES):
                    yield batch
                    batch, size = [], 0
                batch.append(self._message(line))
                size += len(line)
            if batch and not self._is_exact:
                yield batch
                batch, size = [], 0
        if batch:
            yield batch

    def _message(self, line: bytes) -> Message:
        from millrace import Message

        self._line += 1
        key = self._key
        if self._separator is not None:
            key, found, line = line.partition(self._separator)
            if not found or not key:
                raise Ended(
                    f"line {self._line} has no key before {self._separator.decode()!r}",
                    "mend the line; some of those before it were published",
                )
        return Message(line, key, self._headers, group=self._group)


async def _publish_lines(
    shell: Shell,
    queue: Queue,
    batches: AsyncIterator[list[Message]],
    total: int | None,
    priority: int | None,
    delay: float | None,
    ttl: float | None,
    producer: str | None,
    number: int | None,
) -> None:
    count = 0
    first: int | None = None
    last: int | None = None
    with Bar("publishing", total=total) as bar:
        async for part in batches:
            seqs = await queue.publish_many(
                part, priority=priority, delay=delay, ttl=ttl, producer=producer, number=number
            )
            number = None if number is None else number + 1
            count += len(part)
            if seqs:
                first = seqs[0] if first is None else first
                last = seqs[-1]
            bar.advance(sum(len(message.body or b"") + 1 for message in part))
    fields = {
        "queue": shown_name(queue),
        "count": count,
        "first_seq": _exact(queue, first),
        "last_seq": _exact(queue, last),
        "next_number": number,
    }
    where = f", seqs {first} to {last}" if first is not None else ""
    shell.out.line("published", fields, f"published {count:,} messages{where}")


def _exact(queue: Queue, seq: int | None) -> int | str | None:
    """What a message is called, for JSON: an id, which has 63 bits, as text."""
    return str(seq) if seq is not None and queue.shards.key else seq


def _size(source: IO[bytes]) -> int | None:
    """What there is to read; None of a pipe."""
    try:
        return os.fstat(source.fileno()).st_size or None
    except (OSError, AttributeError):
        return None
