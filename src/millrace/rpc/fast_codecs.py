"""The shapes of what is sent most: a message, a publish, a lease call and its end.

They do what a `Form` would do, with fewer steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from millrace import limits
from millrace.core import bounds, check
from millrace.core.block import Block
from millrace.core.commands import Aside, Numbered, Publish, PublishStaged, Settle, Stage
from millrace.core.leased_commands import Life
from millrace.core.model import Headers, LeaseId, Message, Row
from millrace.core.receipt import PROOF_BYTES, Proved
from millrace.errors import Forged, Invalid
from millrace.rpc.field_codecs import (
    Choice,
    Flag,
    Form,
    IdText,
    Many,
    Name,
    Optional,
    Record,
    Rows,
    Seqs,
    Whole,
    listed_of,
    wrong,
)
from millrace.rpc.frames import NO_BLOBS, Blobs, Pieces

HISTORY_BYTES = 16


class MessageShape:
    """A message, checked as one that a program hands over."""

    def pack(self, value: object, blobs: Blobs) -> list[object]:
        message = cast("Message", value)
        if not blobs.takes_inline(weigh((message,))):
            return [_ROWS.pack(Block.of_messages([message]), blobs)]
        return [message.body, message.key, message.headers]

    def unpack(self, raw: object, field: str, blobs: Pieces) -> Message:
        if type(raw) is list and len(raw) == 1:
            return _only(_ROWS.unpack(raw[0], field, blobs), field)
        if type(raw) is not list or len(raw) != 3:
            raise wrong(raw, field, "a message")
        body, key, headers = raw
        if type(body) is bytes and key is None and type(headers) is list and not headers:
            # A head, and what is in it, is smaller than the largest body.
            return Message(body)
        if body is not None and type(body) is not bytes:
            raise wrong(body, "body", "bytes")
        if key is not None and type(key) is not bytes:
            raise wrong(key, "key", "bytes")
        return check.message(body, key, pairs_of(headers, field))


def pairs_of(raw: object, field: str) -> Headers:
    """Headers as they stand in a frame."""
    pairs: list[tuple[str, bytes]] = []
    for pair in listed_of(raw, "headers", limits.HEADERS_MAX):
        if type(pair) is not list or len(pair) != 2:
            raise wrong(pair, "headers", "(name, value)")
        name, value = pair
        if type(name) is not str or type(value) is not bytes:
            raise wrong(pair, "headers", "(name, value)")
        pairs.append((name, value))
    return tuple(pairs)


NUMBERED = Form(
    Numbered,
    Name(),
    Whole(1),
    Choice("dense", "rising", "range"),
    Whole(),
    Many(Record(Whole(), Whole()), bounds.SPANS_MAX),
)
_ASIDE = Many(
    Form(
        Aside,
        Whole(0, limits.PUBLISH_MESSAGES_MAX),
        Whole(1, limits.PUBLISH_MESSAGES_MAX),
        Whole(0, limits.PRIORITY_MAX),
        Optional(Whole(0, limits.DELAY_MS_MAX)),
    ),
    limits.PUBLISH_MESSAGES_MAX,
)
_LIVES = Many(
    Form(
        Life,
        Whole(0, limits.PUBLISH_MESSAGES_MAX),
        Whole(1, limits.PUBLISH_MESSAGES_MAX),
        Whole(1, bounds.TTL_MS_MAX),
    ),
    limits.PUBLISH_MESSAGES_MAX,
)
_IDS = Many(Optional(IdText()), limits.PUBLISH_MESSAGES_MAX)
_ROWS = Rows(least=0)
_FLAG = Flag()
_NAME = Name()
_STAGES = Many(_NAME, limits.STAGES_MAX)
_CALL = Whole(0, 2**31 - 1)


class NumberedShape:
    """Producer and number, which must fit each other."""

    def pack(self, value: object, blobs: Blobs) -> object:
        return NUMBERED.pack(value, blobs)

    def unpack(self, raw: object, field: str, blobs: Pieces) -> Numbered:
        found = cast("Numbered", NUMBERED.unpack(raw, field, blobs))
        if found.spans:
            return _spanned(found)
        after = found.after if found.mode == "range" else None
        if found.after and after is None:
            raise Invalid("after goes with mode='range', and only with it", field="after")
        checked = check.numbered(found.producer, found.number, found.mode, after)
        assert checked is not None
        return checked


def _spanned(found: Numbered) -> Numbered:
    checked = check.numbered(found.producer, None, found.mode, None, found.spans)
    if checked is None or checked != found:
        raise Invalid("spans do not come to number, mode and after", field="spans")
    return checked


class StageShape:
    """Rows that are staged, which may be none of a shard, and what is said of some of them."""

    def pack(self, value: object, blobs: Blobs) -> list[object]:
        command = cast("Stage", value)
        return [
            command.stage,
            _ROWS.pack(command.rows, blobs),
            _ASIDE.pack(command.aside, blobs),
            _LIVES.pack(command.lives, blobs),
            command.number,
        ]

    def unpack(self, raw: object, field: str, blobs: Pieces) -> Stage:
        if type(raw) is not list or len(raw) != 5:
            raise wrong(raw, field, "rows to be staged")
        rows = _ROWS.unpack(raw[1], "rows", blobs)
        aside = cast("tuple[Aside, ...]", _ASIDE.unpack(raw[2], "aside", blobs))
        lives = cast("tuple[Life, ...]", _LIVES.unpack(raw[3], "lives", blobs))
        _check_apart(aside, "aside", rows.count)
        _check_apart(lives, "lives", rows.count)
        number = _CALL.unpack(raw[4], "number", blobs)
        return Stage(_NAME.unpack(raw[0], "stage", blobs), rows, aside, lives, number)


class PublishStagedShape:
    """Stages that are published; of a number nothing may have come."""

    def __init__(self) -> None:
        self._form = Form(PublishStaged, _STAGES, Optional(NumberedShape()))

    def pack(self, value: object, blobs: Blobs) -> object:
        return self._form.pack(value, blobs)

    def unpack(self, raw: object, field: str, blobs: Pieces) -> PublishStaged:
        found = cast("PublishStaged", self._form.unpack(raw, field, blobs))
        check.stages(found.stages, found.numbered)
        return found


class PublishShape:
    """A publish: small messages stand in the head, others and many are a block."""

    def __init__(self) -> None:
        self._message = MessageShape()
        self._numbered = NumberedShape()

    def pack(self, value: object, blobs: Blobs) -> list[object]:
        command = cast("Publish", value)
        rows = command.rows
        if not isinstance(rows, Block) and not blobs.takes_inline(weigh(rows)):
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

    def unpack(self, raw: object, field: str, blobs: Pieces) -> Publish:
        if type(raw) is not list or len(raw) not in (2, 6):
            raise wrong(raw, field, "a publish")
        rows = self._rows(raw[0], blobs)
        by_body = raw[1]
        if type(by_body) is not bool:
            raise wrong(by_body, "by_body", "True or False")
        count = rows.count if isinstance(rows, Block) else len(rows)
        if len(raw) == 2:
            if not count:
                raise Invalid("rows are empty; there is nothing to publish", field="rows")
            return Publish(rows, None, (), (), by_body)
        numbered = None if raw[2] is None else self._numbered.unpack(raw[2], "numbered", blobs)
        if not count and numbered is None:
            raise Invalid("rows are empty; there is nothing to publish", field="rows")
        aside = cast("tuple[Aside, ...]", _ASIDE.unpack(raw[3], "aside", blobs))
        ids = cast("tuple[str | None, ...]", _IDS.unpack(raw[4], "ids", blobs))
        lives = cast("tuple[Life, ...]", _LIVES.unpack(raw[5], "lives", blobs))
        _check_apart(aside, "aside", count)
        _check_apart(lives, "lives", count)
        if ids and len(ids) != count:
            raise Invalid(f"there are {len(ids)} ids for {count} rows", field="ids")
        return Publish(rows, numbered, aside, ids, by_body, lives)

    def _rows(self, raw: object, blobs: Pieces) -> Block | tuple[Message, ...]:
        if type(raw) is not list or not raw:
            raise wrong(raw, "rows", "messages")
        if type(raw[0]) is int:
            return _ROWS.unpack(raw, "rows", blobs)
        rows: list[Message] = []
        last: object = []
        pairs: Headers = ()
        for one in listed_of(raw, "rows", limits.WIRE_CALLS_MAX):
            if type(one) is list and len(one) == 3 and type(one[0]) is bytes and one[1] is None:
                # Mostly a body, and the headers of the message before.
                if one[2] != last:
                    last, pairs = one[2], check.headers(pairs_of(one[2], "rows"))
                rows.append(Message(one[0], None, pairs))
            else:
                rows.append(self._message.unpack(one, "rows", NO_BLOBS))
        return tuple(rows)


def weigh(messages: Sequence[Message | Row]) -> int:
    """Bytes of bodies, keys and headers; mostly messages have the headers of the one before."""
    size = beside = 0
    headers: Headers = ()
    for message in messages:
        if message.headers is not headers:
            headers = message.headers
            beside = sum(len(name) + len(value) for name, value in headers)
        size += len(message.body or b"") + len(message.key or b"") + beside
    return size


def _only(block: Block, field: str) -> Message:
    if block.count != 1:
        raise Invalid(f"{field} has {block.count} messages, not one", field=field)
    row = block.row(0, 0, 0)
    return Message(row.body, row.key, row.headers)


def _check_apart(runs: tuple[Aside, ...] | tuple[Life, ...], field: str, count: int) -> None:
    """Runs of rows are named in their order, none twice, and none that is not there."""
    end = 0
    for run in runs:
        if run.at < end or run.at + run.count > count:
            raise Invalid(f"{field} names rows twice, or rows that are not there", field=field)
        end = run.at + run.count


class Proof:
    """The number of a lease call or session, with its proof; whether it holds is judged later."""

    def pack(self, value: object, blobs: Blobs) -> list[object]:
        if not isinstance(value, Proved):
            raise Forged("this lease was not made by the engine that it is shown to", field="lease")
        return [int(value), value.proof]

    def unpack(self, raw: object, field: str, blobs: Pieces) -> Proved:
        if type(raw) is list and len(raw) == 2:
            number, proof = raw
            if (
                type(number) is int
                and 0 < number < 2**63
                and type(proof) is bytes
                and len(proof) == PROOF_BYTES
            ):
                return Proved.of(number, b"", proof)
        raise wrong(raw, field, "the number of a lease call, and its proof")


PROOF = Proof()
_SEQS = Seqs()


class SettleShape:
    """The end of messages of one lease call."""

    def pack(self, value: object, blobs: Blobs) -> list[object]:
        command = cast("Settle", value)
        lease = PROOF.pack(command.lease, blobs)
        seqs = _SEQS.pack(command.seqs, blobs)
        return [lease, seqs, command.history, command.on_time, command.any_delivery]

    def unpack(self, raw: object, field: str, blobs: Pieces) -> Settle:
        if type(raw) is not list or len(raw) != 5:
            raise wrong(raw, field, "a settle")
        history, on_time, any_delivery = raw[2], raw[3], raw[4]
        if type(history) is not bytes or len(history) != HISTORY_BYTES:
            raise wrong(history, "history", "16 bytes")
        if type(on_time) is not bool:
            raise wrong(on_time, "on_time", "True or False")
        if type(any_delivery) is not bool:
            raise wrong(any_delivery, "any_delivery", "True or False")
        lease = PROOF.unpack(raw[0], "lease", blobs)
        return Settle(
            cast("LeaseId", lease),
            _SEQS.unpack(raw[1], "seqs", blobs),
            history,
            on_time,
            any_delivery,
        )
