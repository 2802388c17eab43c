"""`millrace work`: a command for each message, in processes of their own."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.desk import Desk

pytestmark = pytest.mark.process

ENVIRONMENT = "import json, os; print(json.dumps({k: v for k, v in os.environ.items()}))"


def states(desk: Desk) -> list[object]:
    return [desk.one("explain", "mail", seq)["state"] for seq in range(1, 5)]


def test_settles_what_a_command_has_done(desk: Desk) -> None:
    done = desk.run("work", "mail", "--once", "--", "sh", "-c", "cat; echo")
    assert done.returncode == 0
    assert done.stdout.splitlines()[:2] == [b"welcome, Ada", b"your hammer is on its way"]
    assert done.stderr == b"4 settled\n"
    assert desk.bodies("mail") == []


def test_what_fails_is_tried_once_and_given_back(desk: Desk) -> None:
    script = "read first rest; echo $MILLRACE_SEQ >> tried; test $first = welcome,"
    done = desk.run("work", "mail", "--once", "--json", "--", "sh", "-c", script)
    assert done.returncode == 1
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(line["type"], line.get("seq")) for line in lines] == [
        ("settled", 1),
        ("failed", 2),
        ("settled", 3),
        ("failed", 4),
        ("end", None),
    ]
    assert (desk.home / "tried").read_text().split() == ["1", "2", "3", "4"]
    lease = desk.one("lease", "mail")
    assert (lease["seq"], lease["failures"]) == (2, 1)


def test_the_environment_of_a_command(desk: Desk) -> None:
    desk.text("queue", "purge", "orders", "--yes")
    desk.text("publish", "orders", "b", "--key", "k1", "--header", "Trace-Id=7", "--header", "é=ü")
    arguments = ["work", "orders", "--once", "--", sys.executable, "-c", ENVIRONMENT]
    done = desk.run(*arguments, MILLRACE_HEADER_OUTER="of another message")
    environment = json.loads(done.stdout)
    assert "MILLRACE_HEADER_OUTER" not in environment
    assert environment["MILLRACE_DATA"] == str(desk.data)
    assert environment["MILLRACE_QUEUE"] == "orders"
    assert environment["MILLRACE_KEY"] == "k1"
    assert environment["MILLRACE_SEQ"] == "8"
    assert environment["MILLRACE_DELIVERIES"] == "1"
    assert environment["MILLRACE_HEADER_TRACE_ID"] == "7"
    assert json.loads(environment["MILLRACE_HEADERS"]) == [
        {"name": "Trace-Id", "value": "7"},
        {"name": "é", "value": "ü"},
    ]


def test_headers_that_no_environment_takes(desk: Desk) -> None:
    desk.text("queue", "purge", "mail", "--yes")
    desk.text("publish", "mail", "b", "--header", "big=" + "ü" * 30_000)
    done = desk.run("work", "mail", "--once", "--", sys.executable, "-c", ENVIRONMENT)
    assert done.returncode == 0, done.stderr
    environment = json.loads(done.stdout)
    assert "MILLRACE_HEADERS" not in environment
    assert len(environment["MILLRACE_HEADER_BIG"]) == 30_000


def test_several_at_a_time(desk: Desk) -> None:
    # Each waits for all the others, so that they end only if they run beside each other.
    script = "touch run-$MILLRACE_SEQ; until test $(ls run-* | wc -l) = 4; do sleep 0.01; done"
    done = desk.run("work", "mail", "--once", "--concurrency", 4, "--", "sh", "-c", script)
    assert (done.returncode, done.stderr) == (0, b"4 settled\n")


def test_bodies_that_nobody_reads(desk: Desk) -> None:
    desk.run("publish", "mail", given=b"x" * 1_000_000)
    done = desk.run("work", "mail", "--once", "--", "true")
    assert (done.returncode, done.stderr) == (0, b"5 settled\n")


def test_a_lease_is_extended_while_its_command_runs(desk: Desk) -> None:
    script = "until test $(date +%s%3N) -gt $((MILLRACE_TIME_MS + $(cat age))); do sleep 0.1; done"
    desk.text("queue", "purge", "mail", "--yes")
    desk.text("publish", "mail", "slow")
    (desk.home / "age").write_text("3000")
    done = desk.run("work", "mail", "--once", "--for", "1s", "--", "sh", "-c", script)
    assert (done.returncode, done.stderr) == (0, b"1 settled\n")


def begin(desk: Desk, process: subprocess.Popen[bytes]) -> None:
    """Wait until the command has said that it runs."""
    assert process.stdout is not None
    assert process.stdout.readline() == b"running\n"


def test_a_stop_waits_for_what_runs(desk: Desk) -> None:
    script = "echo running; until test -e go; do sleep 0.01; done"
    with desk.start("work", "mail", "--", "sh", "-c", script) as process:
        begin(desk, process)
        process.send_signal(signal.SIGTERM)
        (desk.home / "go").touch()
        assert process.wait() == 0
        assert process.stderr is not None
        assert process.stderr.read() == b"1 settled\n"
    assert len(desk.bodies("mail")) == 3
    assert states(desk)[1] != "leased"


def test_a_second_stop_gives_messages_back(desk: Desk) -> None:
    with desk.start("work", "mail", "--", "sh", "-c", "echo running; sleep 600") as process:
        begin(desk, process)
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGTERM)
        assert process.wait() == 0
        assert process.stderr is not None
        assert b"1 released" in process.stderr.read()
    lease = desk.one("lease", "mail")
    assert (lease["seq"], lease["failures"]) == (1, 0)


def test_works_on_until_stopped(desk: Desk) -> None:
    with desk.start("work", "mail", "--json", "--", "false") as process:
        assert process.stdout is not None
        first, second = (json.loads(process.stdout.readline()) for _ in range(2))
        assert (first["type"], first["exit_code"]) == ("failed", 1)
        # It was held back for a second, then came again before the others.
        assert second["seq"] == first["seq"] == 1
        process.send_signal(signal.SIGINT)
        assert process.wait() == 1


def test_whoever_reads_may_have_had_enough(desk: Desk) -> None:
    with desk.start("work", "mail", "--once", "--json", "--", "true") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.wait() == 141
        assert process.stderr.read() == b""
    assert "leased" not in states(desk)


def test_a_command_that_is_missing(desk: Desk, tmp_path: Path) -> None:
    done = desk.run("work", "mail", "--once", "--", tmp_path / "nothing")
    assert done.returncode == 2
    assert b"there is no command" in done.stderr
    assert set(states(desk)) == {"ready"}


def test_a_command_that_cannot_be_run(desk: Desk) -> None:
    script = desk.home / "script"
    script.write_text("#!/nowhere/at/all\n")
    script.chmod(0o755)
    done = desk.run("work", "mail", "--once", "--", script)
    assert done.returncode == 1
    assert b"cannot be run" in done.stderr
    assert b"Traceback" not in done.stderr
    assert "leased" not in states(desk)
