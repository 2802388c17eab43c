"""Producer name and number of a micro-batch, derived from the checkpoint's record of its sources.

Rule 1: a batch whose sources are all queues is identified by their ranges, so that it is the same
one under another checkpoint. The ids of queues and cursors are part of its producer's name: a queue
that is created again starts a new sequence.

Rule 2: any other batch, and one without new rows from any source (such as state that expired), is
identified by the id of its checkpoint and its number there.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from urllib.parse import urlsplit

import msgspec
from pyarrow import fs

from millrace import limits
from millrace.decoding import decode_json
from millrace.errors import Invalid
from millrace.spark.offset import Offset

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
