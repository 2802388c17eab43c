"""Topics by Dynamiq's routes."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from millrace import limits
from tests.server.dynamiq.harness import MAIL, NEWS, QUEUES, TOPICS, error, put, take, value
from tests.server.rest.harness import served, until_told


def test_a_topic_is_made_once_listed_described_and_deleted(tmp_path: Path) -> None:
    async def main() -> None:
        async with served(tmp_path) as server:
            assert value(await server.ask("PUT", NEWS)) == (201, {"Queues": []})
            assert error(await server.ask("PUT", NEWS)) == (422, "topic 'news' is there already")
            assert value(await server.ask("GET", TOPICS)) == (200, {"topics": ["news"]})
            assert value(await server.ask("GET", NEWS)) == (200, {"Queues": []})
            assert value(await server.ask("DELETE", NEWS)) == (200, {"Deleted": True})
            assert error(await server.ask("DELETE", NEWS))[0] == 404
            assert error(await server.ask("GET", NEWS))[0] == 404
            assert error(await server.ask("PUT", f"{NEWS}/message", b"x"))[0] == 404
            assert error(await server.ask("DELETE", f"{NEWS}/queues/mail"))[0] == 404
            assert value(await server.ask("GET", TOPICS)) == (200, {"topics": []})

    asyncio.run(main())


def test_queues_are_subscribed_once_and_no_more(tmp_path: Path) -> None:
    async def main() -> None:
        async with served(tmp_path) as server:
            status, text = error(await server.ask("PUT", f"{NEWS}/queues/mail"))
            assert (status, text) == (422, "there is no topic 'news' in 'default'; make it first")
            await server.ask("PUT", NEWS)
            status, text = error(await server.ask("PUT", f"{NEWS}/queues/mail"))
            assert (status, text) == (422, "there is no queue 'mail' in 'default'; make it first")
            for name in ("mail", "fax"):
                await server.ask("PUT", f"{QUEUES}/{name}")
            both = {"Queues": ["mail", "fax"]}
            assert value(await server.ask("PUT", f"{NEWS}/queues/mail")) == (
                200,
                {"Queues": ["mail"]},
            )
            for _ in range(2):
                assert value(await server.ask("PUT", f"{NEWS}/queues/fax")) == (200, both)
            assert value(await server.ask("GET", NEWS)) == (200, both)
            assert value(await server.ask("DELETE", f"{NEWS}/queues/none")) == (200, both)
            for _ in range(2):
                assert value(await server.ask("DELETE", f"{NEWS}/queues/mail")) == (
                    200,
                    {"Queues": ["fax"]},
                )
            await server.ask("DELETE", f"{QUEUES}/fax")
            assert value(await server.ask("GET", NEWS)) == (200, {"Queues": []})

    asyncio.run(main())


@pytest.mark.parametrize("is_front", [False, True], ids=["owner", "front"])
def test_d1_a_topic_tells_the_id_in_each_queue(tmp_path: Path, *, is_front: bool) -> None:
    async def main() -> None:
        async with served(tmp_path, is_front=is_front) as server:
            await server.ask("PUT", NEWS)
            assert value(await server.ask("PUT", f"{NEWS}/message", b"to nobody")) == (200, {})
            for name in ("mail", "fax"):
                await server.ask("PUT", f"{QUEUES}/{name}")
                await server.ask("PUT", f"{NEWS}/queues/{name}")
            alone = await put(server, b"alone")
            sent = await server.ask("PUT", f"{NEWS}/message", b"to all", type="text/plain")
            assert sent.status == 200
            ids = sent.json
            assert list(ids) == ["mail", "fax"]
            assert await take(server) == [
                {"id": alone, "body": "alone"},
                {"id": ids["mail"], "body": "to all"},
            ]
            assert await take(server, path=f"{QUEUES}/fax") == [
                {"id": ids["fax"], "body": "to all"}
            ]
            gone = await server.ask("DELETE", f"{MAIL}/message/{ids['mail']}")
            assert value(gone) == (200, True)

    asyncio.run(main())


def test_subscriptions_of_other_names_are_known_by_their_queues(tmp_path: Path) -> None:
    async def main() -> None:
        async with served(tmp_path) as server:
            await server.ask("PUT", MAIL)
            topic = await server.millrace.topic("news")
            await topic.subscribe("mail", name="to-mail")
            await topic.subscribe("orders")
            await topic.subscribe("orders", name="none", filter={"kind": "sale"})
            far = await server.millrace.queue("far", space="other")
            await topic.subscribe(far)
            all_of_them = {"Queues": ["mail", "orders", "other/far"]}
            assert value(await server.ask("PUT", f"{NEWS}/queues/mail")) == (200, all_of_them)
            sent = await server.ask("PUT", f"{NEWS}/message", b"x")
            [taken] = await take(server)
            # What was made elsewhere has no ids that these routes take.
            assert sent.json == {"mail": taken["id"], "orders": "", "other/far": ""}
            left = await server.ask("DELETE", f"{NEWS}/queues/mail")
            assert value(left) == (200, {"Queues": ["orders", "other/far"]})

    asyncio.run(main())


@pytest.mark.parametrize("is_front", [False, True], ids=["owner", "front"])
def test_d1_every_id_that_a_topic_tells_is_taken_by_the_other_routes(
    tmp_path: Path, *, is_front: bool
) -> None:
    async def main() -> None:
        async with served(tmp_path, is_front=is_front) as server:
            topic = await server.millrace.topic("news")
            await server.ask("PUT", MAIL)
            await server.ask("PUT", f"{NEWS}/queues/mail")
            # Queues that others made: with partitions, without, with several shards, elsewhere.
            await server.millrace.queue("jobs", delivery="partitions", partitions_min=3)
            await server.millrace.queue("plain")
            await server.millrace.queue("many", shards=3)
            far = await server.millrace.queue("far", space="other", delivery="partitions")
            for name in ("jobs", "plain", "many", far):
                await topic.subscribe(name)
            for body in (b"one", b"two"):
                sent = await server.ask("PUT", f"{NEWS}/message", body)
                assert sent.status == 200
                ids = sent.json
                assert set(ids) == {"mail", "jobs", "plain", "many", "other/far"}
                assert {name for name, id_ in ids.items() if id_} == {"mail", "jobs"}
                for name in ("mail", "jobs"):
                    path = f"{QUEUES}/{name}/message/{ids[name]}"
                    message = {"id": ids[name], "body": body.decode()}
                    assert value(await server.ask("GET", path)) == (200, {"messages": [message]})
                    assert value(await server.ask("DELETE", path)) == (200, True)
                    assert (await server.ask("GET", path)).status == 404
            # Those without an id have the messages all the same.
            for queue in (await server.millrace.find("plain"), far):
                assert (await queue.stats())["published"] == 2
            refused = await server.ask("GET", f"{QUEUES}/plain/message/1")
            assert error(refused)[0] == 422

    asyncio.run(main())


def test_a_queue_that_is_full_gets_it_later_and_has_no_id_until_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with served(tmp_path) as server:
            await server.ask("PUT", NEWS)
            await server.ask("PUT", MAIL)
            await server.ask("PUT", f"{NEWS}/queues/mail")
            await (await server.millrace.find("mail")).configure(max_messages=1)
            before = await put(server, b"fills it")
            sent = await server.ask("PUT", f"{NEWS}/message", b"late")
            assert value(sent) == (200, {"mail": ""})
            assert error(await server.ask("PUT", f"{MAIL}/message", b"none"))[0] == 503
            await server.ask("DELETE", f"{MAIL}/message/{before}")
            found: list[dict[str, str]] = []

            async def comes() -> bool:
                found.extend(await take(server))
                return bool(found)

            await until_told(comes)
            assert [one["body"] for one in found] == ["late"]

    monkeypatch.setattr(limits, "ARRIVAL_SECONDS_MAX", 0.05)
    asyncio.run(main())


def test_whoever_subscribes_a_queue_may_publish_to_it(tmp_path: Path) -> None:
    async def main() -> None:
        async with served(tmp_path) as server:
            await server.ask("PUT", NEWS)
            await server.ask("PUT", MAIL)
            server.door.know("editor", ("allow manage default/news",))
            refused = await server.ask("PUT", f"{NEWS}/queues/mail", role="editor")
            assert error(refused)[0] == 403
            server.door.know("editor", ("allow manage default/news", "allow publish default/mail"))
            done = await server.ask("PUT", f"{NEWS}/queues/mail", role="editor")
            assert json.loads(done.body) == {"Queues": ["mail"]}
            # What they may do nothing with they are not told of.
            near = await server.ask("PUT", f"{NEWS}/queues/mai", role="editor")
            assert error(near)[0] == 403
            server.door.know("editor", ("allow manage default/news", "allow publish default/x*"))
            await server.millrace.queue("xylo")
            await server.millrace.queue("secret-x")
            near = await server.ask("PUT", f"{NEWS}/queues/xyl", role="editor")
            assert error(near)[1].endswith("did you mean 'xylo'?; make it first")

    asyncio.run(main())


def test_sec_22_nobody_hears_of_queues_of_other_spaces(tmp_path: Path) -> None:
    async def main() -> None:
        async with served(tmp_path) as server:
            await server.ask("PUT", NEWS)
            await server.ask("PUT", MAIL)
            await server.ask("PUT", f"{NEWS}/queues/mail")
            secret = await server.millrace.queue("plans", space="secret")
            await (await server.millrace.find_topic("news")).subscribe(secret)
            server.door.know("eve", ("allow read default/news", "allow publish default/news"))
            server.door.know("ada", ("allow * default/*", "allow read secret/plans"))
            for role, told in (("eve", {"mail"}), ("ada", {"mail", "secret/plans"})):
                found = await server.ask("GET", NEWS, role=role)
                assert set(found.json["Queues"]) == told  # type: ignore[call-overload]
                sent = await server.ask("PUT", f"{NEWS}/message", b"x", role=role)
                assert (sent.status, set(sent.json)) == (200, told)
            assert (await secret.stats())["published"] == 2
            server.door.know("eve", ("allow * default/*",))
            again = await server.ask("PUT", f"{NEWS}/queues/mail", role="eve")
            assert again.json == {"Queues": ["mail"]}

    asyncio.run(main())
