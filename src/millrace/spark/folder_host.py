"""The process that opens a folder and shares it: `python -m millrace.spark.folder_host FOLDER`.

It is a separate module, so that the processes that start it need not import the engine.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from millrace import limits
from millrace.client.opening import open as open_folder
from millrace.errors import InUse, MillraceError
from millrace.server.rpc.sharing import Sharing, share
from millrace.spark.owner import READY, TAKEN


async def own(path: Path, idle: float = limits.OWNER_IDLE_SECONDS) -> None:
    """Share the folder until it had no connections for `idle` seconds."""
    async with open_folder(path) as m:
        sharing = share(m)
        async with sharing:
            _say(READY)
            await _idle(sharing, idle)


async def _idle(sharing: Sharing, idle: float) -> None:
    loop = asyncio.get_running_loop()
    last = loop.time()
    while loop.time() - last < idle:
        if sharing.connections:
            last = loop.time()
        await asyncio.sleep(min(idle / 4, 1.0))


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()
    sys.stdout.close()


def main() -> None:
    """Share the folder given on the command line."""
    try:
        asyncio.run(own(Path(sys.argv[1])))
    except InUse as error:
        _say(f"{TAKEN}{error}")
    except MillraceError as error:
        _say(str(error))


if __name__ == "__main__":
    main()
