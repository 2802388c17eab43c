"""Records before the start of the replay are verified before they are first read."""

from __future__ import annotations

import pytest

from millrace import errors
from millrace.wal.record import LogPosition
from tests.support.simulator.disk import SimDisk
from tests.wal.harness import new_disk, open_log, payload_of

RECORDS = 12


def _written() -> tuple[SimDisk, list[LogPosition], int]:
    """A closed log over several generations, and where its records lie."""
    disk = new_disk()
    log, _ = open_log(disk)
    positions = []
    for number in range(RECORDS):
        positions.append(log.append([payload_of(number, 3000)]))
        log.prepare()
    log.close()
    return disk, positions, positions[0].generation


def test_whole_records_before_the_start_are_read() -> None:
    disk, positions, oldest = _written()
    log, _ = open_log(disk)
    start = log.mark()
    log.close()
    log, payloads = open_log(disk, start=start, needed_from=oldest)
    assert payloads == []
    for number, position in enumerate(positions):
        view = log.buffer(position)
        assert view is not None
        assert bytes(view) == payload_of(number, 3000)
    log.close()


@pytest.mark.parametrize("at", range(RECORDS))
def test_damage_before_the_start_is_never_read_as_data(at: int) -> None:
    """Replay begins at the checkpoint's mark; rows before it that are not sealed yet lie in the log
    alone. Damaged there, they were handed out as if nothing had happened, and sealing would have
    given them a good checksum."""
    disk, positions, oldest = _written()
    log, _ = open_log(disk)
    start = log.mark()
    log.close()
    name = next(
        f"log/{name}"
        for name in disk.names("log")
        if payload_of(at, 3000) in disk.open(f"log/{name}").read(1 << 20, 0)
    )
    disk.flip(name, positions[at].offset + 1000, bit=3)
    log, _ = open_log(disk, start=start, needed_from=oldest)
    for position in positions:
        if position == positions[at]:
            for _ in range(2):
                with pytest.raises(errors.Corrupt, match=name):
                    log.buffer(position)
            with pytest.raises(errors.Corrupt, match=name):
                log.lend(position)
        else:
            number = positions.index(position)
            assert bytes(log.buffer(position) or b"") == payload_of(number, 3000), "it is whole"
    log.close()
