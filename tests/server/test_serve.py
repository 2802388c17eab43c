"""`millrace serve` as people run it: a process of its own, stopped and killed."""

from __future__ import annotations

from pathlib import Path

import pytest

from millrace import sync
from tests.cli.program import start
from tests.server.process import Process

ORDERS = "/v1/spaces/default/queues/orders"


def make_queue(folder: Path) -> None:
    with sync.open(folder) as m:
        m.queue("orders")


@pytest.mark.parametrize("is_killed", [False, True])
def test_what_was_acknowledged_and_leased_survives_the_end(
    tmp_path: Path, *, is_killed: bool
) -> None:
    folder = tmp_path / "data"
    make_queue(folder)
    with Process(folder) as server:
        token = server.token
        for number in range(20):
            body = {"body": str(number), "producer": "p", "number": number + 1}
            assert server.ask("POST", f"{ORDERS}/messages", body).status == 201
        leased = server.ask("POST", f"{ORDERS}/leases", {"count": 5, "seconds": 600})
        receipts = [one["receipt"] for one in leased.items("messages")]
        if is_killed:
            server.kill()
        else:
            assert server.stop() == 0
    with Process(folder) as server:
        assert server.token == ""
        again = {"body": "19", "producer": "p", "number": 20}
        repeated = server.ask("POST", f"{ORDERS}/messages", again, token=token)
        assert repeated.json == {"count": 1, "seq": 20}
        settled = server.ask("POST", f"{ORDERS}/settle", {"receipts": receipts}, token=token)
        assert settled.json == {"done": 5, "refused": []}
        rest = server.ask("POST", f"{ORDERS}/leases", {"count": 100}, token=token)
        assert [one["body"] for one in rest.items("messages")] == [str(n) for n in range(5, 20)]
        assert server.stop() == 0
    with sync.open(folder) as m:
        assert m.find("orders").stats()["published"] == 20


def test_the_folder_is_the_servers_as_long_as_it_runs(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    make_queue(folder)
    with Process(folder) as server:
        second = start("serve", "--port", "0", "--data", folder)
        assert second.returncode == 3
        assert "in use" in second.stderr or "open" in second.stderr
        assert server.stop() == 0


def test_others_cannot_reach_it_unencrypted(tmp_path: Path) -> None:
    refused = start("serve", "--host", "0.0.0.0", "--port", "0", "--data", tmp_path / "data")
    assert refused.returncode == 1
    assert "other machines" in refused.stderr
    assert not (tmp_path / "data").exists()
