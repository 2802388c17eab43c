"""Every command that may come from another process, its number, and what its fields may hold.

Numbers are part of the format (`docs/formats/wire.md`): append, never reorder.
"""

from __future__ import annotations

from typing import cast

import msgspec

from millrace import limits
from millrace.core import bounds, check, filters, rate, retain
from millrace.core.across_commands import LeaseAcross, SnapshotAcross
from millrace.core.commands import (
    AwaitCursor,
    Bury,
    CommitCursor,
    Configure,
    CreateQueue,
    DeleteCursor,
    DeleteQueue,
    Discard,
    DropStage,
    Explain,
    Extend,
    Found,
    Lease,
    Locate,
    NextSnapshot,
    OpenCursor,
    Pin,
    Publish,
    PublishStaged,
    Purge,
    Release,
    ResetCursor,
    Rewind,
    Settle,
    SpecPart,
    Stage,
    Tick,
    Transaction,
    Unpin,
)
from millrace.core.holder import ListHolders
from millrace.core.leased_commands import Replace
from millrace.core.model import Position, Start
from millrace.core.notes import Most, Notes
from millrace.core.partition_commands import Delete
from millrace.core.quarantine_commands import EndQuarantine, Mend, Quarantine
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
from millrace.errors import Invalid
from millrace.rpc.fast_codecs import (
    HISTORY_BYTES,
    PROOF,
    MessageShape,
    PublishShape,
    PublishStagedShape,
    SettleShape,
    StageShape,
)
from millrace.rpc.field_codecs import (
    Choice,
    Converted,
    Data,
    Either,
    Flag,
    Form,
    IdText,
    Many,
    Name,
    OneOf,
    Optional,
    Pattern,
    Record,
    Seqs,
    Shape,
    Table,
    Text,
    Whole,
)
from millrace.rpc.frames import Blobs, Pieces

INSIDE = frozenset({Bury, Forward, Tick, Found, Quarantine, Mend, EndQuarantine})
"""Commands that an engine gives itself, and takes from nobody else."""

SHARD = Whole()
HISTORY = Data(HISTORY_BYTES, HISTORY_BYTES)
_NAME = Name()
_TOPIC = Name(most=limits.TOPIC_NAME_CHARS_MAX)
_NUMBER = Whole()
_LEASE_MS = Whole(1, limits.LEASE_MS_MAX)
_LAG = Whole(1, limits.TOPIC_LAG_MAX)
_PIN_MS = Whole(1, limits.PIN_MS_MAX)
_FLAG = Flag()
_COUNT = Whole(1, limits.LEASE_MESSAGES_MAX)
START = Either(
    _NUMBER,
    Converted(
        Choice("beginning", "end"),
        lambda start: cast("Start", start).value,
        lambda text: Start(text),
    ),
)
POSITION = Form(Position, Data(0, HISTORY_BYTES), _NUMBER, _NUMBER, _NUMBER)


class CursorStart:
    """Where a cursor begins, also at a position."""

    def pack(self, value: object, blobs: Blobs) -> object:
        shape = POSITION if type(value) is Position else START
        return shape.pack(value, blobs)

    def unpack(self, raw: object, field: str, blobs: Pieces) -> object:
        shape = POSITION if type(raw) is list else START
        return shape.unpack(raw, field, blobs)


CURSOR_START = CursorStart()
CLAIM = Form(Claim, PROOF, HISTORY, Whole(1), _NUMBER)
CURSOR_CLAIM = Data(0, bounds.CURSOR_CLAIM_BYTES)


class _Filter(Text):
    """A filter as it is stored; one from outside is read, and written anew."""

    def __init__(self) -> None:
        super().__init__(limits.FILTER_BYTES_MAX)

    def unpack(self, raw: object, field: str, blobs: Pieces) -> str:
        text = super().unpack(raw, field, blobs)
        try:
            return filters.text(msgspec.json.decode(text)) if text else ""
        except (msgspec.DecodeError, RecursionError) as error:
            raise Invalid("the filter is no JSON", field=field) from error


NOTES = Converted(
    Table(Text(limits.NOTE_NAME_BYTES_MAX), Text(limits.NOTES_BYTES_MAX), limits.NOTES_MAX),
    lambda notes: dict(cast("Notes", notes)),
    check.notes,
)


_MOST = Optional(Form(Most, Text(limits.NOTE_NAME_BYTES_MAX), Whole(0, limits.NOTES_MAX)))


def _attempts() -> Shape:
    return Optional(Whole(0, limits.ATTEMPTS_MAX))


def _millis(most_ms: int) -> Shape:
    return Optional(Whole(0, most_ms))


_LETTERS = Pattern(
    r"|[A-Za-z0-9_.-]{1,80}/[A-Za-z0-9_.-]{1,80}", most=2 * limits.NAME_CHARS_MAX + 1
)
"""A queue of dead letters, as space/name; empty: none."""

SPEC_PART = Form(
    SpecPart,
    Optional(_FLAG),
    Optional(Choice("work", "log")),
    _millis(limits.KEEP_DELETES_MS_MAX),
    _millis(limits.DELAY_MS_MAX),
    _millis(limits.DELAY_MS_MAX),
    _attempts(),
    _attempts(),
    Optional(_LETTERS),
    _millis(limits.DELAY_MS_MAX),
    _millis(bounds.DEDUP_MS_MAX),
    Optional(_FLAG),
    _millis(retain.KEEP_MS_MAX),
    Optional(Whole(0, retain.RETENTION_BYTES_MAX)),
    Optional(Whole(0, retain.RETENTION_MESSAGES_MAX)),
    _millis(limits.CURSOR_RETAIN_MS_MAX),
    Optional(Whole(0, retain.RETENTION_BYTES_MAX)),
    Optional(Whole(0, retain.RETENTION_BYTES_MAX)),
    Optional(Choice("", "zstd", "lz4")),
    _millis(bounds.TTL_MS_MAX),
    Optional(_FLAG),
    Optional(Choice("none", "strict", "group", "fair")),
    _attempts(),
    Optional(Whole(0, rate.INTERVAL_US_MAX)),
    Optional(Whole(0, rate.BURST_MAX)),
    Optional(Whole(0, rate.INTERVAL_US_MAX)),
    Optional(Whole(0, rate.BURST_MAX)),
    Optional(Choice("messages", "partitions")),
    Optional(Whole(0, bounds.PARTITIONS_MAX)),
    Optional(Whole(0, bounds.PARTITIONS_MAX)),
    _millis(bounds.PARTITION_AGE_MS_MAX),
    Optional(Whole(0, retain.RETENTION_MESSAGES_MAX)),
    Optional(Whole(0, retain.RETENTION_BYTES_MAX)),
    Optional(Choice("refuse", "drop")),
    Optional(NOTES),
    Optional(Whole(0, limits.IN_FLIGHT_MAX)),
    Optional(Choice("lease", "message")),
    Optional(Whole(0, limits.BODY_BYTES_MAX)),
)

_NEXT = Form(
    NextSnapshot,
    _NAME,
    _NUMBER,
    _NUMBER,
    _PIN_MS,
    Data(0, HISTORY_BYTES),
    CURSOR_CLAIM,
    _FLAG,
)
_SHARDS = Many(SHARD, limits.SHARDS_MAX, least=1)

_PARTS: dict[int, tuple[type, Shape]] = {
    1: (Publish, PublishShape()),
    3: (Settle, SettleShape()),
    4: (
        Release,
        Form(Release, PROOF, Seqs(), HISTORY, _FLAG, Whole(0, limits.DELAY_MS_MAX), _FLAG, _FLAG),
    ),
    5: (
        Extend,
        Form(
            Extend,
            PROOF,
            Seqs(),
            HISTORY,
            Whole(0, limits.LEASE_MS_MAX),
            _FLAG,
            Whole(0, limits.LEASE_MS_MAX),
            _FLAG,
        ),
    ),
    6: (Discard, Form(Discard, PROOF, Seqs(), HISTORY)),
    11: (Purge, Form(Purge, _FLAG)),
    12: (Rewind, Form(Rewind, START)),
    13: (Configure, Form(Configure, SPEC_PART, _MOST)),
    14: (OpenCursor, Form(OpenCursor, _NAME, CURSOR_START, _FLAG, _FLAG, _NUMBER)),
    16: (CommitCursor, Form(CommitCursor, _NAME, _NUMBER, POSITION, CURSOR_CLAIM)),
    17: (ResetCursor, Form(ResetCursor, _NAME, CURSOR_START, _FLAG)),
    18: (DeleteCursor, Form(DeleteCursor, _NAME)),
    19: (Pin, Form(Pin, _PIN_MS)),
    20: (Unpin, Form(Unpin, _NUMBER, HISTORY, _NUMBER, Name(needed=False), CURSOR_CLAIM)),
    21: (Stage, StageShape()),
    22: (PublishStaged, PublishStagedShape()),
    23: (DropStage, Form(DropStage, _NAME)),
    41: (Locate, Form(Locate, Optional(POSITION))),
}
"""What a transaction may hold."""

_ALONE: dict[int, tuple[type, Shape]] = {
    2: (Lease, Form(Lease, _COUNT, _LEASE_MS, IdText(needed=False), _FLAG)),
    7: (Replace, Form(Replace, PROOF, Seqs(1), HISTORY, MessageShape(), _LEASE_MS)),
    8: (Delete, Form(Delete, Seqs(bounds.DELETE_IDS_MAX))),
    9: (Explain, Form(Explain, Whole(1), Optional(Data(0, limits.KEY_BYTES_MAX)))),
    10: (ListHolders, Form(ListHolders)),
    15: (NextSnapshot, _NEXT),
    24: (
        Subscribe,
        Form(Subscribe, _NAME, _NAME, _NAME, _Filter(), NOTES, _FLAG, _LETTERS, NOTES),
    ),
    25: (Unsubscribe, Form(Unsubscribe, _NAME)),
    26: (
        OpenSession,
        Form(
            OpenSession,
            Whole(0, limits.SESSION_CREDIT_MAX),
            _FLAG,
            Whole(0, limits.LEASE_MS_MAX),
            Whole(1, limits.SUSPECT_MS_MAX),
            Name(needed=False),
        ),
    ),
    27: (ResumeSession, Form(ResumeSession, PROOF, HISTORY)),
    28: (Receive, Form(Receive, CLAIM, _NUMBER, Whole(0, limits.SESSION_CREDIT_MAX))),
    29: (GrantCredit, Form(GrantCredit, CLAIM, Whole(0, limits.SESSION_CREDIT_MAX), _FLAG)),
    30: (SuspectSession, Form(SuspectSession, CLAIM)),
    31: (CloseSession, Form(CloseSession, CLAIM, _NUMBER, _FLAG, Optional(_FLAG))),
    32: (
        CreateQueue,
        Form(
            CreateQueue,
            _NAME,
            _NAME,
            SPEC_PART,
            Optional(Whole(1, limits.SHARDS_MAX)),
            Optional(Choice("key", "group", "spread")),
        ),
    ),
    33: (DeleteQueue, Form(DeleteQueue, _NAME, _NAME)),
    34: (
        CreateTopic,
        Form(CreateTopic, _NAME, _TOPIC, Optional(_LAG), NOTES),
    ),
    35: (
        ConfigureTopic,
        Form(ConfigureTopic, _NAME, _TOPIC, SHARD, Optional(_LAG), NOTES, _MOST),
    ),
    36: (DeleteTopic, Form(DeleteTopic, _NAME, _TOPIC, SHARD)),
    37: (
        Transaction,
        Form(
            Transaction,
            Many(
                Record(SHARD, OneOf(_PARTS, "a part of a transaction")),
                limits.TRANSACTION_PARTS_MAX,
                least=1,
            ),
        ),
    ),
    38: (LeaseAcross, Form(LeaseAcross, _SHARDS, _COUNT, _LEASE_MS)),
    39: (
        SnapshotAcross,
        Form(SnapshotAcross, Many(Record(SHARD, _NEXT), limits.SHARDS_MAX, least=1)),
    ),
    42: (AwaitCursor, Form(AwaitCursor, _NAME, POSITION)),
    40: (
        ConfigureSubscription,
        Form(
            ConfigureSubscription,
            _NAME,
            Optional(_Filter()),
            NOTES,
            _FLAG,
            Optional(_LETTERS),
            NOTES,
        ),
    ),
}

COMMANDS = OneOf(_PARTS | _ALONE, "a command")
"""Every command that may be asked by another process."""
