"""Renders SQS responses with large messages in steps.

Rule 1: no step decodes or encodes more than `ANSWER_STEP_BYTES` of a body: other APIs publish
bodies of 16 MiB, and every character may have to be replaced.
Rule 2: such a response is rendered while it is sent: its JSON has up to six bytes for each byte of
a body, and is never in memory as a whole.
"""

from __future__ import annotations

import asyncio
import secrets
from codecs import getincrementaldecoder
from collections.abc import AsyncIterator, Iterable, Sequence
from hashlib import md5

import msgspec

from millrace import limits
from millrace.server.aws.query_protocol import NOT_IN_XML, text_of
from millrace.server.http.response import Buffer, Response

_STEP = limits.ANSWER_STEP_BYTES
_encode = msgspec.json.Encoder().encode


def are_large(bodies: Iterable[bytes | None]) -> bool:
    """Return whether a response with these bodies is rendered in steps: if they exceed one SQS
    message.
    """
    return sum([len(body or b"") for body in bodies]) > limits.SQS_MESSAGE_BYTES_MAX


class LargeBodies:
    """Large bodies of a response, rendered with a placeholder for each."""

    def __init__(self, *, is_json: bool, fits_xml: bool) -> None:
        """`fits_xml`: characters that XML cannot represent are replaced, also in JSON."""
        self._is_json = is_json
        self._fits_xml = fits_xml
        # Makes placeholders unique in the response: clients cannot guess it.
        self._nonce = secrets.token_hex(16)
        self._texts: dict[str, list[str]] = {}

    async def add(self, body: bytes) -> tuple[str, str]:
        """Add a body; return its placeholder, and the MD5 of the text that is sent."""
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
        """Return the response with the bodies in place of their placeholders."""
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
