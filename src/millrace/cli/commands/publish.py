"""`millrace publish`: messages from the command line, a file or a pipe.

Lines are read on a daemon thread with `os.read`: a pipe may stay silent for long, and the process
must be able to exit without waiting for the next line.
"""

from __future__ import annotations

import asyncio
import io
import os
import sys
import threading
from collections.abc import AsyncIterator, Callable
from typing import IO, TYPE_CHECKING

import click

from millrace import limits
from millrace.cli.bounds import BATCH_BYTES, BATCH_LINES, READ_BYTES
from millrace.cli.exit_errors import ExitError
from millrace.cli.parameter_types import DURATION, HEADER, argument_bytes
from millrace.cli.printing import ProgressBar
from millrace.cli.shell import Shell, display_name, find_queue
from millrace.cli.verb import verb
from millrace.errors import TooLarge

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
    help="Read the body, or lines, from this file; - is standard input.",
)
@click.option("--lines", is_flag=True, help="Publish one message per line.")
@click.option("--key", help="Key of the message, or of every line.")
@click.option(
    "--key-separator",
    metavar="TEXT",
    help="With --lines: split each line at the first TEXT into key and body.",
)
@click.option(
    "--header", "headers", type=HEADER, multiple=True, help="Header as NAME=VALUE; repeatable."
)
@click.option("--group", help="Message group, for queues of order group or fair. [its key]")
@click.option(
    "--delete", is_flag=True, help="Publish a delete of the key: a message without a body."
)
@click.option("--priority", type=int, metavar="N", help="Priority from 0 to 9; highest first. [4]")
@click.option(
    "--delay", type=DURATION, metavar="TIME", help="Deliver it after this time. [the queue's delay]"
)
@click.option(
    "--ttl", type=DURATION, metavar="TIME", help="Expire if not settled within this time."
)
@click.option(
    "--dedup", metavar="ID", help="De-duplication id: repeats with it are dropped for a time."
)
@click.option(
    "--producer", metavar="NAME", help="Producer name: repeats are recognized by --number."
)
@click.option(
    "--number",
    type=click.IntRange(min=1),
    metavar="N",
    help="Producer's number of the message, or of the first batch of lines. [the next one]",
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
    """Publish messages to QUEUE from an argument, a file or standard input.

    When this prints a seq, the message is durable. With --lines, lines are published as they
    arrive, up to 1,000 at once. With --producer, each batch of 1,000 lines has a number, so that
    the same file can be published again with the same numbers without duplicates.
    """
    _judge(body, file, key, key_separator, lines=lines, delete=delete)
    if dedup is not None and lines:
        raise click.UsageError("--dedup is for one message, not for --lines")
    if number is not None and producer is None:
        raise click.UsageError("--number needs --producer")
    # Read input before opening the folder: the piping process may be a verb that has it open.
    source = file if file is not None else sys.stdin.buffer
    content, chunks = None, None
    if lines:
        chunks = await wait_for_first(read_lines(source))
    elif not delete:
        # One byte more than allowed, so that the engine refuses it.
        content = (
            argument_bytes(body) if body is not None else source.read(limits.BODY_BYTES_MAX + 1)
        )
        if not content and body is None and file is None:
            raise click.UsageError(
                "standard input is empty; give '' as BODY to publish an empty body"
            )
    async with shell.open() as m:
        found = await find_queue(m, queue)
        if producer is not None and number is None:
            number = await found.producer(producer) + 1
        whole_key = None if key is None else argument_bytes(key)
        whole_group = None if group is None else argument_bytes(group)
        if chunks is not None:
            cutter = LineBatcher(
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
    fields = {"queue": display_name(found), "seq": _exact(found, seq)}
    text = str(seq) if seq is not None else "published before; its seq is no longer known"
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
        raise click.UsageError("--lines reads from --file or standard input")
    if delete and key is None:
        raise click.UsageError("--delete needs --key")
    if key_separator is not None and (not lines or key is not None or not key_separator):
        raise click.UsageError("--key-separator needs --lines, and excludes --key")
    if not given and sys.stdin.isatty():
        raise click.UsageError("no body; give BODY or --file, or pipe it in")


class LineBatcher:
    """Groups lines into batches of messages."""

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
        self._separator = None if key_separator is None else argument_bytes(key_separator)
        self._headers = headers
        self._group = group
        self._is_exact = is_exact
        """True if batches must not depend on the timing of input, as producer numbers require."""
        self._line = 0

    async def batches(self, chunks: AsyncIterator[list[bytes]]) -> AsyncIterator[list[Message]]:
        """Yield batches of messages; without `is_exact`, available lines do not wait for more."""
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
                raise ExitError(
                    f"line {self._line} has no key before {self._separator.decode()!r}",
                    "fix the line; some lines before it were published",
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
    with ProgressBar("publishing", total=total) as bar:
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
        "queue": display_name(queue),
        "count": count,
        "first_seq": _exact(queue, first),
        "last_seq": _exact(queue, last),
        "next_number": number,
    }
    where = f", seqs {first} to {last}" if first is not None else ""
    shell.out.line("published", fields, f"published {count:,} messages{where}")


def _exact(queue: Queue, seq: int | None) -> int | str | None:
    """Return a seq for JSON; ids of 63 bits as text, which JSON readers would round."""
    return str(seq) if seq is not None and queue.shards.key else seq


def _size(source: IO[bytes]) -> int | None:
    """Return the size of the input in bytes; None for a pipe."""
    try:
        return os.fstat(source.fileno()).st_size or None
    except (OSError, AttributeError):
        return None


async def read_lines(source: IO[bytes]) -> AsyncIterator[list[bytes]]:
    """Yield the complete lines of each read, without line ends; at last an unterminated line.

    Raises:
        TooLarge: a line is longer than any body may be.
    """
    read = _reader(source)
    pieces: list[bytes] = []
    while data := await _in_thread(read):
        head, end, tail = data.rpartition(b"\n")
        if end:
            pieces.append(head)
            yield b"".join(pieces).split(b"\n")
            pieces = [tail]
        else:
            pieces.append(tail)
        if sum(map(len, pieces)) > limits.BODY_BYTES_MAX:
            raise TooLarge(
                f"a line has more than {limits.BODY_BYTES_MAX} bytes, which no body may have",
                field="line",
                limit=limits.BODY_BYTES_MAX,
            )
    if last := b"".join(pieces):
        yield [last]


async def wait_for_first(chunks: AsyncIterator[list[bytes]]) -> AsyncIterator[list[bytes]]:
    """Wait for the first lines or the end of input; return an iterator over all lines."""
    first = await anext(chunks, None)

    async def all_of_them() -> AsyncIterator[list[bytes]]:
        if first is not None:
            yield first
            async for more in chunks:
                yield more

    return all_of_them()


def _reader(source: IO[bytes]) -> Callable[[], bytes]:
    try:
        number = source.fileno()
    except (io.UnsupportedOperation, AttributeError):
        # A stream in memory.
        return lambda: source.read(READ_BYTES)
    return lambda: os.read(number, READ_BYTES)


async def _in_thread(read: Callable[[], bytes]) -> bytes:
    """Run a blocking read on a daemon thread, which does not delay the program's exit."""
    loop = asyncio.get_running_loop()
    result: asyncio.Future[bytes] = loop.create_future()

    def deliver(data: bytes | OSError) -> None:
        if result.done():
            return
        if isinstance(data, OSError):
            result.set_exception(data)
        else:
            result.set_result(data)

    def work() -> None:
        try:
            data: bytes | OSError = read()
        except OSError as error:
            data = error
        if not loop.is_closed():
            loop.call_soon_threadsafe(deliver, data)

    threading.Thread(target=work, name="millrace-lines", daemon=True).start()
    return await result
