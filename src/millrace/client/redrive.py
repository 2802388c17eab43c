"""Redriving: dead letters go back to where they came from, or elsewhere.

Rule 1: what is moved is published there and settled here in one transaction: exactly once, whatever
ends in between.
Rule 2: only what was there when it began is moved: what fails again, and comes back, is left for
another time.
Rule 3: what stays was not handed out, as far as the queue counts.
Rule 4: a redrive that moves nothing says why.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace

from pyroaring import BitMap64

from millrace import limits
from millrace.client.cursor import Pinned
from millrace.client.engine import Engine
from millrace.client.grant import Grant
from millrace.client.lease import Lease, grant_of, seq_of
from millrace.client.letter import claimed_source, is_delete, returning, source_of
from millrace.client.message import Message, make_block
from millrace.client.reserved import is_reserved, plain_headers
from millrace.client.shards import Shards
from millrace.core import check, exact
from millrace.core.answers import Outcome
from millrace.core.commands import Part, Publish, Settle
from millrace.core.commands import Transaction as Transact
from millrace.core.model import Row, ShardId
from millrace.core.route import shards_of
from millrace.errors import Full, Gone, Invalid, NotFound, Stale, Superseded, TooLarge

Where = Callable[[Row], bool]
"""Whether a message is to be moved."""

Edit = Callable[[Message], Message]
"""What is published instead of a message; the headers of its death are gone already. Where the
body is another one, the headers of SQS and SNS (`aws.`) go, too."""

Permit = Callable[[str, str], None]
"""Whether messages may still be moved to a queue, by space and name; it raises where not."""

Fetch = Callable[[int], Awaitable[list[Lease]]]
"""Lease so many, if they are there."""


@dataclass(frozen=True, slots=True)
class RedriveStats:
    """How far a redrive has come."""

    total: int = 0
    """Messages that were to be moved when it began."""
    moved: int = 0
    kept: int = 0
    """Messages that were there, and are not to be moved."""
    aimless: int = 0
    """Those of the kept that name no queue which they may go back to."""
    reason: str = field(default="", compare=False)
    """Why nothing was moved, or with a dry run would be; empty: something was."""

    def __repr__(self) -> str:
        found = f"total={self.total}, moved={self.moved}, kept={self.kept}"
        found += f", aimless={self.aimless}" if self.aimless else ""
        found += f", reason={self.reason!r}" if self.reason else ""
        return f"RedriveStats({found})"


class Redrive:
    """Messages on their way back; see `Queue.redrive`.

    Each step of the loop has looked at the queue, or has moved some. It may be left at any time:
    what was moved is moved, everything else is where it was.
    """

    def __init__(
        self,
        engine: Engine,
        shards: Shards,
        fetch: Fetch,
        *,
        space: str,
        to: tuple[str, str] | None,
        where: Where | None,
        edit: Edit | None,
        rate: float | None,
        dry_run: bool,
    ) -> None:
        self._held: dict[Grant, BitMap64] = {}
        """What was leased and has not been moved."""
        for name, function in (("where", where), ("edit", edit)):
            if function is not None and not callable(function):
                raise Invalid(f"{name} is {check.shown(function)}, not a function", field=name)
        self._engine = engine
        self._shards = shards
        self._fetch = fetch
        self._space = space
        self._to = to
        self._where = where
        self._edit = edit
        self._rate = None if rate is None else _checked_rate(rate)
        self._dry_run = check.flag(dry_run, "dry_run")
        self._wanted: BitMap64 | None = None
        """Those that are still to be moved; None before the queue was looked at."""
        self._boundaries: tuple[int, ...] = ()
        self._barren = 0
        """So many times in a row nothing was leased that had been there when it began."""
        self._targets: dict[tuple[str, str], Shards] = {}
        self._due = 0.0
        self._total = self._moved = self._kept = self._aimless = 0
        self._claimed: tuple[str, str] | None = None
        """A queue of another space that a pipeline's letter names."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_over = False
        self._permit: Permit | None = None
        self._is_through = False
        """Whether it came to its end by itself."""

    @property
    def stats(self) -> RedriveStats:
        """How far it has come."""
        counts = (self._total, self._moved, self._kept, self._aimless)
        return RedriveStats(*counts, self._reason())

    def _reason(self) -> str:
        """Why nothing was moved."""
        if not self._is_through or self._moved:
            return ""
        if self._total:
            return "" if self._dry_run else "others have leased the messages, or moved them"
        if not self._kept:
            return "the queue has no messages"
        if not self._aimless:
            return "no message is among those that are to be moved"
        if self._claimed is not None:
            space, name = self._claimed
            return (
                f"the pipeline that made these dead letters reads {space}/{name}, a queue of "
                "another space, which letters may not choose; name it yourself, by `to`"
            )
        return "no message names the queue that it came from; name one for all, by `to`"

    async def run(self) -> RedriveStats:
        """Go on to the end; returns what was done.

        Raises:
            NotFound: a queue that messages would go to is not there; the others may be moved.
            Full: there is no room now, or too much is in flight. What fits was moved, the others
                are where they were. Begin again later.
            TooLarge: what `edit` made of a message.
        """
        async for _ in self:
            pass
        return self.stats

    def __aiter__(self) -> Redrive:
        return self

    async def __anext__(self) -> RedriveStats:
        """The next step: first a look at the queue, then some messages at a time."""
        if self._is_over:
            raise StopAsyncIteration
        self._loop = asyncio.get_running_loop()
        try:
            if self._wanted is None:
                await self._look()
                self._is_over = self._is_through = self._dry_run
                return self.stats
            if await self._step(self._wanted):
                return self.stats
            self._is_through = True
            await self.close()
        except BaseException:
            self._is_over = True
            held, self._held = self._held, {}
            _give_back(held)
            raise
        raise StopAsyncIteration

    async def close(self) -> None:
        """Move no more, and give back what was leased."""
        self._is_over = True
        while self._held:
            grant, seqs = self._held.popitem()
            for seq in seqs:
                grant.keepalive.drop(grant, seq)
            command = grant.take_back(seqs, unseen=True)
            if command.seqs:
                await grant.engine.ask(grant.shard, command, Outcome)

    def __del__(self) -> None:
        if self._held and self._loop is not None:
            # The loop may have ended, and its engine with it: then the leases run out.
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(_give_back, self._held)

    # --- Steps ----------------------------------------------------------------------------------

    async def _look(self) -> None:
        """Find out what is to be moved, all at one moment."""
        wanted = BitMap64()
        async with Pinned(self._engine, self._shards, limits.PIN_MS_MAX) as snapshot:
            async for row in snapshot.rows():
                if row.body is None:
                    continue
                if self._is_wanted(row):
                    wanted.add(row.seq)
                else:
                    self._kept += 1
            self._boundaries = snapshot.boundaries
        self._wanted, self._total = wanted, len(wanted)

    def _is_wanted(self, row: Row) -> bool:
        if self._to is None and source_of(row.headers, self._space) is None:
            # It is no dead letter: there is no place that it came from.
            self._aimless += 1
            self._claimed = self._claimed or claimed_source(row.headers)
            return False
        return self._where is None or bool(self._where(row))

    async def _step(self, wanted: BitMap64) -> bool:
        """Move some; False if there is nothing more that could be had."""
        if not wanted:
            return False
        await self._pause()
        count = limits.REDRIVE_MESSAGES_MAX
        if self._rate is not None:
            count = max(min(count, int(self._rate)), 1)
        leases = await self._fetch(count)
        for lease in leases:
            grant = grant_of(lease)
            self._held.setdefault(grant, BitMap64()).add(seq_of(lease))
            grant.keepalive.keep(grant, seq_of(lease), self)
        before = self._moved
        for part in _parts([lease for lease in leases if lease.seq in wanted]):
            await self._move(part, wanted)
        if self._rate is not None:
            self._due += (self._moved - before) / self._rate
        is_barren = not any(self._was_there(lease) for lease in leases)
        self._barren = self._barren + 1 if is_barren else 0
        # The shards are served in turns: after so many, each of them was.
        return bool(leases) and self._barren < len(self._shards.ids)

    def _was_there(self, lease: Lease) -> bool:
        at = self._shards.number(grant_of(lease).shard)
        return seq_of(lease) <= self._boundaries[at]

    async def _pause(self) -> None:
        """Wait until the rate allows for more."""
        now = asyncio.get_running_loop().time()
        if self._due > now:
            await asyncio.sleep(self._due - now)
        self._due = max(self._due, now)

    async def _move(self, leases: list[Lease], wanted: BitMap64) -> None:
        """Publish these there and settle them here, at once."""
        if self._permit is not None:
            for target in {self._target(lease) for lease in leases}:
                self._permit(*target)
        seqs = BitMap64([lease.seq for lease in leases])
        letters: dict[ShardId, list[Message]] = {}
        for lease in leases:
            shards, message = await self._find(self._target(lease)), self._edited(lease)
            block = make_block([message])
            at = int(shards_of(block, shards.route, len(shards.ids), self._engine.turn())[0])
            letters.setdefault(shards.ids[at], []).append(message)
        held: dict[Grant, BitMap64] = {}
        for lease in leases:
            held.setdefault(grant_of(lease), BitMap64()).add(seq_of(lease))
        parts: list[tuple[ShardId, Part]] = [
            (shard, Publish(make_block(messages))) for shard, messages in letters.items()
        ]
        parts += [
            (grant.shard, Settle(grant.lease, mine, grant.history)) for grant, mine in held.items()
        ]
        try:
            await self._engine.transact(Transact(tuple(parts)))
        except (Stale, Gone, Superseded):
            # One of them was taken, purged or replaced meanwhile; the others go alone.
            if len(leases) == 1:
                wanted -= seqs
                self._forget(held)
                return
            for lease in leases:
                await self._move([lease], wanted)
            return
        except (TooLarge, Full):
            # No record of this log holds them all, or there is room for some of them.
            if len(leases) == 1:
                raise
            half = len(leases) // 2
            await self._move(leases[:half], wanted)
            await self._move(leases[half:], wanted)
            return
        for grant, mine in held.items():
            grant.ended(mine)
        wanted -= seqs
        self._moved += len(leases)
        self._forget(held)

    def _target(self, lease: Lease) -> tuple[str, str]:
        return self._to or source_of(lease.headers, self._space) or ("", "")

    def _forget(self, ended: dict[Grant, BitMap64]) -> None:
        """These are held no longer."""
        for grant, seqs in ended.items():
            for seq in seqs:
                grant.keepalive.drop(grant, seq)
            self._held[grant] -= seqs
            if not self._held[grant]:
                del self._held[grant]

    def _edited(self, lease: Lease) -> Message:
        body = None if is_delete(lease.headers) else lease.body
        kept = returning(lease.headers)
        message = Message(body, lease.key, kept)
        if self._edit is None:
            return message
        edited = self._edit(message)
        if not isinstance(edited, Message):
            raise Invalid(f"edit returned {check.shown(edited)}, not a Message", field="edit")
        pairs = check.headers(edited.headers)
        is_same = check.body_of(edited.body) == lease.body if edited.body is not None else False
        reserved = tuple(pair for pair in kept if is_reserved(pair[0]))
        if is_same and reserved == tuple(pair for pair in pairs if is_reserved(pair[0])):
            return edited
        # Another body is not the one that was sent, or published to a topic.
        return replace(edited, headers=plain_headers(pairs))

    async def _find(self, target: tuple[str, str]) -> Shards:
        if target not in self._targets:
            space, name = target
            found = await self._engine.find_queue(space, name)
            if found is None:
                raise NotFound(
                    f"there is no queue {name!r} in {space!r} for these messages; make it, or say "
                    "where they are to go",
                    field="to",
                )
            if found.shards[0] in self._shards:
                raise Invalid("a queue cannot be redriven to itself", field="to")
            self._targets[target] = Shards.of(found)
        return self._targets[target]


def permit(redrive: Redrive, check: Permit) -> None:
    """Have `check` called with space and name of each queue, each time before messages are moved to
    it; what it raises ends the redrive, and the rest stays where it is."""
    redrive._permit = check


def target_of(space: str, to: object, most: int = limits.NAME_CHARS_MAX) -> tuple[str, str]:
    """Space and name of a queue that is named as `name` or as `space/name`."""
    text = exact.text(to)
    first, slash, rest = (text or "").partition("/")
    if text is None or not slash:
        return space, check.name(to, "to", most)
    return check.name(first, "to"), check.name(rest, "to", most)


def _checked_rate(rate: object) -> float:
    value = exact.number(rate)
    if value is None or not value > 0:
        raise Invalid(f"rate is {check.shown(rate)}, not messages per second", field="rate")
    if value > limits.REDRIVE_RATE_MAX:
        most = limits.REDRIVE_RATE_MAX
        raise TooLarge(f"rate is {check.shown(rate)}, up to {most}", field="rate", limit=most)
    return float(value)


def _parts(leases: list[Lease]) -> Iterator[list[Lease]]:
    """So many at a time as one record should hold."""
    part: list[Lease] = []
    size = 0
    for lease in leases:
        weight = len(lease.body) + sum(len(value) for _, value in lease.headers)
        if part and size + weight > limits.BURY_BYTES_MAX:
            yield part
            part, size = [], 0
        part.append(lease)
        size += weight
    if part:
        yield part


def _give_back(held: dict[Grant, BitMap64]) -> None:
    for grant, seqs in held.items():
        for seq in seqs:
            grant.keepalive.drop(grant, seq)
        grant.give_back(seqs)
