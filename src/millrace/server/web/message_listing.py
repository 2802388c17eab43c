"""Responses with messages in JSON, encoded in steps.

Rule 1: no step of the event loop encodes more than `ANSWER_STEP_BYTES` of bodies. An encoder blocks
the event loop, and a lease call or a peek reads up to 64 MiB.
Rule 2: a large response is encoded while it is sent: its JSON has up to six bytes per byte of a
body (`\\u0001`), and is never in memory as a whole.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence, Sized
from typing import Protocol, TypeVar

import msgspec

from millrace import limits
from millrace.server.http.response import Buffer, Response
from millrace.server.web.route import encode

_HEADER_BYTES = 16
"""The cost of a header beyond its bytes, in bytes of a body."""


class _Message(Protocol):
    """A message that was read, with the attributes that determine its size."""

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
    """Return a response with messages between the bytes `before` and `after`; `text` is the field
    of `out`'s result that contains the body.
    """
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
    """Return a response that is one message."""
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
    """Yield a message in JSON in pieces, which split the string of its body."""
    body = getattr(one, text)
    if type(body) is not str or len(body) <= limits.ANSWER_STEP_BYTES:
        yield encode(one)
        return
    around = encode(msgspec.structs.replace(one, **{text: ""}))
    # Within a string, quotation marks are escaped, so that the first match is the field itself.
    name = f'"{text}":"'.encode()
    at = around.index(name) + len(name)
    yield around[:at]
    for begin in range(0, len(body), limits.ANSWER_STEP_BYTES):
        yield encode(body[begin : begin + limits.ANSWER_STEP_BYTES])[1:-1]
    yield around[at:]
