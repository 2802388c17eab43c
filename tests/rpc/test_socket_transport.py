"""Calls go out together, but not so many that whoever answers them waits for the last."""

from __future__ import annotations

import asyncio

import pytest
from pyroaring import BitMap64

from millrace import limits
from millrace.core.commands import Publish, Settle
from millrace.core.model import LeaseId, NewMessage, ShardId
from millrace.errors import Forged
from millrace.rpc.calls import Submit
from millrace.rpc.codec import read_calls
from millrace.rpc.frames import FrameReader
from millrace.rpc.socket_transport import _SocketConnection

GOOD = Submit(ShardId(7), 0, Publish((NewMessage(b"x"),)))
REFUSED = Submit(ShardId(7), 0, Settle(LeaseId(1), BitMap64([1]), b"h" * 16, on_time=False))
"""Nothing proves its lease: it is not sent."""


class Transport(asyncio.Transport):
    """Keeps the ids of what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.ids: list[int] = []

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        assert high == limits.WIRE_UNHEARD_BYTES_MAX

    def write(self, data: bytes | bytearray | memoryview[int]) -> None:
        for frame in FrameReader().feed(bytes(data)):
            self.ids += [id_ for id_, _ in read_calls(frame)]


def speech() -> tuple[_SocketConnection, Transport]:
    made, transport = _SocketConnection(lambda *_: None, lambda _: None), Transport()
    made.connection_made(transport)
    return made, transport


def test_many_go_out_before_the_turn_is_over() -> None:
    async def main() -> None:
        made, transport = speech()
        most = limits.WIRE_TOGETHER_MAX
        for _ in range(most - 1):
            made.begin(GOOD)
            assert transport.ids == []
        made.begin(GOOD)
        assert transport.ids == [*range(1, most + 1)]
        made.begin(GOOD)
        assert len(transport.ids) == most
        await asyncio.sleep(0)
        assert transport.ids == [*range(1, most + 2)]

    asyncio.run(main())


def test_one_that_is_refused_at_once_is_told_so() -> None:
    """Also if it is the one with which they go out."""

    async def main() -> None:
        made, transport = speech()
        most = limits.WIRE_TOGETHER_MAX
        for _ in range(most - 1):
            made.begin(GOOD)
        refused = made.begin(REFUSED)
        assert transport.ids == [*range(1, most)]
        told: list[object] = []
        refused.then(told.append)
        await asyncio.sleep(0)
        assert told == [refused]
        with pytest.raises(Forged):
            refused.result()

    asyncio.run(main())
