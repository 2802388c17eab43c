"""Hand-written codecs of the most frequent values: messages, publishes, lease proofs and settles.

They do the work of a `StructCodec` in fewer steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from millrace import limits
from millrace.core import bounds, validate
from millrace.core.commands import (
    ProducerNumber,
    Publish,
    PublishStaged,
    RowSchedule,
    RowTtl,
    Settle,
    Stage,
)
from millrace.core.format.block import Block
from millrace.core.format.receipt import PROOF_BYTES, Proved
from millrace.core.model import (
    Headers,
    LeaseId,
    NewMessage,
    Row,
)
from millrace.errors import Forged, Invalid
from millrace.rpc.field_codecs import (
    BlockCodec,
    BoolCodec,
    ChoiceCodec,
    IdCodec,
    IntCodec,
    ListCodec,
    NameCodec,
    OptionalCodec,
    SeqSetCodec,
    StructCodec,
    TupleCodec,
    check_list,
    invalid_value,
)
from millrace.rpc.frames import NO_BLOBS, BlobReader, BlobWriter

HISTORY_BYTES = 16


class MessageCodec:
    """A message, validated like one from the API."""

    def pack(self, value: object, blobs: BlobWriter) -> list[object]:
        message = cast("NewMessage", value)
        if not blobs.takes_inline(message_bytes((message,))):
            return [_ROWS.pack(Block.of_messages([message]), blobs)]
        return [message.body, message.key, message.headers]

    def unpack(self, raw: object, field: str, blobs: BlobReader) -> NewMessage:
        if type(raw) is list and len(raw) == 1:
            return _only(_ROWS.unpack(raw[0], field, blobs), field)
        if type(raw) is not list or len(raw) != 3:
            raise invalid_value(raw, field, "a message")
        body, key, headers = raw
        if type(body) is bytes and key is None and type(headers) is list and not headers:
            # The size need not be checked: a head is smaller than the largest body.
            return NewMessage(body)
        if body is not None and type(body) is not bytes:
            raise invalid_value(body, "body", "bytes")
        if key is not None and type(key) is not bytes:
            raise invalid_value(key, "key", "bytes")
        return validate.message(body, key, read_headers(headers, field))


def read_headers(raw: object, field: str) -> Headers:
    """Decode and validate headers."""
    pairs: list[tuple[str, bytes]] = []
    for pair in check_list(raw, "headers", limits.HEADERS_MAX):
        if type(pair) is not list or len(pair) != 2:
            raise invalid_value(pair, "headers", "(name, value)")
        name, value = pair
        if type(name) is not str or type(value) is not bytes:
            raise invalid_value(pair, "headers", "(name, value)")
        pairs.append((name, value))
    return tuple(pairs)


NUMBERED = StructCodec(
    ProducerNumber,
    NameCodec(),
    IntCodec(1),
    ChoiceCodec("dense", "rising", "range"),
    IntCodec(),
    ListCodec(TupleCodec(IntCodec(), IntCodec()), bounds.SPANS_MAX),
)
_ASIDE = ListCodec(
    StructCodec(
        RowSchedule,
        IntCodec(0, limits.PUBLISH_MESSAGES_MAX),
        IntCodec(1, limits.PUBLISH_MESSAGES_MAX),
        IntCodec(0, limits.PRIORITY_MAX),
        OptionalCodec(IntCodec(0, limits.DELAY_MS_MAX)),
    ),
    limits.PUBLISH_MESSAGES_MAX,
)
_LIVES = ListCodec(
    StructCodec(
        RowTtl,
        IntCodec(0, limits.PUBLISH_MESSAGES_MAX),
        IntCodec(1, limits.PUBLISH_MESSAGES_MAX),
        IntCodec(1, bounds.TTL_MS_MAX),
    ),
    limits.PUBLISH_MESSAGES_MAX,
)
_IDS = ListCodec(OptionalCodec(IdCodec()), limits.PUBLISH_MESSAGES_MAX)
_ROWS = BlockCodec(least=0)
_FLAG = BoolCodec()
_NAME = NameCodec()
_STAGES = ListCodec(_NAME, limits.STAGES_MAX)
_CALL = IntCodec(0, 2**31 - 1)


class NumberedCodec:
    """Producer and number, validated together."""

    def pack(self, value: object, blobs: BlobWriter) -> object:
        return NUMBERED.pack(value, blobs)

    def unpack(self, raw: object, field: str, blobs: BlobReader) -> ProducerNumber:
        numbered = cast("ProducerNumber", NUMBERED.unpack(raw, field, blobs))
        if numbered.spans:
            return _spanned(numbered)
        after = numbered.after if numbered.mode == "range" else None
        if numbered.after and after is None:
            raise Invalid("after goes with mode='range', and only with it", field="after")
        checked = validate.numbered(numbered.producer, numbered.number, numbered.mode, after)
        assert checked is not None
        return checked


def _spanned(numbered: ProducerNumber) -> ProducerNumber:
    checked = validate.numbered(numbered.producer, None, numbered.mode, None, numbered.spans)
    if checked is None or checked != numbered:
        raise Invalid("spans do not come to number, mode and after", field="spans")
    return checked


class StageCodec:
    """Rows to stage, perhaps none for this shard, with the delays, priorities and TTLs of some."""

    def pack(self, value: object, blobs: BlobWriter) -> list[object]:
        command = cast("Stage", value)
        return [
            command.stage,
            _ROWS.pack(command.rows, blobs),
            _ASIDE.pack(command.aside, blobs),
            _LIVES.pack(command.lives, blobs),
            command.number,
        ]

    def unpack(self, raw: object, field: str, blobs: BlobReader) -> Stage:
        if type(raw) is not list or len(raw) != 5:
            raise invalid_value(raw, field, "rows to be staged")
        rows = _ROWS.unpack(raw[1], "rows", blobs)
        aside = cast("tuple[RowSchedule, ...]", _ASIDE.unpack(raw[2], "aside", blobs))
        lives = cast("tuple[RowTtl, ...]", _LIVES.unpack(raw[3], "lives", blobs))
        _check_apart(aside, "aside", rows.count)
        _check_apart(lives, "lives", rows.count)
        number = _CALL.unpack(raw[4], "number", blobs)
        return Stage(_NAME.unpack(raw[0], "stage", blobs), rows, aside, lives, number)


class PublishStagedCodec:
    """Stages to publish; a numbered publish may have none."""

    def __init__(self) -> None:
        self._form = StructCodec(PublishStaged, _STAGES, OptionalCodec(NumberedCodec()))

    def pack(self, value: object, blobs: BlobWriter) -> object:
        return self._form.pack(value, blobs)

    def unpack(self, raw: object, field: str, blobs: BlobReader) -> PublishStaged:
        command = cast("PublishStaged", self._form.unpack(raw, field, blobs))
        validate.stages(command.stages, command.numbered)
        return command


class PublishCodec:
    """A publish: small messages are in the head; large ones, or many, are a block."""

    def __init__(self) -> None:
        self._message = MessageCodec()
        self._numbered = NumberedCodec()

    def pack(self, value: object, blobs: BlobWriter) -> list[object]:
        command = cast("Publish", value)
        rows = command.rows
        if not isinstance(rows, Block) and not blobs.takes_inline(message_bytes(rows)):
            rows = Block.of_messages(rows)
        packed: object
        if isinstance(rows, Block):
            packed = _ROWS.pack(rows, blobs)
        else:
            packed = [(message.body, message.key, message.headers) for message in rows]
        numbered = command.numbered
        if not (numbered or command.aside or command.ids or command.lives):
            return [packed, command.by_body]
        return [
            packed,
            command.by_body,
            None if numbered is None else self._numbered.pack(numbered, blobs),
            _ASIDE.pack(command.aside, blobs),
            _IDS.pack(command.ids, blobs),
            _LIVES.pack(command.lives, blobs),
        ]

    def unpack(self, raw: object, field: str, blobs: BlobReader) -> Publish:
        if type(raw) is not list or len(raw) not in (2, 6):
            raise invalid_value(raw, field, "a publish")
        rows = self._rows(raw[0], blobs)
        by_body = raw[1]
        if type(by_body) is not bool:
            raise invalid_value(by_body, "by_body", "True or False")
        count = rows.count if isinstance(rows, Block) else len(rows)
        if len(raw) == 2:
            if not count:
                raise Invalid("rows are empty; there is nothing to publish", field="rows")
            return Publish(rows, None, (), (), by_body)
        numbered = None if raw[2] is None else self._numbered.unpack(raw[2], "numbered", blobs)
        if not count and numbered is None:
            raise Invalid("rows are empty; there is nothing to publish", field="rows")
        aside = cast("tuple[RowSchedule, ...]", _ASIDE.unpack(raw[3], "aside", blobs))
        ids = cast("tuple[str | None, ...]", _IDS.unpack(raw[4], "ids", blobs))
        lives = cast("tuple[RowTtl, ...]", _LIVES.unpack(raw[5], "lives", blobs))
        _check_apart(aside, "aside", count)
        _check_apart(lives, "lives", count)
        if ids and len(ids) != count:
            raise Invalid(f"there are {len(ids)} ids for {count} rows", field="ids")
        return Publish(rows, numbered, aside, ids, by_body, lives)

    def _rows(self, raw: object, blobs: BlobReader) -> Block | tuple[NewMessage, ...]:
        if type(raw) is not list or not raw:
            raise invalid_value(raw, "rows", "messages")
        if type(raw[0]) is int:
            return _ROWS.unpack(raw, "rows", blobs)
        rows: list[NewMessage] = []
        last: object = []
        pairs: Headers = ()
        for one in check_list(raw, "rows", limits.WIRE_CALLS_MAX):
            if type(one) is list and len(one) == 3 and type(one[0]) is bytes and one[1] is None:
                # Most messages are a body with the headers of the previous one.
                if one[2] != last:
                    last, pairs = one[2], validate.headers(read_headers(one[2], "rows"))
                rows.append(NewMessage(one[0], None, pairs))
            else:
                rows.append(self._message.unpack(one, "rows", NO_BLOBS))
        return tuple(rows)


def message_bytes(messages: Sequence[NewMessage | Row]) -> int:
    """Return the bytes of bodies, keys and headers; consecutive messages often share headers."""
    size = header_bytes = 0
    headers: Headers = ()
    for message in messages:
        if message.headers is not headers:
            headers = message.headers
            header_bytes = sum(len(name) + len(value) for name, value in headers)
        size += len(message.body or b"") + len(message.key or b"") + header_bytes
    return size


def _only(block: Block, field: str) -> NewMessage:
    if block.count != 1:
        raise Invalid(f"{field} has {block.count} messages, not one", field=field)
    row = block.row(0, 0, 0)
    return NewMessage(row.body, row.key, row.headers)


def _check_apart(
    runs: tuple[RowSchedule, ...] | tuple[RowTtl, ...], field: str, count: int
) -> None:
    """Check that runs of rows are in order, do not overlap, and exist."""
    end = 0
    for run in runs:
        if run.at < end or run.at + run.count > count:
            raise Invalid(f"{field} names rows twice, or rows that are not there", field=field)
        end = run.at + run.count


class ProofCodec:
    """The number of a lease call or session with its proof, which is verified later."""

    def pack(self, value: object, blobs: BlobWriter) -> list[object]:
        if not isinstance(value, Proved):
            raise Forged("this lease was not made by the engine that it is shown to", field="lease")
        return [int(value), value.proof]

    def unpack(self, raw: object, field: str, blobs: BlobReader) -> Proved:
        if type(raw) is list and len(raw) == 2:
            number, proof = raw
            if (
                type(number) is int
                and 0 < number < 2**63
                and type(proof) is bytes
                and len(proof) == PROOF_BYTES
            ):
                return Proved.of(number, b"", proof)
        raise invalid_value(raw, field, "the number of a lease call, and its proof")


PROOF = ProofCodec()
_SEQS = SeqSetCodec()


class SettleCodec:
    """The settling of messages of one lease call."""

    def pack(self, value: object, blobs: BlobWriter) -> list[object]:
        command = cast("Settle", value)
        lease = PROOF.pack(command.lease, blobs)
        seqs = _SEQS.pack(command.seqs, blobs)
        return [lease, seqs, command.history, command.on_time, command.any_delivery]

    def unpack(self, raw: object, field: str, blobs: BlobReader) -> Settle:
        if type(raw) is not list or len(raw) != 5:
            raise invalid_value(raw, field, "a settle")
        history, on_time, any_delivery = raw[2], raw[3], raw[4]
        if type(history) is not bytes or len(history) != HISTORY_BYTES:
            raise invalid_value(history, "history", "16 bytes")
        if type(on_time) is not bool:
            raise invalid_value(on_time, "on_time", "True or False")
        if type(any_delivery) is not bool:
            raise invalid_value(any_delivery, "any_delivery", "True or False")
        lease = PROOF.unpack(raw[0], "lease", blobs)
        return Settle(
            cast("LeaseId", lease),
            _SEQS.unpack(raw[1], "seqs", blobs),
            history,
            on_time,
            any_delivery,
        )
