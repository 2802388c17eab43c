"""A server whose disk is full, or whose memory is short, refuses what grows, and works on."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from millrace import sync
from tests.server import full_disk
from tests.server.server_process import Process
from tests.support.timeouts import scaled

pytestmark = pytest.mark.process

ROOT = Path(__file__).resolve().parents[3]
ORDERS = "/v1/spaces/default/queues/orders"


def test_a_full_disk_refuses_publishing_and_recovers_when_there_is_space(tmp_path: Path) -> None:
    mount = f'mount -t tmpfs -o size={full_disk.DISK_BYTES} none "$0" && exec "$@"'
    apart = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", mount, str(tmp_path)]
    if shutil.which("unshare") is None or subprocess.run([*apart, "true"], check=False).returncode:
        pytest.skip("this system lets nobody mount a small file system")
    program = [sys.executable, "-m", "tests.server.full_disk", str(tmp_path)]
    done = subprocess.run(
        [*apart, *program],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=scaled(200),
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
        assert server.ask("GET", "/readyz").json["publishing"] is False
        assert server.ask("GET", "/readyz?publishing=true").status == 503
        with sync.open(tmp_path / "data") as m:
            m.find("orders").cursor("report")
        [leased] = server.ask("POST", f"{ORDERS}/leases", {}).items("messages")
        settled = server.ask("POST", f"{ORDERS}/settle", {"receipts": [leased["receipt"]]})
        assert settled.json == {"done": 1, "refused": []}
        # What makes room, and what is changed, is noted in a reserve, and answered as it ended.
        assert server.ask("PATCH", ORDERS, {"delay": 5}).status == 200
        assert server.ask("POST", f"{ORDERS}/purge").status == 200
        with millrace_at(server) as m:
            m.find("orders").purge()
            assert m.find("orders").spec().delay_ms == 5_000
        assert server.ask("DELETE", ORDERS).status == 200
        refused = server.ask("PUT", ORDERS, {})
        assert (refused.status, refused.json["code"]) == (503, "full")
        found = [
            (note["act"], note.get("outcome", "done"))
            for note in audited(server)
            if note["target"] == "default/orders"
        ]
        assert found[-10:] == [
            (act, outcome)
            for act, end in (
                ("configure_queue", "done"),
                ("purge", "done"),
                ("purge", "done"),
                ("delete_queue", "done"),
                ("make_queue", "refused"),
            )
            for outcome in ("begun", end)
        ]
        assert server.stop() == 0


def millrace_at(server: Process) -> sync.Millrace:
    return sync.connect(server.address, token=server.token)


def audited(server: Process) -> list[dict[str, object]]:
    with millrace_at(server) as m:
        rows = m.find("audit", space="system").peek(1000)
        return [json.loads(row.body or b"") for row in rows]
