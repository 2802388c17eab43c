"""`millrace topic`."""

from __future__ import annotations

import pytest

from tests.cli.desk import Desk


@pytest.fixture
def news(desk: Desk) -> Desk:
    desk.text("topic", "make", "news")
    desk.text("topic", "subscribe", "news", "mail")
    return desk


def test_makes_and_lists(desk: Desk) -> None:
    assert "no topics" in desk.call("topic", "list").stderr
    assert desk.one("topic", "make", "news") == {"type": "topic", "topic": "news", "made": True}
    assert desk.one("topic", "make", "news")["made"] is False
    assert desk.one("topic", "list") == {
        "type": "topic",
        "topic": "news",
        "published": 0,
        "lag": 0,
        "subscriptions": 0,
    }
    assert desk.text("topic", "list").splitlines()[1].split() == ["news", "0", "0", "0"]


def test_publishes_to_every_queue(news: Desk) -> None:
    news.text("topic", "subscribe", "news", "orders", "--filter", '{"kind": "sale"}')
    said = news.one("topic", "publish", "news", "hello", "--header", "kind=sale")
    assert said["queues"] == {"mail": 5, "orders": 8}
    assert news.text("topic", "publish", "news", given="piped") == "mail 6, orders filtered\n"
    assert news.bodies("mail")[-2:] == ["hello", "piped"]


def test_shows_how_far_each_subscription_has_come(news: Desk) -> None:
    news.text("topic", "publish", "news", "hello")
    shown = news.one("topic", "show", "news")
    assert (shown["subscription"], shown["queue"]) == ("mail", "default/mail")
    assert (shown["forwarded"], shown["filtered"], shown["lag"]) == (1, 0, 0)
    lines = news.text("topic", "show", "news").splitlines()
    assert lines[1].split() == ["mail", "mail", "1", "0", "0"]


def test_subscribes_once_and_ends(news: Desk) -> None:
    assert news.one("topic", "subscribe", "news", "mail")["made"] is False
    refused = news.call("topic", "subscribe", "news", "mail", "--filter", '{"a": "b"}')
    assert refused.exit_code == 1
    news.text("topic", "unsubscribe", "news", "mail")
    assert news.text("topic", "publish", "news", "hello") == "published\n"
    refused = news.call("topic", "unsubscribe", "news", "mail")
    assert refused.exit_code == 1
    assert "topic show" in refused.stderr


@pytest.mark.parametrize("wanted", ["{", '{"a": {"begins": "b"}}', "5"])
def test_a_bad_filter_is_refused(news: Desk, wanted: str) -> None:
    result = news.call("topic", "subscribe", "news", "orders", "--filter", wanted)
    assert result.exit_code in (1, 2)
    assert "filter" in result.stderr


def test_names_the_nearest(news: Desk) -> None:
    result = news.call("topic", "show", "new")
    assert result.exit_code == 1
    assert "did you mean 'news'" in result.stderr
    assert "there is no queue" in news.call("topic", "subscribe", "news", "male").stderr


def test_configures(news: Desk) -> None:
    assert news.one("topic", "configure", "news", "--max-lag", "7")["max_lag"] == 7
    assert news.call("topic", "make", "news", "--max-lag", "8").exit_code == 1


def test_nothing_is_ended_unasked(news: Desk) -> None:
    assert news.call("topic", "delete", "news").exit_code == 2
    assert news.one("topic", "delete", "news", "--yes")["ended"] == 0
    assert news.lines("topic", "list") == []


def test_a_message_has_its_time_its_group_and_its_id(news: Desk) -> None:
    call = ("topic", "publish", "news", "hello", "--ttl", "1h", "--group", "g", "--dedup", "a")
    assert news.one(*call)["queues"] == {"mail": 5}
    assert news.one(*call)["queues"] == {"mail": "forwarded"}
    (*_, last) = news.lines("peek", "mail")
    assert last["headers"] == [
        {"name": "millrace-group", "value": "g"},
        {"name": "millrace-ttl-ms", "value": "3600000"},
    ]


def test_a_queue_is_no_topic_and_a_topic_no_queue(news: Desk) -> None:
    assert "mail is a queue" in news.call("topic", "publish", "mail", "x").stderr
    assert "news is a topic" in news.call("publish", "news", "x").stderr
