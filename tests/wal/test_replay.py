"""Replay: the whole log, or a clear refusal."""

from __future__ import annotations

import random

import pytest

from millrace import errors, limits
from millrace.wal.record import (
    DATA,
    END,
    RECORD_HEADER_BYTES,
    LogMark,
    SegmentHeader,
    encode_record,
    encode_segment_header,
    record_span,
)
from millrace.wal.replay import ORIGIN, Replay
from millrace.wal.segment import LogShape
from millrace.wal.write_ahead_log import WriteAheadLog
from tests.support.simulator.disk import SimDisk
from tests.wal.harness import (
    SECTOR,
    SHAPE,
    new_disk,
    open_log,
    payload_of,
    read_log,
)

HEADER = SegmentHeader(b"0123456789abcdef", 5, 99, 0, 1, 8 * SECTOR)


class Forge:
    """Writes segments and records by hand, as no log would."""

    def __init__(self) -> None:
        self.disk = new_disk()
        self.disk.make_folder("log")
        self.prev_crc = 0
        self.serial = 1
        self.offset = SECTOR
        self.name = ""
        self.header = HEADER

    def segment(self, number: int, header: SegmentHeader) -> None:
        self.name = f"log/{number:08d}.seg"
        self.disk.open(self.name, create_bytes=header.size).write(
            [encode_segment_header(header)], 0
        )
        self.header, self.offset = header, SECTOR

    def record(
        self,
        payload: bytes,
        *,
        kind: int = DATA,
        header: SegmentHeader | None = None,
        serial: int | None = None,
        prev_crc: int | None = None,
        length: int | None = None,
    ) -> None:
        head, crc = encode_record(
            kind,
            header or self.header,
            serial=self.serial if serial is None else serial,
            prev_crc=self.prev_crc if prev_crc is None else prev_crc,
            buffers=[payload],
            length=len(payload) if length is None else length,
        )
        self.disk.open(self.name).write([head, payload], self.offset)
        self.offset += record_span(len(payload))
        self.serial += 1
        self.prev_crc = crc


@pytest.fixture
def forge() -> Forge:
    forge = Forge()
    forge.segment(1, HEADER)
    forge.record(b"one")
    forge.record(b"two")
    return forge


def test_positions_and_payloads_come_in_order(forge: Forge) -> None:
    forge.record(b"", kind=END)
    forge.record(b"three")
    replay = Replay(forge.disk)
    found = [(place, bytes(payload)) for place, payload in replay]
    assert [payload for _, payload in found] == [b"one", b"two", b"three"]
    assert [place.offset for place, _ in found] == [4160, 8256, 16448]
    assert replay.end == LogMark(5, 5 * SECTOR, forge.prev_crc, 5)


def test_an_empty_folder_ends_at_the_origin() -> None:
    replay = Replay(new_disk())
    assert list(replay) == []
    assert replay.end == ORIGIN
    assert read_log(new_disk(), start=ORIGIN) == []


def test_payloads_may_be_kept(forge: Forge) -> None:
    kept = [payload for _, payload in Replay(forge.disk)]
    forge.disk.open(forge.name).write([b"x" * 8 * SECTOR], 0)
    assert [bytes(payload) for payload in kept] == [b"one", b"two"]


@pytest.mark.parametrize(
    "wrong",
    [
        {"header": HEADER._replace(generation=4)},
        {"header": HEADER._replace(nonce=98)},
        {"serial": 4},
        {"serial": 2},
        {"prev_crc": 17},
        {"kind": 3},
        {"kind": 0},
        {"length": 2},
        {"length": 2**63},
        {"length": 7 * SECTOR},
    ],
)
def test_a_whole_record_that_does_not_follow_is_the_end(
    forge: Forge, wrong: dict[str, int]
) -> None:
    """Every field of the chain counts by itself."""
    forge.record(b"wrong", **wrong)  # type: ignore[arg-type]  # The table mixes ints and a header.
    assert read_log(forge.disk) == [b"one", b"two"]


def test_a_bad_record_before_a_whole_one_is_corruption(forge: Forge) -> None:
    forge.record(b"three")
    forge.disk.flip(forge.name, 2 * SECTOR + RECORD_HEADER_BYTES)
    with pytest.raises(errors.Corrupt, match="offset 8192: a bad record, but a whole one follows"):
        read_log(forge.disk)


@pytest.mark.parametrize(
    "other",
    [
        {"header": HEADER._replace(generation=4)},
        {"header": HEADER._replace(nonce=98)},
        {"serial": 3},
    ],
)
def test_what_an_earlier_life_or_a_payload_left_does_not_count_as_later(
    forge: Forge, other: dict[str, int]
) -> None:
    """Whole, but of another generation, or a copy of an earlier record inside a torn payload."""
    forge.offset += SECTOR
    forge.record(b"stale", **other)  # type: ignore[arg-type]  # As above.
    assert read_log(forge.disk) == [b"one", b"two"]


def test_a_later_record_is_found_at_any_distance() -> None:
    """Beyond one piece of reading, and right at the end of the segment."""
    size = 2 * limits.REPLAY_READ_BYTES + 5 * SECTOR
    for offset in (3 * SECTOR, size // 2 // SECTOR * SECTOR, size - SECTOR):
        forge = Forge()
        forge.segment(1, HEADER._replace(size=size))
        forge.record(b"one")
        forge.offset = offset
        forge.record(b"later", serial=9)
        with pytest.raises(errors.Corrupt, match=f"a whole one follows at {offset}"):
            read_log(forge.disk)


def test_records_larger_than_one_piece_of_reading() -> None:
    forge = Forge()
    forge.segment(1, HEADER._replace(size=3 * limits.REPLAY_READ_BYTES))
    payloads = [
        b"a" * (limits.REPLAY_READ_BYTES - 100),
        b"b" * (limits.REPLAY_READ_BYTES + 100),
        b"c" * 10,
    ]
    for payload in payloads:
        forge.record(payload)
    assert read_log(forge.disk) == payloads


def test_a_generation_ends_where_the_next_begins(forge: Forge) -> None:
    """An earlier open cut a torn record. If a mirror mends it later, it must stay cut."""
    after_two = (forge.prev_crc, forge.serial)
    forge.record(b"torn, then mended")
    forge.prev_crc, forge.serial = after_two
    forge.segment(2, HEADER._replace(generation=6, nonce=7, prev_crc=after_two[0], first_serial=3))
    forge.record(b"three")
    assert read_log(forge.disk) == [b"one", b"two", b"three"]


@pytest.mark.parametrize(("crc_change", "first_serial"), [(1, 3), (0, 2), (0, 4), (0, 1)])
def test_a_next_generation_that_begins_elsewhere_is_corruption(
    forge: Forge, crc_change: int, first_serial: int
) -> None:
    prev_crc = forge.prev_crc ^ crc_change
    forge.segment(2, HEADER._replace(generation=6, prev_crc=prev_crc, first_serial=first_serial))
    with pytest.raises(errors.Corrupt):
        read_log(forge.disk)


def test_a_missing_generation_is_corruption(forge: Forge) -> None:
    forge.segment(2, HEADER._replace(generation=6, prev_crc=forge.prev_crc, first_serial=3))
    forge.record(b"three")
    forge.segment(3, HEADER._replace(generation=7, prev_crc=forge.prev_crc, first_serial=4))
    assert read_log(forge.disk) == [b"one", b"two", b"three"]
    forge.disk.remove("log/00000002.seg")
    with pytest.raises(errors.Corrupt, match=r"a bad record, but log/00000003\.seg follows it"):
        read_log(forge.disk)


def test_a_log_without_its_beginning_needs_a_checkpoint(forge: Forge) -> None:
    """The index was lost, and the segments it had made superfluous were recycled."""
    forge.segment(2, HEADER._replace(generation=6, prev_crc=forge.prev_crc, first_serial=3))
    forge.record(b"three")
    forge.disk.remove("log/00000001.seg")
    with pytest.raises(errors.Corrupt, match="begins with record 3, and no checkpoint"):
        Replay(forge.disk)
    replay = Replay(forge.disk, is_partial=True)
    assert [bytes(payload) for _, payload in replay] == [b"three"]


def test_reading_begins_at_any_mark(forge: Forge) -> None:
    for number in range(4):
        forge.record(b"%d" % number)
    replay = Replay(forge.disk)
    found = [(place, bytes(payload)) for place, payload in replay]
    log, everything = open_log(forge.disk)
    assert [payload for _, payload in found] == everything
    for number, (place, _) in enumerate(found):
        assert read_log(forge.disk, start=log.mark_of(place)) == everything[number:]
    assert read_log(forge.disk, start=replay.end) == []
    assert read_log(forge.disk, start=log.mark()) == []


@pytest.mark.parametrize(
    "wrong",
    [
        {"generation": 4},
        {"generation": 6},
        {"offset": SECTOR},
        {"offset": 3 * SECTOR},
        {"offset": 2 * SECTOR + 512},
        {"offset": 100 * SECTOR},
        {"prev_crc": 1},
        {"serial": 3},
    ],
)
def test_a_mark_that_the_log_does_not_have_is_corruption(
    forge: Forge, wrong: dict[str, int]
) -> None:
    """The log is older than the index: it was restored from an earlier copy."""
    log, _ = open_log(forge.disk)
    second = [place for place, _ in Replay(forge.disk)][1]
    mark = log.mark_of(second)
    assert mark is not None
    assert read_log(forge.disk, start=mark) == [b"two"]
    with pytest.raises(errors.Corrupt):
        read_log(forge.disk, start=mark._replace(**wrong))


def test_the_start_itself_is_needed(forge: Forge) -> None:
    with pytest.raises(errors.Invalid, match="the start itself"):
        Replay(forge.disk, start=LogMark(5, SECTOR, 0, 1), needed_from=6)


def test_a_bad_sector_is_an_error_and_not_an_end(forge: Forge) -> None:
    forge.disk.break_reads(forge.name, offset=2 * SECTOR, length=512)
    with pytest.raises(errors.DiskFailed, match=r"reading log/00000001\.seg"):
        read_log(forge.disk)


def small_log() -> tuple[SimDisk, list[bytes], dict[str, int]]:
    """Return a log of three opens, its payloads, and how far each segment is used."""
    shape = LogShape(segment_bytes=5 * SECTOR, segments_free=0, segments_reserve=1)
    disk, payloads = new_disk(), list[bytes]()
    for _ in range(3):
        log, _ = open_log(disk, shape=shape)
        for length in (10, SECTOR):
            payloads.append(payload_of(len(payloads), length))
            log.append([payloads[-1]])
        log.close()
    replay = Replay(disk)
    assert [bytes(payload) for _, payload in replay] == payloads
    return disk, payloads, {segment.name: segment.end for segment in replay.survey.used}


@pytest.mark.slow
def test_a_flip_of_every_byte_gives_the_same_data_or_corrupt() -> None:
    """A disk that rots must never make a record vanish or change without a word."""
    disk, payloads, ends = small_log()
    chance = random.Random(1)
    refused = 0
    for name in disk.names("log"):
        name = f"log/{name}"
        for offset in range(disk.open(name).size):
            bit = chance.randrange(8)
            disk.flip(name, offset, bit=bit)
            try:
                assert read_log(disk) == payloads, (name, offset, bit)
            except errors.Corrupt:
                refused += 1
                assert offset < ends[name], "a flip in an unused area changes nothing"
            disk.flip(name, offset, bit=bit)
    # Three segment headers, and at least headers and payloads of the six data records.
    assert refused > 3 * 60 + 6 * 60 + 3 * SECTOR


def test_replay_changes_nothing() -> None:
    disk, _, _ = small_log()
    effects = disk.effects
    read_log(disk)
    assert disk.effects == effects


# --- Reading again -------------------------------------------------------------------------------


@pytest.mark.parametrize("read_bytes", [SECTOR, limits.REPLAY_READ_BYTES])
def test_what_was_read_can_be_read_again_behind_an_open_log(
    read_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "REPLAY_READ_BYTES", read_bytes)
    disk = new_disk()
    start = None
    for life in range(3):
        log, _ = open_log(disk)
        for number in range(3):
            log.append([payload_of(life * 10 + number, 3000 * number)])
            if (life, number) == (0, 1):
                start = log.mark()
        log.close()
    replay = Replay(disk, start=start)
    before = [(place, bytes(payload)) for place, payload in replay]
    assert len(before) == 7
    log = WriteAheadLog.open(replay, SHAPE, chance=random.Random(0).randbytes)
    log.append([b"not part of it"])
    for _ in range(2):
        assert [(place, bytes(payload)) for place, payload in replay.read_again()] == before
    log.close()


def test_a_record_that_changes_before_it_is_read_again_is_corruption(forge: Forge) -> None:
    replay = Replay(forge.disk)
    assert len(list(replay)) == 2
    forge.disk.flip(forge.name, 2 * SECTOR + 64)
    again = replay.read_again()
    next(again)
    with pytest.raises(errors.Corrupt, match="changed while it was read"):
        next(again)
