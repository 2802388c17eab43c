"""Several flows at one table, and others who delete: each goes on, nothing is lost."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from millrace.errors import Retry
from millrace.testing.check_sink import SinkRun, puts, span
from tests.sinks.lakes.rig import LAKES, NAMES, LakeRig, make_lake

FLOWS = 3
SPANS = 2


def _carry(rig: LakeRig, flow: str) -> None:
    run = SinkRun(rig, flow)
    at = 0
    while at < SPANS:
        try:
            run.carry(span(at, at + 1), puts(f"{flow} {at}", f"{flow} last"))
        except Retry:
            run = SinkRun(rig, flow)
            at = 0 if run.at is None else run.at.number
        else:
            at += 1


@pytest.mark.parametrize(("kind", "mode"), LAKES, ids=NAMES)
def test_flows_beside_each_other(kind: str, mode: str, tmp_path: Path) -> None:
    folder = tmp_path / "a näme with spaces"
    rig = LakeRig(make_lake(kind, mode, folder, **({"lanes": 2} if mode == "upsert" else {})))
    flows = [f"flow{each}/sink" for each in range(FLOWS)]
    with ThreadPoolExecutor(FLOWS) as pool:
        list(pool.map(lambda flow: _carry(rig, flow), flows))
    expected = Counter(f"{flow} {at}" for flow in flows for at in range(SPANS))
    for flow in flows:
        expected[f"{flow} last"] = 1 if mode == "upsert" else SPANS
    assert Counter(row.key for row in rig.rows()) == expected
    assert {SinkRun(rig, flow).at for flow in flows} == {span(0, SPANS).upto}


@pytest.mark.parametrize(("kind", "mode"), LAKES, ids=NAMES)
def test_files_that_are_gone_are_not_committed(kind: str, mode: str, tmp_path: Path) -> None:
    run = SinkRun(LakeRig(make_lake(kind, mode, tmp_path)))
    staged = run.stage_all(span(0, 5), puts("a"))
    run.commit(span(0, 5), staged)
    later = run.stage_all(span(5, 6), puts("a", value="2"))
    for path in tmp_path.rglob("*.parquet"):
        path.unlink()
    run.commit(span(0, 5), staged)
    with pytest.raises(Retry, match="stage the rows again"):
        run.commit(span(5, 6), later)
    assert SinkRun(run.rig).at == span(0, 5).upto
