"""The write-ahead log: records in recycled segments, from open to close.

Rule 1: when `append` returns, the record is durable.
Rule 2: open makes the replayed records durable before anything is served: a killed process may
have left the last record in the page cache only, so it is rewritten, in place and identical.
Rule 3: every open begins a new generation, so that nothing is ever appended behind a torn record.

`append` and `mark_end` are called by one thread at a time, `prepare` and `release_before` by
another, everything else by any. The layers below: `record_writer` (appending), `segment_pool`
(files and holds), `replay` (reading at open), `record` (bytes).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from millrace import errors
from millrace.instruments import Histogram
from millrace.wal.record import (
    RECORD_HEADER_BYTES,
    LogMark,
    LogPosition,
    decode_record,
)
from millrace.wal.record_writer import RecordWriter
from millrace.wal.replay import Replay, read_segment
from millrace.wal.segment import (
    Hold,
    LiveSegment,
    Loan,
    LogShape,
)
from millrace.wal.segment_pool import UNFINISHED_SUFFIX, SegmentPool

if TYPE_CHECKING:
    from typing_extensions import Buffer


@dataclass(frozen=True, slots=True)
class LogStatistics:
    """Counters of the log since it was opened."""

    records: int
    """Number of appended records, end marks included."""
    written_bytes: int
    """Bytes of records and segment headers with padding, without zero-filling."""
    syncs: int
    """Number of syncs of records and segment headers, without those of zero-filling."""
    zeroed_bytes: int
    """Bytes of zeros written to new segments ahead of need."""
    sync_seconds: float
    """Running mean of the duration of the newest syncs."""
    held_bytes: int
    """Bytes of released segments that readers still hold."""


class WriteAheadLog:
    """An open write-ahead log; created by `open`."""

    def __init__(self, writer: RecordWriter, pool: SegmentPool, shape: LogShape) -> None:
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
    ) -> WriteAheadLog:
        """Open the log for appends after the end of the replay; records not yet read are verified.

        When this returns, all replayed records are durable, and a new generation has begun, unless
        there was no room for one: then appends raise `Full` until segments are released. The
        reserve has been created, too, as far as the disk had room.

        Args:
            replay: its files belong to the log from now on, or are closed if this raises.
            chance: returns the given number of random bytes; a user who chooses payloads must not
                be able to guess them.
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
            _prepare_folder(replay)
            _rewrite_last_record(replay)
            replay.verify_lazily()
            empty_segments = replay.empty_segments()
            pool = SegmentPool(
                replay.disk,
                replay.folder,
                shape,
                live=[segment for segment in survey.used if segment not in empty_segments],
                free=[*survey.free, *empty_segments],
                number=survey.number,
            )
            writer = RecordWriter(
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
        """Write an end mark and close the files. Maps stay valid. Repeated calls do nothing."""
        try:
            self._writer.close()
        finally:
            self._pool.close()

    # --- Writing -----------------------------------------------------------------------------

    def append(self, buffers: Sequence[Buffer], *, reserve: bool = False) -> LogPosition:
        """Write the buffers as the payload of one record; return its position once durable.

        With `reserve` it may use the segments kept for settling and for freeing space.

        Raises:
            TooLarge: the payload is above `record_bytes_max`. Nothing was written.
            Full: no segment is ready. Nothing was written; release or prepare some.
            Fatal: the outcome is unknown, and the log has ended.
        """
        return self._writer.append(buffers, reserve=reserve)

    def mark_end(self) -> None:
        """Append an end mark, which proves that the last record was complete; called when idle.

        Without it, damage to the last record could not be distinguished from a torn write. Does
        nothing if there is an end mark already, or no room for one.

        Raises:
            Fatal: the log has ended.
        """
        self._writer.mark_end()

    def roll(self) -> None:
        """Begin a new generation, so that all records so far lie in full segments.

        Does nothing if the present one holds no record, or if no segment is ready.

        Raises:
            Fatal: the log has ended.
        """
        self._writer.roll()

    # --- Space -------------------------------------------------------------------------------

    def prepare(self) -> bool:
        """Create one segment ahead of need; call it again while it returns True.

        Raises:
            Full: the disk has no room. Appends go on in the segments that are ready.
            Fatal: the log has ended.
        """
        self._writer.check_alive()
        self._pool.sweep()
        try:
            return self._pool.make(ready=self._shape.segments_free + self._shape.segments_reserve)
        except errors.Fatal as error:
            raise self._writer.stop(error) from error

    def release_before(self, generation: int) -> int:
        """Release the segments of older generations for recycling; return their number.

        The caller promises that a checkpoint is durable which needs none of them.
        """
        self._writer.check_alive()
        return self._pool.release_before(generation)

    def room(self, *, reserve: bool = False) -> int:
        """Return the bytes that can be appended before a segment must be released or created.

        A record that does not fit into the rest of its segment leaves that rest unused.
        """
        return self._writer.room(reserve=reserve)

    # --- Reading -----------------------------------------------------------------------------

    def mark(self) -> LogMark:
        """Return the mark after the last durable record, the start of replay for a checkpoint."""
        self._writer.check_alive()
        return self._writer.mark

    def mark_of(self, position: LogPosition) -> LogMark | None:
        """Return the mark before the record at `position`, as `append` or the replay returned it.

        None if its generation is gone.
        """
        offset = position.offset - RECORD_HEADER_BYTES
        view = self.buffer(LogPosition(position.generation, offset, RECORD_HEADER_BYTES))
        header = decode_record(view) if view is not None else None
        if header is None or header.generation != position.generation:
            return None
        return LogMark(position.generation, offset, header.prev_crc, header.serial)

    def segments(self) -> list[LiveSegment]:
        """Return the generations that the log keeps, oldest first."""
        return self._pool.live()

    def hold(self, generation: int) -> Hold | None:
        """Protect the generation from being overwritten; return None if it is gone already.

        None means that the rows were moved: look them up again.
        """
        self._writer.check_alive()
        return self._pool.hold(generation)

    def lend(self, position: LogPosition) -> Loan | None:
        """Return bytes for a long-lived reader: with a hold, or as a copy.

        It is a copy if `held_bytes_max` would be exceeded; None means the same as for `hold`.
        """
        self._writer.check_alive()
        return self._pool.lend(position)

    def buffer(self, position: LogPosition) -> memoryview | None:
        """Return the bytes of a payload; None if the generation is gone.

        They may be overwritten as soon as the generation is released: take a hold to keep them.
        """
        self._writer.check_alive()
        segment = self._pool.find(position.generation)
        if segment is None:
            return None
        return segment.at(position)

    def raw(self, position: LogPosition) -> bytes | None:
        """Return the bytes at the position as they are on the disk, damaged or not.

        None means the same as for `hold`.
        """
        hold = self.hold(position.generation)
        if hold is None:
            return None
        with hold:
            return bytes(hold.segment().file.read(position.length, position.offset))

    def records(self, generation: int) -> Iterator[tuple[LogPosition, memoryview]] | None:
        """Return position and payload of a generation's data records, or None if it is gone.

        They are read from the disk and verified one by one, up to the last durable record. The
        generation is held until the iterator ends; payloads are safe to keep.

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
            until = LogMark(header.generation, 0, header.prev_crc, header.first_serial)
        return _records_held(hold, until)

    @property
    def sync_seconds(self) -> float:
        """Running mean of the duration of the newest syncs, in seconds."""
        return self._writer.sync_seconds

    @property
    def sync_times(self) -> Histogram:
        """Histogram of sync durations since the log was opened."""
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


def _records_held(hold: Hold, until: LogMark) -> Iterator[tuple[LogPosition, memoryview]]:
    with hold:
        yield from read_segment(hold.segment(), until)


def _prepare_folder(replay: Replay) -> None:
    """Create the folder, and remove unfinished segments."""
    disk, folder = replay.disk, replay.folder
    if not disk.exists(folder):
        disk.make_folder(folder)
    for name in disk.names(folder):
        if name.endswith(UNFINISHED_SUFFIX) and name.removesuffix(UNFINISHED_SUFFIX).isdigit():
            disk.remove(f"{folder}/{name}")
    # A killed process may have created the folder or a segment without syncing its name.
    disk.sync_folder(folder)
    disk.sync_folder(folder.rpartition("/")[0])


def _rewrite_last_record(replay: Replay) -> None:
    """Rewrite and sync the last record: its own sync may never have happened, or failed."""
    if replay.tail is not None:
        segment, offset, span = replay.tail
        segment.file.write([segment.file.read(span, offset)], offset)
        segment.file.sync()


@contextmanager
def _full_disk_allowed() -> Iterator[None]:
    """Ignore a full disk during open: the engine must run to free space."""
    try:
        yield
    except errors.Full as error:
        if error.field == "files":
            raise
