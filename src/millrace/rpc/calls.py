"""Calls to an engine in another process: commands, reads of rows, and metadata.

Numbers are part of the format (`docs/formats/wire.md`): append, never reorder.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple, cast

import msgspec
from pyroaring import BitMap64

from millrace import limits
from millrace.core.cells import Cell, Kind, SubscriptionCell
from millrace.core.commands import Command
from millrace.core.format.codec import decode_cell, encode_cell
from millrace.core.model import LeaseId, ShardId
from millrace.core.session_commands import Claim
from millrace.core.state.fold import ShardMeta
from millrace.decoding import msgpack_decoder
from millrace.errors import Corrupt
from millrace.instruments import Gauges
from millrace.rpc.answers import (
    ANSWERS,
    QUEUE_REF,
    SPEC,
    TOPIC_CELL,
)
from millrace.rpc.commands import (
    CLAIM,
    COMMANDS,
    HISTORY,
    SHARD,
)
from millrace.rpc.error_codec import ERROR
from millrace.rpc.fast_codecs import PROOF
from millrace.rpc.field_codecs import (
    BoolCodec,
    ChoiceCodec,
    ConvertedCodec,
    DictCodec,
    FieldCodec,
    IntCodec,
    ListCodec,
    NameCodec,
    OptionalCodec,
    PlainCodec,
    SeqSetCodec,
    StructCodec,
    TextCodec,
    TupleCodec,
    invalid_value,
)
from millrace.rpc.frames import BlobReader, BlobWriter
from millrace.rpc.row_codecs import ArrowBatchCodec, RowListCodec

_PATH_BYTES_MAX = 4096
READABLE_CELL_KINDS = {"cursor": Kind.CURSOR, "stage": Kind.STAGE, "partition": Kind.PARTITION}
"""Kinds of cells that may be read; others are private, such as the catalog with its secret."""


class Submit(msgspec.Struct, frozen=True):
    """Submits a command; see `Engine.ask` and `Engine.transact`."""

    shard: ShardId
    wait_ms: int
    command: Command


class Notify(msgspec.Struct, frozen=True):
    """Submits a command without an answer; see `Engine.tell`."""

    shard: ShardId
    command: Command


class ReadRows(msgspec.Struct, frozen=True):
    """Reads rows; see `Engine.rows`."""

    shard: ShardId
    seqs: BitMap64
    size: int


class ReadLeased(msgspec.Struct, frozen=True):
    """Reads the rows of messages that a lease call holds; see `Engine.rows`."""

    shard: ShardId
    seqs: BitMap64
    size: int
    lease: LeaseId
    history: bytes


class ReadBatches(msgspec.Struct, frozen=True):
    """Streams rows as Arrow batches; see `Engine.batches`."""

    shard: ShardId
    after: int
    upto: int
    pin: int | None
    retain: bool


class Peek(msgspec.Struct, frozen=True):
    """Reads rows without leasing them; see `Engine.peek`."""

    shard: ShardId
    after: int
    upto: int | None
    count: int


class ReadCells(msgspec.Struct, frozen=True):
    """Reads the cells of one kind; see `Engine.cells`."""

    shard: ShardId
    kind: str


class FindNumber(msgspec.Struct, frozen=True):
    """Reads the last number of a producer; see `Engine.producer_number`."""

    shard: ShardId
    producer: str


class FindQueue(msgspec.Struct, frozen=True):
    """Looks up a queue; see `Engine.find_queue`."""

    space: str
    name: str


class ListQueues(msgspec.Struct, frozen=True):
    """Lists the queues of a space; see `Engine.queue_names`."""

    space: str


class FindTopic(msgspec.Struct, frozen=True):
    """Looks up a topic; see `Engine.find_topic`."""

    space: str
    name: str


class ListTopics(msgspec.Struct, frozen=True):
    """Lists the topics of a space; see `Engine.topic_names`."""

    space: str


class ListSubscriptions(msgspec.Struct, frozen=True):
    """Lists the subscriptions of a topic; see `Engine.subscriptions`."""

    shard: ShardId


class ReadTopic(msgspec.Struct, frozen=True):
    """Reads the cell of a topic; see `Engine.topic_cell`."""

    shard: ShardId


class AwaitForwarding(msgspec.Struct, frozen=True):
    """Waits until published rows are forwarded to all queues; see `Engine.arrived`."""

    shard: ShardId
    first: int
    count: int


class ListForwardErrors(msgspec.Struct, frozen=True):
    """Lists subscriptions whose queues refuse messages; see `Engine.trouble`."""

    shard: ShardId


class ReadSpec(msgspec.Struct, frozen=True):
    """Reads the settings of a queue; see `Engine.spec`."""

    shard: ShardId


class ReadMeta(msgspec.Struct, frozen=True):
    """Reads the metadata of a shard; see `Engine.meta`."""

    shard: ShardId


class FindSeq(msgspec.Struct, frozen=True):
    """Finds the first seq at a time; see `Engine.seq_at`."""

    shard: ShardId
    time_ms: int


class FindName(msgspec.Struct, frozen=True):
    """Finds the name of a shard's queue or topic; see `Engine.name_of`."""

    shard: ShardId


class BackUp(msgspec.Struct, frozen=True):
    """Makes a backup in a folder of the engine's machine; see `Millrace.backup`."""

    into: str
    follow: bool


class ReadBackup(msgspec.Struct, frozen=True):
    """Reads the progress of a backup; see `Maintenance.backing_up`."""


class Unfollow(msgspec.Struct, frozen=True):
    """Stops archiving the WAL; see `Millrace.unfollow`."""


class Repair(msgspec.Struct, frozen=True):
    """Repairs quarantined shards; see `Millrace.repair`. An empty path exports nothing."""

    shards: tuple[ShardId, ...]
    export: str
    drop: bool


class ReadHealth(msgspec.Struct, frozen=True):
    """Reads the health report; see `Millrace.health`."""


class ListSpaces(msgspec.Struct, frozen=True):
    """Lists the spaces; see `Engine.spaces`."""


class ReadGauges(msgspec.Struct, frozen=True):
    """Reads the metrics of the engine and its sizes."""


class Heartbeat(msgspec.Struct, frozen=True):
    """Keeps a session alive, without an answer; see `Engine.speak`."""

    shard: ShardId
    claim: Claim


class Cancel(msgspec.Struct, frozen=True):
    """Cancels a call whose caller has gone."""

    id: int


class BatchTaken(msgspec.Struct, frozen=True):
    """Flow control of a stream: its reader has consumed one batch."""

    id: int


Call = (
    Submit
    | Notify
    | ReadRows
    | ReadLeased
    | ReadBatches
    | Peek
    | ReadCells
    | FindNumber
    | FindQueue
    | ListQueues
    | FindTopic
    | ListTopics
    | ListSubscriptions
    | ReadTopic
    | AwaitForwarding
    | ListForwardErrors
    | ReadSpec
    | ReadMeta
    | FindSeq
    | FindName
    | BackUp
    | ReadBackup
    | Unfollow
    | Repair
    | ReadHealth
    | ListSpaces
    | ReadGauges
    | Cancel
    | BatchTaken
    | Heartbeat
)


class ShardName(msgspec.Struct, frozen=True):
    """The queue or topic that a shard belongs to."""

    kind: str
    """`queue`, `topic` or `catalog`."""
    space: str
    name: str
    shards: tuple[ShardId, ...]


class BackupFacts(NamedTuple):
    """Result of a backup."""

    path: str
    first_index: int
    last_index: int
    time_ms: int
    bytes: int


# --- Their shapes ------------------------------------------------------------------------------


class CellsCodec:
    """Cells of one kind, by name."""

    def pack(self, value: object, blobs: BlobWriter) -> list[object]:
        pair = cast("tuple[Kind, dict[str, Cell]]", value)
        kind, cells = pair
        return [int(kind), [[name, encode_cell(cell)] for name, cell in cells.items()]]

    def unpack(self, raw: object, field: str, blobs: BlobReader) -> dict[str, Cell]:
        kind, cells = cast("tuple[int, list[tuple[str, bytes]]]", raw)
        try:
            return {name: decode_cell(Kind(kind), data) for name, data in cells}
        except Corrupt as error:
            raise invalid_value(raw, field, "cells") from error


class PackedStructCodec:
    """A positional struct, encoded on its own."""

    def __init__(self, kind: type[msgspec.Struct]) -> None:
        self._decoder = msgpack_decoder(kind)

    def pack(self, value: object, blobs: BlobWriter) -> bytes:
        return msgspec.msgpack.encode(value)

    def unpack(self, raw: object, field: str, blobs: BlobReader) -> object:
        if type(raw) is not bytes:
            raise invalid_value(raw, field, "bytes")
        try:
            return self._decoder.decode(raw)
        except msgspec.MsgspecError as error:
            raise invalid_value(raw, field, "what it should be") from error


class ForwardOutcomeCodec(PlainCodec):
    """Outcome of forwarding: a seq or a word."""

    def unpack(self, raw: object, field: str, blobs: BlobReader) -> int | str:
        if type(raw) is int or type(raw) is str:
            return raw
        raise invalid_value(raw, field, "what became of a message")


class TimeCodec:
    """A time in milliseconds, or None."""

    def pack(self, value: object, blobs: BlobWriter) -> int | None:
        time = cast("datetime | None", value)
        return None if time is None else round(time.timestamp() * 1000)

    def unpack(self, raw: object, field: str, blobs: BlobReader) -> datetime | None:
        return None if type(raw) is not int else datetime.fromtimestamp(raw / 1000, UTC)


_NUMBER = IntCodec()
_NAME = NameCodec()
_TOPIC = NameCodec(most=limits.TOPIC_NAME_CHARS_MAX)
_FLAG = BoolCodec()
_LONG = TextCodec(_PATH_BYTES_MAX)


def _names(of: NameCodec) -> FieldCodec:
    return ConvertedCodec(
        ListCodec(of, limits.QUEUES_MAX),
        lambda names: names,
        lambda names: list(cast("tuple[str, ...]", names)),
    )


_NAMES = _names(_NAME)
_NONE = OptionalCodec(_NUMBER)
_PATH = ConvertedCodec(_LONG, str, lambda text: Path(cast("str", text)))
_HEALTH = TupleCodec(
    OptionalCodec(_LONG),
    _NUMBER,
    TimeCodec(),
    ListCodec(_LONG, limits.QUEUES_MAX),
    OptionalCodec(_PATH),
    _NUMBER,
    _FLAG,
    OptionalCodec(_LONG),
)
_NAMED = StructCodec(
    ShardName,
    ChoiceCodec("queue", "topic", "catalog"),
    NameCodec(needed=False),
    NameCodec(needed=False, most=limits.TOPIC_NAME_CHARS_MAX),
    ListCodec(SHARD, limits.SHARDS_MAX),
)


class CallCodec(NamedTuple):
    """Number and codecs of a kind of call and its answer."""

    number: int
    form: StructCodec
    answer: FieldCodec


_FORMS: tuple[tuple[int, StructCodec, FieldCodec], ...] = (
    (1, StructCodec(Submit, SHARD, IntCodec(0, limits.LEASE_WAIT_MS_MAX), COMMANDS), ANSWERS),
    (2, StructCodec(Notify, SHARD, COMMANDS), _NONE),
    (
        3,
        StructCodec(ReadRows, SHARD, SeqSetCodec(), IntCodec(1, limits.LEASE_BYTES_MAX)),
        RowListCodec(),
    ),
    (
        4,
        StructCodec(ReadBatches, SHARD, _NUMBER, _NUMBER, OptionalCodec(_NUMBER), _FLAG),
        ArrowBatchCodec(),
    ),
    (
        5,
        StructCodec(
            Peek, SHARD, _NUMBER, OptionalCodec(_NUMBER), IntCodec(1, limits.PEEK_MESSAGES_MAX)
        ),
        RowListCodec(),
    ),
    (6, StructCodec(ReadCells, SHARD, ChoiceCodec(*READABLE_CELL_KINDS)), CellsCodec()),
    (7, StructCodec(FindNumber, SHARD, _NAME), _NUMBER),
    (8, StructCodec(FindQueue, _NAME, _NAME), OptionalCodec(QUEUE_REF)),
    (9, StructCodec(ListQueues, _NAME), _NAMES),
    (10, StructCodec(FindTopic, _NAME, _TOPIC), OptionalCodec(SHARD)),
    (11, StructCodec(ListTopics, _NAME), _names(_TOPIC)),
    (
        12,
        StructCodec(ListSubscriptions, SHARD),
        DictCodec(_NUMBER, PackedStructCodec(SubscriptionCell), limits.SUBSCRIPTIONS_MAX),
    ),
    (13, StructCodec(ReadTopic, SHARD), TOPIC_CELL),
    (
        14,
        StructCodec(AwaitForwarding, SHARD, IntCodec(1), IntCodec(1, limits.PUBLISH_MESSAGES_MAX)),
        DictCodec(
            _NAME,
            ConvertedCodec(
                ListCodec(ForwardOutcomeCodec(), limits.PUBLISH_MESSAGES_MAX),
                lambda fates: fates,
                lambda fates: list(cast("tuple[object, ...]", fates)),
            ),
            limits.SUBSCRIPTIONS_MAX,
        ),
    ),
    (
        15,
        StructCodec(ListForwardErrors, SHARD),
        DictCodec(_NUMBER, ERROR, limits.SUBSCRIPTIONS_MAX),
    ),
    (16, StructCodec(ReadSpec, SHARD), SPEC),
    (17, StructCodec(ReadMeta, SHARD), PackedStructCodec(ShardMeta)),
    (18, StructCodec(FindSeq, SHARD, _NUMBER), _NUMBER),
    (19, StructCodec(FindName, SHARD), OptionalCodec(_NAMED)),
    (20, StructCodec(BackUp, _LONG, _FLAG), TupleCodec(_LONG, _NUMBER, _NUMBER, _NUMBER, _NUMBER)),
    (21, StructCodec(Unfollow), _FLAG),
    (22, StructCodec(ReadHealth), _HEALTH),
    (23, StructCodec(Cancel, _NUMBER), _NONE),
    (24, StructCodec(BatchTaken, _NUMBER), _NONE),
    (25, StructCodec(ListSpaces), _NAMES),
    (26, StructCodec(ReadGauges), PackedStructCodec(Gauges)),
    (27, StructCodec(Heartbeat, SHARD, CLAIM), _NONE),
    (
        28,
        StructCodec(
            ReadLeased, SHARD, SeqSetCodec(), IntCodec(1, limits.LEASE_BYTES_MAX), PROOF, HISTORY
        ),
        RowListCodec(),
    ),
    (29, StructCodec(ReadBackup), TupleCodec(_NUMBER, _NUMBER)),
    (
        30,
        StructCodec(Repair, ListCodec(SHARD, limits.SHARDS_MAX, least=1), _LONG, _FLAG),
        TupleCodec(_NUMBER, _NUMBER, _NUMBER, _FLAG),
    ),
)
CALLS = {form.kind: CallCodec(number, form, answer) for number, form, answer in _FORMS}
CALLS_BY_NUMBER = {entry.number: entry for entry in CALLS.values()}
