"""The ledger notices what a log or a store must not do."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from millrace.core.changes import Batch, Changes, Entry, EntryKind
from millrace.core.format.block import Block
from millrace.core.format.codec import encode_entry
from millrace.core.model import (
    Epoch,
    GroupId,
    History,
    Index,
    Millis,
    NewMessage,
    ShardId,
)
from millrace.store.memory_store import MemoryStore
from millrace.wal.record import (
    DATA,
    END,
    SegmentHeader,
    encode_record,
)
from tests.support.checkers.ledger import Ledger, LedgerDisk
from tests.support.simulator.disk import Crashed, SimDisk

GROUP = GroupId(0)
HISTORY = History(b"h" * 16)
SEGMENT = SegmentHeader(b"l" * 16, 1, 2, 0, 1, 1 << 20)
FILE = "log/00000001.seg"


def entry(index: int, *bodies: bytes, epoch: int = 1) -> Entry:
    changes = Changes(firsts=[index], made=1 if index == 1 else 0)
    block = Block.of_messages([NewMessage(body) for body in bodies])
    batch = Batch(ShardId(1), Index(index), Millis(1000 + index), changes, [block])
    return Entry(GROUP, Epoch(epoch), Index(index), HISTORY, [batch])


def fact(epoch: int) -> Entry:
    return Entry(
        GROUP, Epoch(epoch), Index(0), HISTORY, [], kind=EntryKind.FACT, fact=bytes([epoch])
    )


def record(serial: int, *entries: Entry, kind: int = DATA) -> bytes:
    payload = b"".join(bytes(buffer) for entry in entries for buffer in encode_entry(entry, 0))
    head, _ = encode_record(
        kind, SEGMENT, serial=serial, prev_crc=0, buffers=[payload], length=len(payload)
    )
    return head + payload


def ledger_of(records: Sequence[bytes]) -> Ledger:
    ledger = Ledger(GROUP)
    for at, data in enumerate(records):
        ledger.wrote(FILE, data, 4096 * (at + 1))
        ledger.synced(FILE)
    return ledger


def store_of(*entries: Entry) -> MemoryStore:
    store = MemoryStore()
    for each in entries:
        store.fold(each, None)
    return store


def test_what_was_synced_is_what_must_be_served() -> None:
    ledger = ledger_of([record(1, fact(1)), record(2, entry(1, b"a")), record(3, entry(2, b"b"))])
    assert ledger.violations == []
    assert ledger.compare(store_of(entry(1, b"a"), entry(2, b"b"))) == []
    assert not ledger.is_proven
    ledger.wrote(FILE, record(4, kind=END), 8 * 4096)
    ledger.synced(FILE)
    assert ledger.is_proven


def test_a_record_that_was_never_synced_may_be_lost_and_replaced() -> None:
    ledger = ledger_of([record(1, fact(1)), record(2, entry(1, b"a"))])
    ledger.wrote(FILE, record(3, entry(2, b"lost")), 8 * 4096)
    ledger.new_life()
    ledger.wrote(FILE, record(3, fact(2)), 4096)
    ledger.synced(FILE)
    assert ledger.violations == []
    assert ledger.compare(store_of(entry(1, b"a"))) == []


def test_what_a_process_tries_after_its_end_was_never_written() -> None:
    ledger = ledger_of([record(1, fact(1))])
    disk = SimDisk(random.Random(1))
    disk.make_folder("log")
    life = LedgerDisk(disk, ledger)
    file = life.create(FILE)
    disk.crash()
    life.ledger = None
    ledger.new_life()
    with pytest.raises(Crashed):
        file.write([record(2, entry(1, b"late"))], 4096)
    # The next process syncs a file of that name, and writes the record that comes next.
    ledger.synced(FILE)
    ledger.wrote(FILE, record(2, fact(2)), 4096)
    ledger.synced(FILE)
    assert (ledger.violations, ledger.records) == ([], 2)


def test_a_record_that_was_found_again_counts() -> None:
    ledger = ledger_of([record(1, fact(1))])
    data = record(2, entry(1, b"a"))
    ledger.wrote(FILE, data, 8 * 4096)
    ledger.new_life()
    ledger.wrote(FILE, data, 8 * 4096)
    ledger.synced(FILE)
    assert ledger.violations == []
    assert ledger.compare(store_of(entry(1, b"a"))) == []


@pytest.mark.parametrize(
    ("records", "violation"),
    [
        (
            [record(1, fact(1)), record(2, entry(1, b"a")), record(2, entry(1, b"b"))],
            "I1: record 2 was synced, and another one is written",
        ),
        ([record(1, fact(1)), record(3, entry(1, b"a"))], "I1: record 3 follows 1 synced ones"),
        ([record(1, fact(1)), record(2, entry(2, b"a"))], "I9: entry 2 was written where 1 is due"),
        ([record(1, fact(2)), record(2, fact(2))], "I9: epoch 2 begins after 2"),
        ([record(1, fact(2)), record(2, entry(1, b"a"))], "I4: entry 1 is of epoch 1, not 2"),
    ],
)
def test_a_log_that_breaks_its_promise_is_found(records: list[bytes], violation: str) -> None:
    assert violation in ledger_of(records).violations


@pytest.mark.parametrize(
    ("store", "violation"),
    [
        (store_of(entry(1, b"a")), "I1: entry 2 was synced, but 1 is the last that is served"),
        (store_of(entry(1, b"a"), entry(2, b"c")), "I12: rows of 1 for"),
        (store_of(entry(1, b"a"), entry(2, b"b", b"c")), "I12: meta of 1"),
    ],
)
def test_a_store_that_serves_something_else_is_found(store: MemoryStore, violation: str) -> None:
    ledger = ledger_of([record(1, fact(1)), record(2, entry(1, b"a")), record(3, entry(2, b"b"))])
    assert any(found.startswith(violation) for found in ledger.compare(store))
