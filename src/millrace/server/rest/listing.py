"""Answers with messages in JSON, made in steps.

Rule 1: no step of the event loop encodes more than `ANSWER_STEP_BYTES` of bodies. An encoder stops
everything else until it is done, and a lease call or a peek reads up to 64 MiB.
Rule 2: a large answer is made while it is sent: its JSON has up to six bytes for each one of a body
(`\\u0001`), and is never in memory as a whole.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence, Sized
from typing import Protocol, TypeVar

import msgspec

from millrace import limits
from millrace.server.http.response import Buffer, Response
from millrace.server.rest.route import encode

_HEADER_BYTES = 16
"""What a header takes beyond its bytes, as bytes of a body."""


class _Message(Protocol):
    """What was read of a message."""

    @property
    def body(self) -> bytes | None: ...

    @property
    def headers(self) -> Sized: ...


T = TypeVar("T", bound=_Message)


def listed(
    before: bytes,
    messages: Sequence[T],
    out: Callable[[T], msgspec.Struct],
    after: bytes,
    *,
    text: str = "body",
    headers: Mapping[str, str] | None = None,
) -> Response:
    """The answer that lists messages between the bytes of `before` and `after`; `text` is the field
    that has the body in what `out` makes of one."""
    if sum(map(_weight, messages)) <= limits.ANSWER_STEP_BYTES:
        body = before + b",".join([encode(out(one)) for one in messages]) + after
        return Response(200, body, headers=headers)
    parts = _parts(before, messages, out, after, text)
    return Response(200, type="application/json", headers=headers, parts=parts)


def shown(
    message: T,
    out: Callable[[T], msgspec.Struct],
    *,
    text: str = "body",
) -> Response:
    """The answer that is one message."""
    return listed(b"", [message], out, b"", text=text)


def _weight(message: _Message) -> int:
    return len(message.body or b"") + len(message.headers) * _HEADER_BYTES


async def _parts(
    before: bytes,
    messages: Sequence[T],
    out: Callable[[T], msgspec.Struct],
    after: bytes,
    text: str,
) -> AsyncIterator[Sequence[Buffer]]:
    step: list[Buffer] = [before]
    size = 0
    for number, message in enumerate(messages):
        if number:
            step.append(b",")
        for piece in pieces_of(out(message), text):
            step.append(piece)
            size += len(piece)
            if size >= limits.ANSWER_STEP_BYTES:
                yield step
                step, size = [], 0
                await asyncio.sleep(0)
    step.append(after)
    yield step


def pieces_of(one: msgspec.Struct, text: str = "body") -> Iterator[bytes]:
    """A message in JSON, its text in pieces: those of a string are the string's."""
    body = getattr(one, text)
    if type(body) is not str or len(body) <= limits.ANSWER_STEP_BYTES:
        yield encode(one)
        return
    around = encode(msgspec.structs.replace(one, **{text: ""}))
    # Within a string a quotation mark has a backslash before it: this is the field.
    name = f'"{text}":"'.encode()
    at = around.index(name) + len(name)
    yield around[:at]
    for begin in range(0, len(body), limits.ANSWER_STEP_BYTES):
        yield encode(body[begin : begin + limits.ANSWER_STEP_BYTES])[1:-1]
    yield around[at:]
