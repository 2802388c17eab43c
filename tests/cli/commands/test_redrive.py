"""`millrace redrive`."""

from __future__ import annotations

import asyncio
import signal

import pytest

import millrace
from millrace.cli.exit_errors import INTERRUPTED, RETRY
from tests.cli.desk import SECONDS, Desk
from tests.client.harness import eventually

LETTERS = {b"a": "till", b"b": "shop", b"c": "shop"}
"""Bodies, and the source that a header names."""


async def fill(desk: Desk) -> None:
    async with millrace.open(desk.data) as m:
        dead = await m.queue("dead")
        mail, orders = await m.queue("letters", dead_letter="dead"), await m.queue("parcels")
        await orders.configure(max_failures=1, dead_letter="dead")
        for body, source in LETTERS.items():
            await mail.publish(body, headers={"source": source})
        await orders.publish(b"box")
        await mail.discard(await mail.lease(3))
        [box] = await orders.lease(1)
        await box.release(failed=True)

        async def have_arrived() -> bool:
            return (await dead.stats())["published"] == 4

        await eventually(have_arrived)


@pytest.fixture
def filled(desk: Desk) -> Desk:
    asyncio.run(fill(desk))
    return desk


def test_all_go_back(filled: Desk) -> None:
    would = filled.text("redrive", "dead", "--dry-run")
    assert would == "would move 4 messages; 0 would stay\n"
    assert filled.text("redrive", "dead") == "moved 4 of 4 messages; 0 stay\n"
    assert sorted(map(str, filled.bodies("letters"))) == ["a", "b", "c"]
    assert filled.bodies("parcels") == ["box"]
    assert filled.bodies("dead") == []


def test_what_moves_nothing_says_why(filled: Desk) -> None:
    filled.text("redrive", "dead")
    fields = filled.one("redrive", "dead")
    assert (fields["moved"], fields["reason"]) == (0, "the queue has no messages")


def test_letters_of_pipelines_are_chosen_by_their_source(filled: Desk) -> None:
    filled.text("redrive", "dead")
    words = [
        "publish",
        "dead",
        "mended",
        "--key",
        "k",
        "--header",
        "millrace-queue=default/letters",
    ]
    filled.text(*words)
    assert filled.one("redrive", "dead", "--from", "parcels")["moved"] == 0
    assert filled.one("redrive", "dead", "--from", "letters")["moved"] == 1
    assert "mended" in filled.bodies("letters")


def test_some_go_back(filled: Desk) -> None:
    assert filled.one("redrive", "dead", "--from", "letters", "--where", "source=shop") == {
        "type": "redriven",
        "queue": "dead",
        "total": 2,
        "moved": 2,
        "kept": 2,
        "aimless": 0,
        "reason": "",
        "dry_run": False,
    }
    assert filled.bodies("letters") == ["b", "c"]
    assert filled.one("redrive", "dead", "--reason", "failures")["moved"] == 1
    assert filled.bodies("parcels") == ["box"]
    assert filled.bodies("dead") == ["a"]


def test_they_go_elsewhere_with_other_headers(filled: Desk) -> None:
    words = [
        "--to",
        "shop/again",
        "--where",
        "source=shop",
        "--set",
        "by=hand",
        "--unset",
        "source",
    ]
    result = filled.call("redrive", "dead", *words)
    assert result.exit_code == 1
    assert "there is no queue 'shop/again'" in result.stderr
    filled.text("queue", "make", "shop/again")
    assert filled.one("redrive", "dead", *words, "--rate", "1000")["moved"] == 2
    lines = filled.lines("peek", "shop/again")
    assert [line["headers"] for line in lines] == [[{"name": "by", "value": "hand"}]] * 2


@pytest.mark.process
def test_it_is_interrupted_and_goes_on(filled: Desk) -> None:
    with filled.start("redrive", "dead", "--rate", "0.001", "--patience", "30s") as process:
        # As long as it runs, the folder is its own.
        while filled.run("queue", "list", "--patience", "0s").returncode != RETRY:
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=SECONDS)
    assert process.returncode in (0, INTERRUPTED)
    # It may have been interrupted before it had counted them.
    assert process.returncode != 0 or b"moved " in out
    moved = len(filled.bodies("letters")) + len(filled.bodies("parcels"))
    assert moved + len(filled.bodies("dead")) == 4
    assert moved < 4
    filled.text("redrive", "dead")
    assert filled.bodies("dead") == []
    assert sorted(map(str, filled.bodies("letters"))) == ["a", "b", "c"]


def test_a_rate_that_says_nothing(filled: Desk) -> None:
    result = filled.call("redrive", "dead", "--rate", "0")
    assert result.exit_code == 1
    assert "rate" in result.stderr


async def expire(desk: Desk) -> None:
    async with millrace.open(desk.data) as m:
        dead = await m.queue("dead")
        mail = await m.queue("letters", dead_letter="dead", dead_letter_expired=True)
        await mail.publish(b"late", ttl=0)

        async def has_arrived() -> bool:
            return (await dead.stats())["published"] == 1

        await eventually(has_arrived)


def test_what_has_expired_goes_back(desk: Desk) -> None:
    asyncio.run(expire(desk))
    assert desk.one("redrive", "dead", "--reason", "failures")["moved"] == 0
    assert desk.one("redrive", "dead", "--reason", "expired")["moved"] == 1
