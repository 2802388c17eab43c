"""Writes a stream into a queue: every micro-batch becomes visible as a whole, exactly once.

Rule 1: a batch is published under the range of the sources from which it was made (`Origin`).
The queue itself detects duplicates: a repeat changes nothing, even if the checkpoint was lost, and
an overlap is refused.

Rule 2: nothing is dropped that a commit may still publish. Abandoned stages are dropped when a
later batch of the same flow has been published, or expire.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from urllib.parse import urlsplit

import msgspec
import pyarrow as pa
from pyarrow import fs
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from millrace import limits, sync
from millrace.core import validate
from millrace.decoding import decode_json
from millrace.errors import Invalid, NotFound, OutOfOrder, Refused, TooLarge
from millrace.spark.contract import check_schema
from millrace.spark.offset import Offset
from millrace.spark.options import Address
from millrace.spark.raw_options import HOME, RawOptions
from millrace.spark.staging import StagedRows, stage_rows
from millrace.spark.writer import stages_of

OF_QUERIES = (
    "checkpointLocation",
    "queryName",
    "asyncProgressTrackingEnabled",
    "asyncProgressTrackingCheckpointIntervalMs",
)
"""Options of every query, which Spark passes to the sink, too."""


class StreamWriter(DataSourceStreamArrowWriter):
    """The sink of a query; Spark makes one for every batch, and pickles it to the tasks."""

    def __init__(self, options: Mapping[str, str], schema: StructType, *, overwrite: bool) -> None:
        """Validate the query's columns and options; nothing is staged yet.

        Raises:
            Invalid: a column or an option is wrong.
        """
        if overwrite:
            raise Invalid(
                "outputMode complete would replace what is there, and a queue is only added to; "
                "take update, and a keyed queue, which keeps the newest of each key",
                field="outputMode",
            )
        check_schema(schema)
        given = RawOptions(options, (*HOME, "producer", "number", *OF_QUERIES), "write")
        self._address = Address.of(given)
        self._producer = given.text("producer")
        if self._producer:
            validate.name(self._producer, "producer")
            if len(self._producer) > NAME_CHARS_MAX:
                raise TooLarge(
                    f"producer has {len(self._producer)} characters, up to {NAME_CHARS_MAX} are "
                    "allowed: which cursor it reads by is added to it",
                    field="producer",
                    limit=NAME_CHARS_MAX,
                )
        if given.has("number"):
            raise Invalid("number is told by the sources of a stream; drop it", field="number")
        location = given.text("checkpointLocation")
        if not location:
            raise Invalid(
                "checkpointLocation is missing: name it as an option of writeStream, not of the "
                "session, for what a batch was made from stands there",
                field="checkpointLocation",
            )
        self._checkpoint = Checkpoint(location)
        # Other queries may write under the same producer, by cursors of their own.
        self._prefix = flow_of([self._producer, location])

    def write(self, iterator: Iterator[pa.RecordBatch]) -> StagedRows:  # type: ignore[override]
        """Stage the rows of one task."""
        return stage_rows(self._address.reach(), self._prefix, iterator)

    def commit(
        self,
        messages: list[WriterCommitMessage | None],
        batchId: int,  # noqa: N803
    ) -> None:
        """Publish the stages of the tasks, unless that was done already."""
        queue, stages = self._address.reach(), stages_of(messages)
        older = [name for name in self._staged(queue) if name not in stages]
        origin = self._checkpoint.origin(batchId, self._producer)
        try:
            _publish(queue, stages, origin)
        except OutOfOrder as error:
            raise Refused(
                f"{error.message}. Producer {origin.producer!r} is used by another query, or its "
                "cursor was moved: have each query read by a cursor of its own, or name another "
                "producer to write this range all the same",
                field="producer",
            ) from error
        except NotFound as error:
            raise NotFound(
                f"{error.message}: what this batch has staged is gone; start the query again, "
                "which does the batch again",
                field="stages",
            ) from error
        left = self._staged(queue)
        is_new = bool(stages) and left.isdisjoint(stages)
        # Stages from before this batch was published belong to it, or overlap it: a later batch
        # stages its rows later. After a repeat, only its own stages can be judged.
        for name in older if is_new else stages:
            if name in left:
                queue.drop_stage(name)

    def abort(
        self,
        messages: list[WriterCommitMessage | None],
        batchId: int,  # noqa: N803
    ) -> None:
        """Drop nothing, since a failed commit may still be in flight."""

    def _staged(self, queue: sync.Queue) -> set[str]:
        return {name for name in queue.stages() if name.startswith(self._prefix)}


def _publish(queue: sync.Queue, stages: list[str], origin: Origin) -> None:
    if origin.spans:
        queue.publish_staged(stages, producer=origin.producer, spans=origin.spans)
    else:
        queue.publish_staged(stages, producer=origin.producer, number=origin.number, mode="rising")


# -------------------------------------------------------------------------------------------------
# Producer name and number of a micro-batch, derived from the checkpoint's record of its sources.
#
# Rule 1: a batch whose sources are all queues is identified by their ranges, so that it is the
# same one under another checkpoint. The ids of queues and cursors are part of its producer's name:
# a queue that is created again starts a new sequence.
# Rule 2: any other batch, and one without new rows from any source (such as state that expired),
# is identified by the id of its checkpoint and its number there.

_DIGITS = 12
"""Length of the digest in a producer's name."""

NAME_CHARS_MAX = limits.NAME_CHARS_MAX - _DIGITS - 1
"""Maximum length of the rest of the name."""


class Origin(msgspec.Struct, frozen=True):
    """The producer name and number under which the rows of a batch are published."""

    producer: str
    spans: tuple[tuple[int, int], ...] = ()
    """Ranges of all shards of all sources, in order; empty: `number` counts instead."""
    number: int = 0


class _Metadata(msgspec.Struct):
    id: str


class Checkpoint:
    """Reads Spark's checkpoint of a query."""

    def __init__(self, location: str) -> None:
        self.location = location

    def origin(self, batch: int, name: str) -> Origin:
        """Return the origin of a batch that has begun; `name` is the producer's, if the options
        have one.

        Raises:
            Invalid: a file of the checkpoint is missing.
        """
        now = self._offsets(batch)
        if not now:
            raise Invalid(
                f"{self.location}/offsets/{batch} is not there, or none that is known (v1): it "
                "says what the batch was made from; has somebody deleted it, and can Python read "
                "it here?",
                field="checkpointLocation",
            )
        before = self._offsets(batch - 1) if batch else []
        sources = [_offset(line) for line in now]
        offsets = [one for one in sources if one is not None]
        if not offsets or len(offsets) < len(sources):
            return self._numbered(batch, name)
        spans: list[tuple[int, int]] = []
        for at, offset in enumerate(offsets):
            # For a source without new rows, Spark repeats the offset of its last batch.
            is_still = at < len(before) and before[at] == now[at]
            spans += zip(offset.seqs if is_still else offset.after, offset.seqs, strict=True)
        if all(after == upto for after, upto in spans):
            return self._numbered(batch, name)
        readers = [[one.space, one.queue, one.shards, one.cursor, one.ids] for one in offsets]
        usual = ".".join(dict.fromkeys(one.cursor for one in offsets))
        return Origin(_named(name or usual, msgspec.json.encode(readers)), tuple(spans))

    def _numbered(self, batch: int, name: str) -> Origin:
        text = self._text("metadata")
        try:
            found = decode_json(text or b"", _Metadata)
        except msgspec.MsgspecError as error:
            raise Invalid(
                f"{self.location}/metadata is none of a checkpoint: {error}",
                field="checkpointLocation",
            ) from None
        return Origin(_named(name or "checkpoint", found.id.encode()), number=batch + 1)

    def _offsets(self, batch: int) -> list[str]:
        """Return the offset line of each source; empty for a batch that no longer exists."""
        lines = (self._text(f"offsets/{batch}") or b"").decode().splitlines()
        return lines[2:] if lines and lines[0] == "v1" else []

    def _text(self, name: str) -> bytes | None:
        system, path = _place(self.location)
        try:
            with system.open_input_stream(f"{path}/{name}") as stream:
                return bytes(stream.read())
        except FileNotFoundError:
            return None


def _place(location: str) -> tuple[fs.FileSystem, str]:
    """Return the file system of a location, and the path in it."""
    parts = urlsplit(location)
    if parts.scheme in ("", "file"):
        path = parts.path if parts.scheme else location
        return fs.LocalFileSystem(), str(Path(path).absolute())
    system, path = fs.FileSystem.from_uri(location)
    return system, path


def _offset(line: str) -> Offset | None:
    try:
        return Offset.of(line)
    except Invalid:
        return None


def _named(name: str, what: bytes) -> str:
    return f"{name[:NAME_CHARS_MAX]}.{sha256(what).hexdigest()[:_DIGITS]}"


def flow_of(parts: Sequence[str]) -> str:
    """Return the prefix of the names of all stages of a query, the same for every run of it."""
    return f"spark.{sha256(msgspec.json.encode(parts)).hexdigest()[:16]}."
