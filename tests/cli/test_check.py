"""`millrace check` finds damage wherever it is, and none where there is none."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec
import pytest

from millrace.cli.check.command import CHILD, Checking
from millrace.cli.check.report import Finding, PhaseSkipped
from millrace.cli.folder import Folder
from millrace.store.cells import Table
from millrace.store.index_codec import (
    decode_shard,
    encode_shard,
    joined,
    number_bytes,
    parts,
)
from millrace.store.lmdb_cells import LmdbCells
from millrace.store.read_only_store import all_cells
from millrace.store.row_location import decode_location, encode_location
from tests.cli.program import call, contents, findings, flip, messages_of, objects

SEALED = "sealed/000000000001.arrow"
DATA = "index/data.mdb"


@pytest.mark.process
def test_a_whole_folder(folder: Path) -> None:
    before = contents(folder)
    result = call("check", folder)
    assert result.exit_code == 0, result.stdout + result.stderr
    assert result.stdout.startswith("checked ")
    assert result.stdout.endswith(" 2005 rows: no damage\n")
    assert result.stderr == "", "progress is for terminals"
    assert contents(folder) == before
    assert findings(folder) == []


@pytest.mark.process
def test_as_json(folder: Path) -> None:
    flip(folder / SEALED, 2_000)
    result = call("check", folder, "--json")
    assert result.exit_code == 4, "rows of a queue cannot be read"
    *found, end = [json.loads(line) for line in result.stdout.splitlines()]
    assert found[0]["type"] == "finding"
    assert found[0]["file"] == SEALED
    assert {one["queue"] for one in found if "queue" in one} == {"queue default/work"}
    assert isinstance(found[0]["offset"], int)
    assert end["type"] == "end"
    assert end["findings"] == len(found)


# --- Bytes ---------------------------------------------------------------------------------------


def segments(folder: Path, state: str) -> list[str]:
    return [str(line["file"]) for line in objects("dump", folder) if line.get("state") == state]


@pytest.mark.process
def test_a_byte_of_a_record(folder: Path) -> None:
    [_, name, *_] = segments(folder, "needed")
    flip(folder / name, 4096 + 200)
    result = call("check", folder)
    assert result.exit_code == 4, "rows of a queue cannot be read"
    first, *_, hint, last = result.stdout.splitlines()
    assert first.startswith(f"{name}, offset 4096: a bad record, but ")
    assert hint.startswith("Hint: rows of queue default/")
    assert last.startswith("checked ")
    assert last.endswith(" findings")


def test_damage_in_two_segments_is_found_in_both(folder: Path) -> None:
    names = segments(folder, "needed")[:2]
    for name in names:
        flip(folder / name, 4096 + 200)
    found = {(finding.file, finding.offset) for finding in findings(folder)}
    assert {(name, 4096) for name in names} <= found


def test_what_the_log_no_longer_needs_may_be_damaged(folder: Path) -> None:
    [free, *_] = segments(folder, "free")
    flip(folder / free, 4096 + 200)
    assert findings(folder) == []


def test_any_byte_of_a_sealed_file(folder: Path) -> None:
    chance = random.Random(5)
    path = folder / SEALED
    whole = path.read_bytes()
    first = int(str(objects("dump", folder, "sealed", 1)[0]["offset"]))
    places = [first, len(whole) - 1, *(chance.randrange(first, len(whole)) for _ in range(10))]
    for place in places:
        flip(path, place)
        assert any(finding.file == SEALED for finding in findings(folder)), place
        path.write_bytes(whole)
    path.write_bytes(whole[:-100])
    assert any(finding.file == SEALED for finding in findings(folder))
    path.unlink()
    assert "the file is missing" in said(folder)


def test_a_file_that_nobody_knows(folder: Path) -> None:
    (folder / "sealed" / "000000000000.arrow").write_bytes(b"?")
    assert [finding.what for finding in findings(folder)] == ["the file is unknown to the index"]


def test_a_byte_of_lmdb(folder: Path) -> None:
    path = folder / DATA
    whole = path.read_bytes()
    place = whole.find(b"default\0orders")
    outcomes = []
    while place >= 0:
        # Freed pages hold older copies, which nobody reads.
        flip(path, place)
        outcomes.append(any(finding.file == DATA for finding in findings(folder)))
        path.write_bytes(whole)
        place = whole.find(b"default\0orders", place + 1)
    assert any(outcomes)


def test_the_rest_is_checked_without_the_index(folder: Path) -> None:
    flip(folder / SEALED, 2_000)
    flip(folder / DATA, 4096 + 16 + 8)
    (folder / DATA).write_bytes((folder / DATA).read_bytes()[:8192])
    messages = messages_of(folder)
    files = [message.file for message in messages if isinstance(message, Finding)]
    assert {DATA, SEALED} == set(files)
    assert PhaseSkipped("rows and counters need the index: not checked") in messages


@pytest.mark.process
def test_a_crash_is_a_finding(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The first child dies as LMDB would on a damaged page; the next one does the rest."""
    flip(folder / SEALED, 2_000)
    program = f"""
import os, signal, sys
if "index" in sys.argv[2:]:
    print('{{"type":"began","part":"index"}}', flush=True)
    print('{{"type":"fin', end="", flush=True)
    os.kill(os.getpid(), signal.SIGSEGV)
os.execv({CHILD[0]!r}, [*{CHILD!r}, *sys.argv[1:]])
"""
    checking = Checking(Folder(folder), is_json=False, child=(sys.executable, "-c", program))
    checking.run()
    checking.close()
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == (f"{DATA}: the process that read it was killed by SIGSEGV: it is damaged")
    assert any(line.startswith(f"{SEALED}, offset ") for line in lines)
    assert lines[-1].endswith(": 2 findings")


# --- What a checksum does not know ----------------------------------------------------------------


def rewrite(
    folder: Path,
    table: Table,
    change: Callable[[dict[bytes, bytes]], Mapping[bytes, bytes | None]],
) -> None:
    """Commit other cells, with right stamps and sums: as a defect of the engine would."""
    cells = LmdbCells(folder / "index", ballast_bytes=4096, spare_bytes=4096)
    cells.commit({table: change(dict(all_cells(cells, table)))})
    cells.close()


def said(folder: Path) -> list[str]:
    return [finding.what for finding in findings(folder)]


def test_counters_that_do_not_add_up(folder: Path) -> None:
    def change(stored: dict[bytes, bytes]) -> Mapping[bytes, bytes]:
        key = number_bytes(2)
        shard = decode_shard(joined(stored.items())[key])
        died = (0, shard.meta.died[1] - 1, *shard.meta.died[2:])
        meta = msgspec.structs.replace(shard.meta, died=died)
        return dict(parts(key, encode_shard(msgspec.structs.replace(shard, meta=meta))))

    rewrite(folder, Table.META, change)
    assert said(folder) == ["shard 2: 1970 rows are live, but 2000 published less 29 dead is 1971"]


def test_rows_that_are_nowhere(folder: Path) -> None:
    first = [block for block in objects("dump", folder, "blocks", "work") if "first" in block][-1]
    low = int(str(first["first"]))
    rewrite(folder, Table.BLOCKS, lambda _: {number_bytes(2) + number_bytes(low): None})
    assert said(folder) == [f"shard 2: rows that are nowhere: {low}-2000"]


def test_places_that_hold_something_else(folder: Path) -> None:
    blocks = [block for block in objects("dump", folder, "blocks", "work") if "first" in block]
    sealed, logged = blocks[0], blocks[-1]

    def change(stored: dict[bytes, bytes]) -> Mapping[bytes, bytes]:
        changed: dict[bytes, bytes] = {}
        for block in (sealed, logged):
            key = number_bytes(2) + number_bytes(int(str(block["first"])))
            place = decode_location(stored[key])
            changed[key] = encode_location(msgspec.structs.replace(place, offset=place.offset + 8))
        return changed

    rewrite(folder, Table.BLOCKS, change)
    found = findings(folder)
    assert {(finding.file, finding.offset) for finding in found if finding.offset is not None} == {
        (SEALED, int(str(sealed["offset"])) + 8),
        (str(logged["file"]), int(str(logged["offset"])) + 8),
    }


def test_places_in_a_log_that_is_gone(folder: Path) -> None:
    block = [block for block in objects("dump", folder, "blocks", "work") if "first" in block][-1]

    def change(stored: dict[bytes, bytes]) -> Mapping[bytes, bytes]:
        key = number_bytes(2) + number_bytes(int(str(block["first"])))
        return {key: encode_location(msgspec.structs.replace(decode_location(stored[key]), home=1))}

    rewrite(folder, Table.BLOCKS, change)
    found = said(folder)
    rows = f"the rows {block['first']} to 2000 of shard 2"
    assert f"{rows} should lie in generation 1 of the log, which is gone" in found
    assert any("which does not list it" in what for what in found)


def test_keys_that_name_other_rows(folder: Path) -> None:
    rewrite(folder, Table.KEYS, lambda _: {number_bytes(1) + b"k1": number_bytes(4)})
    assert "shard 1: keys that do not name their live rows: 3" in said(folder)
    rewrite(folder, Table.KEYS, lambda _: {number_bytes(1) + b"k1": number_bytes(3)})
    rewrite(folder, Table.KEYS, lambda _: {number_bytes(1) + b"k9": number_bytes(3)})
    assert said(folder) == ["shard 1: 3 keys name live rows, but 2 live rows have keys"]
    rewrite(folder, Table.KEYS, lambda _: {number_bytes(1) + b"k9": number_bytes(99)})
    assert said(folder) == ["shard 1: 1 keys name rows that never were"]


def test_cells_that_do_not_decode(folder: Path) -> None:
    def change(stored: dict[bytes, bytes]) -> Mapping[bytes, bytes]:
        [lease] = [key for key in joined(stored.items()) if key[:9] == number_bytes(2) + b"\3"]
        return dict(parts(lease, b"\xc1"))

    rewrite(folder, Table.CELLS, change)
    [what] = said(folder)
    assert what.startswith("shard 2: cell lease 1: a cell of kind LEASE does not decode")


def test_marks_that_are_lost(folder: Path) -> None:
    rewrite(folder, Table.DEATHS, dict.fromkeys)
    found = said(folder)
    assert "shard 1: deletes that are not marked as such: 4" in found
    assert any(what.startswith("shard 2: 2000 rows are live, but ") for what in found)


def test_stages_that_lost_rows(folder: Path) -> None:
    rewrite(
        folder,
        Table.BLOCKS,
        lambda stored: {key: None for key in stored if b"later\0" in key and key[0] == 0x80},
    )
    assert said(folder) == ["shard 2: stage 'later' has 0 rows, and its cell says 2"]


def test_the_index_alone_is_not_a_folder(folder: Path) -> None:
    """A log that the checkpoint does not fit is refused by the engine, and found here."""
    for path in (folder / "log").iterdir():
        path.unlink()
    found = findings(folder)
    assert any("which the checkpoint names, is gone" in finding.what for finding in found)
    assert call("dump", folder).exit_code == 1
