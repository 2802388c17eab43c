"""`Redrive`: moves dead letters back to the queues they came from, or elsewhere.

Rule 1: a message is published there and settled here in one transaction: it moves exactly once,
whatever ends in between.
Rule 2: only messages that existed at the beginning are moved: letters that come back after another
failure are left for another redrive.
Rule 3: messages that stay do not count a delivery.
Rule 4: a redrive that moves nothing reports why.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace

from pyroaring import BitMap64

from millrace import limits
from millrace.client.cursor import Pinned
from millrace.client.dead_letter_headers import (
    claimed_source,
    is_delete,
    returning,
    source_of,
)
from millrace.client.engine import Engine
from millrace.client.lease import Lease, grant_of, seq_of
from millrace.client.lease_group import LeaseGroup
from millrace.client.message import Message, make_block
from millrace.client.reserved import is_reserved, plain_headers
from millrace.client.shards import Shards
from millrace.core import plain_types, validate
from millrace.core.answers import Outcome
from millrace.core.commands import ApplyTransaction as Transact
from millrace.core.commands import Part, Publish, Settle
from millrace.core.model import Row, ShardId
from millrace.core.publishing.shard_routing import shards_of
from millrace.errors import Full, Gone, Invalid, NotFound, Stale, Superseded, TooLarge

Where = Callable[[Row], bool]
"""Selects the messages to move."""

Edit = Callable[[Message], Message]
"""Returns the message to publish instead; the headers about its failure are already removed. If the
body differs, the headers of SQS and SNS (`aws.`) are removed, too."""

Permit = Callable[[str, str], None]
"""Checks access to a target queue, given by space and name; raises if it is denied."""

Fetch = Callable[[int], Awaitable[list[Lease]]]
"""Leases up to this many messages without waiting."""


@dataclass(frozen=True, slots=True)
class RedriveStats:
    """Progress of a redrive."""

    total: int = 0
    """Number of messages selected at the beginning."""
    moved: int = 0
    kept: int = 0
    """Number of messages that were not selected."""
    aimless: int = 0
    """Number of these that name no queue to return to."""
    reason: str = field(default="", compare=False)
    """Why nothing was moved, or would be in a dry run; empty otherwise."""

    def __repr__(self) -> str:
        text = f"total={self.total}, moved={self.moved}, kept={self.kept}"
        text += f", aimless={self.aimless}" if self.aimless else ""
        text += f", reason={self.reason!r}" if self.reason else ""
        return f"RedriveStats({text})"


class Redrive:
    """A move of dead letters; see `Queue.redrive`.

    Each step of the iteration has read the queue, or moved some messages. It may be abandoned at
    any time: messages that were moved stay moved, all others are where they were.
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
        self._held: dict[LeaseGroup, BitMap64] = {}
        """Messages leased and not yet moved."""
        for name, function in (("where", where), ("edit", edit)):
            if function is not None and not callable(function):
                raise Invalid(f"{name} is {validate.shown(function)}, not a function", field=name)
        self._engine = engine
        self._shards = shards
        self._fetch = fetch
        self._space = space
        self._to = to
        self._where = where
        self._edit = edit
        self._rate = None if rate is None else _checked_rate(rate)
        self._dry_run = validate.flag(dry_run, "dry_run")
        self._wanted: BitMap64 | None = None
        """Seqs still to be moved; None before the queue was read."""
        self._boundaries: tuple[int, ...] = ()
        self._barren = 0
        """Number of lease calls in a row that returned no message of the beginning."""
        self._targets: dict[tuple[str, str], Shards] = {}
        self._due = 0.0
        self._total = self._moved = self._kept = self._aimless = 0
        self._claimed: tuple[str, str] | None = None
        """A queue of another space that a pipeline's dead letter names."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_over = False
        self._permit: Permit | None = None
        self._is_through = False
        """True if it ran to its end."""

    @property
    def stats(self) -> RedriveStats:
        """Progress until now."""
        counts = (self._total, self._moved, self._kept, self._aimless)
        return RedriveStats(*counts, self._reason())

    def _reason(self) -> str:
        """Return why nothing was moved."""
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
        """Move all selected messages; return the statistics.

        Raises:
            NotFound: a target queue does not exist; messages for others may have been moved.
            Full: there is no room, or too many messages are in flight. Some messages were moved,
                the rest are where they were; retry later.
            TooLarge: a message returned by `edit` is too large.
        """
        async for _ in self:
            pass
        return self.stats

    def __aiter__(self) -> Redrive:
        return self

    async def __anext__(self) -> RedriveStats:
        """Make the next step: first read the queue, then move some messages at a time."""
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
            left, self._held = self._held, {}
            _give_back(left)
            raise
        raise StopAsyncIteration

    async def close(self) -> None:
        """Stop the redrive and release its leases."""
        self._is_over = True
        while self._held:
            group, seqs = self._held.popitem()
            for seq in seqs:
                group.keepalive.drop(group, seq)
            command = group.take_back(seqs, unseen=True)
            if command.seqs:
                await group.engine.ask(group.shard, command, Outcome)

    def __del__(self) -> None:
        if self._held and self._loop is not None:
            # The loop may be closed, and its engine too: then the leases expire.
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(_give_back, self._held)

    # --- Steps ----------------------------------------------------------------------------------

    async def _look(self) -> None:
        """Select the messages to move from one snapshot of the queue."""
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
            # Not a dead letter: it names no queue to return to.
            self._aimless += 1
            self._claimed = self._claimed or claimed_source(row.headers)
            return False
        return self._where is None or bool(self._where(row))

    async def _step(self, wanted: BitMap64) -> bool:
        """Move some messages; return False if no more can be leased."""
        if not wanted:
            return False
        await self._pause()
        count = limits.REDRIVE_MESSAGES_MAX
        if self._rate is not None:
            count = max(min(count, int(self._rate)), 1)
        leases = await self._fetch(count)
        for lease in leases:
            group = grant_of(lease)
            self._held.setdefault(group, BitMap64()).add(seq_of(lease))
            group.keepalive.keep(group, seq_of(lease), self)
        before = self._moved
        for part in _parts([lease for lease in leases if lease.seq in wanted]):
            await self._move(part, wanted)
        if self._rate is not None:
            self._due += (self._moved - before) / self._rate
        is_barren = not any(self._was_there(lease) for lease in leases)
        self._barren = self._barren + 1 if is_barren else 0
        # Lease calls go round the shards: after one for each, all of them were tried.
        return bool(leases) and self._barren < len(self._shards.ids)

    def _was_there(self, lease: Lease) -> bool:
        at = self._shards.number(grant_of(lease).shard)
        return seq_of(lease) <= self._boundaries[at]

    async def _pause(self) -> None:
        """Throttle to the rate."""
        now = asyncio.get_running_loop().time()
        if self._due > now:
            await asyncio.sleep(self._due - now)
        self._due = max(self._due, now)

    async def _move(self, leases: list[Lease], wanted: BitMap64) -> None:
        """Publish messages to their targets and settle them here, in one transaction."""
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
        by_group: dict[LeaseGroup, BitMap64] = {}
        for lease in leases:
            by_group.setdefault(grant_of(lease), BitMap64()).add(seq_of(lease))
        parts: list[tuple[ShardId, Part]] = [
            (shard, Publish(make_block(messages))) for shard, messages in letters.items()
        ]
        parts += [
            (group.shard, Settle(group.lease, group_seqs, group.history))
            for group, group_seqs in by_group.items()
        ]
        try:
            await self._engine.transact(Transact(tuple(parts)))
        except (Stale, Gone, Superseded):
            # One of them was leased by others, purged or replaced: move them one by one.
            if len(leases) == 1:
                wanted -= seqs
                self._forget(by_group)
                return
            for lease in leases:
                await self._move([lease], wanted)
            return
        except (TooLarge, Full):
            # They do not fit into one record, or there is room for fewer: try halves.
            if len(leases) == 1:
                raise
            half = len(leases) // 2
            await self._move(leases[:half], wanted)
            await self._move(leases[half:], wanted)
            return
        for group, group_seqs in by_group.items():
            group.ended(group_seqs)
        wanted -= seqs
        self._moved += len(leases)
        self._forget(by_group)

    def _target(self, lease: Lease) -> tuple[str, str]:
        return self._to or source_of(lease.headers, self._space) or ("", "")

    def _forget(self, ended: dict[LeaseGroup, BitMap64]) -> None:
        """Drop messages that ended from those held."""
        for group, seqs in ended.items():
            for seq in seqs:
                group.keepalive.drop(group, seq)
            self._held[group] -= seqs
            if not self._held[group]:
                del self._held[group]

    def _edited(self, lease: Lease) -> Message:
        body = None if is_delete(lease.headers) else lease.body
        headers = returning(lease.headers)
        message = Message(body, lease.key, headers)
        if self._edit is None:
            return message
        edited = self._edit(message)
        if not isinstance(edited, Message):
            raise Invalid(f"edit returned {validate.shown(edited)}, not a Message", field="edit")
        pairs = validate.headers(edited.headers)
        is_same = validate.body_of(edited.body) == lease.body if edited.body is not None else False
        reserved = tuple(pair for pair in headers if is_reserved(pair[0]))
        if is_same and reserved == tuple(pair for pair in pairs if is_reserved(pair[0])):
            return edited
        # The reserved headers describe the original body, not this one.
        return replace(edited, headers=plain_headers(pairs))

    async def _find(self, target: tuple[str, str]) -> Shards:
        if target not in self._targets:
            space, name = target
            queue_ref = await self._engine.find_queue(space, name)
            if queue_ref is None:
                raise NotFound(
                    f"there is no queue {name!r} in {space!r} for these messages; make it, or say "
                    "where they are to go",
                    field="to",
                )
            if queue_ref.shards[0] in self._shards:
                raise Invalid("a queue cannot be redriven to itself", field="to")
            self._targets[target] = Shards.of(queue_ref)
        return self._targets[target]


def permit(redrive: Redrive, check: Permit) -> None:
    """Call `check` with space and name of each target queue before messages are moved to it.

    An error that it raises ends the redrive; the remaining messages stay where they are.
    """
    redrive._permit = check


def target_of(space: str, to: object, limit: int = limits.NAME_CHARS_MAX) -> tuple[str, str]:
    """Return space and name of a queue given as `name` or as `space/name`."""
    text = plain_types.text(to)
    first, slash, rest = (text or "").partition("/")
    if text is None or not slash:
        return space, validate.name(to, "to", limit)
    return validate.name(first, "to"), validate.name(rest, "to", limit)


def _checked_rate(rate: object) -> float:
    value = plain_types.number(rate)
    if value is None or not value > 0:
        raise Invalid(f"rate is {validate.shown(rate)}, not messages per second", field="rate")
    if value > limits.REDRIVE_RATE_MAX:
        limit = limits.REDRIVE_RATE_MAX
        raise TooLarge(f"rate is {validate.shown(rate)}, up to {limit}", field="rate", limit=limit)
    return float(value)


def _parts(leases: list[Lease]) -> Iterator[list[Lease]]:
    """Split leases into parts that fit into one record each."""
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


def _give_back(held: dict[LeaseGroup, BitMap64]) -> None:
    for group, seqs in held.items():
        for seq in seqs:
            group.keepalive.drop(group, seq)
        group.give_back(seqs)
