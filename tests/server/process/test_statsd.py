"""Statistics for a statsd: what arrives at a real socket is what happened."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import pytest

import millrace
from millrace import limits
from millrace.server.counters import LeaseCounters
from millrace.server.http.listener import ListenAddress
from millrace.server.process.metrics_export import Statsd
from tests.server.rest.harness import SMALL
from tests.server.server_process import Process


def arrived(socket: socket.socket) -> dict[str, str]:
    """The lines of the packets that are there, by name."""
    found: dict[str, str] = {}
    while True:
        try:
            packet = socket.recv(65536)
        except BlockingIOError:
            return found
        assert len(packet) <= limits.STATSD_PACKET_BYTES
        found |= dict(line.split(":") for line in packet.decode().split("\n"))


def test_d8_statsd_is_told_under_dynamiqs_names(tmp_path: Path) -> None:
    async def main(receiver: socket.socket) -> None:
        async with millrace.open(tmp_path, settings=SMALL) as m:
            queue = await m.queue("orders")
            for number in range(40):
                await m.queue(f"other-{number}")
            await queue.publish(b"before")
            handed = LeaseCounters()

            async def find() -> LeaseCounters:
                return handed

            statsd = Statsd(m, find, ListenAddress(*receiver.getsockname()))
            await statsd.start()
            await statsd.tell()
            first = arrived(receiver)
            assert first["millrace.default.orders.sent"] == "0|c"
            assert first["millrace.default.other-39.depth"] == "0|g"
            assert await m.delete_queue("other-39")
            await queue.publish_many([b"x"] * 4)
            leases = await queue.lease(3)
            handed.note("default", "orders", 10, len(leases))
            await leases[0].settle()
            await statsd.stop()
            assert any("other-38" in name for name in statsd._before)
            assert not any("other-39" in name for name in statsd._before)
            own = {
                name.rpartition(".")[2]: value
                for name, value in arrived(receiver).items()
                if name.startswith("millrace.default.orders.")
            }
            assert own == {
                "sent": "4|c",
                "received": "3|c",
                "deleted": "1|c",
                "depth": "4|g",
                "approximate_depth": "4|g",
                "fill": "30|g",
            }

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as receiver:
        receiver.bind(("127.0.0.1", 0))
        receiver.setblocking(False)
        asyncio.run(main(receiver))


@pytest.mark.process
def test_d8_statsd_is_told_of_what_front_ends_hand_out(tmp_path: Path) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as receiver:
        receiver.bind(("127.0.0.1", 0))
        receiver.setblocking(False)
        address = ListenAddress(*receiver.getsockname())
        orders = "/v1/spaces/default/queues/orders"
        with Process(tmp_path / "data", "--frontends", 2, "--set", f"statsd={address}") as server:
            server.ask("PUT", orders, {})
            server.ask("POST", f"{orders}/messages", {"messages": [{"body": "x"}] * 4})
            server.ask("POST", f"{orders}/leases", {"count": 3})
            assert server.stop() == 0
        # The last packets tell of all that was not told before.
        assert arrived(receiver)["millrace.default.orders.depth"] == "4|g"
