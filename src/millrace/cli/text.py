"""Messages as people and programs read them.

Rule: in JSON, bytes are text where they are UTF-8. Where they are not, the field has the suffix
`_base64`, so that nothing is lost and nothing guessed.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from typing import Protocol

from millrace.cli.show import Value, escaped, shortened, time_text


class Sent(Protocol):
    """What a row and a lease have in common."""

    @property
    def seq(self) -> int: ...
    @property
    def time_ms(self) -> int: ...
    @property
    def body(self) -> bytes | None: ...
    @property
    def key(self) -> bytes | None: ...
    @property
    def headers(self) -> Sequence[tuple[str, bytes]]: ...


def named(name: str, data: bytes | None) -> dict[str, Value]:
    """The bytes for JSON, under `name` as text or under `name_base64`."""
    if data is None:
        return {name: None}
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": b64encode(data).decode("ascii")}


def message_fields(message: Sent) -> dict[str, Value]:
    """A message for JSON, whole."""
    return {
        "seq": message.seq,
        "time_ms": message.time_ms,
        **named("key", message.key),
        "headers": [{"name": name, **named("value", value)} for name, value in message.headers],
        **named("body", message.body),
    }


def key_text(key: bytes | None) -> str:
    """A key in a table."""
    return "-" if key is None else escaped(key)


def headers_text(headers: Sequence[tuple[str, bytes]]) -> str:
    """Headers in a table."""
    return " ".join(f"{escaped(name)}={escaped(value)}" for name, value in headers) or "-"


def body_text(body: bytes | None) -> str:
    """A body in a table: its beginning."""
    return "(deleted)" if body is None else shortened(body)


def moment(time_ms: int) -> str:
    """A time in a table."""
    return time_text(time_ms)
