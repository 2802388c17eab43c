"""Every answer that is sent to another process, and its number.

Numbers are part of the format (`docs/formats/wire.md`): append, never reorder.
"""

from __future__ import annotations

from typing import cast

import msgspec
from pyroaring import BitMap64

from millrace import limits
from millrace.core.across_commands import LeasedAcross, Vector
from millrace.core.answers import Explanation, Leased, Outcome, Published, QueueRef, SnapshotRef
from millrace.core.holder import Holder, Holders
from millrace.core.model import CatalogCell, CursorCell, LeaseId, Position, QueueSpec, Seq
from millrace.core.receipt import PROOF_BYTES, Proved
from millrace.core.session_commands import Delivered, Delivery, Granted, SessionRef
from millrace.core.topic_cells import TopicCell
from millrace.core.topic_commands import Forwarded, Subscribed, TopicRef
from millrace.decoding import msgpack_decoder
from millrace.errors import Refused
from millrace.rpc.commands import (
    CLAIM,
    CURSOR_CLAIM,
    HISTORY,
    NOTES,
    POSITION,
    SHARD,
)
from millrace.rpc.failures import FAILURE
from millrace.rpc.field_codecs import (
    Choice,
    Data,
    Flag,
    Form,
    Many,
    OneOf,
    Optional,
    Record,
    Seqs,
    Shape,
    Table,
    Text,
    Whole,
    wrong,
)
from millrace.rpc.frames import Blobs, Pieces

INSIDE = frozenset({CatalogCell, Forwarded})
"""Answers to what an engine asks itself."""

_ROWS_MAX = limits.IN_FLIGHT_MAX
_NUMBER = Whole()
_FLAG = Flag()
_SEQS = Seqs(_ROWS_MAX, least=0)
_TEXT = Text(limits.FILTER_BYTES_MAX)
_COUNTS = Table(_NUMBER, Record(_NUMBER, _NUMBER), _ROWS_MAX)
_FIRSTS = Table(_NUMBER, _NUMBER, _ROWS_MAX)
_FAILURES = Table(_NUMBER, FAILURE, _ROWS_MAX)
_TURNS = Many(_SEQS, _ROWS_MAX)


class PublishedShape:
    """Where rows are."""

    def pack(self, value: object, blobs: Blobs) -> list[object]:
        answer = cast("Published", value)
        return [answer.first, answer.count, answer.repeated, answer.seqs]

    def unpack(self, raw: object, field: str, blobs: Pieces) -> Published:
        if type(raw) is not list or len(raw) != 4:
            raise wrong(raw, field, "where rows are")
        first, count, repeated, seqs = raw
        return Published(cast("Seq | None", first), count, repeated, tuple(seqs))


class Given:
    """The number of a lease call that was handed out, with its history and proof."""

    def pack(self, value: object, blobs: Blobs) -> list[object]:
        lease = cast("Proved", value)
        return [int(lease), lease.history, lease.proof]

    def unpack(self, raw: object, field: str, blobs: Pieces) -> Proved:
        if type(raw) is list and len(raw) == 3:
            number, history, proof = raw
            if type(number) is int and type(proof) is bytes and len(proof) == PROOF_BYTES:
                return Proved.of(number, HISTORY.unpack(history, "history", blobs), proof)
        raise wrong(raw, field, "a lease call with its proof")


_GIVEN = Given()


class LeasedShape:
    """What a lease call handed out."""

    def pack(self, value: object, blobs: Blobs) -> list[object]:
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

    def unpack(self, raw: object, field: str, blobs: Pieces) -> Leased:
        if type(raw) is not list or len(raw) != 7:
            raise wrong(raw, field, "what a lease call handed out")
        lease, seqs, deadline_ms, counts, turns, bounded, firsts = raw
        found = _COUNTS.unpack(counts, "counts", blobs) if counts is not None else {}
        order = _TURNS.unpack(turns, "turns", blobs) if turns is not None else ()
        return Leased(
            LeaseId(0 if lease is None else _GIVEN.unpack(lease, "lease", blobs)),
            _SEQS.unpack(seqs, "seqs", blobs),
            _NUMBER.unpack(deadline_ms, "deadline_ms", blobs),
            cast("dict[int, tuple[int, int]]", found),
            cast("tuple[BitMap64, ...]", order),
            _FLAG.unpack(bounded, "bounded", blobs),
            cast(
                "dict[int, int]",
                _FIRSTS.unpack(firsts, "firsts", blobs) if firsts is not None else {},
            ),
        )


class OutcomeShape:
    """What became of the messages of a lease call."""

    def pack(self, value: object, blobs: Blobs) -> list[object]:
        answer = cast("Outcome", value)
        refused = _FAILURES.pack(answer.refused, blobs) if answer.refused else None
        return [_SEQS.pack(answer.done, blobs), refused, answer.deadline_ms]

    def unpack(self, raw: object, field: str, blobs: Pieces) -> Outcome:
        if type(raw) is not list or len(raw) != 3:
            raise wrong(raw, field, "what became of messages")
        done, refused, deadline_ms = raw
        found = _FAILURES.unpack(refused, "refused", blobs) if refused is not None else {}
        return Outcome(
            _SEQS.unpack(done, "done", blobs), cast("dict[int, Refused]", found), deadline_ms
        )


_LEASED = LeasedShape()
_SNAPSHOT = Form(
    SnapshotRef,
    _NUMBER,
    Data(0, 16),
    _NUMBER,
    _FLAG,
    _NUMBER,
    _NUMBER,
    _NUMBER,
    CURSOR_CLAIM,
)
TOPIC_CELL = Form(TopicCell, _NUMBER, _NUMBER, NOTES)
_HOLDER = Form(Holder, _TEXT, _TEXT, _NUMBER, _NUMBER, _NUMBER, Whole(-(2**63)), _NUMBER, _FLAG)
_DELIVERY = Form(Delivery, _GIVEN, Table(_NUMBER, _NUMBER, _ROWS_MAX), _NUMBER, _COUNTS)


class SpecShape:
    """The settings of a queue; fields that a newer version has appended say nothing here."""

    def pack(self, value: object, blobs: Blobs) -> object:
        return msgspec.msgpack.encode(value)

    def unpack(self, raw: object, field: str, blobs: Pieces) -> QueueSpec:
        if type(raw) is not bytes:
            raise wrong(raw, field, "settings")
        try:
            return _SPEC.decode(raw)
        except msgspec.MsgspecError as error:
            raise wrong(raw, field, "settings") from error


_SPEC = msgpack_decoder(QueueSpec)
SPEC = SpecShape()
QUEUE_REF = Form(
    QueueRef,
    Many(SHARD, limits.SHARDS_MAX),
    _FLAG,
    Choice("key", "group", "spread"),
    Whole(0, 2**64 - 1),
)
_PART_ANSWERS: dict[int, tuple[type, Shape]] = {
    1: (Published, PublishedShape()),
    3: (Outcome, OutcomeShape()),
    4: (
        CursorCell,
        Form(
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
    7: (int, Whole(-(2**63))),
    8: (bool, _FLAG),
    22: (Position, POSITION),
}
_ALONE: dict[int, tuple[type, Shape]] = {
    2: (Leased, _LEASED),
    9: (type(None), Optional(_NUMBER)),
    10: (LeasedAcross, Form(LeasedAcross, Many(Record(SHARD, _LEASED), limits.SHARDS_MAX), _FLAG)),
    11: (Vector, Form(Vector, _NUMBER, Many(_SNAPSHOT, limits.SHARDS_MAX))),
    12: (QueueRef, QUEUE_REF),
    13: (
        Explanation,
        Form(
            Explanation,
            _NUMBER,
            _TEXT,
            Optional(_NUMBER),
            Optional(_NUMBER),
            _NUMBER,
            _NUMBER,
            Optional(_NUMBER),
            Optional(_NUMBER),
            Optional(_NUMBER),
            _NUMBER,
        ),
    ),
    14: (
        SessionRef,
        Form(SessionRef, CLAIM, _NUMBER, _FLAG, _NUMBER, _NUMBER, _NUMBER, _TEXT),
    ),
    15: (Delivered, Form(Delivered, Many(_DELIVERY, _ROWS_MAX), _NUMBER)),
    16: (Granted, Form(Granted, _NUMBER, _NUMBER)),
    17: (TopicRef, Form(TopicRef, SHARD, _FLAG)),
    18: (TopicCell, TOPIC_CELL),
    19: (Subscribed, Form(Subscribed, _NUMBER, _NUMBER, _FLAG)),
    20: (
        Holders,
        Form(Holders, _NUMBER, _NUMBER, Many(_HOLDER, _ROWS_MAX), _NUMBER, _NUMBER, _NUMBER),
    ),
    21: (tuple, Many(OneOf(_PART_ANSWERS, "an answer"), limits.TRANSACTION_PARTS_MAX)),
}

ANSWERS = OneOf(_PART_ANSWERS | _ALONE, "an answer")
"""Every answer to a command that another process may ask."""
