"""`millrace serve` as people run it: a process of its own, stopped and killed."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from millrace import sync
from tests.cli.program import start
from tests.server.rest.harness import SMALL
from tests.server.server_process import Process

pytestmark = pytest.mark.process

GUIDE = Path(__file__).parents[3] / "docs" / "guide"
ORDERS = "/v1/spaces/default/queues/orders"


def make_queue(folder: Path) -> None:
    with sync.open(folder, settings=SMALL) as m:
        m.queue("orders")


@pytest.mark.parametrize("is_killed", [False, True])
def test_what_was_acknowledged_and_leased_survives_the_end(
    tmp_path: Path, *, is_killed: bool
) -> None:
    folder = tmp_path / "data"
    make_queue(folder)
    with Process(folder) as server:
        assert server.is_first
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
        assert not server.is_first
        again = {"body": "19", "producer": "p", "number": 20}
        repeated = server.ask("POST", f"{ORDERS}/messages", again)
        assert repeated.json == {"count": 1, "seq": 20}
        settled = server.ask("POST", f"{ORDERS}/settle", {"receipts": receipts})
        assert settled.json == {"done": 5, "refused": []}
        rest = server.ask("POST", f"{ORDERS}/leases", {"count": 100})
        assert [one["body"] for one in rest.items("messages")] == [str(n) for n in range(5, 20)]
        assert server.stop() == 0
    with sync.open(folder, settings=SMALL) as m:
        assert m.find("orders").stats()["published"] == 20


def test_the_folder_is_the_servers_as_long_as_it_runs(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    make_queue(folder)
    with Process(folder) as server:
        second = start("serve", "--listen", "127.0.0.1:0", "--data", folder)
        assert second.returncode == 3
        assert "in use" in second.stderr or "open" in second.stderr
        assert server.stop() == 0


def test_a_folder_that_was_taken_just_now_is_waited_for(tmp_path: Path) -> None:
    """A verb that runs at the same time has it for a moment."""
    folder = tmp_path / "data"
    with sync.open(folder, settings=SMALL):
        server = Process(folder)
        assert f"{folder} is in use by process {os.getpid()}; waiting up to" in server.error()
    with server:
        assert server.is_first
        assert server.stop() == 0


def test_a_server_that_waits_for_a_folder_can_be_stopped(tmp_path: Path) -> None:
    with sync.open(tmp_path / "data", settings=SMALL):
        server = Process(tmp_path / "data", "--patience", "1h")
        assert "waiting up to 3600 s" in server.error()
        assert server.stop() == 0
        server.close()


def test_the_first_block_of_the_page_on_sqs_can_be_pasted(tmp_path: Path) -> None:
    """Without a pause: whoever is first has the folder, and the other waits or asks it."""
    block = (GUIDE / "sqs.md").read_text().split("```")[1]
    program = tmp_path / "millrace"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m millrace.cli "$@"\n')
    program.chmod(0o755)
    environment = {
        **os.environ,
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "MILLRACE_LISTEN": "127.0.0.1:0",
        "MILLRACE_SEGMENT_BYTES": str(SMALL.segment_bytes),
        "MILLRACE_ENGINE_SEGMENT_BYTES": str(SMALL.segment_bytes),
    }
    with subprocess.Popen(
        ["bash", "-e", "-c", f"{block}\nwait $!"],
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as shell:
        assert shell.stdout is not None
        try:
            missing = {"added web", "aws_secret_access_key", "the token of admin is in", "Ctrl-C"}
            for line in shell.stdout:
                missing -= {text for text in missing if line.startswith(text)}
                if not missing:
                    break
        finally:
            os.killpg(shell.pid, signal.SIGTERM)
    assert not missing
    assert (tmp_path / "millrace-data" / "admin.token").exists()


def test_a_server_without_an_administrator_says_so(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    with Process(folder) as server:
        assert server.stop() == 0
    for words in (("add", "web"), ("remove", "admin", "--yes")):
        assert start("user", *words, "--data", folder).returncode == 0
    with Process(folder) as server:
        assert not server.is_first
        assert server.stop() == 0
        assert "nobody may administer: " in server.errors()


@pytest.mark.parametrize(
    "options", [("--segment-bytes", 1048576), ("--set", "engine_segment_bytes=1048576")]
)
def test_a_flag_says_how_large_segments_are(tmp_path: Path, options: tuple[object, ...]) -> None:
    with Process(tmp_path / "data", *options) as server:
        assert server.stop() == 0
    sizes = {file.stat().st_size for file in (tmp_path / "data" / "log").iterdir()}
    assert sizes == {1048576}


def test_a_size_that_no_segment_has_is_refused(tmp_path: Path) -> None:
    refused = start("serve", "--segment-bytes", 5, "--data", tmp_path / "data")
    assert refused.returncode == 1
    assert "segment_bytes must be at least" in refused.stderr
    assert not (tmp_path / "data").exists()


def test_others_cannot_reach_it_unencrypted(tmp_path: Path) -> None:
    refused = start("serve", "--listen", "0.0.0.0:0", "--data", tmp_path / "data")
    assert refused.returncode == 1
    assert "without TLS" in refused.stderr
    assert not (tmp_path / "data").exists()


def test_an_address_that_someone_has_leaves_no_folder_behind(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        refused = start("serve", "--listen", address, "--data", tmp_path / "data")
    assert refused.returncode == 1
    assert f"{address} cannot be listened at" in refused.stderr
    assert not (tmp_path / "data").exists()


def test_users_who_are_declared_do_not_stand_for_an_administrator(tmp_path: Path) -> None:
    """Only commands are printed that are answered."""
    file = tmp_path / "millrace.toml"
    file.write_text("[users.ada]\nrules = ['allow publish default/*']\n")
    with Process(tmp_path / "ada", "--config", file) as server:
        assert server.is_first
        assert server.ask("PUT", ORDERS).status == 201
    file.write_text("[users.root]\nrules = ['allow * */*']\n")
    with Process(tmp_path / "root", "--config", file) as server:
        assert not server.is_first
        assert not server.token
    assert not (tmp_path / "root" / "admin.token").exists()


def test_a_long_poll_is_answered_when_the_server_stops(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    make_queue(folder)
    with Process(folder) as server:
        connection = server.connect()
        connection.request(
            "POST",
            f"{ORDERS}/leases",
            '{"wait": 60}',
            {"authorization": f"Bearer {server.token}", "content-type": "application/json"},
        )
        # Whoever is served after it knows that it has arrived.
        assert server.ask("GET", "/healthz").status == 200
        assert server.stop() == 0
        answer = connection.getresponse()
        assert (answer.status, answer.read()) == (200, b'{"messages":[]}')
        connection.close()


def test_settings_are_read_again_on_demand(tmp_path: Path) -> None:
    file = tmp_path / "millrace.toml"
    file.write_text("[queues.orders]\nmax_messages = 2\n")
    with Process(tmp_path / "data", "--config", file) as server:
        for _ in range(2):
            assert server.ask("POST", f"{ORDERS}/messages", {"body": "x"}).status == 201
        full = server.ask("POST", f"{ORDERS}/messages", {"body": "x"})
        assert (full.status, full.json["code"]) == (503, "full")
        assert int(full.headers["retry-after"]) >= 1
        file.write_text("log_format = 'json'\n[queues.orders]\nmax_messages = 3\n")
        told = server.reload()
        assert told == {"type": "reloaded", "now": ["queues"], "restart": ["log_format"]}
        assert server.ask("POST", f"{ORDERS}/messages", {"body": "x"}).status == 201
        file.write_text("[queues.orders]\nmax_mesages = 4\n")
        told = server.reload()
        assert told["type"] == "not_reloaded"
        assert "max_messages" in str(told["message"])
        assert server.stop() == 0
        logged = server.errors()
        assert " warning only a restart changes log_format\n" in logged
        [line] = [one for one in logged.splitlines() if " error not reloaded: " in one]
        assert "max_messages" in line


def test_an_unreadable_file_of_settings_is_told_of(tmp_path: Path) -> None:
    missing = start("serve", "--config", tmp_path / "none.toml", "--data", tmp_path / "data")
    assert missing.returncode == 1
    assert "none.toml" in missing.stderr
    (tmp_path / "bad.toml").write_text("listen = [")
    bad = start("serve", "--config", tmp_path / "bad.toml", "--data", tmp_path / "data")
    assert bad.returncode == 1
    assert "bad.toml" in bad.stderr
    wrong = start("serve", "--set", "stop_secnds=3", "--data", tmp_path / "data")
    assert "stop_seconds" in wrong.stderr
    assert not (tmp_path / "data").exists()


def test_beyond_its_connections_a_server_says_so(tmp_path: Path) -> None:
    make_queue(tmp_path / "data")
    with Process(tmp_path / "data", "--set", "connections_max=2") as server:
        authorization = {"authorization": f"Bearer {server.token}"}
        with ExitStack() as stack:
            held = [stack.enter_context(closing(server.connect())) for _ in range(2)]
            for connection in held:
                # Connections on which nobody is known have half of the places, here one.
                connection.request("GET", "/v1/whoami", headers=authorization)
                answered = connection.getresponse()
                assert answered.read()
                assert answered.status == 200
            third = stack.enter_context(closing(server.connect()))
            third.connect()
            answer = third.sock.recv(1000)
            assert answer.startswith(b"HTTP/1.1 503 ")
            assert b"2 connections" in answer
        assert server.stop() == 0
