"""The addresses of front ends, and what is heard of them."""

from __future__ import annotations

import asyncio
import socket
import sys
from pathlib import Path

import pytest

from millrace.errors import Invalid
from millrace.server.counters import ProcessCounters
from millrace.server.process.frontend import FrontendOrders
from millrace.server.process.frontend_supervisor import FrontendSupervisor
from millrace.server.process.server_settings import ServerSettings
from tests.support.timeouts import scaled


def crew_at(*listen: str, frontends: int = 0) -> FrontendSupervisor:
    return FrontendSupervisor(ServerSettings(listen=listen, frontends=frontends), FrontendOrders())


def listening(port: int, *options: int) -> socket.socket:
    found = socket.socket()
    for option in options:
        found.setsockopt(socket.SOL_SOCKET, option, 1)
    found.bind(("127.0.0.1", port))
    found.listen()
    return found


def test_an_address_is_held_by_one_server_before_its_front_ends_listen() -> None:
    async def main() -> None:
        first = crew_at("127.0.0.1:0")
        [address] = await first.start()
        second = crew_at(str(address))
        with pytest.raises(Invalid, match=f"{address} cannot be listened at: .* in use") as caught:
            await second.start()
        assert caught.value.field == "listen"
        # Its own front ends share it.
        with (
            listening(address.port, socket.SO_REUSEADDR, socket.SO_REUSEPORT),
            listening(address.port, socket.SO_REUSEADDR, socket.SO_REUSEPORT),
        ):
            await second.stop()
        await first.stop()

    asyncio.run(main())


def test_an_address_at_which_others_share_is_not_joined() -> None:
    async def main() -> None:
        with listening(0, socket.SO_REUSEADDR, socket.SO_REUSEPORT) as other:
            address = f"127.0.0.1:{other.getsockname()[1]}"
            with pytest.raises(Invalid, match=f"{address} cannot be listened at"):
                await crew_at(address).start()

    asyncio.run(main())


def test_connections_that_have_ended_keep_no_address() -> None:
    async def main() -> None:
        with listening(0, socket.SO_REUSEADDR) as server:
            port = server.getsockname()[1]
            with socket.create_connection(("127.0.0.1", port)) as client:
                # Whoever closes first remembers it, for a minute.
                server.accept()[0].close()
                assert client.recv(1) == b""
        crew = crew_at(f"127.0.0.1:{port}")
        [address] = await crew.start()
        assert address.port == port
        await crew.stop()

    asyncio.run(main())


@pytest.mark.process
def test_a_front_end_that_cannot_be_understood_is_told_of_by_its_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        script = tmp_path / "frontend"
        script.write_text(
            "#!/bin/sh\nread orders\necho ready\nwhile read line; do echo '{'; done\n"
        )
        script.chmod(0o700)
        monkeypatch.setattr(sys, "executable", str(script))
        crew = crew_at("127.0.0.1:0", frontends=2)
        await crew.start()
        async with asyncio.timeout(scaled(60)):
            assert await crew.counted() == [
                ProcessCounters(0, is_there=False),
                ProcessCounters(1, is_there=False),
            ]
        await crew.stop()

    asyncio.run(main())
