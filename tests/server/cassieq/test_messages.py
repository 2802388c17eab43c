"""CassieQ's messages over HTTP: every answer of every route."""

from __future__ import annotations

from pathlib import Path

from millrace import limits
from tests.client.harness import run
from tests.server.cassieq.harness import Site, error, receipt, site


def test_a_message_is_put_given_and_acknowledged(tmp_path: Path) -> None:
    async def main() -> None:
        async with site(tmp_path) as server:
            put = await server.key("POST", "jobs/messages", b'{"any": "text \xe2\x82\xac"}')
            assert (put.status, put.body) == (201, b"")
            assert await server.size() == 1
            told = await server.key("GET", "jobs/messages/next")
            assert told.status == 200
            assert set(told.json) == {"popReceipt", "message", "deliveryCount", "messageTag"}
            assert told.json["message"] == '{"any": "text €"}'
            assert told.json["deliveryCount"] == 1
            assert len(told.text("messageTag")) == 6
            assert await server.size() == 1, "it was not acknowledged yet"
            none = await server.key("GET", "jobs/messages/next")
            assert (none.status, none.body) == (204, b"")
            gone = await server.key("DELETE", f"jobs/messages?popReceipt={receipt(told.json)}")
            assert (gone.status, gone.body) == (204, b"")
            assert await server.size() == 0
            again = await server.key("DELETE", f"jobs/messages?popReceipt={receipt(told.json)}")
            assert again.status == 204, "an answer that was lost can be asked for again"

    run(main())


def test_a1_a_message_that_is_not_acknowledged_comes_again(tmp_path: Path) -> None:
    async def main() -> None:
        async with site(tmp_path) as server:
            await server.put("one")
            first = await server.get(30)
            server.clock.forward(seconds=29)
            assert (await server.key("GET", "jobs/messages/next")).status == 204
            server.clock.forward(seconds=2)
            second = await server.get()
            assert (first["message"], first["deliveryCount"]) == ("one", 1)
            assert (second["message"], second["deliveryCount"]) == ("one", 2)
            assert second["messageTag"] == first["messageTag"]
            assert second["popReceipt"] != first["popReceipt"]

    run(main())


def test_a_message_is_not_given_before_its_time(tmp_path: Path) -> None:
    async def main() -> None:
        async with site(tmp_path) as server:
            put = await server.key("POST", "jobs/messages?initialInvisibilitySeconds=60", b"late")
            assert put.status == 201
            assert await server.size() == 1
            assert (await server.key("GET", "jobs/messages/next")).status == 204
            server.clock.forward(seconds=61)
            assert (await server.get())["message"] == "late"

    run(main())


def test_a6_a_receipt_is_good_until_someone_else_has_the_message(tmp_path: Path) -> None:
    async def main() -> None:
        async with site(tmp_path) as server:
            for text in ("kept", "lost"):
                await server.put(text)
            kept, lost = await server.get(), await server.get()
            server.clock.forward(seconds=600)
            late = await server.key("DELETE", f"jobs/messages?popReceipt={receipt(kept)}")
            assert late.status == 204, "long after its time, but nobody else came"
            other = await server.get()
            assert other["message"] == "lost"
            stale = await server.key("DELETE", f"jobs/messages?popReceipt={receipt(lost)}")
            assert error(stale) == (409, "Conflict", "AckMessage")
            body = {"message": "x", "newInvisibilitySeconds": 5}
            stale = await server.key("PUT", f"jobs/messages?popReceipt={receipt(lost)}", body)
            assert error(stale) == (409, "Conflict", "UpdateMessage")
            mine = await server.key("DELETE", f"jobs/messages?popReceipt={receipt(other)}")
            assert mine.status == 204

    run(main())


def test_a8_an_update_has_another_receipt_and_the_same_tag(tmp_path: Path) -> None:
    async def main() -> None:
        async with site(tmp_path) as server:
            await server.put("step 1")
            first = await server.get(30)
            body = {"message": "step 2", "newInvisibilitySeconds": 100}
            told = await server.key("PUT", f"jobs/messages?popReceipt={receipt(first)}", body)
            assert told.status == 200
            assert set(told.json) == {"popReceipt", "messageTag"}
            assert told.json["messageTag"] == first["messageTag"]
            old = await server.key("DELETE", f"jobs/messages?popReceipt={receipt(first)}")
            assert error(old) == (409, "Conflict", "AckMessage")
            server.clock.forward(seconds=99)
            assert (await server.key("GET", "jobs/messages/next")).status == 204
            server.clock.forward(seconds=2)
            again = await server.get()
            assert (again["message"], again["deliveryCount"]) == ("step 2", 2)
            assert again["messageTag"] == first["messageTag"]
            assert await server.size() == 1

    run(main())


def test_an_update_without_a_message_changes_the_time_alone(tmp_path: Path) -> None:
    async def main() -> None:
        async with site(tmp_path) as server:
            await server.put("slow")
            first = await server.get(30)
            at = f"jobs/messages?popReceipt={receipt(first)}"
            told = await server.key("PUT", at, {"newInvisibilitySeconds": 300})
            assert told.json == {
                "popReceipt": first["popReceipt"],
                "messageTag": first["messageTag"],
            }
            server.clock.forward(seconds=299)
            assert (await server.key("GET", "jobs/messages/next")).status == 204
            at_once = await server.key("PUT", at, {})
            assert at_once.status == 200
            server.clock.forward(seconds=0.01)
            assert (await server.get())["message"] == "slow"

    run(main())


def test_a_message_may_be_to_have_again_at_once(tmp_path: Path) -> None:
    async def main() -> None:
        async with site(tmp_path) as server:
            await server.put("x")
            assert (await server.get(0))["deliveryCount"] == 1
            server.clock.forward(seconds=0.01)
            assert (await server.get(0))["deliveryCount"] == 2

    run(main())


def test_what_was_delivered_too_often_is_a_dead_letter(tmp_path: Path) -> None:
    async def main() -> None:
        async with site(tmp_path) as server:
            assert (await server.key("POST", "", {"queueName": "dead"})).status == 201
            body = {"queueName": "few", "maxDeliveryCount": 2, "dlqName": "dead"}
            assert (await server.key("POST", "", body)).status == 201
            await server.put("poison", "few")
            tags = set()
            for count in (1, 2):
                told = await server.get(10, "few")
                assert told["deliveryCount"] == count
                tags.add(told["messageTag"])
                server.clock.forward(seconds=11)
            assert (await server.key("GET", "few/messages/next")).status == 204
            told = await server.get(10, "dead")
            assert told["message"] == "poison"
            assert {told["messageTag"]} == tags
            assert await server.size("few") == 0
            assert await server.size("dead") == 1

    run(main())


def test_bytes_of_another_api_are_told_in_base64(tmp_path: Path) -> None:
    async def main() -> None:
        async with site(tmp_path) as server:
            queue = await server.millrace.find("jobs", space="acme")
            await queue.publish(b"\xff\x00")
            told = await server.get()
            assert (told["message"], told["messageEncoding"]) == ("/wA=", "base64")
            assert len(str(told["messageTag"])) == 6

    run(main())


def test_messages_come_in_their_order_and_those_that_came_back_first(tmp_path: Path) -> None:
    async def main() -> None:
        async with site(tmp_path) as server:
            for text in ("a", "b", "c", "d"):
                await server.put(text)
            found = [(await server.get(seconds))["message"] for seconds in (5, 5, 600)]
            assert found == ["a", "b", "c"], "several at a time, though the order is strict"
            server.clock.forward(seconds=6)
            found = [(await server.get())["message"] for _ in range(3)]
            assert found == ["a", "b", "d"]

    run(main())


REFUSED = [
    ("GET", "jobs/messages/next?invisibilityTimeSeconds=-1", None, 400, "GetMessage"),
    ("GET", "jobs/messages/next?invisibilityTimeSeconds=soon", None, 400, "GetMessage"),
    (
        "GET",
        f"jobs/messages/next?invisibilityTimeSeconds={limits.LEASE_MS_MAX // 1000 + 1}",
        None,
        413,
        "GetMessage",
    ),
    ("GET", "jobs/messages/next?visibility=3", None, 400, "GetMessage"),
    ("GET", "none/messages/next", None, 404, "GetMessage"),
    ("POST", "jobs/messages?initialInvisibilitySeconds=-1", b"x", 400, "PutMessage"),
    ("POST", "jobs/messages?initialInvisiblityTime=1", b"x", 400, "PutMessage"),
    ("POST", "jobs/messages", b"\xff", 400, "PutMessage"),
    ("POST", "none/messages", b"x", 404, "PutMessage"),
    ("PUT", "jobs/messages", {"message": "x"}, 400, "UpdateMessage"),
    ("PUT", "jobs/messages?popReceipt=x", {"message": "x"}, 400, "UpdateMessage"),
    ("PUT", "none/messages?popReceipt=$", {"message": "x"}, 404, "UpdateMessage"),
    ("PUT", "jobs/messages?popReceipt=$", {"body": "x"}, 400, "UpdateMessage"),
    ("PUT", "jobs/messages?popReceipt=$", b"no", 400, "UpdateMessage"),
    ("PUT", "other/messages?popReceipt=$", {"message": "x"}, 409, "UpdateMessage"),
    ("DELETE", "jobs/messages", None, 400, "AckMessage"),
    ("DELETE", "jobs/messages?popReceipt=MTox", None, 400, "AckMessage"),
    ("DELETE", "jobs/messages?popReceipt=$&popReceipt=$", None, 400, "AckMessage"),
    ("DELETE", "none/messages?popReceipt=$", None, 404, "AckMessage"),
    ("DELETE", "other/messages?popReceipt=$", None, 409, "AckMessage"),
]


def test_what_is_refused_is_told_in_cassieqs_form(tmp_path: Path) -> None:
    reasons = {400: "Error", 413: "Error", 404: "NotFound", 409: "Conflict"}

    async def main() -> None:
        async with site(tmp_path) as server:
            assert (await server.key("POST", "", {"queueName": "other"})).status == 201
            await server.put("x")
            held = receipt(await server.get())
            for method, path, body, status, operation in REFUSED:
                answer = await server.key(method, path.replace("$", held), body)
                assert error(answer) == (status, reasons[status], operation), (method, path)
            assert await server.size() == 1
            await _is_mine(server, held)

    run(main())


async def _is_mine(server: Site, held: str) -> None:
    """Nothing that was refused has changed anything."""
    done = await server.key("DELETE", f"jobs/messages?popReceipt={held}")
    assert done.status == 204


def test_a_head_gives_nothing_away(tmp_path: Path) -> None:
    async def main() -> None:
        async with site(tmp_path) as server:
            await server.put("x")
            assert (await server.key("HEAD", "jobs/messages/next")).status == 400
            assert (await server.get())["deliveryCount"] == 1

    run(main())


def test_what_a_queue_had_before_is_not_acknowledged_in_its_successor(tmp_path: Path) -> None:
    async def main() -> None:
        async with site(tmp_path) as server:
            await server.put("old")
            old = receipt(await server.get())
            assert (await server.key("DELETE", "jobs")).status == 200
            assert (await server.key("POST", "", {"queueName": "jobs"})).status == 201
            assert (await server.key("GET", "jobs/messages/next")).status == 204
            await server.put("new")
            stale = await server.key("DELETE", f"jobs/messages?popReceipt={old}")
            assert error(stale) == (409, "Conflict", "AckMessage")
            assert (await server.get())["message"] == "new"

    run(main())
