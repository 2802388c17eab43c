"""Both kinds of cells keep the promise of `millrace.store.cells`."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from millrace.store.cells import Cells, Table
from millrace.store.lmdb_cells import LmdbCells
from millrace.store.memory_cells import MemoryCells
from tests.support.contracts import check_cells


def open_lmdb(folder: Path) -> LmdbCells:
    return LmdbCells(folder, ballast_bytes=4096, spare_bytes=4096)


def reopen_lmdb(folder: Path, cells: Cells) -> LmdbCells:
    """LMDB allows a folder to be open once in a process, so that this cannot be a real crash.

    Those are in `test_lmdb_cells.py`.
    """
    cells.close()
    return open_lmdb(folder)


def reopen_memory(cells: Cells) -> MemoryCells:
    assert isinstance(cells, MemoryCells)
    return MemoryCells(cells.image())


@pytest.mark.parametrize("check", check_cells.CHECKS, ids=lambda check: check.__name__.strip("_"))
def test_lmdb(check: Callable[[Cells, check_cells.Reopen], None], tmp_path: Path) -> None:
    check(open_lmdb(tmp_path), lambda cells: reopen_lmdb(tmp_path, cells))


@pytest.mark.parametrize("check", check_cells.CHECKS, ids=lambda check: check.__name__.strip("_"))
def test_memory(check: Callable[[Cells, check_cells.Reopen], None]) -> None:
    check(MemoryCells(), reopen_memory)


def test_the_suite_runs_as_one_call(tmp_path: Path) -> None:
    check_cells.check_cells(MemoryCells, reopen_memory)


# --- Against a plain dict ----------------------------------------------------------------------

tables = st.sampled_from([Table.META, Table.KEYS, Table.DEATHS])
# Few letters, so that keys meet and one is often the beginning of another.
keys = st.binary(min_size=1, max_size=4).map(lambda key: bytes(byte % 3 for byte in key))
bounds = st.one_of(st.just(b""), keys, st.just(b"\xff"))
values = st.one_of(st.none(), st.binary(max_size=40), st.just(b"x" * 2_000))
writes = st.dictionaries(tables, st.dictionaries(keys, values, max_size=30), max_size=3)


class Against(RuleBasedStateMachine):
    """Every answer is the one that a dict of dicts gives."""

    cells: Cells

    def __init__(self) -> None:
        super().__init__()
        self.model: dict[Table, dict[bytes, bytes]] = {table: {} for table in Table}

    def reopen(self) -> None:
        raise NotImplementedError

    @rule(writes=writes)
    def commit(self, writes: dict[Table, dict[bytes, bytes | None]]) -> None:
        self.cells.commit(writes)
        for table, changes in writes.items():
            for key, value in changes.items():
                if value is None:
                    self.model[table].pop(key, None)
                else:
                    self.model[table][key] = value

    @rule(table=tables, keys=st.lists(keys, max_size=10))
    def get(self, table: Table, keys: list[bytes]) -> None:
        assert self.cells.get(table, keys) == [self.model[table].get(key) for key in keys]

    @rule(table=tables, low=bounds, high=bounds, limit=st.integers(0, 20), is_reverse=st.booleans())
    def range(self, table: Table, low: bytes, high: bytes, limit: int, *, is_reverse: bool) -> None:
        expected = sorted(row for row in self.model[table].items() if low <= row[0] < high)
        if is_reverse:
            expected.reverse()
        found = self.cells.range(table, low, high, limit=limit, reverse=is_reverse)
        assert found == expected[:limit]

    @rule()
    def reopen_and_check(self) -> None:
        self.reopen()
        assert self.cells.check() == []

    @invariant()
    def has_everything(self) -> None:
        for table in (Table.META, Table.KEYS, Table.DEATHS):
            found = self.cells.range(table, b"", b"\xff", limit=1_000)
            assert found == sorted(self.model[table].items())


class LmdbAgainst(Against):
    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.cells = open_lmdb(self.folder)

    def reopen(self) -> None:
        self.cells = reopen_lmdb(self.folder, self.cells)

    def teardown(self) -> None:
        assert self.cells.check() == []
        self.cells.close()
        shutil.rmtree(self.folder)


class MemoryAgainst(Against):
    def __init__(self) -> None:
        super().__init__()
        self.cells = MemoryCells()

    def reopen(self) -> None:
        self.cells = reopen_memory(self.cells)


TestLmdbAgainst = LmdbAgainst.TestCase
TestLmdbAgainst.settings = settings(
    max_examples=60,
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
TestMemoryAgainst = MemoryAgainst.TestCase
TestMemoryAgainst.settings = settings(max_examples=50, stateful_step_count=25, deadline=None)
