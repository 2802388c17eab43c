"""The examples run to their end, and say what they promise."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.timeouts import scaled

ROOT = Path(__file__).resolve().parents[1]

SAID = {
    "blocking": [
        "4 workers settled 15 messages",
        "the lake gets 15 rows with the columns",
    ],
    "demo": [
        "the first snapshot: what lies after 0, up to the boundary 3",
        "3  order-3   a keg of paint",
        "the second snapshot: what lies after 3, up to the boundary 5",
        "5  order-3   deleted",
        "2 settled, 2 shipped",
        "speed     40000 published,  40000 live",
        "queues/shipped: 2 settled",
    ],
    "follower": [
        "up to 2: {'nails': '5', 'hammer': '20'}",
        "up to 4: {'nails': '6'}",
    ],
    "lake": [
        "1,000 rows, committed",
        "Barbara  250 carts   12475.00",
        "2 rows, committed",
        "Ada      250 carts  262450.00",
        "Barbara  249 carts   12474.90",
        "docs/guide/quickstart.md",
    ],
    "transaction": [
        "5 squared is 25",
        "refused: the message was leased again by someone else; there are still 5 squares",
    ],
    "worker": [
        "marble: the chisel slipped, delivery 2",
        "marble is done, delivery 3",
        "4 stones are done",
    ],
    "worker_app": [
        "failed (failure 3): ValueError('sand cannot be polished')",
        "cut: WorkerStats(handled=2, failed=0, superseded=0, running=0)",
        "polished: WorkerStats(handled=4, failed=3, superseded=0, running=0)",
        "put aside: sand, {'error': b'sand cannot be polished'}",
    ],
}
"""What each of them prints, in this order."""

SPARK = ["lake"]
"""These start Spark, which says on stderr how it starts."""


def test_every_example_is_tried() -> None:
    assert sorted(path.stem for path in (ROOT / "examples").glob("*.py")) == sorted(SAID)


@pytest.mark.process
@pytest.mark.parametrize("name", sorted(SAID.keys() - SPARK))
def test_an_example_runs(name: str, tmp_path: Path) -> None:
    assert _said(name, tmp_path) == ""


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.parametrize("name", SPARK)
def test_an_example_with_spark_runs(name: str, tmp_path: Path) -> None:
    assert "Traceback" not in _said(name, tmp_path)


def _said(name: str, tmp_path: Path) -> str:
    """Run it, and see that it prints what it should; returns what it says on stderr."""
    done = subprocess.run(
        [sys.executable, "-W", "error", str(ROOT / "examples" / f"{name}.py")],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=scaled(240),
    )
    assert done.returncode == 0, done.stderr
    places = [done.stdout.find(text) for text in SAID[name]]
    assert -1 not in places, done.stdout
    assert places == sorted(places), done.stdout
    assert list(tmp_path.iterdir()) == [], "it leaves nothing behind"
    return done.stderr
