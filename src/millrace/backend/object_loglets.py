"""Loglets in an object store: one object per record, and empty objects as seals.

Record n of a loglet is the object `loglet/ID/N`, created only if absent; a seal is an empty object
in a record's place. The loglet ends at the first seal or gap, found from a known number forwards.

Rule 1: a sealer first puts a barrier far ahead of the writer, then closes the first gap (X5):
otherwise it would chase a writer that has records in flight.
Rule 2: `trimmed` moves in the registry before anything is deleted, and a sealer reads it again
after it has found or put its seal: a seal at or below it lies in a hole that was just made and is
none (X4). A loglet with a registered end is never searched again.
Rule 3: seals are never deleted (X6): in their empty place the writer's create-only write would
succeed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec

from millrace import limits
from millrace.backend.backoff import Backoff, Sleep, retry
from millrace.backend.loglet_record import HEADER_BYTES
from millrace.backend.loglets import LogletId, LogletSealed, LogletTrimmed
from millrace.backend.objects import BackendUnavailable, ObjectStore, Version
from millrace.backend.registry import Registry, RegistryValue, WriteConflict
from millrace.decoding import msgpack_decoder
from millrace.errors import Corrupt, TooLarge

SEAL = b""
"""The contents of a seal."""


class LogletState(msgspec.Struct, frozen=True, array_like=True):
    """The registry value `loglet/ID`."""

    end: int | None = None
    """The number of the last record, once the loglet is sealed."""
    trimmed: int = 0
    """Records up to this number may be deleted."""


_encoder = msgspec.msgpack.Encoder()
_decoder = msgpack_decoder(LogletState)


class _Writer:
    """The appends of one loglet by this process."""

    def __init__(self) -> None:
        self.durable = 0
        """All records up to this number are durable."""
        self.beyond: set[int] = set()
        """Durable records behind a gap."""
        self.sealed_at: int | None = None
        """The lowest number that was found to be a seal."""
        self.changed = asyncio.Event()

    def note(self, number: int) -> None:
        """Note that a record is durable."""
        self.beyond.add(number)
        while self.durable + 1 in self.beyond:
            self.durable += 1
            self.beyond.discard(self.durable)
        self._wake()

    def note_seal(self, number: int) -> None:
        if self.sealed_at is None or number < self.sealed_at:
            self.sealed_at = number
        self._wake()

    def _wake(self) -> None:
        self.changed.set()
        self.changed = asyncio.Event()


class ObjectLoglets:
    """Loglets in an object store, with their ends in a registry."""

    def __init__(
        self,
        objects: ObjectStore,
        registry: Registry,
        sleep: Sleep = asyncio.sleep,
        *,
        barrier_records: int = limits.LOGLET_BARRIER_RECORDS,
    ) -> None:
        """`barrier_records`: distance of a sealer's barrier from the last record."""
        self._objects = objects
        self._registry = registry
        self._sleep = sleep
        self._barrier_records = barrier_records
        self._writers: dict[LogletId, _Writer] = {}

    # --- The writer ---------------------------------------------------------------------------

    async def append(self, loglet: LogletId, number: int, record: bytes) -> None:
        if len(record) > limits.LOGLET_RECORD_BYTES_MAX + HEADER_BYTES:
            raise TooLarge(
                f"a loglet record has at most {limits.LOGLET_RECORD_BYTES_MAX} bytes",
                field="record",
                limit=limits.LOGLET_RECORD_BYTES_MAX,
            )
        if not record or number < 1:
            raise Corrupt("a loglet has records from 1 on, and none is empty", field="record")
        writer = self._writers.setdefault(loglet, _Writer())
        if number > writer.durable and number not in writer.beyond:
            await self._create(loglet, number, record, writer)
        while writer.durable < number:
            if writer.sealed_at is not None and writer.sealed_at <= number:
                raise LogletSealed(
                    f"loglet {loglet.hex()} was sealed at number {writer.sealed_at}",
                    field="loglet",
                )
            await writer.changed.wait()

    async def _create(self, loglet: LogletId, number: int, record: bytes, writer: _Writer) -> None:
        """Give the number this record, or find out that it is a seal."""
        name, backoff = _name(loglet, number), Backoff(self._sleep)
        while True:
            try:
                if await self._objects.create(name, record) is not None:
                    writer.note(number)
                    return
                found = await self._objects.read(name)
            except BackendUnavailable:
                await backoff.wait()
                continue
            if found is None:
                # It was there, and is not any more: it was trimmed, so that it is committed.
                state, _ = await self._state(loglet)
                if number <= state.trimmed:
                    writer.note(number)
                    return
                await backoff.wait()
            elif found[0] == record:
                writer.note(number)
                return
            elif found[0] == SEAL:
                writer.note_seal(number)
                return
            else:
                raise Corrupt(
                    f"record {number} of loglet {loglet.hex()} is another writer's",
                    field="loglet",
                )

    # --- Sealing ------------------------------------------------------------------------------

    async def seal(self, loglet: LogletId) -> int:
        barrier = 0
        while True:
            state, value = await self._state(loglet)
            if state.end is not None:
                return state.end
            if barrier <= state.trimmed:
                barrier = await self._put_barrier(loglet, state.trimmed)
            end = await self._close_gap(loglet, state.trimmed)
            again, value = await self._state(loglet)
            if again.end is not None:
                return again.end
            if end + 1 <= again.trimmed:
                # The seal is in a hole that was made meanwhile: it says nothing.
                continue
            sealed = LogletState(end, again.trimmed)
            try:
                await self._write(loglet, sealed, value)
            except WriteConflict:
                continue
            return end

    async def _put_barrier(self, loglet: LogletId, after: int) -> int:
        """Put a seal far behind the last record; return its number."""
        sizes = await self._sizes(loglet)
        number = max([after, *sizes]) + self._barrier_records
        while not await self._is_seal(loglet, number):
            # The writer has come this far already.
            number += self._barrier_records
        return number

    async def _close_gap(self, loglet: LogletId, after: int) -> int:
        """Put a seal at the first number behind `after` that has no record; return the number
        before it."""
        sizes = await self._sizes(loglet)
        number = after + 1
        # A number that was not listed may have got a record since.
        while sizes.get(number) or not await self._is_seal(loglet, number):
            number += 1
        return number - 1

    async def _is_seal(self, loglet: LogletId, number: int) -> bool:
        """Put a seal at a number; return False if it has a record."""
        name, backoff = _name(loglet, number), Backoff(self._sleep)
        while True:
            try:
                if await self._objects.create(name, SEAL) is not None:
                    return True
                found = await self._objects.read_range(name, 0, 1)
            except BackendUnavailable:
                await backoff.wait()
                continue
            if found is not None:
                return found == SEAL
            # Trimmed: nothing is deleted that is not committed.
            return False

    async def _sizes(self, loglet: LogletId) -> dict[int, int]:
        """Return the sizes of the objects of a loglet by number."""
        prefix = _prefix(loglet)
        entries = await retry(lambda: self._objects.entries(prefix), self._sleep)
        return {int(entry.name[len(prefix) :]): entry.size for entry in entries}

    # --- Reading and trimming -----------------------------------------------------------------

    async def read(self, loglet: LogletId, first: int, last: int) -> Sequence[bytes]:
        records: list[bytes] = []
        for low in range(first, last + 1, limits.LOGLET_READ_RECORDS):
            numbers = range(low, min(low + limits.LOGLET_READ_RECORDS, last + 1))
            found = await asyncio.gather(*(self._read(loglet, number) for number in numbers))
            for number, one in zip(numbers, found, strict=True):
                if one is None or one[0] == SEAL:
                    raise await self._missing(loglet, number)
                records.append(one[0])
        return records

    async def _read(self, loglet: LogletId, number: int) -> tuple[bytes, Version] | None:
        name = _name(loglet, number)
        return await retry(lambda: self._objects.read(name), self._sleep)

    async def _missing(self, loglet: LogletId, number: int) -> Corrupt | LogletTrimmed:
        state, _ = await self._state(loglet)
        if number <= state.trimmed:
            return LogletTrimmed(
                f"record {number} of loglet {loglet.hex()} was trimmed; begin with an image",
                field="loglet",
            )
        return Corrupt(f"record {number} of loglet {loglet.hex()} is missing", field="loglet")

    async def trim(self, loglet: LogletId, upto: int) -> None:
        while True:
            state, value = await self._state(loglet)
            before = state.trimmed
            if upto <= before:
                break
            try:
                await self._write(loglet, LogletState(state.end, upto), value)
            except WriteConflict:
                continue
            break
        for number, size in (await self._sizes(loglet)).items():
            # An empty object is a seal, which outlives its loglet.
            if number <= upto and size:
                await self._delete(loglet, number)

    async def _delete(self, loglet: LogletId, number: int) -> None:
        name = _name(loglet, number)
        await retry(lambda: self._objects.delete(name), self._sleep)

    # --- The registry -------------------------------------------------------------------------

    async def _state(self, loglet: LogletId) -> tuple[LogletState, RegistryValue | None]:
        value = await retry(lambda: self._registry.read(_key(loglet)), self._sleep)
        if value is None:
            return LogletState(), None
        try:
            return _decoder.decode(value.data), value
        except msgspec.MsgspecError as error:
            raise Corrupt(
                f"the registry value of loglet {loglet.hex()} cannot be decoded", field="loglet"
            ) from error

    async def _write(
        self, loglet: LogletId, state: LogletState, value: RegistryValue | None
    ) -> None:
        version = None if value is None else value.version
        await self._registry.write(_key(loglet), _encoder.encode(state), version)


def _key(loglet: LogletId) -> str:
    return f"loglet/{loglet.hex()}"


def _prefix(loglet: LogletId) -> str:
    return f"loglet/{loglet.hex()}/"


def _name(loglet: LogletId, number: int) -> str:
    return f"{_prefix(loglet)}{number:020d}"
