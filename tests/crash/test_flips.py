"""Two thousand bits are turned over, one at a time: the same data, or a refusal."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest

from tests.crash.flips import BEGINNING_BYTES, Flip, Report, all_flips, sampled
from tests.crash.loop import ROOT
from tests.crash.test_states import MEMORY
from tests.support.timeouts import scaled


@pytest.mark.process
def test_no_flip_gives_other_data(tmp_path: Path) -> None:
    # Of its own, because it makes children that LMDB may end.
    folder = MEMORY if MEMORY.is_dir() else tmp_path
    command = [sys.executable, "-m", "tests.crash.flips", "--count", "2000", "--seed", "78818991"]
    done = subprocess.run(
        [*command, "--folder", str(folder)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=scaled(280),
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    last = done.stdout.splitlines()[-1]
    assert "2,000 flips" in last
    assert "refused" in last, "some must hit what is read"


def test_all_flips_are_all_that_was_written() -> None:
    files = {"log/1": b"x" * 512 + bytes(512) + b"y"}
    flips = list(all_flips(files))
    assert len(flips) == len(set(flips)) == 512 * 8 + 8 + 8
    assert flips[0] == Flip("log/1", 0, 0)
    assert flips[-1] == Flip("log/1", 1024, 7)


def test_samples_come_from_everywhere() -> None:
    names = ("identity", "index/data.mdb", "log/1", "sealed/1")
    files = dict.fromkeys(names, b"x" * 10000)
    flips = sampled(files, 500, random.Random(1))
    assert len(flips) == len(set(flips)) == 500
    assert {flip.name for flip in flips} == set(names)
    assert any(flip.offset < BEGINNING_BYTES["log"] for flip in flips if flip.name == "log/1")


def test_what_is_wrong_is_told() -> None:
    report = Report()
    report.add(Flip("index/data.mdb", 1, 1), "found")
    report.add(Flip("index/data.mdb", 1, 1), "crashed")
    report.add(Flip("log/1", 1, 1), "refused")
    assert report.wrong == []
    report.add(Flip("index/data.mdb", 1, 1), "other")
    report.add(Flip("log/1", 1, 1), "found")
    report.add(Flip("sealed/1", 5, 6), "crashed")
    assert len(report.wrong) == 3
    assert report.wrong[-1] == "crashed: bit 6 at 5 of sealed/1"
    assert report.line().endswith("3 wrong")
