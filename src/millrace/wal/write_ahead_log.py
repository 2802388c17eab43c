"""The log: records in recycled segments, from open to close.

Rule 1: when `append` returns, the record is durable.
Rule 2: open makes durable what it has read before anything is served: a killed process may have
left the last record in the page cache alone, so it is written again, in place and identical.
Rule 3: every open begins a new generation, so that nothing is ever appended behind a torn record.

`append` and `mark_end` are called by one thread at a time, `prepare` and `release_before` by
another, everything else by any. The layers below: `writer` (appending), `pool` (files and holds),
`replay` and `survey` (reading at open), `record` (bytes).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from millrace import errors
from millrace.meter import Histogram
from millrace.wal.record import (
    RECORD_HEADER_BYTES,
    Mark,
    Position,
    decode_record,
)
from millrace.wal.replay import Replay, walk
from millrace.wal.segment import (
    Hold,
    LiveSegment,
    Loan,
    LogShape,
)
from millrace.wal.segment_pool import UNFINISHED_SUFFIX, Pool
from millrace.wal.writer import Writer

if TYPE_CHECKING:
    from typing_extensions import Buffer


@dataclass(frozen=True, slots=True)
class LogStatistics:
    """What the log has done since it was opened."""

    records: int
    """Appended, end marks included."""
    written_bytes: int
    """Of records and segment headers, padding included; zero-filling apart."""
    syncs: int
    """Of records and of segment headers; those of zero-filling apart."""
    zeroed_bytes: int
    """Written to new segments ahead of need."""
    sync_seconds: float
    """A running mean over the newest syncs."""
    held_bytes: int
    """Of segments that were released but that readers still hold."""


class Log:
    """An open log; made by `open`."""

    def __init__(self, writer: Writer, pool: Pool, shape: LogShape) -> None:
        self.id = writer.log_id
        self.record_bytes_max = writer.record_bytes_max
        """The largest payload: a record never spans segments."""
        self._writer = writer
        self._pool = pool
        self._shape = shape

    @classmethod
    def open(
        cls,
        replay: Replay,
        shape: LogShape | None = None,
        *,
        chance: Callable[[int], bytes],
        log_id: bytes | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> Log:
        """Go on where the replay ends; what of it was not iterated yet is only verified.

        When this returns, everything that the replay gave is durable, and a new generation has
        begun, unless there was no room for one: then appends are refused as `Full` until segments
        are released. The reserve has been made, too, as far as the disk had room.

        Args:
            replay: its files belong to the log from now on, or are closed if this raises.
            chance: gives so many random bytes; those who choose payloads must not guess them.
            log_id: 16 bytes that the log must have; a new log gets them, or random ones.

        Raises:
            Corrupt: the log is damaged, or is another one.
            Full: too many files are open.
        """
        shape = shape or LogShape()
        with ExitStack() as stack:
            stack.callback(replay.close)
            for _ in replay:
                pass
            survey = replay.survey
            if None not in (log_id, survey.log_id) and log_id != survey.log_id:
                raise errors.Corrupt(f"{replay.folder}: this is another log", field=replay.folder)
            _tidy(replay)
            _write_again(replay)
            replay.prove_later()
            empty = replay.empty()
            pool = Pool(
                replay.disk,
                replay.folder,
                shape,
                live=[segment for segment in survey.used if segment not in empty],
                free=[*survey.free, *empty],
                number=survey.number,
            )
            writer = Writer(
                pool,
                shape,
                log_id=survey.log_id or log_id or chance(16),
                mark=replay.end,
                generation=survey.generation,
                chance=chance,
                clock=clock,
            )
            stack.callback(pool.close)
            with _full_disk_allowed():
                pool.make(ready=1, is_urgent=True)
            writer.begin(spare=0)
            with _full_disk_allowed():
                while pool.make(ready=shape.segments_reserve):
                    pass
            stack.pop_all()
        return cls(writer, pool, shape)

    def close(self) -> None:
        """Mark the end and close the files. Maps of readers stay valid; twice changes nothing."""
        try:
            self._writer.close()
        finally:
            self._pool.close()

    # --- Writing -----------------------------------------------------------------------------

    def append(self, buffers: Sequence[Buffer], *, reserve: bool = False) -> Position:
        """Write the buffers as the payload of one record; return its place once it is durable.

        With `reserve` it may use what is kept for settling and for freeing space.

        Raises:
            TooLarge: the payload is above `record_bytes_max`. Nothing was written.
            Full: no segment is ready. Nothing was written; release or prepare some.
            Fatal: the outcome is unknown, and the log has ended.
        """
        return self._writer.append(buffers, reserve=reserve)

    def mark_end(self) -> None:
        """Prove to the next open that the last record was whole; called when idle.

        Without it, damage to the last record could not be told from a torn write. Does nothing if
        that is proven already, or if there is no room left to do it.

        Raises:
            Fatal: the log has ended.
        """
        self._writer.mark_end()

    def roll(self) -> None:
        """Go on in a new generation, so that everything up to here lies in full segments.

        Does nothing if the present one holds no record, or if no segment is ready.

        Raises:
            Fatal: the log has ended.
        """
        self._writer.roll()

    # --- Space -------------------------------------------------------------------------------

    def prepare(self) -> bool:
        """Make one segment ahead of need; call it again while it returns True.

        Raises:
            Full: the disk has no room. Appends go on in what is ready.
            Fatal: the log has ended.
        """
        self._writer.check_alive()
        self._pool.sweep()
        try:
            return self._pool.make(ready=self._shape.segments_free + self._shape.segments_reserve)
        except errors.Fatal as error:
            raise self._writer.stop(error) from error

    def release_before(self, generation: int) -> int:
        """Free the segments of older generations; return how many there were.

        The caller promises that a checkpoint is durable which needs none of them.
        """
        self._writer.check_alive()
        return self._pool.release_before(generation)

    def room(self, *, reserve: bool = False) -> int:
        """Return how many bytes of sectors can be appended before a segment must be freed or made.

        A record that does not fit into the rest of its segment leaves that rest unused.
        """
        return self._writer.room(reserve=reserve)

    # --- Reading -----------------------------------------------------------------------------

    def mark(self) -> Mark:
        """Return the place behind the last durable record: where a checkpoint lets replay begin."""
        self._writer.check_alive()
        return self._writer.mark

    def mark_of(self, position: Position) -> Mark | None:
        """Return the place before the record at `position`, as `append` or the replay gave it.

        None if its generation is gone.
        """
        offset = position.offset - RECORD_HEADER_BYTES
        view = self.buffer(Position(position.generation, offset, RECORD_HEADER_BYTES))
        header = decode_record(view) if view is not None else None
        if header is None or header.generation != position.generation:
            return None
        return Mark(position.generation, offset, header.prev_crc, header.serial)

    def segments(self) -> list[LiveSegment]:
        """Return the generations that the log keeps, oldest first."""
        return self._pool.live()

    def hold(self, generation: int) -> Hold | None:
        """Keep the generation from being overwritten, or return None if it is gone already.

        None means that the rows were moved: look them up again.
        """
        self._writer.check_alive()
        return self._pool.hold(generation)

    def lend(self, position: Position) -> Loan | None:
        """Return bytes for a reader that may keep them long: with a hold, or as a copy.

        A copy is given where `held_bytes_max` would be passed; None means as for `hold`.
        """
        self._writer.check_alive()
        return self._pool.lend(position)

    def buffer(self, position: Position) -> memoryview | None:
        """Return the bytes of a payload; None if the generation is gone.

        They may be overwritten as soon as the generation is released: hold it, or do not keep them.
        """
        self._writer.check_alive()
        segment = self._pool.find(position.generation)
        if segment is None:
            return None
        return segment.at(position)

    def raw(self, position: Position) -> bytes | None:
        """Return the bytes at the position as they are on the disk, damaged or not.

        None means as for `hold`.
        """
        hold = self.hold(position.generation)
        if hold is None:
            return None
        with hold:
            return bytes(hold.segment().file.read(position.length, position.offset))

    def records(self, generation: int) -> Iterator[tuple[Position, memoryview]] | None:
        """Return place and payload of a generation's data records, or None if it is gone.

        They are read from the disk and summed as they are taken, up to what is durable now. The
        generation is held until the last one was taken; payloads are safe to keep.

        Raises:
            Corrupt: a record is damaged; from the iterator.
        """
        self._writer.check_alive()
        until, hold = self._writer.mark, self._pool.hold(generation)
        if hold is None:
            return None
        following = self._pool.following(generation)
        if following is not None:
            header = following.header
            assert header is not None, "a generation in use has a header"
            until = Mark(header.generation, 0, header.prev_crc, header.first_serial)
        return _held(hold, until)

    @property
    def sync_seconds(self) -> float:
        """How long a sync takes, as a running mean over the newest."""
        return self._writer.sync_seconds

    @property
    def sync_times(self) -> Histogram:
        """How long syncs of records took since it was opened."""
        return self._writer.sync_times

    def statistics(self) -> LogStatistics:
        """Return the counters as of now."""
        writer = self._writer
        return LogStatistics(
            records=writer.records,
            written_bytes=writer.written_bytes,
            syncs=writer.syncs,
            zeroed_bytes=self._pool.zeroed_bytes,
            sync_seconds=writer.sync_seconds,
            held_bytes=self._pool.unlinked_bytes(),
        )


def _held(hold: Hold, until: Mark) -> Iterator[tuple[Position, memoryview]]:
    with hold:
        yield from walk(hold.segment(), until)


def _tidy(replay: Replay) -> None:
    """Make the folder, and remove the segments that were never finished."""
    disk, folder = replay.disk, replay.folder
    if not disk.exists(folder):
        disk.make_folder(folder)
    for name in disk.names(folder):
        if name.endswith(UNFINISHED_SUFFIX) and name.removesuffix(UNFINISHED_SUFFIX).isdigit():
            disk.remove(f"{folder}/{name}")
    # A killed process may have named the folder or a segment without having synced that name.
    disk.sync_folder(folder)
    disk.sync_folder(folder.rpartition("/")[0])


def _write_again(replay: Replay) -> None:
    """Make the last record durable, whatever became of the sync that it was written with."""
    if replay.tail is not None:
        segment, offset, span = replay.tail
        segment.file.write([segment.file.read(span, offset)], offset)
        segment.file.sync()


@contextmanager
def _full_disk_allowed() -> Iterator[None]:
    """A full disk is no reason not to open: what frees space must be able to run."""
    try:
        yield
    except errors.Full as error:
        if error.field == "files":
            raise
