"""A server whose disk is full, or whose memory is short, refuses what grows, and works on."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from millrace import sync
from tests.server import full_disk
from tests.server.process import Process

ROOT = Path(__file__).resolve().parents[2]
ORDERS = "/v1/spaces/default/queues/orders"


def test_a_full_disk_refuses_publishing_and_recovers_when_there_is_space(tmp_path: Path) -> None:
    mount = f'mount -t tmpfs -o size={full_disk.DISK_BYTES} none "$0" && exec "$@"'
    apart = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", mount, str(tmp_path)]
    if shutil.which("unshare") is None or subprocess.run([*apart, "true"], check=False).returncode:
        pytest.skip("this system lets nobody mount a small file system")
    program = [sys.executable, "-m", "tests.server.full_disk", str(tmp_path)]
    done = subprocess.run(
        [*apart, *program], cwd=ROOT, capture_output=True, text=True, check=False, timeout=200
    )
    assert done.returncode == 0, done.stderr


def test_short_of_memory_it_refuses_publishing_and_works_on(tmp_path: Path) -> None:
    config = tmp_path / "millrace.toml"
    config.write_text("[queues.orders]\n")
    with Process(tmp_path / "data", "--config", config) as server:
        assert server.ask("POST", f"{ORDERS}/messages", {"body": "tea"}).status == 201
        assert server.stop() == 0
    config.write_text("[engine]\nmemory_high = 1000000\n")
    with Process(tmp_path / "data", "--config", config, "--frontends", 1) as server:
        refused = server.ask("POST", f"{ORDERS}/messages", {"body": "more"})
        assert (refused.status, refused.json["code"]) == (503, "full")
        assert (refused.json["field"], refused.json["limit"]) == ("memory_high", 1_000_000)
        assert refused.headers["retry-after"] == "1"
        assert server.ask("GET", "/healthz").status == 200
        assert server.ask("GET", "/readyz").status == 503
        with sync.open(tmp_path / "data") as m:
            m.find("orders").cursor("report")
        [leased] = server.ask("POST", f"{ORDERS}/leases", {}).items("messages")
        settled = server.ask("POST", f"{ORDERS}/settle", {"receipts": [leased["receipt"]]})
        assert settled.json == {"done": 1, "refused": []}
        assert server.stop() == 0
