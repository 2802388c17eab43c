"""Killed at any moment, whoever carries rows into a lake loses none and doubles none.

KILLS=n has it killed so many times for each kind.
"""

from __future__ import annotations

import multiprocessing
import os
import random
from pathlib import Path

import pytest

from millrace.sinks.base import DELETE
from tests.sinks.lakes.carrier import SPAN, carry, changes
from tests.sinks.lakes.rig import LAKES, NAMES, lines_of, make_lake

pytestmark = pytest.mark.process

KILLS = int(os.environ.get("KILLS", "3"))
STEPS_MAX = 6
"""Messages of the process after which it is killed at the latest."""


@pytest.mark.slow
@pytest.mark.timeout(300 + 30 * KILLS)
@pytest.mark.parametrize(("kind", "mode"), LAKES, ids=NAMES)
def test_killed_at_any_moment(kind: str, mode: str, tmp_path: Path) -> None:
    chance = random.Random(f"{kind} {mode} {os.environ.get('SEED', '1')}")
    # A kill after so many messages leaves at most two spans behind.
    end = SPAN * (2 * KILLS + 2)
    processes = multiprocessing.get_context("forkserver")
    processes.set_forkserver_preload(["tests.sinks.lakes.carrier", f"millrace.sinks.{kind}"])
    for kills in range(KILLS + 1):
        heard, told = processes.Pipe(duplex=False)
        process = processes.Process(target=carry, args=(kind, mode, str(tmp_path), end, told))
        process.start()
        told.close()
        steps = chance.randint(1, STEPS_MAX) if kills < KILLS else None
        last = ""
        while last != "done" and steps != 0:
            last = heard.recv()
            steps = None if steps is None else steps - 1
        if steps is not None:
            # Somewhere within what it said that it would do.
            heard.poll(chance.random() * 0.02)
            process.kill()
        process.join()
        assert last == "done" or steps is not None, f"it failed: {process.exitcode}"
    lake = make_lake(kind, mode, tmp_path)
    seen = lines_of(lake, ["key", "seq", "value"] + ([] if mode == "upsert" else ["op"]))
    rows = changes(0, end)
    seqs = [int(line["seq"] or 0) for line in seen]
    if mode == "upsert":
        left = {change.key: change for change in rows}
        expected: dict[str | None, int] = {
            key: change.seq for key, change in left.items() if change.op != DELETE
        }
        assert dict(zip((line["key"] for line in seen), seqs, strict=True)) == expected
        assert len(seen) == len(expected)
    else:
        assert sorted(seqs) == [change.seq for change in rows]
        assert sum(line["op"] == DELETE for line in seen) == end // 5
