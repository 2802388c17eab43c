"""`millrace queue`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.desk import Desk


def test_lists_queues_with_their_counts(desk: Desk) -> None:
    lines = desk.text("queue", "list").splitlines()
    assert lines[0].split() == ["QUEUE", "KEYED", "RETENTION", "LIVE", "SETTLED", "PUBLISHED"]
    assert lines[1].split() == ["mail", "no", "work", "4", "0", "4"]
    assert lines[2].split() == ["orders", "yes", "work", "5", "0", "7"]
    assert all(line == line.rstrip() for line in lines)


def test_lists_queues_as_json(desk: Desk) -> None:
    mail, orders = desk.lines("queue", "list")
    assert (mail["type"], mail["queue"], mail["live"]) == ("queue", "mail", 4)
    assert (orders["queue"], orders["keyed"], orders["superseded"]) == ("orders", True, 2)


def test_makes_the_folder_and_a_queue(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    made = desk.one("queue", "make", "prices", "--keyed", "--keep-deletes", "7d")
    assert made == {"type": "queue", "queue": "prices", "made": True}
    shown = desk.one("queue", "show", "prices")
    assert (shown["keyed"], shown["keep_deletes_ms"]) == (True, 7 * 86_400_000)
    again = desk.one("queue", "make", "prices", "--keyed")
    assert again["made"] is False


def test_a_queue_outside_the_default_space(desk: Desk) -> None:
    desk.text("queue", "make", "shop/baskets")
    assert "baskets" not in desk.text("queue", "list")
    assert desk.lines("queue", "list", "--space", "shop")[0]["queue"] == "shop/baskets"
    desk.text("publish", "shop/baskets", "one")
    assert desk.bodies("shop/baskets") == ["one"]


def test_other_settings_are_refused(desk: Desk) -> None:
    result = desk.call("queue", "make", "mail", "--keyed")
    assert result.exit_code == 1
    assert "queue configure" in result.stderr


def test_an_existing_folder_with_other_things_is_left_alone(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    desk.data.mkdir()
    for name in ("letter.txt", "lock"):
        (desk.data / name).write_text("dear")
        result = desk.call("queue", "make", "mail")
        assert result.exit_code == 1
        assert "is not a folder of queues" in result.stderr
    assert {path.name: path.read_text() for path in desk.data.iterdir()} == {
        "letter.txt": "dear",
        "lock": "dear",
    }


def test_shows_one(desk: Desk) -> None:
    shown = dict(line.split(None, 1) for line in desk.text("queue", "show", "orders").splitlines())
    assert shown["published"] == "7"
    assert shown["superseded"] == "2"
    assert shown["cursors"] == "none"


def test_configures(desk: Desk) -> None:
    assert desk.one("queue", "configure", "mail", "--retention", "log")["retention"] == "log"
    assert desk.one("queue", "show", "mail")["retention"] == "log"
    result = desk.call("queue", "configure", "mail")
    assert result.exit_code == 2
    assert "nothing to change" in result.stderr


@pytest.mark.parametrize("verb", ["purge", "delete"])
def test_nothing_is_ended_unasked(desk: Desk, verb: str) -> None:
    result = desk.call("queue", verb, "mail")
    assert result.exit_code == 2
    assert "--yes" in result.stderr
    assert len(desk.bodies("mail")) == 4


def test_purges(desk: Desk) -> None:
    assert desk.one("queue", "purge", "mail", "--yes") == {
        "type": "purged",
        "queue": "mail",
        "ended": 4,
        "up_to_seq": 4,
    }
    assert desk.bodies("mail") == []


def test_deletes(desk: Desk) -> None:
    assert desk.one("queue", "delete", "mail", "--yes")["ended"] == 4
    assert [line["queue"] for line in desk.lines("queue", "list")] == ["orders"]


def test_suggests_the_nearest_verb_and_queue(desk: Desk) -> None:
    assert "did you mean 'purge'?" in desk.call("queue", "prge", "mail").stderr
    result = desk.call("queue", "show", "orderz")
    assert result.exit_code == 1
    assert "there is no queue 'orderz'\nHint: did you mean 'orders'?" in result.stderr


def test_settings_for_failures(desk: Desk) -> None:
    desk.text("queue", "make", "bills", "--max-failures", 5, "--dead-letter", "mail")
    shown = desk.one("queue", "configure", "bills", "--retry-min", "10s", "--retry-max", "1m")
    assert (shown["max_failures"], shown["dead_letter"]) == (5, "default/mail")
    assert (shown["retry_min_ms"], shown["retry_max_ms"]) == (10_000, 60_000)
    text = desk.text("queue", "show", "bills")
    assert "retry min     10 s" in text
    assert "max deliveries" not in text
    result = desk.call("queue", "configure", "bills", "--dead-letter", "nowhere")
    assert result.exit_code == 1
    assert "nowhere" in result.stderr


def test_retention_and_who_holds_back(desk: Desk) -> None:
    desk.text("queue", "make", "events", "--retention", "log", "--keep", "2d")
    changed = desk.one("queue", "configure", "events", "--keep-bytes", "10GB")
    assert (changed["keep_ms"], changed["keep_bytes"]) == (2 * 86_400_000, 10 * 1024**3)
    assert "10.0 GiB" in desk.text("queue", "show", "events")
    assert desk.one("queue", "show", "mail")["held"] == []
    assert "held back" in desk.text("queue", "show", "mail")
    result = desk.call("queue", "configure", "events", "--keep-bytes", "much")
    assert result.exit_code == 2
    assert "10MB" in result.stderr


def test_ids_are_text_in_json(desk: Desk) -> None:
    desk.text("queue", "make", "parts", "--delivery", "partitions")
    told = desk.one("publish", "parts", "x")["seq"]
    assert isinstance(told, str)
    assert told.isdecimal()


def test_a_queue_beside_another(desk: Desk) -> None:
    desk.one("queue", "make", "orders")
    assert desk.one("queue", "make", "shipped", "--beside", "orders")["made"] is True
    assert desk.one("queue", "show", "shipped")["placed_by"] == "default/orders"
    assert "default/orders" in desk.text("queue", "show", "shipped")
    refused = desk.call("queue", "make", "late", "--beside", "gone")
    assert refused.exit_code == 1
    assert "there is no queue 'default/gone'" in refused.stderr


def test_several_shards(desk: Desk) -> None:
    made = desk.one("queue", "make", "events", "--shards", "3", "--route", "spread")
    assert made["made"] is True
    told = [desk.text("publish", "events", body).strip() for body in ("one", "two", "three")]
    shown = desk.one("queue", "show", "events")
    assert (shown["route"], shown["live"]) == ("spread", 3)
    shards = shown["shards"]
    assert isinstance(shards, list)
    assert sum(shard["live"] for shard in shards) == 3
    assert "3, by spread" in desk.text("queue", "show", "events")
    assert [line["seq"] for line in desk.lines("peek", "events")] == sorted(told)
    assert desk.one("explain", "events", told[0])["seq"] == told[0]
    rows = desk.text("peek", "events").splitlines()[1:]
    assert sorted(told) == [row.split()[0] for row in rows]
    first, *others = sorted(told)
    assert desk.one("get", "events", first)["body"] == desk.lines("peek", "events")[0]["body"]
    assert desk.one("explain", "events", first)["state"] == "ready"
    assert len(desk.lines("peek", "events", "--after", first)) == len(others)
    refused = desk.call("queue", "make", "events", "--shards", "4")
    assert refused.exit_code == 1
    assert "has 3 shards, not 4" in refused.stderr


def test_no_place(desk: Desk) -> None:
    result = desk.call("get", "mail", "first:one")
    assert result.exit_code == 2
    assert "SHARD:SEQ" in result.stderr
