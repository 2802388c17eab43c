"""What Dynamiq told of its nodes."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.server.dynamiq.harness import value
from tests.server.rest.harness import served


def test_there_is_one_server_and_it_has_all_ids(tmp_path: Path) -> None:
    async def main() -> None:
        async with served(tmp_path) as server:
            found = await server.ask("GET", "/v1/status/servers", role="nobody")
            assert found.body.decode() == f"Member: millrace 127.0.0.1:{server.port}\n"
            assert found.headers["content-type"] == "text/plain; charset=utf-8"
            assert value(await server.ask("GET", "/v1/status/partitionrange")) == (
                200,
                {"bottom": "0", "top": "9223372036854775807"},
            )

    asyncio.run(main())
