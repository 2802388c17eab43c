"""Calls and answers of other processes, as frames."""

from __future__ import annotations

from random import Random

from millrace import limits
from millrace.errors import Refused
from millrace.rpc.codec import read_call, split_calls
from millrace.rpc.frames import FrameReader
from tests.fuzz.mutate import mutated, pieces
from tests.fuzz.test_parsers import _answer, _answers, _frames

FRAMES, ANSWERS = _frames(), _answers()
LISTS = [b"\x90" * 1_000, b"\xdd\xff\xff\xff\xff", b"\xdc\x10\x00" + b"\x90" * 4_096, b"\x91" * 900]


def fuzz_frames(rng: Random) -> None:
    """Calls are read or refused, each by itself where its id is known; so are answers."""
    data = b"".join(rng.choice(FRAMES) for _ in range(rng.choice((1, 1, 3, 20))))
    data = mutated(data, [*FRAMES, *LISTS], rng)
    splitter = FrameReader(
        frames_max=limits.WIRE_CALLS_MAX, heads_bytes_max=limits.WIRE_BODY_HEADS_BYTES_MAX
    )
    try:
        for piece in pieces(data, rng):
            for frame in splitter.feed(piece):
                calls = split_calls(frame)
                assert len(calls) <= limits.WIRE_CALLS_MAX
                for raw in calls:
                    id_, call = read_call(raw, frame.blobs)
                    assert id_ >= 0
                    if isinstance(call, Refused):
                        # It is stored until it is answered.
                        assert call.__traceback__ is None
                        assert call.__cause__ is None
    except Refused:
        pass
    _answer(mutated(rng.choice(ANSWERS), ANSWERS, rng))
