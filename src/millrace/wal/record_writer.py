"""Appends records to the WAL: one at a time, each durable before the next begins.

Rule 1: one write and one sync per record, into space that was filled with zeros long before.
Rule 2: one record is in flight. After a failed or interrupted write or sync, the writer stops for
ever: only the next open can find out whether that record is durable.
Rule 3: records begin at sectors and fill them, so that no acknowledged sector is written again.
Rule 4: a generation's header is durable before its first record, and names the last record before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from millrace import errors, limits
from millrace.instruments import SECONDS, Histogram
from millrace.wal.disk import byte_count
from millrace.wal.record import (
    DATA,
    END,
    RECORD_HEADER_BYTES,
    ZEROS,
    LogMark,
    LogPosition,
    SegmentHeader,
    encode_record,
    encode_segment_header,
    record_span,
)
from millrace.wal.segment import LogShape, Segment
from millrace.wal.segment_pool import SegmentPool

if TYPE_CHECKING:
    from typing_extensions import Buffer

SECTOR = limits.SECTOR_BYTES

_SYNC_WEIGHT = 1 / 16
"""Weight of the newest sync in the running mean: a slow disk shows within about ten syncs."""


class RecordWriter:
    """Appends to the newest generation, and begins the next one when it is full."""

    def __init__(
        self,
        pool: SegmentPool,
        shape: LogShape,
        *,
        log_id: bytes,
        mark: LogMark,
        generation: int,
        chance: Callable[[int], bytes],
        clock: Callable[[], float],
    ) -> None:
        self.log_id = log_id
        self.record_bytes_max = shape.segment_bytes - SECTOR - RECORD_HEADER_BYTES
        self.mark = mark
        """The mark after the last durable record; replaced as a whole: any thread may read it."""
        self.stopped: errors.MillraceError | None = None
        """The error that stopped the writer."""
        self.records = 0
        self.written_bytes = 0
        self.syncs = 0
        self.sync_seconds = 0.0
        self.sync_times = Histogram(SECONDS)
        self._pool = pool
        self._ready = pool.ready
        self._segment_bytes = shape.segment_bytes
        self._reserve = shape.segments_reserve
        self._generation = generation
        self._chance = chance
        self._clock = clock
        self._segment: Segment | None = None
        self._is_end_marked = True
        self._in_flight = False

    def append(self, buffers: Sequence[Buffer], *, reserve: bool) -> LogPosition:
        """Append one record; see `WriteAheadLog.append`."""
        length = byte_count(buffers)
        span = record_span(length)
        segment = self._segment
        if (
            segment is None
            or self._in_flight
            or self.stopped is not None
            or segment.size - segment.end < span
            or (len(self._ready) < self._reserve and not reserve)
        ):
            segment = self._segment_for(length, reserve=reserve)
        return self._write(segment, DATA, buffers, length=length, span=span)

    def mark_end(self) -> None:
        """Append an end mark; see `WriteAheadLog.mark_end`."""
        self._check()
        segment = self._segment
        if self._is_end_marked or segment is None:
            return
        if segment.size - segment.end >= SECTOR:
            self._write(segment, END, (), length=0, span=SECTOR)
        else:
            # The header of a new generation names the last record, just as an end mark does.
            self.begin(spare=self._reserve)

    def roll(self) -> None:
        """Begin a new generation; see `WriteAheadLog.roll`."""
        self._check()
        segment = self._segment
        if segment is not None and segment.end > SECTOR:
            self.begin(spare=self._reserve)

    def begin(self, *, spare: int) -> Segment | None:
        """Begin the next generation in a ready segment; return None if only `spare` are left."""
        old = self._pool.take(spare=spare)
        if old is None:
            return None
        self._generation += 1
        header = SegmentHeader(
            log_id=self.log_id,
            generation=self._generation,
            nonce=int.from_bytes(self._chance(8), "little"),
            prev_crc=self.mark.prev_crc,
            first_serial=self.mark.serial,
            size=old.size,
        )
        segment = old.renewed(header)
        self._write_and_sync(segment, [encode_segment_header(header)], 0)
        self._pool.enter(segment)
        self._segment = segment
        self.mark = self.mark._replace(generation=self._generation, offset=SECTOR)
        self.written_bytes += SECTOR
        self._is_end_marked = True
        self._in_flight = False
        return segment

    def room(self, *, reserve: bool) -> int:
        """Return the bytes that fit; see `WriteAheadLog.room`."""
        ready = len(self._ready) - self._spare(reserve=reserve)
        if ready < 0:
            if not reserve:
                return 0
            ready = 0
        segment = self._segment
        rest = segment.size - segment.end if segment is not None else 0
        return rest + ready * (self._segment_bytes - SECTOR)

    def stop(self, error: errors.MillraceError) -> errors.Fatal:
        """Stop the log for ever because of `error`; return the error to raise."""
        self.stopped = errors.DiskFailed(
            f"the log has ended: {error.message}. Open the folder again", field=error.field
        )
        return self.stopped

    def close(self) -> None:
        """Write an end mark, if that is still possible, and refuse all further writes."""
        if self.stopped is None:
            if not self._in_flight:
                self.mark_end()
            self.stopped = errors.Closed("the log was closed; open it again")
        self._in_flight = True

    def check_alive(self) -> None:
        """Raise `Fatal` if the log has ended, `Closed` if it was closed."""
        stopped = self.stopped
        if isinstance(stopped, errors.Closed):
            raise errors.Closed(stopped.message)
        if stopped is not None:
            raise errors.DiskFailed(stopped.message, field=stopped.field)

    def _spare(self, *, reserve: bool) -> int:
        """Number of segments that an append must not take: the last one is for the next open."""
        return min(1, self._reserve) if reserve else self._reserve

    def _segment_for(self, length: int, *, reserve: bool) -> Segment:
        """Return a segment with room for the payload, beginning a new generation if need be."""
        self._check()
        if length > self.record_bytes_max:
            raise errors.TooLarge(
                f"a record has {length} bytes; the limit is {self.record_bytes_max}",
                field="record",
                limit=self.record_bytes_max,
            )
        begun = self.begin(spare=self._spare(reserve=reserve))
        if begun is None:
            raise errors.Full("the log has no free segment", field="log")
        return begun

    def _write(
        self, segment: Segment, kind: int, buffers: Sequence[Buffer], *, length: int, span: int
    ) -> LogPosition:
        offset = segment.end
        _, _, prev_crc, serial = self.mark
        header = segment.header
        assert header is not None, "the segment has begun its life"
        head, crc = encode_record(
            kind, header, serial=serial, prev_crc=prev_crc, buffers=buffers, length=length
        )
        # Write whole sectors; otherwise the kernel would have to read the last one first.
        padding = ZEROS[: span - RECORD_HEADER_BYTES - length]
        self._write_and_sync(segment, [head, *buffers, padding], offset)
        segment.end = offset + span
        self.mark = LogMark(header.generation, offset + span, crc, serial + 1)
        self.records += 1
        self.written_bytes += span
        self._is_end_marked = kind == END
        self._in_flight = False
        return LogPosition(header.generation, offset + RECORD_HEADER_BYTES, length)

    def _write_and_sync(self, segment: Segment, buffers: Sequence[Buffer], offset: int) -> None:
        """Write the buffers and sync the file.

        The caller resets `_in_flight` once its own state includes the write. An interruption before
        that, even by a signal, leaves it set for ever: the same offset must not be written again.
        """
        self._in_flight = True
        try:
            segment.file.write(buffers, offset)
            began = self._clock()
            segment.file.sync()
        except errors.MillraceError as error:
            raise self.stop(error) from error
        took = self._clock() - began
        self.sync_seconds += (took - self.sync_seconds) * _SYNC_WEIGHT
        self.sync_times.add(took)
        self.syncs += 1

    def _check(self) -> None:
        self.check_alive()
        if self._in_flight:
            raise errors.DiskFailed(
                "the log has ended: a write was interrupted, or two were begun at once. "
                "Open the folder again"
            )
