"""`Publisher`: pipelined publishing with confirms and a window of unconfirmed messages."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Coroutine, Generator, Iterable
from contextvars import Context, copy_context
from dataclasses import dataclass
from types import TracebackType

import msgspec

from millrace import limits
from millrace.client.engine import Engine
from millrace.client.message import Body, publish_one
from millrace.client.shards import Shards, publish_across
from millrace.core import validate
from millrace.core.commands import (
    ProducerNumber,
    Publish,
    RowSchedule,
    RowTtl,
)
from millrace.core.model import NewMessage
from millrace.errors import (
    Closed,
    Fatal,
    Invalid,
    MillraceError,
    OutOfOrder,
    Refused,
    Retry,
    detached,
)


@dataclass(frozen=True, slots=True)
class Unconfirmed:
    """A message sent by a publisher whose outcome is unknown."""

    number: int
    message: NewMessage
    aside: tuple[RowSchedule, ...] = ()
    ids: tuple[str | None, ...] = ()
    lives: tuple[RowTtl, ...] = ()


class Confirmation:
    """Publisher confirm: the outcome of a message, once it is known; see `wait`."""

    def __init__(self, future: asyncio.Future[int | None]) -> None:
        self._future = future
        self._is_heard = False
        future.add_done_callback(_notice)

    @property
    def is_done(self) -> bool:
        """True if the message is confirmed or refused."""
        return self._future.done()

    async def wait(self) -> int | None:
        """Wait until the message is durable, and return its seq; see `Queue.publish`.

        Raises:
            Refused: the message was refused; messages sent after it are not affected.
            Closed: the engine was closed before it accepted the message.
            Fatal: the engine has failed; whether it accepted the message is unknown.
        """
        self._is_heard = True
        return await asyncio.shield(self._future)

    def __await__(self) -> Generator[object, None, int | None]:
        return self.wait().__await__()


class _Item:
    """A message that is not confirmed yet."""

    __slots__ = ("command", "confirmation", "context", "future", "message", "number")

    def __init__(
        self,
        number: int,
        message: NewMessage,
        command: Publish,
        future: asyncio.Future[int | None],
    ) -> None:
        self.number = number
        self.message = message
        self.command = command
        self.future = future
        self.confirmation = Confirmation(future)
        self.context = copy_context()
        """Context of the sender: its trace, if there is one."""


class Publisher:
    """Publishes up to `window` messages ahead of their confirms; see `Queue.publisher`.

    Messages are numbered consecutively under the publisher's name, so that each is published
    exactly once, in the order of sending, even if some had to be retried. A name must not be used
    by two publishers at the same time: the messages of one would be taken for repeats of the
    other's.
    """

    def __init__(
        self,
        engine: Engine,
        shards: Shards,
        name: str,
        window: int,
        unconfirmed: Iterable[Unconfirmed] = (),
    ) -> None:
        self._engine = engine
        self._shards = shards
        self._name = validate.name(name, "name")
        self._room = asyncio.Semaphore(validate.count(window, "window", limits.CALLS_AT_ONCE_MAX))
        self._again = _left(unconfirmed)
        self._pending: deque[_Item] = deque()
        """In the order of their numbers."""
        self._last = 0
        """The last number that was assigned."""
        self._is_started = False
        self._begin = asyncio.Lock()
        self._asked = 0
        """Number of messages that are in flight to the engine."""
        self._resume_after_ms: int | None = None
        """None: all pending messages are in flight. Otherwise nothing is sent until all calls in
        flight have returned, and then, after this backoff, the pending ones again."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._refused: Confirmation | None = None
        """The first refused message, until its error is reported."""
        self._error: MillraceError | None = None
        self._empty = asyncio.Event()
        self._empty.set()

    @property
    def name(self) -> str:
        """Producer name under which the messages are numbered."""
        return self._name

    async def send(
        self,
        body: Body | None,
        *,
        key: bytes | str | None = None,
        headers: validate.HeadersLike | None = None,
        group: bytes | str | None = None,
        priority: int | None = None,
        delay: float | None = None,
        dedup: str | None = None,
        ttl: float | None = None,
    ) -> Confirmation:
        """Send a message (see `Queue.publish`), once fewer than `window` messages are unconfirmed.

        Its outcome is reported by the confirmation, and by `flush`.

        Raises:
            Invalid, TooLarge: an argument is not valid; nothing was sent.
            Closed, Fatal: the engine has ended; nothing was sent.
        """
        message = validate.message(body, key, headers, group)
        command = publish_one(message, None, priority, delay, dedup, ttl)
        await self._start()
        await self._room.acquire()
        if self._error is not None:
            self._room.release()
            raise self._error.again()
        return self._put(message, command).confirmation

    async def flush(self) -> None:
        """Wait until all messages sent before are confirmed or refused.

        Raises:
            Refused: the error of the first refused message, unless its confirmation was waited for.
            Closed, Fatal: the engine has ended; see `unconfirmed`.
        """
        await self._start()
        await self._empty.wait()
        if self._error is not None:
            raise self._error.again()
        refused, self._refused = self._refused, None
        if refused is not None and not refused._is_heard:
            await refused.wait()

    def unconfirmed(self) -> list[Unconfirmed]:
        """Return the messages that were sent and not confirmed, after the engine has ended.

        Pass them to the next engine's `publisher(name, unconfirmed=...)`, which sends them again in
        order; messages that had been accepted are not published twice.
        """
        if self._error is None:
            raise Invalid("the engine goes on; use `flush`", field="unconfirmed")
        items = [(item.number, item.message, item.command) for item in self._pending]
        left = [Unconfirmed(n, message, c.aside, c.ids, c.lives) for n, message, c in items]
        return [*left, *self._again]

    async def __aenter__(self) -> Publisher:
        await self._start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            await self.flush()

    def __repr__(self) -> str:
        return f"<Publisher {self._name!r}, {len(self._pending)} unconfirmed>"

    # --- The way out --------------------------------------------------------------------------

    async def _start(self) -> None:
        """Look up the next number, and first send what an earlier publisher left unconfirmed."""
        async with self._begin:
            if self._is_started:
                return
            last = await self._engine.producer_number(self._shards.first, self._name)
            first = self._again[0].number if self._again else last + 1
            # Accepted messages are sent again under the same numbers and recognized as repeats. If
            # the first number is beyond the next one, none of them was accepted.
            self._last = min(first - 1, last)
            left, self._again = self._again, ()
            for item in left:
                await self._room.acquire()
                if self._error is None:
                    self._put(item.message, _again(item))
                else:
                    self._room.release()
                    self._again = (*self._again, item)
            self._is_started = True

    def _put(self, message: NewMessage, command: Publish) -> _Item:
        self._last += 1
        future: asyncio.Future[int | None] = asyncio.get_running_loop().create_future()
        item = _Item(self._last, message, command, future)
        self._pending.append(item)
        self._empty.clear()
        if self._resume_after_ms is None:
            self._ask(item)
        return item

    def _ask(self, item: _Item) -> None:
        self._asked += 1
        self._hold(self._publish(item), item.context)

    def _hold(self, work: Coroutine[object, object, None], context: Context | None = None) -> None:
        task = asyncio.get_running_loop().create_task(work, context=context)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _publish(self, item: _Item) -> None:
        numbered = ProducerNumber(self._name, item.number)
        command = msgspec.structs.replace(item.command, numbered=numbered)
        try:
            places = await publish_across(self._engine, self._shards, command)
        except (Fatal, Closed) as error:
            self._fail(error)
        except OutOfOrder:
            self._wait(0)
        except Retry as error:
            self._wait(error.after_ms)
        except Refused as error:
            # A refused message uses no number: the following ones have to be renumbered.
            self._wait(0)
            self._refused = self._refused or item.confirmation
            self._end(item)
            item.future.set_exception(detached(error))
        else:
            self._end(item)
            item.future.set_result(places[0] if places else None)
        finally:
            self._asked -= 1
        if self._resume_after_ms is not None and not self._asked and self._error is None:
            self._hold(self._resume(self._resume_after_ms))

    def _wait(self, after_ms: int) -> None:
        self._resume_after_ms = max(after_ms, self._resume_after_ms or 0)

    def _end(self, item: _Item) -> None:
        self._pending.remove(item)
        self._room.release()
        if not self._pending:
            self._empty.set()

    def _fail(self, error: MillraceError) -> None:
        """Fail all pending confirmations: the engine has ended."""
        if self._error is None:
            self._error = detached(error)
            for item in self._pending:
                if not item.future.done():
                    item.future.set_exception(error.again())
        self._room.release()
        self._empty.set()

    async def _resume(self, after_ms: int) -> None:
        """Renumber and resend all pending messages in order; none of them was accepted."""
        await asyncio.sleep(after_ms / 1000)
        try:
            self._last = await self._engine.producer_number(self._shards.first, self._name)
        except MillraceError as error:
            self._fail(error)
            return
        self._resume_after_ms = None
        for item in self._pending:
            self._last += 1
            item.number = self._last
            self._ask(item)


def _again(left: Unconfirmed) -> Publish:
    return Publish((left.message,), None, left.aside, left.ids, by_body=True, lives=left.lives)


def _notice(future: asyncio.Future[int | None]) -> None:
    """Mark a refusal as retrieved; `flush` reports it if nothing awaits the confirmation."""
    if not future.cancelled():
        future.exception()


def _left(unconfirmed: object) -> tuple[Unconfirmed, ...]:
    """Validate what another publisher left unconfirmed."""
    left = tuple(unconfirmed) if isinstance(unconfirmed, Iterable) else (unconfirmed,)
    checked = tuple(item for item in left if isinstance(item, Unconfirmed))
    if len(checked) < len(left):
        raise Invalid(
            f"unconfirmed is {validate.shown(unconfirmed)}, not what `Publisher.unconfirmed` gave",
            field="unconfirmed",
        )
    return checked
