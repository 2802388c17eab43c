"""Several flows write to one table at the same time: each goes on, nothing is lost."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from millrace.errors import Retry
from millrace.testing.sink_rig import Run, puts, span
from tests.sinks.lakes.rig import LAKES, NAMES, LakeRig, make_lake

FLOWS = 3
SPANS = 2


def _carry(rig: LakeRig, flow: str) -> None:
    run = Run(rig, flow)
    at = 0
    while at < SPANS:
        try:
            run.carry(span(at, at + 1), puts(f"{flow} {at}", f"{flow} last"))
        except Retry:
            run = Run(rig, flow)
            at = 0 if run.at is None else run.at.number
        else:
            at += 1


@pytest.mark.parametrize(("kind", "mode"), LAKES, ids=NAMES)
def test_flows_beside_each_other(kind: str, mode: str, tmp_path: Path) -> None:
    rig = LakeRig(make_lake(kind, mode, tmp_path, **({"lanes": 2} if mode == "upsert" else {})))
    flows = [f"flow{each}/sink" for each in range(FLOWS)]
    with ThreadPoolExecutor(FLOWS) as pool:
        list(pool.map(lambda flow: _carry(rig, flow), flows))
    expected = Counter(f"{flow} {at}" for flow in flows for at in range(SPANS))
    for flow in flows:
        expected[f"{flow} last"] = 1 if mode == "upsert" else SPANS
    assert Counter(row.key for row in rig.rows()) == expected
    assert {Run(rig, flow).at for flow in flows} == {span(0, SPANS).upto}
