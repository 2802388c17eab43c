"""Codecs of all commands from other processes: their numbers, and the bounds of their fields.

Numbers are part of the format (`docs/formats/wire.md`): append, never reorder.
"""

from __future__ import annotations

from typing import cast

import msgspec

from millrace import limits
from millrace.core import bounds, token_bucket, validate
from millrace.core.commands import (
    ApplyTransaction,
    AwaitCursor,
    CommitCursor,
    Configure,
    CreateQueue,
    Delete,
    DeleteCursor,
    DeleteQueue,
    Discard,
    DropStage,
    EndQuarantine,
    Explain,
    Extend,
    InitCatalog,
    LeaseFromShards,
    LeaseMessages,
    ListHolders,
    Locate,
    Mend,
    MoveDeadLetters,
    NextSnapshot,
    OpenCursor,
    Pin,
    Publish,
    PublishStaged,
    Purge,
    Quarantine,
    Release,
    Replace,
    ResetCursor,
    Rewind,
    Settle,
    SnapshotShards,
    SpecPart,
    Stage,
    Tick,
    Unpin,
)
from millrace.core.model import CursorPosition, StartPoint
from millrace.core.notes import Notes, NotesLimit
from millrace.core.retention import log_retention
from millrace.core.session_commands import (
    Claim,
    CloseSession,
    GrantCredit,
    OpenSession,
    Receive,
    ResumeSession,
    SuspectSession,
)
from millrace.core.topic_commands import (
    ConfigureSubscription,
    ConfigureTopic,
    CreateTopic,
    DeleteTopic,
    Forward,
    Subscribe,
    Unsubscribe,
)
from millrace.core.topics import filters
from millrace.errors import Invalid
from millrace.rpc.fast_codecs import (
    HISTORY_BYTES,
    PROOF,
    MessageCodec,
    PublishCodec,
    PublishStagedCodec,
    SettleCodec,
    StageCodec,
)
from millrace.rpc.field_codecs import (
    BoolCodec,
    BytesCodec,
    ChoiceCodec,
    ConvertedCodec,
    DictCodec,
    FieldCodec,
    IdCodec,
    IntCodec,
    IntOrCodec,
    ListCodec,
    NameCodec,
    OptionalCodec,
    PatternCodec,
    SeqSetCodec,
    StructCodec,
    TextCodec,
    TupleCodec,
    UnionCodec,
)
from millrace.rpc.frames import BlobReader, BlobWriter

INTERNAL_COMMANDS = frozenset(
    {MoveDeadLetters, Forward, Tick, InitCatalog, Quarantine, Mend, EndQuarantine}
)
"""Commands that an engine submits to itself, and refuses from others."""

SHARD = IntCodec()
HISTORY = BytesCodec(HISTORY_BYTES, HISTORY_BYTES)
_NAME = NameCodec()
_TOPIC = NameCodec(most=limits.TOPIC_NAME_CHARS_MAX)
_NUMBER = IntCodec()
_LEASE_MS = IntCodec(1, limits.LEASE_MS_MAX)
_LAG = IntCodec(1, limits.TOPIC_LAG_MAX)
_PIN_MS = IntCodec(1, limits.PIN_MS_MAX)
_FLAG = BoolCodec()
_COUNT = IntCodec(1, limits.LEASE_MESSAGES_MAX)
START = IntOrCodec(
    _NUMBER,
    ConvertedCodec(
        ChoiceCodec("beginning", "end"),
        lambda start: cast("StartPoint", start).value,
        lambda text: StartPoint(text),
    ),
)
POSITION = StructCodec(CursorPosition, BytesCodec(0, HISTORY_BYTES), _NUMBER, _NUMBER, _NUMBER)


class CursorStartCodec:
    """Start of a cursor: a seq, an end of the queue, or a position."""

    def pack(self, value: object, blobs: BlobWriter) -> object:
        shape = POSITION if type(value) is CursorPosition else START
        return shape.pack(value, blobs)

    def unpack(self, raw: object, field: str, blobs: BlobReader) -> object:
        shape = POSITION if type(raw) is list else START
        return shape.unpack(raw, field, blobs)


CURSOR_START = CursorStartCodec()
CLAIM = StructCodec(Claim, PROOF, HISTORY, IntCodec(1), _NUMBER)
CURSOR_CLAIM = BytesCodec(0, bounds.CURSOR_CLAIM_BYTES)


class _FilterCodec(TextCodec):
    """A filter policy; it is parsed and normalized, as it is stored."""

    def __init__(self) -> None:
        super().__init__(limits.FILTER_BYTES_MAX)

    def unpack(self, raw: object, field: str, blobs: BlobReader) -> str:
        text = super().unpack(raw, field, blobs)
        try:
            return filters.text(msgspec.json.decode(text)) if text else ""
        except (msgspec.DecodeError, RecursionError) as error:
            raise Invalid("the filter is no JSON", field=field) from error


NOTES = ConvertedCodec(
    DictCodec(
        TextCodec(limits.NOTE_NAME_BYTES_MAX), TextCodec(limits.NOTES_BYTES_MAX), limits.NOTES_MAX
    ),
    lambda notes: dict(cast("Notes", notes)),
    validate.notes,
)


_MOST = OptionalCodec(
    StructCodec(NotesLimit, TextCodec(limits.NOTE_NAME_BYTES_MAX), IntCodec(0, limits.NOTES_MAX))
)


def _attempts() -> FieldCodec:
    return OptionalCodec(IntCodec(0, limits.ATTEMPTS_MAX))


def _millis(most_ms: int) -> FieldCodec:
    return OptionalCodec(IntCodec(0, most_ms))


QUEUE_NAME = PatternCodec(
    r"|[A-Za-z0-9_.-]{1,80}/[A-Za-z0-9_.-]{1,80}", most=2 * limits.NAME_CHARS_MAX + 1
)
"""A queue as space/name; empty: none."""

SPEC_PART = StructCodec(
    SpecPart,
    OptionalCodec(_FLAG),
    OptionalCodec(ChoiceCodec("work", "log")),
    _millis(limits.KEEP_DELETES_MS_MAX),
    _millis(limits.DELAY_MS_MAX),
    _millis(limits.DELAY_MS_MAX),
    _attempts(),
    _attempts(),
    OptionalCodec(QUEUE_NAME),
    _millis(limits.DELAY_MS_MAX),
    _millis(bounds.DEDUP_MS_MAX),
    OptionalCodec(_FLAG),
    _millis(log_retention.KEEP_MS_MAX),
    OptionalCodec(IntCodec(0, log_retention.RETENTION_BYTES_MAX)),
    OptionalCodec(IntCodec(0, log_retention.RETENTION_MESSAGES_MAX)),
    _millis(limits.CURSOR_RETAIN_MS_MAX),
    OptionalCodec(IntCodec(0, log_retention.RETENTION_BYTES_MAX)),
    OptionalCodec(IntCodec(0, log_retention.RETENTION_BYTES_MAX)),
    OptionalCodec(ChoiceCodec("", "zstd", "lz4")),
    _millis(bounds.TTL_MS_MAX),
    OptionalCodec(_FLAG),
    OptionalCodec(ChoiceCodec("none", "strict", "group", "fair")),
    _attempts(),
    OptionalCodec(IntCodec(0, token_bucket.INTERVAL_US_MAX)),
    OptionalCodec(IntCodec(0, token_bucket.BURST_MAX)),
    OptionalCodec(IntCodec(0, token_bucket.INTERVAL_US_MAX)),
    OptionalCodec(IntCodec(0, token_bucket.BURST_MAX)),
    OptionalCodec(ChoiceCodec("messages", "partitions")),
    OptionalCodec(IntCodec(0, bounds.PARTITIONS_MAX)),
    OptionalCodec(IntCodec(0, bounds.PARTITIONS_MAX)),
    _millis(bounds.PARTITION_AGE_MS_MAX),
    OptionalCodec(IntCodec(0, log_retention.RETENTION_MESSAGES_MAX)),
    OptionalCodec(IntCodec(0, log_retention.RETENTION_BYTES_MAX)),
    OptionalCodec(ChoiceCodec("refuse", "drop")),
    OptionalCodec(NOTES),
    OptionalCodec(IntCodec(0, limits.IN_FLIGHT_MAX)),
    OptionalCodec(ChoiceCodec("lease", "message")),
    OptionalCodec(IntCodec(0, limits.BODY_BYTES_MAX)),
)

_NEXT = StructCodec(
    NextSnapshot,
    _NAME,
    _NUMBER,
    _NUMBER,
    _PIN_MS,
    BytesCodec(0, HISTORY_BYTES),
    CURSOR_CLAIM,
    _FLAG,
)
_SHARDS = ListCodec(SHARD, limits.SHARDS_MAX, least=1)

_PARTS: dict[int, tuple[type, FieldCodec]] = {
    1: (Publish, PublishCodec()),
    3: (Settle, SettleCodec()),
    4: (
        Release,
        StructCodec(
            Release,
            PROOF,
            SeqSetCodec(),
            HISTORY,
            _FLAG,
            IntCodec(0, limits.DELAY_MS_MAX),
            _FLAG,
            _FLAG,
        ),
    ),
    5: (
        Extend,
        StructCodec(
            Extend,
            PROOF,
            SeqSetCodec(),
            HISTORY,
            IntCodec(0, limits.LEASE_MS_MAX),
            _FLAG,
            IntCodec(0, limits.LEASE_MS_MAX),
            _FLAG,
        ),
    ),
    6: (Discard, StructCodec(Discard, PROOF, SeqSetCodec(), HISTORY)),
    11: (Purge, StructCodec(Purge, _FLAG)),
    12: (Rewind, StructCodec(Rewind, START)),
    13: (Configure, StructCodec(Configure, SPEC_PART, _MOST)),
    14: (OpenCursor, StructCodec(OpenCursor, _NAME, CURSOR_START, _FLAG, _FLAG, _NUMBER)),
    16: (CommitCursor, StructCodec(CommitCursor, _NAME, _NUMBER, POSITION, CURSOR_CLAIM)),
    17: (ResetCursor, StructCodec(ResetCursor, _NAME, CURSOR_START, _FLAG)),
    18: (DeleteCursor, StructCodec(DeleteCursor, _NAME)),
    19: (Pin, StructCodec(Pin, _PIN_MS)),
    20: (
        Unpin,
        StructCodec(Unpin, _NUMBER, HISTORY, _NUMBER, NameCodec(needed=False), CURSOR_CLAIM),
    ),
    21: (Stage, StageCodec()),
    22: (PublishStaged, PublishStagedCodec()),
    23: (DropStage, StructCodec(DropStage, _NAME)),
    41: (Locate, StructCodec(Locate, OptionalCodec(POSITION))),
}
"""Commands that a transaction may contain."""

_ALONE: dict[int, tuple[type, FieldCodec]] = {
    2: (LeaseMessages, StructCodec(LeaseMessages, _COUNT, _LEASE_MS, IdCodec(needed=False), _FLAG)),
    7: (Replace, StructCodec(Replace, PROOF, SeqSetCodec(1), HISTORY, MessageCodec(), _LEASE_MS)),
    8: (Delete, StructCodec(Delete, SeqSetCodec(bounds.DELETE_IDS_MAX))),
    9: (
        Explain,
        StructCodec(Explain, IntCodec(1), OptionalCodec(BytesCodec(0, limits.KEY_BYTES_MAX))),
    ),
    10: (ListHolders, StructCodec(ListHolders)),
    15: (NextSnapshot, _NEXT),
    24: (
        Subscribe,
        StructCodec(
            Subscribe, _NAME, _NAME, _NAME, _FilterCodec(), NOTES, _FLAG, QUEUE_NAME, NOTES
        ),
    ),
    25: (Unsubscribe, StructCodec(Unsubscribe, _NAME)),
    26: (
        OpenSession,
        StructCodec(
            OpenSession,
            IntCodec(0, limits.SESSION_CREDIT_MAX),
            _FLAG,
            IntCodec(0, limits.LEASE_MS_MAX),
            IntCodec(1, limits.SUSPECT_MS_MAX),
            NameCodec(needed=False),
        ),
    ),
    27: (ResumeSession, StructCodec(ResumeSession, PROOF, HISTORY)),
    28: (Receive, StructCodec(Receive, CLAIM, _NUMBER, IntCodec(0, limits.SESSION_CREDIT_MAX))),
    29: (
        GrantCredit,
        StructCodec(GrantCredit, CLAIM, IntCodec(0, limits.SESSION_CREDIT_MAX), _FLAG),
    ),
    30: (SuspectSession, StructCodec(SuspectSession, CLAIM)),
    31: (CloseSession, StructCodec(CloseSession, CLAIM, _NUMBER, _FLAG, OptionalCodec(_FLAG))),
    32: (
        CreateQueue,
        StructCodec(
            CreateQueue,
            _NAME,
            _NAME,
            SPEC_PART,
            OptionalCodec(IntCodec(1, limits.SHARDS_MAX)),
            OptionalCodec(ChoiceCodec("key", "group", "spread")),
            QUEUE_NAME,
            added=1,
        ),
    ),
    33: (DeleteQueue, StructCodec(DeleteQueue, _NAME, _NAME)),
    34: (
        CreateTopic,
        StructCodec(CreateTopic, _NAME, _TOPIC, OptionalCodec(_LAG), NOTES),
    ),
    35: (
        ConfigureTopic,
        StructCodec(ConfigureTopic, _NAME, _TOPIC, SHARD, OptionalCodec(_LAG), NOTES, _MOST),
    ),
    36: (DeleteTopic, StructCodec(DeleteTopic, _NAME, _TOPIC, SHARD)),
    37: (
        ApplyTransaction,
        StructCodec(
            ApplyTransaction,
            ListCodec(
                TupleCodec(SHARD, UnionCodec(_PARTS, "a part of a transaction")),
                limits.TRANSACTION_PARTS_MAX,
                least=1,
            ),
        ),
    ),
    38: (LeaseFromShards, StructCodec(LeaseFromShards, _SHARDS, _COUNT, _LEASE_MS)),
    39: (
        SnapshotShards,
        StructCodec(
            SnapshotShards, ListCodec(TupleCodec(SHARD, _NEXT), limits.SHARDS_MAX, least=1)
        ),
    ),
    42: (AwaitCursor, StructCodec(AwaitCursor, _NAME, POSITION)),
    40: (
        ConfigureSubscription,
        StructCodec(
            ConfigureSubscription,
            _NAME,
            OptionalCodec(_FilterCodec()),
            NOTES,
            _FLAG,
            OptionalCodec(QUEUE_NAME),
            NOTES,
        ),
    ),
}

COMMANDS = UnionCodec(_PARTS | _ALONE, "a command")
"""Codec of every command that another process may submit."""
