"""`millrace peek`, `get`, `explain`, `follow` and `cursor`."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.cli.desk import Desk


def test_peeks_from_a_seq_on(desk: Desk) -> None:
    lines = desk.lines("peek", "mail", "--after", 2, "--count", 1)
    assert [line["seq"] for line in lines] == [3]
    table = desk.text("peek", "mail").splitlines()
    assert table[0].split() == ["SEQ", "PUBLISHED", "KEY", "HEADERS", "BODY"]
    assert table[1].endswith('"welcome, Ada"')


@pytest.mark.process
def test_shows_one_whole(desk: Desk) -> None:
    body = "x" * 5_000
    desk.text("publish", "mail", body)
    assert body in desk.text("get", "mail", 5)
    assert desk.run("get", "mail", 5, "--body").stdout == body.encode()
    result = desk.call("get", "mail", 99)
    assert result.exit_code == 1
    assert "millrace explain mail 99" in result.stderr


def test_control_characters_command_no_terminal(desk: Desk) -> None:
    desk.text("publish", "mail", given=b"\x1b[31mred[bold]markup[/bold]")
    for verb in (["peek", "mail"], ["get", "mail", 5], ["follow", "mail", "--once"]):
        text = desk.text(*verb)
        assert "\x1b" not in text
        assert r"\x1b[31mred[bold]markup[/bold]" in text


def test_explains(desk: Desk) -> None:
    assert desk.one("explain", "orders", 2)["superseded_by"] == 6
    assert "replaced by message 6" in desk.text("explain", "orders", 2)
    assert "is ready" in desk.text("explain", "mail", 1)
    desk.text("lease", "mail", "--for", "1h")
    assert "is leased until" in desk.text("explain", "mail", 1)
    assert "never published" in desk.text("explain", "mail", 99)


def test_follows_once(desk: Desk) -> None:
    lines = desk.lines("follow", "orders", "--once")
    assert [line["seq"] for line in lines] == [1, 3, 5, 6, 7]
    assert lines[-1]["body"] is None
    assert desk.lines("cursor", "list", "orders") == []


def test_follows_from_a_place(desk: Desk) -> None:
    def seqs(start: object) -> list[object]:
        return [line["seq"] for line in desk.lines("follow", "mail", "--once", "--from", start)]

    assert seqs(3) == [3, 4]
    assert seqs("end") == []
    assert seqs("2020-01-01T00:00:00Z") == [1, 2, 3, 4]
    assert seqs("2020-01-01") == [1, 2, 3, 4]
    assert desk.call("follow", "mail", "--once", "--from", "yesterday").exit_code == 2


def test_a_durable_cursor_goes_on(desk: Desk) -> None:
    arguments = ["follow", "mail", "--once", "--name", "report"]
    assert len(desk.lines(*arguments)) == 4
    desk.text("publish", "mail", "new")
    assert [line["body"] for line in desk.lines(*arguments)] == ["new"]
    assert desk.one("cursor", "list", "mail") == {
        "type": "cursor",
        "cursor": "report",
        "seq": 5,
        "end": 5,
        "behind": 0,
    }


def test_a_retaining_cursor_sees_what_was_settled(desk: Desk) -> None:
    arguments = ["follow", "mail", "--once", "--name", "all", "--retain", "--from", "end"]
    assert desk.lines(*arguments) == []
    desk.text("publish", "mail", "short-lived")
    receipts = desk.text("lease", "mail", "--count", 5, "--receipts")
    desk.text("settle", "mail", "-", given=receipts)
    assert [line["body"] for line in desk.lines(*arguments)] == ["short-lived"]
    desk.text("cursor", "reset", "mail", "all")
    desk.text("cursor", "delete", "mail", "all")
    assert desk.call("follow", "mail", "--once", "--retain").exit_code == 2


def test_resets_and_deletes_cursors(desk: Desk) -> None:
    desk.text("follow", "mail", "--once", "--name", "report")
    assert desk.one("cursor", "reset", "mail", "report", "--to", 3)["seq"] == 2
    assert len(desk.lines("follow", "mail", "--once", "--name", "report")) == 2
    result = desk.call("cursor", "delete", "mail", "reporrt")
    assert result.exit_code == 1
    assert "did you mean 'report'?" in result.stderr
    desk.text("cursor", "delete", "mail", "report")
    assert desk.lines("cursor", "list", "mail") == []


@pytest.mark.process
def test_following_ends_in_order(desk: Desk) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        with desk.start("follow", "mail", "--name", number.name) as process:
            assert process.stdout is not None
            lines = [process.stdout.readline() for _ in range(4)]
            assert lines[0].endswith(b'"welcome, Ada"\n')
            process.send_signal(number)
            assert process.wait() == 0
        (cursor,) = [
            line for line in desk.lines("cursor", "list", "mail") if line["cursor"] == number.name
        ]
        assert cursor["behind"] == 0


@pytest.mark.process
def test_a_reader_that_has_had_enough_is_no_error(desk: Desk) -> None:
    given = b"".join(b"%d %s\n" % (number, b"x" * 100) for number in range(20_000))
    assert desk.run("publish", "mail", "--lines", given=given).returncode == 0
    with desk.start("follow", "mail", "--once", "--json", "--name", "report") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.wait() == 141
        assert process.stderr.read() == b""
    # What was not written was not committed.
    assert desk.one("cursor", "list", "mail")["seq"] == 0


def test_an_empty_folder_has_no_queues(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    desk.text("queue", "make", "x")
    desk.text("queue", "delete", "x", "--yes")
    result = desk.call("queue", "list")
    assert (result.exit_code, result.stdout) == (0, "")
    assert "queue make" in result.stderr
