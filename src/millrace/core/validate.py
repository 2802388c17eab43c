"""Validates requests before they reach a queue: names, types and sizes.

Every error names the field and the limit. All results are made of plain values (`plain_types.py`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Literal

from millrace import limits
from millrace.core import bounds, plain_types, token_bucket
from millrace.core.commands import ProducerMode, ProducerNumber
from millrace.core.model import (
    GROUP_HEADER,
    ROUTES,
    Headers,
    NewMessage,
    Route,
)
from millrace.core.notes import Notes
from millrace.core.notes import check as check_notes
from millrace.core.spec import ORDERS, Order
from millrace.errors import Invalid, TooLarge

_NAME = re.compile(r"[A-Za-z0-9_.-]+")

HeadersLike = Mapping[str, str | bytes] | Iterable[tuple[str, str | bytes]]


_SHOWN_CHARS = 80
_SHOWN_BITS = 256


def shown(value: object) -> str:
    """Return a short text of a value for an error: its beginning, or the type if it is not plain.

    Large values are not formatted, and no code of the program's own is run.
    """
    plain = _plain(value)
    if isinstance(plain, str | bytes | bytearray):
        text = repr(plain[:_SHOWN_CHARS])
    elif isinstance(plain, int) and plain.bit_length() > _SHOWN_BITS:
        # Python formats no integer of more than a few thousand digits.
        text = f"an integer of {plain.bit_length()} bits"
    elif plain is not None or value is None:
        text = repr(plain)
    else:
        text = f"of type {type(value).__name__}"
    return text if len(text) <= _SHOWN_CHARS else f"{text[: _SHOWN_CHARS - 3]}..."


def _plain(value: object) -> str | bytes | bytearray | int | float | None:
    if isinstance(value, bool) or type(value) is bytearray:
        return value
    if isinstance(value, float):
        return float.__float__(value)
    for find in (plain_types.text, plain_types.data, plain_types.whole):
        plain = find(value)
        if plain is not None:
            return plain
    return None


def _encoded(text: str, field: str) -> bytes:
    try:
        return str.encode(text)
    except UnicodeEncodeError as error:
        raise Invalid(
            f"{field} is no text that UTF-8 can hold: {error.reason}", field=field
        ) from error


def name(value: object, field: str, most: int = limits.NAME_CHARS_MAX) -> str:
    """Return the name of a queue, space, cursor, producer or stage."""
    text = plain_types.text(value)
    if text is None or not _NAME.fullmatch(text):
        raise Invalid(
            f"{field} {shown(value)} is no name: ASCII letters, digits, '_', '.' and '-' are",
            field=field,
        )
    if text in (".", ".."):
        raise Invalid(f"{field} {text!r} means another place in a path; choose a name", field=field)
    if len(text) > most:
        raise TooLarge(
            f"{field} has {len(text)} characters, up to {most} are allowed",
            field=field,
            limit=most,
        )
    return text


def topic(value: object, field: str = "topic") -> str:
    """Return the name of a topic."""
    return name(value, field, limits.TOPIC_NAME_CHARS_MAX)


def names(values: object, field: str) -> tuple[str, ...]:
    """Return several names, at least one."""
    if not isinstance(values, list | tuple):
        raise Invalid(f"{field} are {shown(values)}, not a list of names", field=field)
    if not values:
        raise Invalid(f"{field} are empty; name at least one", field=field)
    return tuple(name(value, field) for value in values)


def count(value: object, field: str, most: int) -> int:
    """Return a number of things, from 1 on."""
    number = plain_types.whole(value)
    if number is None or number < 1:
        raise Invalid(f"{field} is {shown(value)}, not a whole number from 1 on", field=field)
    if number > most:
        raise TooLarge(
            f"{field} is {shown(value)}, up to {most} is allowed", field=field, limit=most
        )
    return number


def seq(value: object, field: str, *, least: int = 1) -> int:
    """Return a place in a queue."""
    number = plain_types.whole(value)
    if number is None or not least <= number < 2**63:
        raise Invalid(f"{field} is {shown(value)}, not a seq from {least} on", field=field)
    return number


def millis(value: object, field: str, most_ms: int, *, least_ms: int = 1) -> int:
    """Convert seconds to milliseconds."""
    seconds = plain_types.number(value)
    if seconds is None:
        raise Invalid(f"{field} is {shown(value)}, not a number of seconds", field=field)
    if seconds < 0:
        raise Invalid(f"{field} is {shown(value)}, and time does not run backwards", field=field)
    if seconds * 1000 > most_ms:
        limit = most_ms // 1000
        raise TooLarge(
            f"{field} is {shown(value)} s, up to {limit} s are allowed", field=field, limit=limit
        )
    return max(round(seconds * 1000), least_ms)


def priority(value: object) -> int:
    """Return a priority: 0 is the lowest."""
    number = plain_types.whole(value)
    if number is None:
        raise Invalid(f"priority is {shown(value)}, not a whole number", field="priority")
    if not 0 <= number <= limits.PRIORITY_MAX:
        raise Invalid(
            f"priority is {shown(value)}, not within 0 and {limits.PRIORITY_MAX}",
            field="priority",
            limit=limits.PRIORITY_MAX,
        )
    return number


def id_text(value: object, field: str) -> str | None:
    """Return the id of a message or of a call."""
    if value is None:
        return None
    text = plain_types.text(value)
    if not text:
        raise Invalid(f"{field} is {shown(value)}, not a text; leave it out instead", field=field)
    size = len(_encoded(text, field))
    if size > bounds.ID_BYTES_MAX:
        raise TooLarge(
            f"{field} has {size} bytes, up to {bounds.ID_BYTES_MAX} are allowed",
            field=field,
            limit=bounds.ID_BYTES_MAX,
        )
    return text


def compressed(value: object) -> Literal["", "zstd", "lz4"] | None:
    """Return the compression of rows; "none" turns it off.

    Raises:
        Invalid: the compression is unknown.
    """
    if value is None:
        return None
    codecs: dict[str, Literal["", "zstd", "lz4"]] = {"none": "", "zstd": "zstd", "lz4": "lz4"}
    codec = codecs.get(plain_types.text(value) or "")
    if codec is None:
        raise Invalid(
            f"compressed is {shown(value)}, not 'zstd', 'lz4' or 'none'", field="compressed"
        )
    return codec


def retention(value: object) -> Literal["work", "log"] | None:
    """Return the retention (the effect of a settle), or None if it is not given."""
    if value is None:
        return None
    text = plain_types.text(value)
    if text == "work":
        return "work"
    if text == "log":
        return "log"
    raise Invalid(f"retention is {shown(value)}, not 'work' or 'log'", field="retention")


def route(value: object) -> Route | None:
    """Return the routing of messages to shards, or None if it is not given."""
    if value is None:
        return None
    for candidate in ROUTES:
        if plain_types.text(value) == candidate:
            return candidate
    raise Invalid(f"route is {shown(value)}, not 'key', 'group' or 'spread'", field="route")


def flag(value: object, field: str) -> bool:
    """Return a boolean."""
    if not isinstance(value, bool):
        raise Invalid(f"{field} is {shown(value)}, not True or False", field=field)
    return value


def key(value: object) -> bytes | None:
    """Return a key: bytes, or text as UTF-8."""
    if value is None:
        return None
    data = _encoded(value, "key") if isinstance(value, str) else plain_types.data(value)
    if data is None:
        raise Invalid(f"key is {type(value).__name__}, not bytes or str", field="key")
    if not data:
        raise Invalid("key is empty; leave it out instead", field="key")
    if len(data) > limits.KEY_BYTES_MAX:
        raise TooLarge(
            f"key has {len(data)} bytes, up to {limits.KEY_BYTES_MAX} are allowed",
            field="key",
            limit=limits.KEY_BYTES_MAX,
        )
    return data


def headers(value: HeadersLike | None) -> Headers:
    """Return headers: names are text, values bytes or text."""
    if value is None or (type(value) is dict and not value):
        return ()
    pairs = value.items() if isinstance(value, Mapping) else value
    if not isinstance(pairs, Iterable):
        raise Invalid(f"headers are {shown(value)}, not a mapping or pairs", field="headers")
    out: list[tuple[str, bytes]] = []
    size = 0
    for pair in pairs:
        if not isinstance(pair, tuple) or len(pair) != 2 or not isinstance(pair[0], str):
            raise Invalid(f"a header is (name, value), not {shown(pair)}", field="headers")
        header = str.__str__(pair[0])
        item = (
            _encoded(pair[1], "headers") if isinstance(pair[1], str) else plain_types.data(pair[1])
        )
        if item is None:
            raise Invalid(f"header {shown(header)} is neither bytes nor str", field="headers")
        out.append((header, item))
        size += len(_encoded(header, "headers")) + len(item)
        # Checked at each step, since the iterable may be infinite.
        check_headers(len(out), size)
    return tuple(out)


def check_headers(number: int, size: int) -> None:
    """Check the number of headers of a message and their size."""
    refused = headers_refused(number, size)
    if refused is not None:
        raise refused


def headers_refused(number: int, size: int) -> TooLarge | None:
    """Return the error of too many or too large headers, or None if they are allowed."""
    if number > limits.HEADERS_MAX:
        return TooLarge(
            f"a message has {number} headers or more, up to {limits.HEADERS_MAX} are allowed",
            field="headers",
            limit=limits.HEADERS_MAX,
        )
    if size > limits.HEADER_BYTES_MAX:
        return TooLarge(
            f"headers have {size} bytes or more, up to {limits.HEADER_BYTES_MAX} are allowed",
            field="headers",
            limit=limits.HEADER_BYTES_MAX,
        )
    return None


def notes(value: object) -> Notes:
    """Return the given notes, sorted by name; an empty text removes one."""
    if not isinstance(value, Mapping):
        raise Invalid(f"notes are {shown(value)}, not texts by their names", field="notes")
    out: dict[str, str] = {}
    size = 0
    for given, item in value.items():
        called, text = plain_types.text(given), plain_types.text(item)
        if not called:
            raise Invalid(f"the name of a note is {shown(given)}, not a text", field="notes")
        if text is None:
            raise Invalid(f"note {shown(called)} is {shown(item)}, not a text", field="notes")
        length = len(_encoded(called, "notes"))
        if length > limits.NOTE_NAME_BYTES_MAX:
            raise TooLarge(
                f"the name of a note has {length} bytes, up to {limits.NOTE_NAME_BYTES_MAX} are "
                "allowed",
                field="notes",
                limit=limits.NOTE_NAME_BYTES_MAX,
            )
        out[called] = text
        size += length + len(_encoded(text, "notes"))
        # Checked at each step, since the mapping may be infinite.
        if len(out) > limits.NOTES_MAX or size > limits.NOTES_BYTES_MAX:
            break
    pairs = tuple(sorted(out.items()))
    refused = check_notes(pairs)
    if refused is not None:
        raise refused
    return pairs


def group(value: object) -> bytes:
    """Return a group as bytes; empty is the group of messages that name none."""
    data = _encoded(value, "group") if isinstance(value, str) else plain_types.data(value)
    if data is None:
        raise Invalid(f"group is {type(value).__name__}, not bytes or str", field="group")
    if len(data) > limits.KEY_BYTES_MAX:
        raise TooLarge(
            f"group has {len(data)} bytes, up to {limits.KEY_BYTES_MAX} are allowed",
            field="group",
            limit=limits.KEY_BYTES_MAX,
        )
    return data


def order(value: object) -> Order | None:
    """Return the ordering of deliveries, or None if it is not given."""
    if value is None:
        return None
    text = plain_types.text(value)
    for candidate in ORDERS:
        if text == candidate:
            return candidate
    raise Invalid(f"order is {shown(value)}, not {', '.join(ORDERS)}", field="order")


def rate_us(value: object, field: str) -> int:
    """Convert messages per second to microseconds for each; 0: no limit."""
    rate = plain_types.number(value)
    if rate is None or rate < 0:
        raise Invalid(f"{field} is {shown(value)}, not a number from 0 on", field=field)
    if rate > token_bucket.PER_SECOND_MAX:
        raise TooLarge(
            f"{field} is {shown(value)} a second, up to {token_bucket.PER_SECOND_MAX} are allowed",
            field=field,
            limit=token_bucket.PER_SECOND_MAX,
        )
    if rate and rate * token_bucket.INTERVAL_US_MAX < 1_000_000:
        raise Invalid(
            f"{field} is {shown(value)} a second, less than one a day",
            field=field,
            limit=token_bucket.INTERVAL_US_MAX,
        )
    return round(1_000_000 / rate) if rate else 0


def message(
    body: object, key_: object, headers_: HeadersLike | None, group_: object = None
) -> NewMessage:
    """Return a message; without a body it needs the key that it deletes."""
    checked = key(key_)
    if body is None:
        if checked is None:
            raise Invalid("a message without a body deletes its key: it needs one", field="key")
    else:
        body = body_of(body)
    pairs = headers(headers_)
    if group_ is not None:
        pairs = headers((*pairs, (GROUP_HEADER, group(group_))))
    return NewMessage(body, checked, pairs)


def body_of(value: object) -> bytes:
    """Return a body as bytes."""
    body = value if type(value) is bytes else _bytes(value)
    if len(body) > limits.BODY_BYTES_MAX:
        raise body_too_large(len(body))
    return body


def _bytes(body: object) -> bytes:
    if isinstance(body, bytearray | memoryview):
        try:
            return bytes(memoryview(body))
        except (ValueError, NotImplementedError) as error:
            raise Invalid(f"body cannot be read: {error}", field="body") from error
    data = plain_types.data(body)
    if data is not None:
        return data
    way = "encode it yourself, or give a Message to publish_many"
    raise Invalid(f"body is {type(body).__name__}, not bytes; {way}", field="body")


def body_too_large(size: int) -> TooLarge:
    """Return the error of a body of this size."""
    return TooLarge(
        f"body has {size} bytes, up to {limits.BODY_BYTES_MAX} are allowed",
        field="body",
        limit=limits.BODY_BYTES_MAX,
    )


def stages(values: object, numbered_: ProducerNumber | None) -> tuple[str, ...]:
    """Return the stages to publish; empty if only the producer's number advances."""
    if isinstance(values, list | tuple) and not values and numbered_ is not None:
        return ()
    return names(values, "stages")


def numbered(
    producer: str | None,
    number: int | None,
    mode: ProducerMode,
    after: int | None,
    spans: object = None,
) -> ProducerNumber | None:
    """Return the producer and number of a publish, or None if it has none."""
    if producer is None:
        is_plain = number is None and after is None and spans is None
        if not is_plain or plain_types.text(mode) != "dense":
            raise Invalid("number, mode, after and spans go with producer", field="producer")
        return None
    who = name(producer, "producer")
    if spans is not None:
        if (
            number is not None
            or after is not None
            or plain_types.text(mode) not in ("dense", "range")
        ):
            raise Invalid("spans stand in for number, mode and after", field="spans")
        return _ranged(who, spans)
    if number is None:
        raise Invalid("producer goes with number", field="number")
    chosen = _mode(mode)
    number = count(number, "number", 2**63 - 1)
    if (after is not None) != (chosen == "range"):
        raise Invalid("after goes with mode='range', and only with it", field="after")
    if after is None:
        return ProducerNumber(who, number, chosen)
    begin = plain_types.whole(after)
    if begin is None:
        raise Invalid(f"after is {shown(after)}, not a whole number", field="after")
    if not 0 <= begin < number:
        raise Invalid(f"after is {shown(after)}, not within 0 and {number - 1}", field="after")
    return ProducerNumber(who, number, chosen, begin)


def _ranged(producer: str, spans: object) -> ProducerNumber:
    """Return a range over several places, at least one of which has advanced."""
    if not isinstance(spans, list | tuple) or not spans:
        raise Invalid(f"spans are {shown(spans)}, not a list of (after, upto)", field="spans")
    if len(spans) > bounds.SPANS_MAX:
        raise TooLarge(
            f"spans are {len(spans)}, up to {bounds.SPANS_MAX} are allowed",
            field="spans",
            limit=bounds.SPANS_MAX,
        )
    pairs: list[tuple[int, int]] = []
    for span in spans:
        ends = [plain_types.whole(end) for end in span] if isinstance(span, list | tuple) else []
        if len(ends) != 2 or ends[0] is None or ends[1] is None or not 0 <= ends[0] <= ends[1]:
            raise Invalid("a span is (after, upto), which does not fall", field="spans")
        pairs.append((ends[0], ends[1]))
    after, upto = sum(pair[0] for pair in pairs), sum(pair[1] for pair in pairs)
    if after == upto or upto >= 2**63:
        raise Invalid("spans are empty, or beyond all seqs; nothing is published", field="spans")
    return ProducerNumber(producer, upto, "range", after, tuple(pairs))


def _mode(value: object) -> ProducerMode:
    text = plain_types.text(value)
    if text == "dense":
        return "dense"
    if text == "rising":
        return "rising"
    if text == "range":
        return "range"
    raise Invalid(f"mode is {shown(value)}, not dense, rising or range", field="mode")
