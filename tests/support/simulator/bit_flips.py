"""Bit flips and bad sectors: the same data, or a refusal; never other data.

When an engine has ended, its folder is copied, and one bit of the copy is turned over, or a sector
cannot be read any more. The copy is opened with the shipped node and read as a whole; the original
goes on unharmed. Damage in the log refuses the folder. Damage in a sealed file refuses the rows
that it holds, and nothing else: all other shards are served, and sealing goes on.

One place is left out: the last record, if nothing after it proves that it was whole, be it the mark
of the end. Damage to it cannot be distinguished from a torn write.
"""

from __future__ import annotations

import asyncio
import random
from copy import deepcopy

from millrace.client.embedded import EmbeddedEngine
from millrace.client.millrace import Millrace
from millrace.core.model import ShardId
from millrace.errors import Corrupt, DiskFailed, MillraceError
from millrace.node import Node, Ports
from millrace.store.memory_cells import MemoryCells
from millrace.store.row_location import RELATIVE
from millrace.store.sealed import FOLDER as SEALED
from millrace.store.sealed import file_number, read_footer
from tests.support.checkers.ledger import LedgerDisk
from tests.support.simulator.clock import SimClock
from tests.support.simulator.disk import SimDisk
from tests.support.simulator.event_loop import SimLoop
from tests.support.simulator.io_threads import IoDelay, SimIoThread, SteppedThreads
from tests.support.simulator.machine import Machine

FOLDERS = ["log", SEALED]

BAD_SECTORS = 0.2
"""How often a sector cannot be read, instead of a bit being turned over. Maps do not know of it."""

REST_SECONDS = 5.0
"""What the checkpointer gets to come upon the damage."""


def flip_bits(machine: Machine, chance: random.Random, count: int) -> list[str]:
    """Try `count` flips; return the findings."""
    found: list[str] = []
    for _ in range(count):
        found += _flip(machine, chance)
    return found


def _flip(machine: Machine, chance: random.Random) -> list[str]:
    names = [f"{folder}/{name}" for folder in FOLDERS for name in machine.disk.names(folder)]
    if not names:
        return []
    disk = deepcopy(machine.disk)
    ledger = machine.ledger
    name = chance.choice(names)
    if ledger.last.name in names and chance.random() < 0.5:
        # What replay reads.
        name = ledger.last.name
    size = disk.open(name).size
    if not size:
        return []
    offset, bit = _pick(disk, name, size, chance), chance.randrange(8)
    if ledger.last.holds(name, offset) and (ledger.is_mark or not ledger.is_proven):
        return []
    damaged = _damaged_by(disk, name, offset)
    if damaged is None and chance.random() < BAD_SECTORS:
        where = f"{offset} of {name} cannot be read"
        disk.break_reads(name, offset=offset, length=1)
    else:
        where = f"bit {bit} at {offset} of {name} is turned over"
        disk.flip(name, offset, bit=bit)
    disk.budget_bytes = None
    verdict, violations = _open(machine, disk, chance, damaged)
    machine.history.say(f"{where}: {verdict}")
    return [f"{violation} (where {where})" for violation in violations]


def _damaged_by(disk: SimDisk, name: str, offset: int) -> set[ShardId] | None:
    """Whose rows lie at this place of a sealed file; None if all of the folder depends on it."""
    folder, _, file = name.partition("/")
    number = file_number(file)
    if folder != SEALED or number is None:
        return None
    found: set[ShardId] = set()
    for line in read_footer(disk, number):
        if line.offset <= offset < line.offset + line.length:
            if line.flags & RELATIVE:
                # Staged rows: if they were published since, replay needs their keys.
                return None
            found.add(ShardId(line.shard))
    return found


def _pick(disk: SimDisk, name: str, size: int, chance: random.Random) -> int:
    """An offset, rather where something was written than among zeros."""
    data = disk.open(name).read(size, 0)
    for _ in range(10):
        offset = chance.randrange(size)
        if data[offset]:
            return offset
    return chance.randrange(size)


def _open(
    machine: Machine, disk: SimDisk, chance: random.Random, damaged: set[ShardId] | None
) -> tuple[str, list[str]]:
    clock = SimClock()
    clock.seconds, clock.offset_ms = machine.clock.seconds, machine.clock.offset_ms
    loop = SimLoop(clock)
    ledger = deepcopy(machine.ledger)
    ports = Ports(
        disk=LedgerDisk(disk, ledger),
        cells=lambda: MemoryCells(machine.image),
        io_thread=lambda name: SimIoThread(name, IoDelay(0.0, 0.0, 0.0), chance, SteppedThreads()),
        now_ms=clock.now_ms,
        chance=chance.randbytes,
        sleep=lambda seconds: None,
    )

    async def look() -> list[str]:
        node = await Node.open(ports, machine.settings)
        refused: set[ShardId] = set()
        found = ledger.compare(node.store, None if damaged is None else refused)
        if damaged is not None:
            await node.checkpointer.seal_all()
            await asyncio.sleep(REST_SECONDS)
            found += ledger.compare(node.store, refused)
            found += [f"{shard} was refused for others" for shard in sorted(refused - damaged)]
        await Millrace(EmbeddedEngine(node)).close()
        return [*found, *ledger.violations]

    try:
        found = loop.run(look())
    except (Corrupt, DiskFailed) as error:
        if damaged is None:
            return f"refused: {error}", []
        return "refused", [f"all was refused for one sealed file: {error}"]
    except MillraceError as error:
        return "failed", [f"{type(error).__name__} instead of Corrupt: {error}"]
    finally:
        loop.bury()
    return ("other data" if found else "the same data"), found
