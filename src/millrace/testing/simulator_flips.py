"""Bit flips: the same data, or a refusal to open; never other data.

When an engine has ended, its folder is copied, and one bit of the copy is turned over. The copy is
opened with the shipped node and read as a whole; the original goes on unharmed.

One place is left out: the last record, if nothing after it proves that it was whole. Damage to it
cannot be told from a torn write.
"""

from __future__ import annotations

import random
from copy import deepcopy

from millrace.client.engine import EmbeddedEngine
from millrace.client.millrace import Millrace
from millrace.errors import Corrupt, MillraceError
from millrace.node import Node, Ports
from millrace.store.memory import MemoryCells
from millrace.testing.checker_ledger import LedgerDisk
from millrace.testing.clock import SimClock
from millrace.testing.disk import SimDisk
from millrace.testing.lanes import Pace, SimLane, Steps
from millrace.testing.loop import SimLoop
from millrace.testing.simulator_machine import Machine

FOLDERS = ["log", "sealed"]


def flip_bits(machine: Machine, chance: random.Random, count: int) -> list[str]:
    """Try so many flips; return what was wrong."""
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
    if ledger.last.holds(name, offset) and not ledger.is_proven:
        return []
    disk.flip(name, offset, bit=bit)
    disk.budget_bytes = None
    verdict, violations = _open(machine, disk, chance)
    where = f"bit {bit} at {offset} of {name}"
    machine.history.say(f"{where} turned over: {verdict}")
    return [f"{violation} (after {where} was turned over)" for violation in violations]


def _pick(disk: SimDisk, name: str, size: int, chance: random.Random) -> int:
    """An offset, rather where something was written than among zeros."""
    data = disk.open(name).read(size, 0)
    for _ in range(10):
        offset = chance.randrange(size)
        if data[offset]:
            return offset
    return chance.randrange(size)


def _open(machine: Machine, disk: SimDisk, chance: random.Random) -> tuple[str, list[str]]:
    clock = SimClock()
    clock.seconds, clock.offset_ms = machine.clock.seconds, machine.clock.offset_ms
    loop = SimLoop(clock)
    ledger = deepcopy(machine.ledger)
    ports = Ports(
        disk=LedgerDisk(disk, ledger),
        cells=lambda: MemoryCells(machine.image),
        lane=lambda name: SimLane(name, Pace(0.0, 0.0, 0.0), chance, Steps()),
        now_ms=clock.now_ms,
        chance=chance.randbytes,
        sleep=lambda seconds: None,
    )

    async def look() -> list[str]:
        node = await Node.open(ports, machine.settings)
        found = [*ledger.compare(node.store), *ledger.violations]
        await Millrace(EmbeddedEngine(node)).close()
        return found

    try:
        found = loop.run(look())
    except Corrupt as error:
        return f"refused: {error}", []
    except MillraceError as error:
        return "failed", [f"{type(error).__name__} instead of Corrupt: {error}"]
    finally:
        loop.bury()
    return ("other data" if found else "the same data"), found
