"""Messages in JSON: text as it is, and bytes that are not UTF-8 in base64."""

from __future__ import annotations

from base64 import b64decode, b64encode
from binascii import Error as BadBase64
from collections.abc import Callable
from datetime import datetime
from typing import Annotated

import msgspec
from msgspec import UNSET, UnsetType

from millrace.client.cursor import Start
from millrace.client.engine import CallbackEngine
from millrace.client.lease import Lease
from millrace.client.message import Message
from millrace.client.position import is_position
from millrace.client.reserved import check_headers
from millrace.core.answers import Leased
from millrace.core.format.message_id import id_of
from millrace.core.model import NEVER_MS, Headers, Place, Row, ShardId
from millrace.errors import Invalid

Seq = int | str
"""A message's seq within its queue; in a queue with several shards a text, `shard:seq`."""

_SAFE_MAX = 2**53 - 1

HeadersIn = dict[str, str] | list[tuple[str, str]]


class MessageIn(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A message to publish."""

    body: str | UnsetType | None = UNSET
    """The body as text. Null, with a key, deletes the key."""
    body_base64: str | UnsetType = UNSET
    """The body in base64, for bytes that are not text."""
    key: str | None = None
    key_base64: str | None = None
    headers: HeadersIn = {}
    """An object, or pairs if order or duplicates matter. Names that begin with `aws.` or
    `millrace-dead-` are reserved for the server; group, priority, delay and ttl are fields.
    """
    group: str | None = None
    """The message group, for queues with an order by group; by default, the key."""
    priority: Annotated[int, msgspec.Meta(ge=0, le=9)] | None = None
    delay: float | None = None
    """Seconds until the message can be delivered."""
    dedup: str | None = None
    """The deduplication id."""
    ttl: float | None = None
    """Seconds until the message expires."""


class MessageOut(msgspec.Struct, frozen=True, omit_defaults=True):
    """A stored message."""

    seq: Seq
    time_ms: int
    """The time of the publish, in milliseconds since 1970."""
    body: str | UnsetType | None = UNSET
    """The body, if it is text in UTF-8; null: the message deletes its key."""
    body_base64: str | UnsetType = UNSET
    key: str | None = None
    key_base64: str | None = None
    headers: HeadersIn = {}
    """An object; pairs if a name occurs twice. Values that are not text are in base64, and their
    names are in `headers_base64`.
    """
    headers_base64: tuple[str, ...] = ()


class LeaseOut(MessageOut, frozen=True, omit_defaults=True, kw_only=True):
    """A message that is leased to the caller until its deadline."""

    receipt: str
    """The receipt for settling, releasing, extending, discarding or replacing the message."""
    deadline_ms: int | None
    """The deadline of the lease; null: it lasts as long as the session."""
    deliveries: int
    failures: int = 0
    version: int
    """A fencing token, which rises with every lease call."""
    id: str | None = None
    """The message's id, for queues with the delivery `partitions`."""


def message_in(one: MessageIn) -> Message:
    """Convert a message of a request into one of the Python API."""
    return Message(
        body_in(one.body, one.body_base64),
        key_in(one),
        headers_in(one.headers),
        one.priority,
        one.delay,
        one.dedup,
        one.ttl,
        one.group,
    )


def body_in(body: str | UnsetType | None, coded: str | UnsetType) -> bytes | None:
    """Return the bytes of `body` or `body_base64`; None for a delete."""
    if isinstance(body, str) and coded is UNSET:
        return body.encode()
    if isinstance(coded, str) and body is UNSET:
        return _decoded(coded, "body_base64")
    if body is None and coded is UNSET:
        return None
    if body is UNSET and coded is UNSET:
        raise Invalid("the message has no body; send body or body_base64", field="body")
    raise Invalid("the message has both body and body_base64; send one", field="body")


def headers_in(headers: HeadersIn) -> HeadersIn:
    """Check the headers of a message, and return them.

    Raises:
        Invalid: a name is reserved for the server, or belongs in a field of the message.
    """
    if headers:
        pairs = headers.items() if isinstance(headers, dict) else headers
        check_headers(name for name, _ in pairs)
    return headers


def key_in(one: MessageIn) -> bytes | str | None:
    """Return the key as bytes or text."""
    if one.key_base64 is None:
        return one.key
    if one.key is not None:
        raise Invalid("the message has both key and key_base64; send one", field="key")
    return _decoded(one.key_base64, "key_base64")


def _decoded(text: str, field: str) -> bytes:
    try:
        return b64decode(text, validate=True)
    except (BadBase64, ValueError) as error:
        raise Invalid(f"{field} is no base64: {error}", field=field) from error


def seq_out(seq: int) -> Seq:
    """Return a seq for JSON: as text if it includes a shard or exceeds 2^53, which JSON numbers
    cannot represent safely.
    """
    return str(seq) if isinstance(seq, Place) or seq > _SAFE_MAX else seq


def seq_in(seq: Seq, field: str) -> int:
    """Parse a seq as written by `seq_out`, or digits.

    Raises:
        Invalid: the text has neither form.
    """
    if isinstance(seq, int):
        return seq
    shard, colon, rest = seq.partition(":")
    parts = (shard, rest) if colon else ("0", shard)
    if not all(part.isascii() and part.isdigit() and len(part) < 20 for part in parts):
        raise Invalid(f"{field} is {seq[:40]!r}; write 17, or 3:17 for shard 3", field=field)
    return Place.of(int(parts[0]), int(parts[1])) if colon else int(shard)


def start_in(start: int | str) -> Start:
    """Parse a start: "beginning", "end", a position, a seq, or a time in ISO 8601.

    Raises:
        Invalid: it has none of these forms.
    """
    if isinstance(start, int) or start in ("beginning", "end") or is_position(start):
        return start
    if start.isascii() and start.replace(":", "", 1).isdigit() and len(start) < 30:
        return seq_in(start, "start")
    try:
        return datetime.fromisoformat(start)
    except ValueError:
        raise Invalid(
            f"start is {start[:40]!r}, not beginning, end, a position, a seq, or a time as in "
            "2026-01-31T12:00:00Z",
            field="start",
        ) from None


def row_out(row: Row) -> MessageOut:
    """Return a row in the form of the API."""
    body, body_base64 = _bytes_out(row.body)
    key, key_base64 = _key_out(row.key)
    headers, coded = _headers_out(row.headers)
    return MessageOut(
        seq_out(row.seq), row.time_ms, body, body_base64, key, key_base64, headers, coded
    )


def lease_out(lease: Lease) -> LeaseOut:
    """Return a lease in the form of the API."""
    counts = (lease.deliveries, lease.failures)
    return _leased(
        lease, lease.seq, lease.receipt, lease.deadline_ms, counts, lease.version, lease.id
    )


def leases_out(
    engine: CallbackEngine, shard: ShardId, key: int, leased: Leased, rows: list[Row]
) -> Callable[[Row], LeaseOut]:
    """Return a function that renders the messages of a lease call, for a queue with one shard.

    `key` determines the ids of messages; it is 0 for queues without ids.
    """
    proved = engine.proved(shard, leased.lease)
    seqs = [row.seq for row in rows]
    receipts = dict(zip(seqs, engine.sealed(shard, leased.lease, proved, seqs), strict=True))
    version = int(leased.lease)

    def out(row: Row) -> LeaseOut:
        seq = row.seq
        return _leased(
            row,
            seq,
            receipts[seq],
            leased.deadline_ms,
            leased.counts.get(seq, (1, 0)),
            version,
            id_of(key, seq) if key else None,
        )

    return out


def _leased(
    message: Row | Lease,
    seq: int,
    receipt: str,
    deadline_ms: int,
    counts: tuple[int, int],
    version: int,
    id: int | None,
) -> LeaseOut:
    body, body_base64 = _bytes_out(message.body or b"")
    key, key_base64 = _key_out(message.key) if message.key is not None else (None, None)
    headers, coded = _headers_out(message.headers) if message.headers else ({}, ())
    return LeaseOut(
        seq_out(seq),
        message.time_ms,
        body,
        body_base64,
        key,
        key_base64,
        headers,
        coded,
        receipt=receipt,
        deadline_ms=deadline_ms if deadline_ms < NEVER_MS else None,
        deliveries=counts[0],
        failures=counts[1],
        version=version,
        id=None if id is None else str(id),
    )


def _bytes_out(data: bytes | None) -> tuple[str | UnsetType | None, str | UnsetType]:
    if data is None:
        return None, UNSET
    try:
        return data.decode(), UNSET
    except UnicodeDecodeError:
        return UNSET, b64encode(data).decode()


def _key_out(data: bytes | None) -> tuple[str | None, str | None]:
    if data is None:
        return None, None
    try:
        return data.decode(), None
    except UnicodeDecodeError:
        return None, b64encode(data).decode()


def _headers_out(headers: Headers) -> tuple[HeadersIn, tuple[str, ...]]:
    if not headers:
        return {}, ()
    coded: list[str] = []
    pairs: list[tuple[str, str]] = []
    for name, value in headers:
        try:
            pairs.append((name, value.decode()))
        except UnicodeDecodeError:
            pairs.append((name, b64encode(value).decode()))
            coded.append(name)
    found = dict(pairs)
    return (found if len(found) == len(pairs) else pairs), tuple(coded)
