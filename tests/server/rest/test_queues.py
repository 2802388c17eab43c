"""Queues over REST: made, described, changed, ended."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from millrace.client.settings import QueueSettings
from millrace.server.rest.settings import SettingsBody
from tests.server.rest.harness import served

SPACE = "/v1/spaces/default"
ORDERS = f"{SPACE}/queues/orders"


def test_every_setting_has_its_name_here() -> None:
    assert set(SettingsBody.__struct_fields__) == set(QueueSettings.__annotations__)


def test_a_queue_is_made_described_changed_and_ended(tmp_path: Path) -> None:
    async def main() -> None:
        async with served(tmp_path) as server:
            path = f"{SPACE}/queues/tea"
            told = {"keyed": True, "retention": "log", "keep_deletes": 60, "shards": 2}
            made = await server.ask("PUT", path, told)
            assert (made.status, made.json["shards"], made.json["route"]) == (201, 2, "key")
            settings = made.json["settings"]
            assert isinstance(settings, dict)
            assert {name: settings[name] for name in ("keyed", "retention", "keep_deletes")} == {
                "keyed": True,
                "retention": "log",
                "keep_deletes": 60,
            }
            again = await server.ask("PUT", path, settings)
            assert (again.status, again.json) == (200, made.json)
            other = await server.ask("PUT", path, {"keyed": False})
            assert (other.status, other.json["code"]) == (409, "exists")
            other = await server.ask("PUT", path, {"keep_deletes": 5.5})
            assert (other.status, "; PATCH it to change them" in other.text("detail")) == (
                409,
                True,
            )
            changed = await server.ask("PATCH", path, {"keep_deletes": 5.5})
            assert changed.status == 200
            await server.ask("POST", f"{path}/messages", {"body": "x", "key": "k"})
            noted = await server.ask("PATCH", path, {"notes": {"owner": "ada", "gone": ""}})
            assert noted.status == 200
            state = (await server.ask("GET", path)).json
            wanted = {**settings, "keep_deletes": 5.5, "notes": {"owner": "ada"}}
            assert state["settings"] == wanted
            stats, shard_stats = state["stats"], state["shard_stats"]
            assert isinstance(stats, dict)
            assert isinstance(shard_stats, list)
            assert stats["published"] == stats["live"] == 1
            assert sum(one["live"] for one in shard_stats) == 1
            assert (await server.ask("GET", f"{SPACE}/queues")).json == {"names": ["orders", "tea"]}
            for was_there in (True, False):
                gone = await server.ask("DELETE", path)
                assert (gone.status, gone.json) == (200, {"was_there": was_there})
            assert (await server.ask("GET", path)).status == 404

    asyncio.run(main())


def test_a_queue_made_anew_is_found_under_its_name(tmp_path: Path) -> None:
    async def main() -> None:
        async with served(tmp_path) as server:
            await server.ask("POST", f"{ORDERS}/messages", {"body": "old"})
            await server.ask("DELETE", ORDERS)
            lost = await server.ask("POST", f"{ORDERS}/messages", {"body": "new"})
            assert (lost.status, lost.json["field"]) == (404, "queue")
            await server.ask("PUT", ORDERS, {})
            made = await server.ask("POST", f"{ORDERS}/messages", {"body": "new"})
            assert made.json == {"count": 1, "seq": 1}

    asyncio.run(main())


@pytest.mark.parametrize(
    ("told", "status", "field"),
    [
        ({"shards": 0}, 400, "shards"),
        ({"shards": 10**6}, 413, "shards"),
        ({"shards": "many"}, 400, "shards"),
        ({"route": "left"}, 400, "route"),
        ({"retention": "for ever"}, 400, "retention"),
        ({"keep_deletes": -1}, 400, "keep_deletes"),
        ({"keep_deletes": 1e300}, 413, "keep_deletes"),
        ({"max_failures": 2**70}, 413, "max_failures"),
        ({"dead_letter": "no/name"}, 400, "dead_letter"),
        ({"dead_letter": "missing"}, 404, "dead_letter"),
        ({"keyd": True}, 400, "keyd"),
        ([], 400, "body"),
        (b"[" * 100_000, 400, "body"),
        (b"\xff", 400, "body"),
    ],
)
def test_bad_settings_make_nothing(tmp_path: Path, told: object, status: int, field: str) -> None:
    async def main() -> None:
        async with served(tmp_path) as server:
            refused = await server.ask("PUT", f"{SPACE}/queues/tea", told)
            assert (refused.status, refused.json["field"]) == (status, field), refused
            assert refused.headers["content-type"] == "application/problem+json"
            assert await server.millrace.queues() == ["orders"]

    asyncio.run(main())


@pytest.mark.parametrize("name", ["a%2Fb", "%00", "..%2F..", "x" * 81, "%FF", "a%20b", "%"])
def test_bad_names_are_refused(tmp_path: Path, name: str) -> None:
    async def main() -> None:
        async with served(tmp_path) as server:
            for path, field in (
                (f"{SPACE}/queues/{name}", "queue"),
                (f"/v1/spaces/{name}/queues/x", "space"),
            ):
                for method, body in (("PUT", {}), ("GET", None), ("DELETE", None), ("PATCH", {})):
                    refused = await server.ask(method, path, body)
                    assert refused.status in (400, 413), (method, path, refused)
                    assert refused.json["field"] == field

    asyncio.run(main())


def test_dead_letters_go_only_where_one_may_publish(tmp_path: Path) -> None:
    async def main() -> None:
        async with served(tmp_path) as server:
            await server.millrace.queue("orders-dead")
            await server.millrace.queue("secret")
            for letters, status in (("orders-dead", 200), ("secret", 403)):
                told = {"max_failures": 1, "dead_letter": letters}
                found = await server.ask("PATCH", ORDERS, told, role="manager")
                assert found.status == status

    asyncio.run(main())


def test_a_queue_is_placed_beside_one_to_which_one_may_publish(tmp_path: Path) -> None:
    async def main() -> None:
        async with served(tmp_path) as server:
            path = f"{SPACE}/queues/tea"
            made = await server.ask("PUT", path, {"beside": "orders"})
            assert made.status == 201
            assert (await server.ask("PUT", path, {"beside": "orders"})).status == 200
            queue = await server.millrace.find("tea")
            assert queue.shards.placed_by == "default/orders"
            gone = await server.ask("PUT", f"{SPACE}/queues/milk", {"beside": "gone"})
            assert (gone.status, gone.json["field"]) == (404, "beside")
            other = await server.ask("PUT", ORDERS, {"beside": "tea"})
            assert other.status == 200
            await server.millrace.queue("apart")
            other = await server.ask("PUT", path, {"beside": "apart"})
            assert (other.status, other.json["field"]) == (409, "beside")

    asyncio.run(main())


def test_one_sees_the_names_that_one_may_use(tmp_path: Path) -> None:
    async def main() -> None:
        async with served(tmp_path) as server:
            await server.millrace.queue("secret")
            await server.millrace.queue("access", space="system")
            for role, names in (
                ("root", ["orders", "secret"]),
                ("worker", ["orders"]),
                ("nobody", []),
            ):
                found = await server.ask("GET", f"{SPACE}/queues", role=role)
                assert found.json == {"names": names}
            system = "/v1/spaces/system/queues"
            assert (await server.ask("GET", system, role="manager")).json == {"names": []}
            assert (await server.ask("GET", system)).json == {"names": ["access"]}

    asyncio.run(main())


def test_a_queue_is_purged_and_a_log_rewound(tmp_path: Path) -> None:
    async def main() -> None:
        async with served(tmp_path) as server:
            path = f"{SPACE}/queues/log"
            await server.ask("PUT", path, {"retention": "log"})
            told = {"messages": [{"body": str(number)} for number in range(5)]}
            await server.ask("POST", f"{path}/messages", told)
            leased = await server.ask("POST", f"{path}/leases", {"count": 5})
            receipts = [one["receipt"] for one in leased.items("messages")]
            await server.ask("POST", f"{path}/settle", {"receipts": receipts})
            for start, first in ((3, 3), ("4", 4), ("beginning", 1), ("2001-02-03T04:05:06Z", 1)):
                found = await server.ask("POST", f"{path}/rewind", {"start": start})
                assert (found.status, found.json) == (200, {"first": first})
            for bad in ("yesterday", "2001-02-03T04:05:06", -1, 2**70, "1:2:3", None, 1.5):
                refused = await server.ask("POST", f"{path}/rewind", {"start": bad})
                assert (refused.status, refused.json["field"]) == (400, "start"), bad
            assert (await server.ask("POST", f"{path}/purge")).json == {"upto": 5}
            refused = await server.ask("POST", f"{ORDERS}/rewind", {"start": "beginning"})
            assert refused.status == 400

    asyncio.run(main())


def test_the_spaces_are_those_in_which_the_caller_may_do_something(tmp_path: Path) -> None:
    async def main() -> None:
        async with served(tmp_path) as server:
            await server.millrace.queue("baskets", space="shop")
            await server.millrace.topic("news", space="press")
            server.door.know("shopper", ("allow work shop/*",))
            server.door.know("reader", ("allow read press/news", "allow read shop/none"))
            for role, names in {
                "root": ["default", "press", "shop"],
                "shopper": ["shop"],
                "reader": ["press"],
                "worker": ["default"],
                "nobody": [],
            }.items():
                answer = await server.ask("GET", "/v1/spaces", role=role)
                assert (answer.status, answer.json) == (200, {"names": names}), role

    asyncio.run(main())
