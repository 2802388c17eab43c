"""`millrace publish`."""

from __future__ import annotations

import base64
import subprocess
from pathlib import Path

import pytest

from millrace.cli import bounds
from tests.cli.desk import SECONDS, Desk, command


def test_a_body_from_the_command_line(desk: Desk) -> None:
    assert desk.text("publish", "mail", "hello") == "5\n"
    assert desk.bodies("mail")[-1] == "hello"


def test_a_priority_and_a_delay(desk: Desk) -> None:
    desk.text("publish", "mail", "later", "--delay", "1h", "--priority", "7")
    desk.text("publish", "mail", "--lines", "--delay", "2h", given=b"a\nb\n")
    assert [desk.one("explain", "mail", seq)["state"] for seq in (5, 6, 7)] == ["delayed"] * 3
    assert desk.call("publish", "mail", "x", "--priority", "10").exit_code != 0


@pytest.mark.process
def test_a_body_from_a_pipe_is_taken_as_it_is(desk: Desk) -> None:
    body = b"two\nlines\xff\x00\n"
    seq = desk.one("publish", "mail", given=body)["seq"]
    assert desk.run("get", "mail", seq, "--body").stdout == body
    line = desk.one("get", "mail", seq)
    assert "body" not in line
    assert base64.b64decode(str(line["body_base64"])) == body


def test_a_body_from_a_file(desk: Desk) -> None:
    (desk.home / "letter").write_bytes(b"dear\n")
    desk.text("publish", "mail", "--file", desk.home / "letter")
    assert desk.bodies("mail")[-1] == "dear\n"


def test_nothing_is_no_body_unless_it_is_said(desk: Desk) -> None:
    assert desk.call("publish", "mail", given=b"").exit_code == 2
    assert desk.text("publish", "mail", "") == "5\n"
    assert desk.bodies("mail")[-1] == ""


@pytest.mark.process
def test_arguments_that_are_not_utf8_keep_their_bytes(desk: Desk) -> None:
    words: list[str | bytes] = [*command("publish", "mail"), b"\xffbody", "--key", b"\xfekey"]
    done = subprocess.run(
        words, env=desk.environment(), capture_output=True, timeout=SECONDS, check=False
    )
    assert done.returncode == 0, done.stderr
    line = desk.one("get", "mail", 5)
    assert base64.b64decode(str(line["body_base64"])) == b"\xffbody"
    assert base64.b64decode(str(line["key_base64"])) == b"\xfekey"
    # Tables show such bytes by their numbers, and command no terminal.
    assert r"\xfekey" in desk.text("peek", "mail")


def test_key_and_headers(desk: Desk) -> None:
    desk.text("publish", "orders", "x", "--key", "k", "--header", "a=1", "--header", "b=x=y")
    line = desk.lines("peek", "orders")[-1]
    assert line["key"] == "k"
    assert line["headers"] == [{"name": "a", "value": "1"}, {"name": "b", "value": "x=y"}]
    assert desk.call("publish", "orders", "x", "--header", "novalue").exit_code == 2


def test_deletes_a_key(desk: Desk) -> None:
    desk.text("publish", "orders", "--delete", "--key", "order-1")
    line = desk.lines("peek", "orders")[-1]
    assert (line["key"], line["body"]) == ("order-1", None)
    assert desk.call("publish", "orders", "--delete").exit_code == 2


def test_lines_are_messages(desk: Desk) -> None:
    answer = desk.one("publish", "mail", "--lines", given=b"one\n\ntwo\r\nthree")
    assert (answer["count"], answer["first_seq"], answer["last_seq"]) == (4, 5, 8)
    assert desk.bodies("mail")[4:] == ["one", "", "two\r", "three"]


def test_lines_with_keys(desk: Desk) -> None:
    desk.text("publish", "orders", "--lines", "--key-separator", ":", given="a:1\nb:2:3\n")
    last = desk.lines("peek", "orders")[-2:]
    assert [(line["key"], line["body"]) for line in last] == [("a", "1"), ("b", "2:3")]
    result = desk.call("publish", "orders", "--lines", "--key-separator", ":", given="c\n")
    assert result.exit_code == 1
    assert "line 1 has no key" in result.stderr


def test_lines_of_a_producer_are_not_doubled(desk: Desk) -> None:
    given = "".join(f"{number}\n" for number in range(2_500))
    arguments = ["publish", "mail", "--lines", "--producer", "till", "--number", 1]
    first = desk.one(*arguments, given=given)
    again = desk.one(*arguments, given=given)
    assert first == again
    assert (first["count"], first["next_number"]) == (2_500, 4)
    assert len(desk.bodies("mail")) == 2_504


def test_a_repeat_is_answered_as_before(desk: Desk) -> None:
    arguments = ["publish", "mail", "x", "--producer", "till"]
    assert desk.text(*arguments, "--number", 1) == "5\n"
    assert desk.text(*arguments, "--number", 1) == "5\n"
    assert desk.text(*arguments) == "6\n"
    result = desk.call(*arguments, "--number", 9)
    assert result.exit_code == 1
    assert "--number 3" in result.stderr


@pytest.mark.process
def test_lines_that_came_do_not_wait_for_the_end(desk: Desk) -> None:
    with desk.start("publish", "mail", "--lines") as process:
        assert process.stdin is not None
        process.stdin.write(b"early\nhalf")
        process.stdin.flush()
        # The folder tells: what was published is shown, in use or not.
        while b"early" not in desk.run("dump", desk.data, "rows", "mail").stdout:
            assert process.poll() is None
        process.kill()
    assert desk.bodies("mail")[4:] == ["early"]


@pytest.mark.process
def test_takes_from_a_verb_that_has_the_same_folder(desk: Desk) -> None:
    verb = "python -m millrace.cli".replace("python", command()[0])
    script = f"{verb} follow mail --once --json | {verb} publish orders --lines --patience 1m"
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        env=desk.environment(),
        capture_output=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert len(desk.bodies("orders")) == 9


@pytest.mark.parametrize(
    "arguments",
    [
        ["x", "--delete", "--key", "k"],
        ["x", "--lines"],
        ["x", "--number", "1"],
        ["x", "--key-separator", ":"],
    ],
)
def test_options_that_do_not_go_together(desk: Desk, arguments: list[str]) -> None:
    assert desk.call("publish", "mail", *arguments).exit_code == 2


def test_makes_no_queue_and_no_folder(desk: Desk, tmp_path: Path) -> None:
    result = desk.call("publish", "maill", "x")
    assert result.exit_code == 1
    assert "did you mean 'mail'?" in result.stderr
    assert desk.call("--data", tmp_path / "nowhere", "publish", "mail", "x").exit_code == 1
    assert not (tmp_path / "nowhere").exists()


@pytest.mark.process
def test_input_without_end_is_refused(desk: Desk) -> None:
    for words in ([], ["--lines"]):
        with Path("/dev/zero").open("rb") as zeros:
            done = subprocess.run(
                command("publish", "mail", *words),
                env=desk.environment(),
                stdin=zeros,
                capture_output=True,
                timeout=SECONDS,
                check=False,
            )
        assert done.returncode == 1
        assert b"16777216" in done.stderr
    assert len(desk.bodies("mail")) == 4


@pytest.mark.process
def test_the_largest_body_and_a_little_more(desk: Desk) -> None:
    default = {"MILLRACE_SEGMENT_BYTES": str(bounds.SEGMENT_BYTES)}
    assert desk.run("publish", "mail", given=bytes(16 * 1024 * 1024), **default).returncode == 0
    done = desk.run("publish", "mail", given=bytes(16 * 1024 * 1024 + 1), **default)
    assert done.returncode == 1
    assert b"16777216" in done.stderr
