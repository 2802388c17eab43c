"""`millrace lease`, `settle`, `release` and `extend`."""

from __future__ import annotations

import pytest

from tests.cli.desk import Desk


def test_a_lease_is_settled_by_its_receipt(desk: Desk) -> None:
    lease = desk.one("lease", "mail", "--for", "5m")
    assert (lease["seq"], lease["body"], lease["deliveries"]) == (1, "welcome, Ada", 1)
    assert desk.one("settle", "mail", lease["receipt"])["count"] == 1
    assert desk.one("explain", "mail", 1)["state"] in ("settled", "dead")
    assert len(desk.bodies("mail")) == 3


def test_receipts_go_through_a_pipe(desk: Desk) -> None:
    receipts = desk.text("lease", "mail", "--count", 3, "--receipts")
    assert len(receipts.split()) == 3
    assert desk.text("settle", "mail", "-", given=receipts) == "settled 3\n"
    assert len(desk.bodies("mail")) == 1


def test_people_are_shown_whole_receipts(desk: Desk) -> None:
    first, second = desk.text("lease", "mail", "--count", 2).split("\n\n")
    for block in (first, second):
        shown = dict(line.split(None, 1) for line in block.splitlines())
        assert desk.text("settle", "mail", shown["receipt"]) == "settled 1\n"


def test_released_as_failed(desk: Desk) -> None:
    receipt = desk.text("lease", "mail", "--receipts").strip()
    desk.text("release", "mail", receipt, "--failed")
    lease = desk.one("lease", "mail")
    assert (lease["seq"], lease["deliveries"], lease["failures"]) == (1, 2, 1)


def test_extends(desk: Desk) -> None:
    lease = desk.one("lease", "mail", "--for", "30s")
    desk.text("extend", "mail", lease["receipt"], "--for", "1h")
    until = desk.one("explain", "mail", 1)["until_ms"]
    assert isinstance(until, int)
    assert isinstance(lease["deadline_ms"], int)
    assert until > lease["deadline_ms"] + 3_000_000


def test_what_is_refused_says_why(desk: Desk) -> None:
    first, second = desk.text("lease", "mail", "--count", 2, "--receipts").split()
    desk.text("release", "mail", first)
    result = desk.call("settle", "mail", first)
    assert result.exit_code == 1
    assert result.stderr.startswith("Error: ")
    assert "Hint: drop it" in result.stderr
    result = desk.call("settle", "mail", first, second)
    assert result.exit_code == 1
    assert result.stdout.splitlines()[0] == "settled 1"
    assert result.stdout.splitlines()[1].startswith("refused: seq 1: ")


def test_a_receipt_of_another_queue_is_forged(desk: Desk) -> None:
    receipt = desk.text("lease", "mail", "--receipts").strip()
    for wrong in (["orders", receipt], ["mail", receipt[:-2]], ["mail", "nonsense"]):
        result = desk.call("settle", *wrong)
        assert result.exit_code == 1, wrong
        assert "Hint: give the receipt exactly as `millrace lease` printed it" in result.stderr


def test_nothing_to_lease_is_no_error(desk: Desk) -> None:
    desk.text("queue", "purge", "mail", "--yes")
    result = desk.call("lease", "mail")
    assert (result.exit_code, result.stdout) == (0, "")
    assert "nothing to lease" in result.stderr


def test_a_delayed_release(desk: Desk) -> None:
    receipt = desk.text("lease", "mail", "--receipts").strip()
    desk.text("release", "mail", receipt, "--delay", "1h")
    assert desk.one("lease", "mail")["seq"] == 2
    assert "is delayed until" in desk.text("explain", "mail", 1)


@pytest.mark.process
def test_discarded_messages_are_dead_letters(desk: Desk) -> None:
    desk.text("queue", "make", "dead")
    desk.text("queue", "configure", "mail", "--dead-letter", "dead", "--max-failures", 3)
    receipt = desk.text("lease", "mail", "--receipts").strip()
    assert desk.text("discard", "mail", receipt) == "discarded 1\n"
    # They are moved by whoever has the folder next, for long enough.
    with desk.start("follow", "dead") as process:
        assert process.stdout is not None
        assert b"welcome, Ada" in process.stdout.readline()
    assert "welcome, Ada" not in desk.bodies("mail")


def test_a_log_is_worked_again(desk: Desk) -> None:
    assert desk.call("rewind", "mail", "--to", "beginning").exit_code == 1
    desk.text("queue", "configure", "mail", "--retention", "log")
    receipts = desk.text("lease", "mail", "--count", 4, "--receipts")
    desk.text("settle", "mail", "-", given=receipts)
    assert desk.lines("lease", "mail") == []
    assert desk.one("rewind", "mail", "--to", 3)["seq"] == 3
    assert [line["seq"] for line in desk.lines("lease", "mail", "--count", 4)] == [3, 4]
