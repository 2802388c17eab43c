"""Bytes that were good once: turned over, cut, doubled and mixed, from a seed.

`make fuzz N=…` tries N times as many as `make test`, with other seeds each time; SEED=… has those
of one run again.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator, Sequence
from random import Random

TIMES = int(os.environ.get("FUZZ", "0"))
SEED = os.environ.get("SEED") or (secrets.token_hex(4) if TIMES else "same")

ODD = (
    *(b"\0", b"\xff", b"\x80", b"\r\n", b"\n", b" ", b"\t", b":", b",", b";", b"/", b"%", b"%00"),
    *(b"%ff", b"'", b'"', b"{", b"}", b"[", b"]", b"[" * 2000, b"-1", b"0", b"+5", b"1e999"),
    *(b"9" * 20, b"9" * 5000, b"NaN", b"null", b"true", b"\xc3\x28", b"\xed\xa0\x80", b"\xb2"),
    *("\u0662".encode(), b"\xf0\x9f\x98\x80", b"../", b"\\u0000", b"\xef\xbb\xbf", b"A" * 9000),
    *(b"\x7f\xff\xff\xff", b"\x80\0\0\0", b"\xff" * 8, b"\xff\xff\xff\x7f", bytes(64)),
)


def rounds(short: int) -> int:
    """How often: so often in `make test`."""
    return short * (TIMES or 1)


def spoiled(name: str, corpus: Sequence[bytes], short: int) -> Iterator[bytes]:
    """Each of the corpus, and then spoiled ones; `name` keeps the seeds of tests apart."""
    yield from corpus
    random = Random(f"{SEED}/{name}")
    for _ in range(rounds(short)):
        yield mutated(random.choice(corpus), corpus, random)


def mutated(data: bytes, corpus: Sequence[bytes], random: Random) -> bytes:
    """The data, changed in a few places."""
    made = bytearray(data)
    for _ in range(random.choice((1, 1, 2, 3, 6))):
        at = random.randrange(len(made) + 1)
        end = min(len(made), at + random.choice((1, 1, 2, 4, 8, 30, 200)))
        match random.randrange(9):
            case 0 if at < len(made):
                made[at] ^= 1 << random.randrange(8)
            case 1 if at < len(made):
                made[at] = random.randrange(256)
            case 2:
                del made[at:end]
            case 3:
                made[at:at] = made[at:end] * random.choice((1, 1, 50))
            case 4:
                made[at:at] = random.choice(ODD)
            case 5:
                made[at:end] = random.choice(ODD)
            case 6:
                del made[at:]
            case 7:
                other = random.choice(corpus)
                begin = random.randrange(len(other) + 1)
                made[at:end] = other[begin : begin + random.choice((4, 40, 400))]
            case _:
                made[at:at] = random.randbytes(random.choice((1, 4, 20)))
    return bytes(made)


def text(data: bytes) -> str:
    """The bytes as a text that has all of them."""
    return data.decode("utf-8", "replace") if len(data) % 2 else data.decode("latin-1")


def pieces(data: bytes, random: Random) -> Iterator[bytes]:
    """The data, as a network may bring it."""
    at = 0
    while at < len(data):
        size = random.choice((1, 7, 100, 5000, len(data)))
        yield data[at : at + size]
        at += size
