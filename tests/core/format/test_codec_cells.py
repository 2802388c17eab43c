"""Golden values: cells, changes and entries that were written once must be readable for ever."""

from __future__ import annotations

import msgspec
import pytest
from pyroaring import BitMap64

from millrace.core.cells import (
    AttemptCell,
    AwaitedCell,
    CatalogCell,
    Cell,
    CursorCell,
    DedupCell,
    DeferredCell,
    DeletesCell,
    ExpiryCell,
    GroupCell,
    IdCell,
    Kind,
    LeaseCell,
    PartitionCell,
    PinCell,
    Pointers,
    ProducerCell,
    QuarantineCell,
    QueueCell,
    RingCell,
    RowSizesCell,
    RunsCell,
    SessionCell,
    Slice,
    SlicesCell,
    StageCell,
    SubscriptionCell,
    TakeoverCell,
    TopicCell,
    TurnCell,
    awaited_key,
    expiry_key,
)
from millrace.core.changes import Batch, Changes, Entry, EntryKind
from millrace.core.format.block import Block
from millrace.core.format.codec import (
    decode_cell,
    decode_entries,
    encode_cell,
    encode_entry,
)
from millrace.core.format.seq_sets import pack_seqs
from millrace.core.model import (
    CursorPosition,
    Epoch,
    GroupId,
    History,
    Index,
    Millis,
    NewMessage,
    ShardId,
)
from millrace.core.ordering.groups import bucket_key, ring_key
from millrace.core.ordering.partitions import id_key
from millrace.core.publishing.stages import run_name
from millrace.core.spec import QueueSpec
from millrace.core.state.deferred_cells import (
    DeferredMessages,
    due_key,
    load,
    ready_key,
)

HISTORY = bytes(range(16))
CLAIM = HISTORY + (7).to_bytes(8, "big")
SEQS = pack_seqs(BitMap64([1, 2, 3, 70_000]))

CELLS: list[tuple[Kind, Cell, str]] = [
    (
        Kind.SPEC,
        QueueSpec(
            True,
            "log",
            5,
            2,
            3,
            4,
            6,
            "default/dead",
            7,
            8,
            True,
            9,
            10,
            11,
            12,
            13,
            14,
            "lz4",
            15,
            True,
            "fair",
            16,
            17,
            18,
            19,
            20,
            "partitions",
            21,
            22,
            23,
            24,
            25,
            "drop",
            (("a", "b"), ("c", "d")),
            26,
            "message",
            27,
        ),
        "dc0025c3a36c6f670502030406ac64656661756c742f646561640708c3090a0b0c0d0ea36c7a340fc3a4666169721011121314aa706172746974696f6e731516171819a464726f709292a161a16292a163a1641aa76d6573736167651b",
    ),
    (
        Kind.POINTERS,
        Pointers(7, 3, 2, 1, 4, 6, 5, 1, 9, 10, 11, 8, 2),
        "9d0703020104060501090a0b0802",
    ),
    (
        Kind.LEASE,
        LeaseCell(
            9,
            SEQS,
            SEQS,
            SEQS,
            b"",
            b"",
            8,
            {3: (2, 1)},
            {3: 99},
            12,
            {4: 2},
            SEQS,
            6,
            7,
            SEQS,
            (3, 1),
            SEQS[:3],
            {1: 2**63, 3: 5},
            30_000,
            {3: 4},
            SEQS[:3],
        ),
        (
            "dc001509c42c0100000000000000000000003a300000020000000000020001000000180000001e00"
            "00000100020003007011c42c0100000000000000000000003a300000020000000000020001000000"
            "180000001e0000000100020003007011c42c0100000000000000000000003a300000020000000000"
            "020001000000180000001e0000000100020003007011c400c4000881039202018103630c810402c4"
            "2c0100000000000000000000003a300000020000000000020001000000180000001e000000010002"
            "00030070110607c42c0100000000000000000000003a300000020000000000020001000000180000"
            "001e0000000100020003007011920301c4030100008201cf80000000000000000305cd7530810304"
            "c403010000"
        ),
    ),
    (
        Kind.PRODUCER,
        ProducerCell("dense", 3, 8, ((2, 5, 1), (3, 6, 4))),
        "95a564656e7365030892930205019303060490",
    ),
    (
        Kind.CURSOR,
        CursorCell(4, True, CursorPosition(HISTORY, 5, 2, 9), 8, 6, True, 3, True, CLAIM),
        "9904c394c410000102030405060708090a0b0c0d0e0f0502090806c303c3"
        "c418000102030405060708090a0b0c0d0e0f0000000000000007",
    ),
    (Kind.PIN, PinCell(11, 9, 4, 99, "lake", True, 7), "970b090463a46c616b65c307"),
    (Kind.STAGE, StageCell(3, 200, 8, 1, 2), "9503ccc8080102"),
    (
        Kind.DELETES,
        DeletesCell(SEQS),
        (
            "91c42c0100000000000000000000003a300000020000000000020001000000180000001e00000001"
            "00020003007011"
        ),
    ),
    (Kind.TAKEOVER, TakeoverCell(HISTORY, 11, 9), "93c410000102030405060708090a0b0c0d0e0f0b09"),
    (
        Kind.QUEUE,
        QueueCell((1, 2), "spread", 7, "default/orders"),
        "94920102a673707265616407ae64656661756c742f6f7264657273",
    ),
    (Kind.CATALOG, CatalogCell(2, b"secret"), "9202c406736563726574"),
    (
        Kind.DUE,
        DeferredCell(SEQS, 4, (5, 6, 5, 2**63)),
        (
            "93c42c0100000000000000000000003a300000020000000000020001000000180000001e00000001"
            "000200030070110494050605cf8000000000000000"
        ),
    ),
    (
        Kind.READY,
        DeferredCell(SEQS, 9),
        (
            "93c42c0100000000000000000000003a300000020000000000020001000000180000001e00000001"
            "000200030070110990"
        ),
    ),
    (Kind.GROUP, GroupCell((4, 5)), "91920405"),
    (Kind.RING, RingCell((2**63, None, 1)), "9193cf8000000000000000c001"),
    (Kind.TURN, TurnCell((4, 5), 1, 2, 3, 6), "9592040501020306"),
    (Kind.BUCKET, RingCell((2**63,)), "9191cf8000000000000000"),
    (Kind.DEDUP, DedupCell(7, 99), "920763"),
    (Kind.ATTEMPT, AttemptCell(3, 99, 8, (SEQS[:2],)), "9403630891c4020100"),
    (Kind.EXPIRY, ExpiryCell((b"ab", b"c"), SEQS[:2]), "9292c4026162c40163c4020100"),
    (
        Kind.SESSION,
        SessionCell(3, 2, 5, 100, 7, False, 30, 60, 90, True, "picker"),
        "9b0302056407c21e3c5ac3a67069636b6572",
    ),
    (Kind.TOPIC, TopicCell(3, 1000, (("a", "b"),)), "9303cd03e89192a161a162"),
    (
        Kind.SUBSCRIPTION,
        SubscriptionCell(
            "bills",
            2,
            "default/billing",
            '{"type":["x"]}',
            HISTORY,
            4,
            9,
            3,
            2,
            8,
            (("a", "b"),),
            True,
            "default/dead",
            5,
            6,
            (("c", "d"),),
        ),
        (
            "dc0010a562696c6c7302af64656661756c742f62696c6c696e67ae7b2274797065223a5b2278225d7dc4"
            "10000102030405060708090a0b0c0d0e0f04090302089192a161a162c3ac64656661756c742f64656164"
            "05069192a163a164"
        ),
    ),
    (
        Kind.PARTITION,
        PartitionCell(1, (), 5, 6, 7, 8, 9, 10, 11, 12),
        "9a019005060708090a0b0c",
    ),
    (Kind.WEIGHT, RowSizesCell(1, 2, 3), "93010203"),
    (Kind.ID, IdCell(7), "9107"),
    (Kind.RUNS, RunsCell(((0, 2, 9, None),), ((1, 1, 5),)), "929194000209c09193010105"),
    (Kind.QUARANTINE, QuarantineCell(9, "bits", 4), "9409a4626974730400"),
    (Kind.AWAITED, AwaitedCell(3, 4), "920304"),
    (Kind.SLICES, SlicesCell((Slice(2, (3, 4)), Slice())), "91929202920304920090"),
]
KEYS = [
    (awaited_key("a/b", AwaitedCell(3, 4)), "612f620000000000000000030000000000000004"),
    (ring_key(1, 2), "00000000000000010000000000000002"),
    (run_name("s.1", 3)[1], "732e310000000003"),
    (id_key(1, 2), "00000000000000010000000000000002"),
    (bucket_key(1, 2, 3), "000000000000000100000000000000020000000000000003"),
    (due_key(1, 2, 3), "000000000000000100000000000000020000000000000003"),
    (ready_key(1, 9, 2, 3), "00000000000000010000000000000000020000000000000003"),
    (expiry_key(1, 2, 3), "0000000000000001000000000000000200000003"),
    (ready_key(1, 0, 2, 3), "00000000000000010900000000000000020000000000000003"),
]
SHORTER = (
    "040000000100000005000000000000000600000000000000000102030405060708090a0b0c0d0e0f"
    "e0010000000000000100000000000000010000000000000002000000000000000300000000000000"
    "0200000099000000a8010000000000009d91089192a173019193a1740a0291a1758201c42c010000"
    "0000000000000000003a300000020000000000020001000000180000001e00000001000200030070"
    "1102c41e0100000000000000000000003a3000000100000000000000100000000500c41e01000000"
    "00000000000000003a3000000100000000000000100000000600040391019102929306c4016bc401"
    "769306c4016cc003c3000000000000000200000007000000010000000c0000000400000000000000"
    "0c000000040000000c00000008000000010000000900000001000000000000000000000004000000"
    "0400000000000000626f647900000000000000000300000004000000000000006b65796b00000000"
    "0000000001000000010000000000000000000000010000006e000000000000000000000001000000"
    "76000000000000000200000000000000000000000c00000001000000000000000000000000000000"
    "00000000000000000000000000000000000000000000000001000000000000007800000000000000"
)
ENTRY = (
    "040000000100000005000000000000000600000000000000000102030405060708090a0b0c0d0e0f"
    "00020000000000000100000000000000010000000000000002000000000000000300000000000000"
    "02000000bd000000c801000000000000dc001091089192a173019193a1740a0291a1758201c42c01"
    "00000000000000000000003a300000020000000000020001000000180000001e0000000100020003"
    "00701102c41e0100000000000000000000003a3000000100000000000000100000000500c41e0100"
    "000000000000000000003a3000000100000000000000100000000600040391019102929306c4016b"
    "c401769306c4016cc003c3c41e0100000000000000000000003a3000000100000000000000100000"
    "0009000a0b0000000200000007000000010000000c00000004000000000000000c00000004000000"
    "0c000000080000000100000009000000010000000000000000000000040000000400000000000000"
    "626f647900000000000000000300000004000000000000006b65796b000000000000000001000000"
    "010000000000000000000000010000006e0000000000000000000000010000007600000000000000"
    "0200000000000000000000000c000000010000000000000000000000000000000000000000000000"
    "0000000000000000000000000000000001000000000000007800000000000000"
)


@pytest.mark.parametrize(("kind", "cell", "written"), CELLS, ids=[kind.name for kind, *_ in CELLS])
def test_cells(kind: Kind, cell: Cell, written: str) -> None:
    assert encode_cell(cell).hex() == written
    assert decode_cell(kind, bytes.fromhex(written)) == cell


@pytest.mark.parametrize(("key", "written"), KEYS)
def test_keys(key: bytes, written: str) -> None:
    assert key.hex() == written


def test_the_key_tells_who_waits_alone() -> None:
    alone = DeferredMessages.of(BitMap64([3]), 4)
    cell = alone.cell()
    assert (cell, encode_cell(cell).hex()) == (DeferredCell(b"", 4), "93c4000490")
    assert load(Kind.DUE, due_key(1, 2, 3), bytes.fromhex("92c40004")) == alone
    # As earlier versions have written it.
    older = encode_cell(DeferredCell(pack_seqs(BitMap64([3])), 4))
    assert load(Kind.DUE, due_key(1, 2, 3), older) == alone
    both = DeferredMessages.of(BitMap64([3, 70_000]), 4)
    assert load(Kind.DUE, due_key(1, 2, 3), encode_cell(both.cell())) == both


def test_every_kind_has_its_golden_value() -> None:
    assert [kind for kind, *_ in CELLS] == list(Kind)


def test_fields_that_are_missing_have_their_defaults() -> None:
    """Cells of an older version are shorter."""
    spec = bytes.fromhex("93c3a36c6f6705")
    assert decode_cell(Kind.SPEC, spec) == QueueSpec(True, "log", 5)
    sliced = decode_cell(Kind.PARTITION, bytes.fromhex("97019292029203049200900506070809"))
    assert sliced == PartitionCell(1, (Slice(2, (3, 4)), Slice()), 5, 6, 7, 8, 9)
    assert isinstance(sliced, PartitionCell)
    assert (sliced.size, sliced.root) == (2, 2)
    lease = bytes.fromhex("9a05c400c400c400c400c4000881039202018103630c")
    assert decode_cell(Kind.LEASE, lease) == LeaseCell(
        5, b"", ended_ms=8, counts={3: (2, 1)}, deadlines={3: 99}, index=12
    )
    assert decode_cell(Kind.LEASE, b"\x92\x05\xc4\x00") == LeaseCell(5, b"")
    assert decode_cell(Kind.SESSION, b"\x94\x03\x02\x05\x64") == SessionCell(3, 2, 5, 100)
    assert decode_cell(Kind.POINTERS, b"\x91\x07") == Pointers(7)
    assert decode_cell(Kind.QUEUE, bytes.fromhex("91920102")) == QueueCell((1, 2))
    cursor = "9604c394c410000102030405060708090a0b0c0d0e0f0502090806c3"
    assert decode_cell(Kind.CURSOR, bytes.fromhex(cursor)) == CursorCell(
        4, True, CursorPosition(HISTORY, 5, 2, 9), 8, 6, True
    )
    unclaimed = "9804c394c410000102030405060708090a0b0c0d0e0f0502090806c303c3"
    assert decode_cell(Kind.CURSOR, bytes.fromhex(unclaimed)) == CursorCell(
        4, True, CursorPosition(HISTORY, 5, 2, 9), 8, 6, True, 3, True
    )
    subscription = "9ba17302a3642f71a0c410000102030405060708090a0b0c0d0e0f04090302089192a161a162"
    assert decode_cell(Kind.SUBSCRIPTION, bytes.fromhex(subscription)) == SubscriptionCell(
        "s", 2, "d/q", "", HISTORY, 4, 9, 3, 2, 8, (("a", "b"),)
    )
    shorter = "98c3a36c6f670502030406ac64656661756c742f64656164"
    assert decode_cell(Kind.SPEC, bytes.fromhex(shorter)) == QueueSpec(
        True, "log", 5, 2, 3, 4, 6, "default/dead"
    )


def entry() -> Entry:
    changes = Changes(
        firsts=[8],
        staged=[("s", 1)],
        published=[("t", 10, 2)],
        unstaged=["u"],
        died={1: SEQS, 2: pack_seqs(BitMap64([5]))},
        settled=pack_seqs(BitMap64([6])),
        passed=4,
        purged=3,
        unpinned=[1],
        pinned=[2],
        cells=[(int(Kind.PIN), b"k", b"v"), (int(Kind.PIN), b"l", None)],
        made=3,
        dropped=True,
        aside=pack_seqs(BitMap64([9])),
        weight=10,
        expired=11,
    )
    rows = Block.of_messages([NewMessage(b"body", b"key", (("n", b"v"),)), NewMessage(None, b"k")])
    staged = Block.of_bodies([b"", b"x"])
    batch = Batch(ShardId(1), Index(2), Millis(3), changes, [rows, staged])
    return Entry(GroupId(4), Epoch(5), Index(6), History(HISTORY), [batch])


def test_changes_of_an_older_version_are_shorter() -> None:
    [read] = decode_entries(memoryview(bytes.fromhex(SHORTER)))
    changes = entry().batches[0].changes
    assert read.batches[0].changes == msgspec.structs.replace(
        changes, aside=b"", weight=0, expired=0
    )


def test_entry() -> None:
    assert b"".join(encode_entry(entry(), 0)).hex() == ENTRY
    [read] = decode_entries(memoryview(bytes.fromhex(ENTRY)))
    assert read.batches[0].changes == entry().batches[0].changes
    assert read.kind is EntryKind.DATA
    for one, other in zip(read.batches[0].blocks, entry().batches[0].blocks, strict=True):
        assert one.rows(0, 2, 1, 3) == other.rows(0, 2, 1, 3)
