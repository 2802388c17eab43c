"""Other processes of a server: front ends that speak HTTP, and programs beside it."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

import millrace
from millrace import limits, sync
from millrace.server.auth.access import digest_of, make_token
from millrace.server.process.frontend import FrontendOrders
from tests.server.rest.harness import SMALL
from tests.server.server_process import Process, children
from tests.support.timeouts import scaled

pytestmark = pytest.mark.process

ORDERS = "/v1/spaces/default/queues/orders"


def eventually(is_so: Callable[[], bool]) -> None:
    """Wait for something to become so."""
    waiting = threading.Event()
    for _ in range(round(scaled(600))):
        if is_so():
            return
        waiting.wait(0.1)
    raise AssertionError("it never became so")


def test_a_folder_that_is_served_is_shared_with_programs_beside_it(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    with Process(folder) as server:
        with sync.open(folder, settings=SMALL) as m:
            m.queue("orders").publish(b"from beside")
        leased = server.ask("POST", f"{ORDERS}/leases", {})
        assert [one["body"] for one in leased.items("messages")] == ["from beside"]
        assert server.stop() == 0


def test_programs_connect_by_address_and_token(tmp_path: Path) -> None:
    async def main(server: Process) -> None:
        async with millrace.connect(server.address, token=server.token) as m:
            queue = await m.queue("orders", keyed=True)
            await queue.publish_many([millrace.Message(b"tea", key="k"), b"more"])
            first, second = await queue.lease(2)
            async with m.transaction() as t:
                t.settle([first, second])
                t.publish("orders", b"again", key="k")
            async with queue.snapshot() as snapshot:
                rows = [row async for row in snapshot.rows()]
            assert [(row.key, row.body) for row in rows] == [(b"k", b"again")]

    with Process(tmp_path / "data") as server:
        asyncio.run(main(server))
        assert server.stop() == 0


def test_front_ends_speak_for_the_engine_and_one_that_is_killed_comes_back(
    tmp_path: Path,
) -> None:
    with Process(tmp_path / "data", "--frontends", 2) as server:
        first = children(server.pid)
        assert len(first) == 2
        assert server.ask("PUT", ORDERS, {}).status == 201
        for number in range(20):
            body = {"body": str(number), "producer": "p", "number": number + 1}
            assert server.ask("POST", f"{ORDERS}/messages", body).status == 201
        leased = server.ask("POST", f"{ORDERS}/leases", {"count": 20, "seconds": 600})
        receipts = [one["receipt"] for one in leased.items("messages")]
        os.kill(first[0], signal.SIGKILL)
        eventually(lambda: len(set(children(server.pid)) - set(first)) == 1)
        # Whichever front end it comes to: receipts and numbers are the engine's.
        settled = server.ask("POST", f"{ORDERS}/settle", {"receipts": receipts})
        assert settled.json == {"done": 20, "refused": []}
        repeated = server.ask(
            "POST", f"{ORDERS}/messages", {"body": "19", "producer": "p", "number": 20}
        )
        assert repeated.json == {"count": 1, "seq": 20}
        assert server.stop() == 0
        assert children_are_gone(first)


def test_sec_08_values_of_rows_of_their_own_are_bounded_behind_front_ends(tmp_path: Path) -> None:
    folder, limit = tmp_path / "data", limits.PUBLISH_OWN_VALUES_MAX
    with Process(folder, "--frontends", 1) as server:
        assert server.ask("PUT", ORDERS, {"dedup": 300}).status == 201
        messages = [{"body": "", "dedup": str(at)} for at in range(limit + 1)]
        refused = server.ask("POST", f"{ORDERS}/messages", {"messages": messages})
        assert (refused.status, refused.json["field"], refused.json["limit"]) == (
            413,
            "dedup",
            limit,
        )
        assert server.ask("POST", f"{ORDERS}/messages", {"messages": messages[1:]}).status == 201
        assert server.stop() == 0


def test_front_ends_end_with_an_engine_that_is_killed(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    with Process(folder, "--frontends", 2) as server:
        there = children(server.pid)
        assert server.ask("PUT", ORDERS, {}).status == 201
        server.kill()
        eventually(lambda: children_are_gone(there))
    with Process(folder, "--frontends", 1) as server:
        assert server.ask("POST", f"{ORDERS}/messages", {"body": "x"}).status == 201
        assert server.stop() == 0


def test_a_front_end_never_opens_a_folder_whose_engine_is_gone(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    with sync.open(folder, settings=SMALL):
        pass
    orders = FrontendOrders(flags={"data": str(folder)}, listen=["127.0.0.1:0"])
    with subprocess.Popen(
        [sys.executable, "-m", "millrace.server.process.frontend"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        # Its input does not end: nobody tells it that the engine is gone.
        process.stdin.write(msgspec.json.encode(orders) + b"\n")
        process.stdin.flush()
        assert process.stdout.readline() == b""
        assert b"is its engine open?" in process.stderr.read()
    assert process.returncode == 1
    with sync.open(folder, settings=SMALL) as m:
        assert m.queues() == []


def children_are_gone(pids: list[int]) -> bool:
    return not any(_is_there(pid) for pid in pids)


def _is_there(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_front_ends_share_quotas_and_tell_of_what_is_begun_elsewhere(tmp_path: Path) -> None:
    token = make_token(bytes(32))
    file = tmp_path / "millrace.toml"
    file.write_text(
        "[queues.orders]\n[users.ada]\nrules = ['allow * default/*']\n"
        f"quota = {{ in_flight = 4 }}\ntokens = ['sha256:{digest_of(token).hex()}']\n"
    )
    with Process(tmp_path / "data", "--frontends", 2, "--config", file) as server:
        server.token = token

        def lease() -> list[str]:
            """Through whichever front end there is."""
            leased = server.ask("POST", f"{ORDERS}/leases", {"count": 9, "seconds": 600})
            if leased.status == 429:
                assert leased.json["field"] == "in_flight"
                return []
            return [str(one["receipt"]) for one in leased.items("messages")]

        for _ in range(20):
            assert server.ask("POST", f"{ORDERS}/messages", {"body": "x"}).status == 201
        held: list[str] = []

        def fill() -> bool:
            held.extend(lease())
            return len(held) == 4

        eventually(fill)
        assert not any(lease() for _ in range(20)), "together no more than the quota"
        for receipt in held:
            # Through whichever: the one that counted it finds out.
            body = {"receipts": [receipt]}
            assert server.ask("POST", f"{ORDERS}/settle", body).status == 200
        held.clear()
        eventually(fill)

        told = server.ask("POST", f"{ORDERS}/redrives", {"dry_run": True, "to": "orders"})
        job = told.text("id")
        assert job.partition("-")[0] in ("0", "1")
        answers = {200: b"", 404: b""}

        def ask_all() -> bool:
            found = server.ask("GET", f"{ORDERS}/redrives/{job}")
            answers[found.status] = found.body
            return all(answers.values())

        eventually(ask_all)
        assert b"connection on which it was begun" in answers[404]
        assert server.stop() == 0
