"""Answers of SQS with large messages, made in steps.

Rule 1: no step decodes or encodes more than `ANSWER_STEP_BYTES` of a body: other APIs publish
bodies of 16 MiB, whose every character may have to be replaced.
Rule 2: such an answer is made while it is sent: its JSON has up to six bytes for each byte of a
body, and is never in memory as a whole.
"""

from __future__ import annotations

import asyncio
import secrets
from codecs import getincrementaldecoder
from collections.abc import AsyncIterator, Iterable, Sequence
from hashlib import md5

import msgspec

from millrace import limits
from millrace.server.aws.form import NOT_IN_XML, text_of
from millrace.server.http.response import Buffer, Response

_STEP = limits.ANSWER_STEP_BYTES
_encode = msgspec.json.Encoder().encode


def are_large(bodies: Iterable[bytes | None]) -> bool:
    """Whether an answer with these bodies is made in steps; not where SQS itself could send it in
    one message."""
    return sum([len(body or b"") for body in bodies]) > limits.SQS_MESSAGE_BYTES_MAX


class LargeBodies:
    """Bodies of an answer, which has a mark in the place of each."""

    def __init__(self, *, is_json: bool, fits_xml: bool) -> None:
        """`fits_xml`: what XML cannot hold is replaced, whatever the answer is."""
        self._is_json = is_json
        self._fits_xml = fits_xml
        # Nothing else in the answer has it: clients cannot know it.
        self._nonce = secrets.token_hex(16)
        self._texts: dict[str, list[str]] = {}

    async def add(self, body: bytes) -> tuple[str, str]:
        """Take in a body; returns the mark that stands for it, and the MD5 of what is sent."""
        decoder = getincrementaldecoder("utf-8")("replace")
        digest = md5(usedforsecurity=False)
        pieces: list[str] = []
        for at in range(0, len(body), _STEP):
            piece = decoder.decode(body[at : at + _STEP], final=at + _STEP >= len(body))
            if self._fits_xml:
                piece = NOT_IN_XML.sub("\ufffd", piece)
            digest.update(piece.encode())
            pieces.append(piece)
            await asyncio.sleep(0)
        mark = f"{self._nonce}.{len(self._texts)}."
        self._texts[mark] = pieces
        return mark, digest.hexdigest()

    def into(self, answer: Response) -> Response:
        """Put the bodies in the places of their marks."""
        return Response(answer.status, headers=answer.headers, parts=self._parts(answer.body))

    async def _parts(self, around: Buffer) -> AsyncIterator[Sequence[Buffer]]:
        rest = bytes(around)
        for mark, pieces in self._texts.items():
            before, _, rest = rest.partition(mark.encode())
            yield [before]
            for piece in pieces:
                yield [self._encoded(piece)]
                await asyncio.sleep(0)
        yield [rest]

    def _encoded(self, piece: str) -> bytes:
        return _encode(piece)[1:-1] if self._is_json else text_of(piece).encode()
