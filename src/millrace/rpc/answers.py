"""Codecs of all answers that are sent to another process, with their numbers.

Numbers are part of the format (`docs/formats/wire.md`): append, never reorder.
"""

from __future__ import annotations

from typing import cast

import msgspec
from pyroaring import BitMap64

from millrace import limits
from millrace.core.answers import (
    Explanation,
    Holder,
    Holders,
    Leased,
    MultiShardSnapshot,
    Outcome,
    PublishResult,
    QueueRef,
    ShardLeases,
    SnapshotRef,
)
from millrace.core.cells import CatalogCell, CursorCell, TopicCell
from millrace.core.format.receipt import PROOF_BYTES, Proved
from millrace.core.model import CursorPosition, LeaseId, Seq
from millrace.core.session_commands import (
    Granted,
    ReceiveResult,
    SessionDelivery,
    SessionRef,
)
from millrace.core.spec import QueueSpec
from millrace.core.topic_commands import ForwardResult, SubscribeResult, TopicRef
from millrace.decoding import msgpack_decoder
from millrace.errors import Refused
from millrace.rpc.commands import (
    CLAIM,
    CURSOR_CLAIM,
    HISTORY,
    NOTES,
    POSITION,
    QUEUE_NAME,
    SHARD,
)
from millrace.rpc.error_codec import ERROR
from millrace.rpc.field_codecs import (
    BoolCodec,
    BytesCodec,
    ChoiceCodec,
    DictCodec,
    FieldCodec,
    IntCodec,
    ListCodec,
    OptionalCodec,
    SeqSetCodec,
    StructCodec,
    TextCodec,
    TupleCodec,
    UnionCodec,
    invalid_value,
)
from millrace.rpc.frames import BlobReader, BlobWriter

INTERNAL_ANSWERS = frozenset({CatalogCell, ForwardResult})
"""Answers to commands that an engine submits to itself."""

_ROWS_MAX = limits.IN_FLIGHT_MAX
_NUMBER = IntCodec()
_FLAG = BoolCodec()
_SEQS = SeqSetCodec(_ROWS_MAX, least=0)
_TEXT = TextCodec(limits.FILTER_BYTES_MAX)
_COUNTS = DictCodec(_NUMBER, TupleCodec(_NUMBER, _NUMBER), _ROWS_MAX)
_FIRSTS = DictCodec(_NUMBER, _NUMBER, _ROWS_MAX)
_FAILURES = DictCodec(_NUMBER, ERROR, _ROWS_MAX)
_TURNS = ListCodec(_SEQS, _ROWS_MAX)


class PublishedCodec:
    """Seqs of published rows."""

    def pack(self, value: object, blobs: BlobWriter) -> list[object]:
        answer = cast("PublishResult", value)
        return [answer.first, answer.count, answer.repeated, answer.seqs]

    def unpack(self, raw: object, field: str, blobs: BlobReader) -> PublishResult:
        if type(raw) is not list or len(raw) != 4:
            raise invalid_value(raw, field, "where rows are")
        first, count, repeated, seqs = raw
        return PublishResult(cast("Seq | None", first), count, repeated, tuple(seqs))


class IssuedLeaseCodec:
    """An issued lease number with its history and proof."""

    def pack(self, value: object, blobs: BlobWriter) -> list[object]:
        lease = cast("Proved", value)
        return [int(lease), lease.history, lease.proof]

    def unpack(self, raw: object, field: str, blobs: BlobReader) -> Proved:
        if type(raw) is list and len(raw) == 3:
            number, history, proof = raw
            if type(number) is int and type(proof) is bytes and len(proof) == PROOF_BYTES:
                return Proved.of(number, HISTORY.unpack(history, "history", blobs), proof)
        raise invalid_value(raw, field, "a lease call with its proof")


_GIVEN = IssuedLeaseCodec()


class LeasedCodec:
    """Answer to a lease call."""

    def pack(self, value: object, blobs: BlobWriter) -> list[object]:
        answer = cast("Leased", value)
        return [
            _GIVEN.pack(answer.lease, blobs) if answer.lease else None,
            _SEQS.pack(answer.seqs, blobs),
            answer.deadline_ms,
            _COUNTS.pack(answer.counts, blobs) if answer.counts else None,
            _TURNS.pack(answer.turns, blobs) if answer.turns else None,
            answer.bounded,
            _FIRSTS.pack(answer.firsts, blobs) if answer.firsts else None,
        ]

    def unpack(self, raw: object, field: str, blobs: BlobReader) -> Leased:
        if type(raw) is not list or len(raw) != 7:
            raise invalid_value(raw, field, "what a lease call handed out")
        lease, seqs, deadline_ms, counts, turns, bounded, firsts = raw
        delivery_counts = _COUNTS.unpack(counts, "counts", blobs) if counts is not None else {}
        turn_sets = _TURNS.unpack(turns, "turns", blobs) if turns is not None else ()
        return Leased(
            LeaseId(0 if lease is None else _GIVEN.unpack(lease, "lease", blobs)),
            _SEQS.unpack(seqs, "seqs", blobs),
            _NUMBER.unpack(deadline_ms, "deadline_ms", blobs),
            cast("dict[int, tuple[int, int]]", delivery_counts),
            cast("tuple[BitMap64, ...]", turn_sets),
            _FLAG.unpack(bounded, "bounded", blobs),
            cast(
                "dict[int, int]",
                _FIRSTS.unpack(firsts, "firsts", blobs) if firsts is not None else {},
            ),
        )


class OutcomeCodec:
    """Outcome of settling, releasing, discarding or extending messages of a lease."""

    def pack(self, value: object, blobs: BlobWriter) -> list[object]:
        answer = cast("Outcome", value)
        refused = _FAILURES.pack(answer.refused, blobs) if answer.refused else None
        return [_SEQS.pack(answer.done, blobs), refused, answer.deadline_ms]

    def unpack(self, raw: object, field: str, blobs: BlobReader) -> Outcome:
        if type(raw) is not list or len(raw) != 3:
            raise invalid_value(raw, field, "what became of messages")
        done, refused, deadline_ms = raw
        errors = _FAILURES.unpack(refused, "refused", blobs) if refused is not None else {}
        return Outcome(
            _SEQS.unpack(done, "done", blobs), cast("dict[int, Refused]", errors), deadline_ms
        )


_LEASED = LeasedCodec()
_SNAPSHOT = StructCodec(
    SnapshotRef,
    _NUMBER,
    BytesCodec(0, 16),
    _NUMBER,
    _FLAG,
    _NUMBER,
    _NUMBER,
    _NUMBER,
    CURSOR_CLAIM,
)
TOPIC_CELL = StructCodec(TopicCell, _NUMBER, _NUMBER, NOTES)
_HOLDER = StructCodec(
    Holder, _TEXT, _TEXT, _NUMBER, _NUMBER, _NUMBER, IntCodec(-(2**63)), _NUMBER, _FLAG
)
_DELIVERY = StructCodec(
    SessionDelivery, _GIVEN, DictCodec(_NUMBER, _NUMBER, _ROWS_MAX), _NUMBER, _COUNTS
)


class QueueSpecCodec:
    """Settings of a queue; fields that a newer version has appended are ignored."""

    def pack(self, value: object, blobs: BlobWriter) -> object:
        return msgspec.msgpack.encode(value)

    def unpack(self, raw: object, field: str, blobs: BlobReader) -> QueueSpec:
        if type(raw) is not bytes:
            raise invalid_value(raw, field, "settings")
        try:
            return _SPEC.decode(raw)
        except msgspec.MsgspecError as error:
            raise invalid_value(raw, field, "settings") from error


_SPEC = msgpack_decoder(QueueSpec)
SPEC = QueueSpecCodec()
QUEUE_REF = StructCodec(
    QueueRef,
    ListCodec(SHARD, limits.SHARDS_MAX),
    _FLAG,
    ChoiceCodec("key", "group", "spread"),
    IntCodec(0, 2**64 - 1),
    QUEUE_NAME,
    added=1,
)
_PART_ANSWERS: dict[int, tuple[type, FieldCodec]] = {
    1: (PublishResult, PublishedCodec()),
    3: (Outcome, OutcomeCodec()),
    4: (
        CursorCell,
        StructCodec(
            CursorCell,
            _NUMBER,
            _FLAG,
            POSITION,
            _NUMBER,
            _NUMBER,
            _FLAG,
            _NUMBER,
            _FLAG,
            CURSOR_CLAIM,
        ),
    ),
    5: (SnapshotRef, _SNAPSHOT),
    6: (QueueSpec, SPEC),
    7: (int, IntCodec(-(2**63))),
    8: (bool, _FLAG),
    22: (CursorPosition, POSITION),
}
_ALONE: dict[int, tuple[type, FieldCodec]] = {
    2: (Leased, _LEASED),
    9: (type(None), OptionalCodec(_NUMBER)),
    10: (
        ShardLeases,
        StructCodec(ShardLeases, ListCodec(TupleCodec(SHARD, _LEASED), limits.SHARDS_MAX), _FLAG),
    ),
    11: (
        MultiShardSnapshot,
        StructCodec(MultiShardSnapshot, _NUMBER, ListCodec(_SNAPSHOT, limits.SHARDS_MAX)),
    ),
    12: (QueueRef, QUEUE_REF),
    13: (
        Explanation,
        StructCodec(
            Explanation,
            _NUMBER,
            _TEXT,
            OptionalCodec(_NUMBER),
            OptionalCodec(_NUMBER),
            _NUMBER,
            _NUMBER,
            OptionalCodec(_NUMBER),
            OptionalCodec(_NUMBER),
            OptionalCodec(_NUMBER),
            _NUMBER,
        ),
    ),
    14: (
        SessionRef,
        StructCodec(SessionRef, CLAIM, _NUMBER, _FLAG, _NUMBER, _NUMBER, _NUMBER, _TEXT),
    ),
    15: (ReceiveResult, StructCodec(ReceiveResult, ListCodec(_DELIVERY, _ROWS_MAX), _NUMBER)),
    16: (Granted, StructCodec(Granted, _NUMBER, _NUMBER)),
    17: (TopicRef, StructCodec(TopicRef, SHARD, _FLAG)),
    18: (TopicCell, TOPIC_CELL),
    19: (SubscribeResult, StructCodec(SubscribeResult, _NUMBER, _NUMBER, _FLAG)),
    20: (
        Holders,
        StructCodec(
            Holders, _NUMBER, _NUMBER, ListCodec(_HOLDER, _ROWS_MAX), _NUMBER, _NUMBER, _NUMBER
        ),
    ),
    21: (tuple, ListCodec(UnionCodec(_PART_ANSWERS, "an answer"), limits.TRANSACTION_PARTS_MAX)),
}

ANSWERS = UnionCodec(_PART_ANSWERS | _ALONE, "an answer")
"""Codec of every answer to a command that another process may submit."""
