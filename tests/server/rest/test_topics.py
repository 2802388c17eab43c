"""Topics over REST."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.server.rest.harness import served

SPACE = "/v1/spaces/default"
ORDERS = f"{SPACE}/queues/orders"
NEWS = f"{SPACE}/topics/news"


def test_d1_topics_reach_every_queue_and_tell_where(tmp_path: Path) -> None:
    async def main() -> None:
        async with served(tmp_path) as server:
            made = await server.ask("PUT", NEWS, {"max_lag": 500})
            assert (made.status, made.json["max_lag"]) == (201, 500)
            assert (await server.ask("PUT", NEWS)).status == 200
            other = await server.ask("PUT", NEWS, {"max_lag": 501})
            assert (other.status, "; PATCH it to change them" in other.text("detail")) == (
                409,
                True,
            )
            await server.ask("PUT", f"{SPACE}/queues/eu")
            both = {"orders": {}, "eu": {"region": ["eu", {"prefix": "eu-"}]}}
            for queue, filter in both.items():
                told = {"queue": queue, "filter": filter}
                for is_new in (True, False):
                    found = await server.ask("PUT", f"{NEWS}/subscriptions/to-{queue}", told)
                    assert (found.status, found.json) == (200, {"made": is_new})
            many = {
                "messages": [
                    {"body": "a", "headers": {"region": "eu-west"}},
                    {"body": "b", "headers": {"region": "us"}},
                ],
                "wait": 50,
            }
            sent = await server.ask("POST", f"{NEWS}/messages", many)
            assert sent.status == 201
            assert sent.json == {
                "count": 2,
                "seq": 1,
                "queues": {"to-orders": [1, 2], "to-eu": [1, "filtered"]},
            }
            lines = b'{"body": "c"}\n{"body": "d"}\n'
            sent = await server.ask(
                "POST", f"{NEWS}/messages?wait=50", lines, type="application/x-ndjson"
            )
            assert sent.json["queues"] == {"to-orders": [3, 4], "to-eu": ["filtered"] * 2}
            sent = await server.ask(
                "POST", f"{NEWS}/messages?key=k", b"\xff", type="application/octet-stream"
            )
            assert sent.json == {"count": 1, "seq": 5}
            state = (await server.ask("GET", NEWS)).json
            assert (state["published"], state["max_lag"]) == (5, 500)
            listed = (await server.ask("GET", f"{NEWS}/subscriptions")).items("subscriptions")
            assert [one["name"] for one in listed] == ["to-orders", "to-eu"]
            assert listed[1]["filter"] == {"region": ["eu", {"prefix": "eu-"}]}
            changed = await server.ask("PATCH", NEWS, {"max_lag": 7})
            assert changed.json["max_lag"] == 7
            changed = await server.ask("PATCH", NEWS, {"notes": {"a": "b", "c": "d"}})
            assert (changed.json["max_lag"], changed.json["notes"]) == (7, {"a": "b", "c": "d"})
            changed = await server.ask("PATCH", NEWS, {"notes": {"a": ""}})
            assert changed.json["notes"] == {"c": "d"}
            told = {"filter": {"region": "us"}, "notes": {"raw": "yes"}}
            changed = await server.ask("PATCH", f"{NEWS}/subscriptions/to-eu", told)
            assert (changed.json["filter"], changed.json["notes"]) == (
                {"region": ["us"]},
                {"raw": "yes"},
            )
            lost = await server.ask("PATCH", f"{NEWS}/subscriptions/to-asia", told)
            assert (lost.status, lost.json["code"]) == (404, "not_found")
            for was_there in (True, False):
                gone = await server.ask("DELETE", f"{NEWS}/subscriptions/to-eu")
                assert gone.json == {"was_there": was_there}
            assert (await server.ask("GET", f"{SPACE}/topics")).json == {"names": ["news"]}
            for was_there in (True, False):
                assert (await server.ask("DELETE", NEWS)).json == {"was_there": was_there}
            assert (await server.ask("POST", f"{NEWS}/messages", {"body": "x"})).status == 404

    asyncio.run(main())


def test_a_filter_may_ask_for_fields_of_bodies_and_choices(tmp_path: Path) -> None:
    async def main() -> None:
        async with served(tmp_path) as server:
            await server.ask("PUT", NEWS)
            wanted = {
                "$or": [
                    {"kind": [{"wildcard": "or*er"}]},
                    {"$body": {"customer": {"ip": [{"cidr": "10.0.0.0/8"}], "new": [True]}}},
                ]
            }
            told = {"queue": "orders", "filter": wanted}
            assert (await server.ask("PUT", f"{NEWS}/subscriptions/s", told)).status == 200
            listed = (await server.ask("GET", f"{NEWS}/subscriptions")).items("subscriptions")
            assert listed[0]["filter"] == wanted
            bodies = [
                {"body": "a", "headers": {"kind": "order"}},
                {"body": "b", "headers": {"kind": "card"}},
                {"body": '{"customer": {"ip": "10.1.2.3", "new": true}}'},
                {"body": '{"customer": {"ip": "10.1.2.3", "new": false}}'},
            ]
            sent = await server.ask("POST", f"{NEWS}/messages", {"messages": bodies, "wait": 50})
            assert sent.json["queues"] == {"s": [1, "filtered", 2, "filtered"]}

    asyncio.run(main())


def test_a_subscription_needs_the_right_to_publish_to_its_queue(tmp_path: Path) -> None:
    async def main() -> None:
        async with served(tmp_path) as server:
            await server.ask("PUT", NEWS)
            await server.millrace.queue("secret")
            await server.millrace.queue("access", space="system")
            server.door.know("editor", ("allow manage,publish default/news", "deny * */secret"))
            for queue in ("orders", "secret", "system/access", "default/secret"):
                told = {"queue": queue}
                found = await server.ask("PUT", f"{NEWS}/subscriptions/s", told, role="editor")
                assert found.status == 403, queue
            assert (await server.ask("GET", f"{NEWS}/subscriptions")).json == {"subscriptions": []}

    asyncio.run(main())


@pytest.mark.parametrize(
    ("path", "told", "status"),
    [
        ("", {"max_lag": 0}, 400),
        ("", {"max_lag": 10**12}, 413),
        ("", {"max_lag": "x"}, 400),
        ("", {"lag": 1}, 400),
        ("/subscriptions/s", {}, 400),
        ("/subscriptions/s", {"queue": "none"}, 404),
        ("/subscriptions/s", {"queue": "a b"}, 400),
        ("/subscriptions/s", {"queue": "orders", "filter": {"x": {"unheard": 1}}}, 400),
        ("/subscriptions/s", {"queue": "orders", "filter": []}, 400),
        ("/subscriptions/s", b'{"queue": "orders", "filter": {"x": "\xff\xd8"}}', 400),
        ("/subscriptions/s", {"queue": "orders", "filter": {"x": {"prefix": "y" * 9999}}}, 413),
        ("/subscriptions/a%20b", {"queue": "orders"}, 400),
    ],
)
def test_bad_topics_are_refused(tmp_path: Path, path: str, told: object, status: int) -> None:
    async def main() -> None:
        async with served(tmp_path) as server:
            await server.ask("PUT", NEWS)
            refused = await server.ask("PUT", f"{NEWS}{path}", told)
            assert refused.status == status, refused
            assert refused.headers["content-type"] == "application/problem+json"

    asyncio.run(main())
