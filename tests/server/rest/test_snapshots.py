"""Snapshots, ranges and cursors over REST."""

from __future__ import annotations

import asyncio
import socket
from base64 import urlsafe_b64decode, urlsafe_b64encode
from contextlib import suppress
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest

from millrace import Position
from tests.server.rest.harness import Answer, Served, served, until

SPACE = "/v1/spaces/default"
ORDERS = f"{SPACE}/queues/orders"
ARROW = "application/vnd.apache.arrow.stream"


def table(answer: Answer) -> pa.Table:
    assert answer.headers["content-type"] == ARROW, answer
    return pa.ipc.open_stream(answer.body).read_all()


async def publish(server: Served, path: str, *bodies: str) -> None:
    told = {"messages": [{"body": body, "key": body} for body in bodies]}
    assert (await server.ask("POST", f"{path}/messages", told)).status == 201


def test_k2_a_snapshot_shows_the_same_rows_until_it_is_let_go(tmp_path: Path) -> None:
    async def main() -> None:
        async with served(tmp_path) as server:
            await publish(server, ORDERS, "a", "b", "c")
            taken = await server.ask("POST", f"{ORDERS}/snapshots", {"seconds": 60})
            assert (taken.status, taken.json["boundaries"]) == (201, [3])
            path = f"{ORDERS}/snapshots/{taken.json['snapshot']}"
            await server.ask("POST", f"{ORDERS}/purge")
            await publish(server, ORDERS, "d")
            for _ in range(2):
                page = await server.ask("GET", f"{path}?count=2")
                assert [one["body"] for one in page.items("messages")] == ["a", "b"]
                assert page.json["next"] == 2
            rest = await server.ask("GET", f"{path}?after=2")
            assert [one["body"] for one in rest.items("messages")] == ["c"]
            assert rest.json["next"] is None
            found = await server.ask("GET", f"{path}?after=1", headers={"accept": ARROW})
            assert table(found).column("value").to_pylist() == [b"b", b"c"]
            assert table(found).column_names == ["seq", "key", "headers", "time", "value"]
            assert found.headers["millrace-boundary"] == "3"
            asked = "after=1&upto=2&columns=value,seq"
            found = await server.ask("GET", f"{path}?{asked}", headers={"accept": ARROW})
            assert table(found).to_pylist() == [{"seq": 2, "value": b"b"}]
            wrong = await server.ask("GET", f"{path}?columns=a", headers={"accept": ARROW})
            assert (wrong.status, wrong.json["field"]) == (400, "columns")
            for was_there in (True, False):
                gone = await server.ask("DELETE", path)
                assert gone.json == {"was_there": was_there}
            for accept in ("application/json", ARROW):
                expired = await server.ask("GET", path, headers={"accept": accept})
                assert (expired.status, expired.json["code"]) == (410, "snapshot_expired")

    asyncio.run(main())


def test_ranges_are_read_as_of_now_and_leave_no_pin(tmp_path: Path) -> None:
    async def main() -> None:
        async with served(tmp_path) as server:
            for body in "abcdef":
                await publish(server, ORDERS, body)
            found = await server.ask(
                "GET", f"{ORDERS}/rows?after=1&upto=4", headers={"accept": ARROW}
            )
            assert table(found).column("seq").to_pylist() == [2, 3, 4]
            page = await server.ask("GET", f"{ORDERS}/rows?after=4&count=1")
            assert ([one["body"] for one in page.items("messages")], page.json["next"]) == (
                ["e"],
                5,
            )
            empty = await server.ask("GET", f"{ORDERS}/rows?after=6", headers={"accept": ARROW})
            assert table(empty).num_rows == 0
            head = await server.ask("HEAD", f"{ORDERS}/rows", headers={"accept": ARROW})
            assert (head.status, head.headers["content-type"]) == (200, ARROW)
            queue = await server.millrace.find("orders")
            assert (await queue.holders()).held == ()

    asyncio.run(main())


def test_shards_are_read_together_or_side_by_side(tmp_path: Path) -> None:
    async def main() -> None:
        async with served(tmp_path) as server:
            path = f"{SPACE}/queues/wide"
            await server.ask("PUT", path, {"shards": 3})
            await publish(server, path, *(str(number) for number in range(40)))
            taken = await server.ask("POST", f"{path}/snapshots")
            address = f"{path}/snapshots/{taken.text('snapshot')}"
            whole = table(await server.ask("GET", address, headers={"accept": ARROW}))
            assert set(whole.column("value").to_pylist()) == {
                str(number).encode() for number in range(40)
            }
            places = list(
                zip(
                    whole.column("shard").to_pylist(),
                    whole.column("seq").to_pylist(),
                    strict=True,
                )
            )
            assert places == sorted(places)
            apart: list[object] = []
            for number in range(3):
                part = table(
                    await server.ask("GET", f"{address}?shard={number}", headers={"accept": ARROW})
                )
                assert part.column_names[0] == "seq"
                apart += part.column("value").to_pylist()
            assert apart == whole.column("value").to_pylist()
            shard, seq = places[9]
            rest = await server.ask(
                "GET", f"{address}?after={shard}:{seq}", headers={"accept": ARROW}
            )
            assert table(rest).num_rows == 30
            pages: list[object] = []
            after: object = "0:0"
            while after is not None:
                page = await server.ask("GET", f"{address}?count=7&after={after}")
                pages += [one["body"] for one in page.items("messages")]
                after = page.json["next"]
            assert len(pages) == 40
            refused = await server.ask("GET", f"{address}?shard=3")
            assert (refused.status, refused.json["field"]) == (400, "shard")

    asyncio.run(main())


def _forged(text: str, at: int, value: object) -> str:
    parts = msgspec.msgpack.decode(urlsafe_b64decode(text + "=" * (-len(text) % 4)))
    if at < 0:
        parts[-at] = value
    else:
        parts[1][0][at] = value
    return urlsafe_b64encode(msgspec.msgpack.encode(parts)).rstrip(b"=").decode()


def test_a_snapshot_that_was_meddled_with_is_refused(tmp_path: Path) -> None:
    async def main() -> None:
        async with served(tmp_path) as server:
            await publish(server, ORDERS, "a", "b")
            text = (await server.ask("POST", f"{ORDERS}/snapshots")).text("snapshot")
            queue = await server.millrace.find("orders")
            tried = 0
            meddled: list[tuple[int, tuple[object, ...]]] = [
                (0, (-1, 99, "x", None)),
                (1, (0, -1, 2**64 - 1, 7777)),
                (2, (b"", b"x" * 17, 5)),
                (3, (-1, 10**9, "x")),
                (4, (7, None)),
                (5, (-1, [])),
                (6, (-1, 2**63)),
                (7, (-1, {})),
                (8, (-1, b"")),
            ]
            for at, values in meddled:
                for value in values:
                    for method in ("GET", "DELETE"):
                        path = f"{ORDERS}/snapshots/{_forged(text, at, value)}"
                        answer = await server.ask(method, path)
                        if (method, at, value) == ("DELETE", 1, 7777):
                            assert answer.json == {"was_there": False}
                            continue
                        assert answer.status in (400, 404, 410), (at, value, answer)
                        tried += 1
            assert tried > 30
            for bad in ("x", "%00", "A" * 6000, _forged(text, -2, "a b"), _forged(text, -3, -1)):
                assert (await server.ask("GET", f"{ORDERS}/snapshots/{bad}")).status == 400, bad
            assert len((await queue.holders()).held) == 1

    asyncio.run(main())


def test_no_ticket_shows_what_its_reader_may_not_read(tmp_path: Path) -> None:
    """A ticket proves nothing, and need not: whoever shows it is judged by their own rules, and
    reads the queue of the address alone, whatever the ticket says."""

    async def main() -> None:
        async with served(tmp_path) as server:
            hidden = await server.millrace.queue("hidden")
            await hidden.publish_many([b"secret"] * 5)
            await publish(server, ORDERS, "a", "b")
            text = (await server.ask("POST", f"{SPACE}/queues/hidden/snapshots")).text("snapshot")
            own = (await server.ask("POST", f"{ORDERS}/snapshots", role="reader")).text("snapshot")
            denied = await server.ask(
                "GET", f"{SPACE}/queues/hidden/snapshots/{text}", role="reader"
            )
            assert denied.status == 403
            other = await server.ask("GET", f"{ORDERS}/snapshots/{text}", role="reader")
            assert (other.status, other.json["field"]) == (404, "snapshot")
            queue = await server.millrace.find("orders")
            for shard in (hidden.shards.first, queue.shards.first, 0, 1):
                for pin in range(1, 5):
                    forged = _forged(_forged(own, 0, shard), 1, pin)
                    seen = await server.ask("GET", f"{ORDERS}/snapshots/{forged}", role="reader")
                    assert b"secret" not in seen.body
                    assert seen.status in (200, 404, 410)
                    assert (seen.status != 200) or shard == queue.shards.first
            assert (
                await server.ask("GET", f"{ORDERS}/snapshots/{own}", role="worker")
            ).status == 403

    asyncio.run(main())


def test_a_snapshot_of_a_queue_that_was_made_anew_is_refused(tmp_path: Path) -> None:
    async def main() -> None:
        async with served(tmp_path) as server:
            text = (await server.ask("POST", f"{ORDERS}/snapshots")).text("snapshot")
            await server.ask("DELETE", ORDERS)
            await server.ask("PUT", ORDERS)
            lost = await server.ask("GET", f"{ORDERS}/snapshots/{text}")
            assert (lost.status, lost.json["field"]) == (404, "snapshot")

    asyncio.run(main())


def test_a_queue_that_ends_in_the_middle_of_a_stream_cuts_it(tmp_path: Path) -> None:
    async def main() -> None:
        async with served(tmp_path) as server:
            queue = await server.millrace.find("orders")
            for _ in range(24):
                await queue.publish_many([b"x" * 65_536] * 16)
            slow = socket.socket()
            slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2**16)
            slow.setblocking(False)
            await asyncio.get_running_loop().sock_connect(slow, ("127.0.0.1", server.port))
            reader, writer = await asyncio.open_connection(sock=slow, limit=2**16)
            writer.write(
                f"GET {ORDERS}/rows HTTP/1.1\r\nhost: x\r\nauthorization: Bearer root\r\n"
                f"accept: {ARROW}\r\n\r\n".encode()
            )
            head = await reader.readuntil(b"\r\n\r\n")
            assert b"200 OK" in head
            await server.millrace.delete_queue("orders")
            rest = bytearray()
            with suppress(ConnectionError):
                while data := await reader.read(2**20):
                    rest += data
            assert not rest.endswith(b"0\r\n\r\n")
            writer.close()
            assert (await server.ask("GET", ORDERS)).status == 404

    asyncio.run(main())


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("after=x", "after"),
        ("after=-1", "after"),
        ("upto=-3", "upto"),
        ("upto=1:2:3", "upto"),
        ("count=0", "count"),
        ("count=99999999", "count"),
        ("shard=-1", "shard"),
        ("shard=64", "shard"),
        ("shard=x", "shard"),
        ("what=1", "what"),
    ],
)
def test_bad_ranges_are_refused_and_leave_no_pin(tmp_path: Path, query: str, field: str) -> None:
    async def main() -> None:
        async with served(tmp_path) as server:
            refused = await server.ask("GET", f"{ORDERS}/rows?{query}")
            assert refused.status in (400, 413)
            assert refused.json["field"] == field
            assert (await (await server.millrace.find("orders")).holders()).held == ()

    asyncio.run(main())


# --- Cursors ------------------------------------------------------------------------------------


def test_k3_a_cursor_reads_one_snapshot_after_another(tmp_path: Path) -> None:
    async def main() -> None:
        async with served(tmp_path) as server:
            cursor = f"{ORDERS}/cursors/lake"
            missing = await server.ask("POST", f"{cursor}/next")
            assert (missing.status, missing.json["field"]) == (404, "cursor")
            made = await server.ask("PUT", cursor, {"start": "beginning"})
            assert (made.status, made.json["lag"]) == (200, [0])
            assert (await server.ask("POST", f"{cursor}/next")).json == {"snapshot": None}
            waiting = asyncio.create_task(server.ask("POST", f"{cursor}/next", {"wait": 30}))
            await until(lambda: server.app.stopping.waiting == 1)
            await publish(server, ORDERS, "a", "b", "c")
            first = (await waiting).json["snapshot"]
            assert isinstance(first, dict)
            assert (first["afters"], first["boundaries"]) == ([0], [3])
            text = first["snapshot"]
            rows = await server.ask("GET", f"{ORDERS}/snapshots/{text}")
            assert len(rows.items("messages")) == 3
            # In the middle; then it is given again, from there on.
            done = await server.ask("POST", f"{cursor}/commit", {"snapshot": text, "seq": 1})
            assert [one["seq"] for one in done.items("positions")] == [1]
            await publish(server, ORDERS, "d")
            again = (await server.ask("POST", f"{cursor}/next")).json["snapshot"]
            assert isinstance(again, dict)
            assert (again["afters"], again["boundaries"]) == ([1], [3])
            # Read on without a commit.
            read = {"read": again["snapshot"]}
            ahead = (await server.ask("POST", f"{cursor}/next", read)).json["snapshot"]
            assert isinstance(ahead, dict)
            assert (ahead["afters"], ahead["boundaries"]) == ([3], [4])
            told = {"snapshot": ahead["snapshot"]}
            assert (await server.ask("POST", f"{cursor}/commit", told)).status == 200
            state = (await server.ask("GET", cursor)).json
            assert state["lag"] == [0]
            assert (await server.ask("GET", f"{ORDERS}/cursors")).json == {"cursors": {"lake": 4}}
            reset = await server.ask("POST", f"{cursor}/reset", {"start": 2})
            assert reset.json["lag"] == [3]
            # The one that was known before is another one now.
            anew = (await server.ask("POST", f"{cursor}/next")).json["snapshot"]
            assert isinstance(anew, dict)
            assert anew["afters"] == [1]
            stale = await server.ask("POST", f"{cursor}/commit", told)
            assert stale.status == 404
            for was_there in (True, False):
                assert (await server.ask("DELETE", cursor)).json == {"was_there": was_there}
            assert (await server.ask("GET", cursor)).status == 404

    asyncio.run(main())


def test_k6_a_publisher_waits_for_a_follower(tmp_path: Path) -> None:
    async def main() -> None:
        async with served(tmp_path) as server:
            cursor = f"{ORDERS}/cursors/lake"
            await publish(server, ORDERS, "a", "b")
            claim = (await server.ask("PUT", cursor, {})).json["claim"]
            position = (await server.ask("GET", f"{ORDERS}/position")).json["position"]
            told = {"position": position}
            assert (await server.ask("POST", f"{cursor}/wait", told)).json == {"reached": False}
            waiting = asyncio.create_task(
                server.ask("POST", f"{cursor}/wait", {**told, "wait": 30})
            )
            await until(lambda: server.app.stopping.waiting == 1)
            found = await server.ask("POST", f"{cursor}/next", {"claim": claim})
            snapshot = found.json["snapshot"]
            assert isinstance(snapshot, dict)
            assert snapshot["position"] == position
            await server.ask("POST", f"{cursor}/commit", {"snapshot": snapshot["snapshot"]})
            assert (await waiting).json == {"reached": True}
            assert (await server.ask("GET", cursor)).json["position"] == position
            begun = await server.ask("PUT", f"{ORDERS}/cursors/mirror", {"start": position})
            assert begun.json["lag"] == [0]
            reset = await server.ask("POST", f"{cursor}/reset", {"start": position})
            assert (reset.status, reset.json["position"]) == (200, position)
            for path, body in (
                (f"{cursor}/wait", {"position": "pos1.x"}),
                (f"{cursor}/wait", {"position": "3"}),
                (f"{cursor}/reset", {"start": f"{position}x"}),
            ):
                refused = await server.ask("POST", path, body)
                assert (refused.status, refused.json["field"]) == (400, "position")
            gone = await server.ask("POST", f"{ORDERS}/cursors/none/wait", told)
            assert gone.status == 404

    asyncio.run(main())


def test_a_position_that_was_taken_back_says_where_to_go_back(tmp_path: Path) -> None:
    async def main() -> None:
        async with served(tmp_path) as server:
            await publish(server, ORDERS, "a", "b")
            position = (await server.ask("GET", f"{ORDERS}/position")).json["position"]
            [(shard, place)] = Position.parse(str(position)).parts
            foreign = Position(((shard, msgspec.structs.replace(place, history=bytes(16))),))
            begun = await server.ask("PUT", f"{ORDERS}/cursors/c", {"start": str(foreign)})
            assert (begun.status, begun.json["code"]) == (410, "rolled_back")
            back = begun.json["position"]
            assert Position.parse(str(back)).seq == 0
            assert (await server.ask("PUT", f"{ORDERS}/cursors/c", {"start": back})).status == 200

    asyncio.run(main())


def test_a_later_follower_fences_the_earlier_one(tmp_path: Path) -> None:
    async def main() -> None:
        async with served(tmp_path) as server:
            cursor = f"{ORDERS}/cursors/lake"
            await publish(server, ORDERS, "a")
            first = (await server.ask("PUT", cursor, {})).json["claim"]
            told = {"claim": first}
            early = (await server.ask("POST", f"{cursor}/next", told)).json["snapshot"]
            second = (await server.ask("PUT", cursor, {})).json["claim"]
            assert isinstance(early, dict)
            assert (await server.ask("GET", cursor)).json["claim"] is None
            for way, body in (
                ("commit", {"snapshot": early["snapshot"]}),
                ("next", told),
                ("next", {"read": early["snapshot"]}),
            ):
                fenced = await server.ask("POST", f"{cursor}/{way}", body)
                assert (fenced.status, fenced.json["code"]) == (409, "fenced")
            gone = await server.ask("DELETE", f"{ORDERS}/snapshots/{early['snapshot']}")
            assert gone.json == {"was_there": False}
            late = (await server.ask("POST", f"{cursor}/next", {"claim": second})).json["snapshot"]
            assert isinstance(late, dict)
            # Without a claim it is opened by the call itself.
            last = (await server.ask("POST", f"{cursor}/next")).json["snapshot"]
            assert isinstance(last, dict)
            done = await server.ask("POST", f"{cursor}/commit", {"snapshot": late["snapshot"]})
            assert done.json["code"] == "fenced"
            done = await server.ask("POST", f"{cursor}/commit", {"snapshot": last["snapshot"]})
            assert done.status == 200
            for bad in ("", "x", "AAAA", "A" * 10_000, "é"):
                refused = await server.ask("POST", f"{cursor}/next", {"claim": bad})
                assert (refused.status, refused.json["field"]) == (400, "claim")
            two = await server.ask("POST", f"{cursor}/next", {"claim": f"{first}{second}"})
            assert (two.status, two.json["field"]) == (400, "claim")

    asyncio.run(main())


def test_a_cursor_over_several_shards_moves_them_together(tmp_path: Path) -> None:
    async def main() -> None:
        async with served(tmp_path) as server:
            path = f"{SPACE}/queues/wide"
            await server.ask("PUT", path, {"shards": 2})
            cursor = f"{path}/cursors/c"
            await server.ask("PUT", cursor)
            await publish(server, path, *(str(number) for number in range(20)))
            found = (await server.ask("POST", f"{cursor}/next")).json["snapshot"]
            assert isinstance(found, dict)
            assert sum(found["boundaries"]) == 20
            told = {"snapshot": found["snapshot"], "seq": "0:1"}
            part = await server.ask("POST", f"{cursor}/commit", told)
            assert [one["seq"] for one in part.items("positions")] == [1]
            told = {"snapshot": found["snapshot"]}
            whole = await server.ask("POST", f"{cursor}/commit", told)
            assert [one["seq"] for one in whole.items("positions")] == found["boundaries"]
            assert (await server.ask("GET", cursor)).json["lag"] == [0, 0]

    asyncio.run(main())


def test_a_waiting_cursor_is_answered_at_a_stop(tmp_path: Path) -> None:
    async def main() -> None:
        async with served(tmp_path) as server:
            await server.ask("PUT", f"{ORDERS}/cursors/c")
            waiting = asyncio.create_task(
                server.ask("POST", f"{ORDERS}/cursors/c/next", {"wait": 50})
            )
            await until(lambda: server.app.stopping.waiting == 1)
            server.app.stop()
            assert (await waiting).json == {"snapshot": None}

    asyncio.run(main())


def test_bad_cursors_are_refused(tmp_path: Path) -> None:
    async def main() -> None:
        async with served(tmp_path) as server:
            cursor = f"{ORDERS}/cursors/c"
            await server.ask("PUT", cursor)
            await server.ask("PUT", f"{ORDERS}/cursors/other")
            await publish(server, ORDERS, "a")
            found = (await server.ask("POST", f"{cursor}/next")).json["snapshot"]
            assert isinstance(found, dict)
            text = found["snapshot"]
            pinned = (await server.ask("POST", f"{ORDERS}/snapshots")).text("snapshot")
            for path, told, field in (
                (f"{cursor}/next", {"wait": -1}, "wait"),
                (f"{cursor}/next", {"wait": 1e9}, "wait"),
                (f"{cursor}/next", {"seconds": 1e9}, "seconds"),
                (f"{cursor}/next", {"read": "nothing"}, "snapshot"),
                (f"{cursor}/next", {"read": pinned}, "read"),
                (f"{cursor}/commit", {}, "snapshot"),
                (f"{cursor}/commit", {"snapshot": text, "seq": 99}, "position"),
                (f"{cursor}/commit", {"snapshot": text, "seq": "x"}, "seq"),
                (f"{cursor}/commit", {"snapshot": pinned}, "snapshot"),
                (f"{ORDERS}/cursors/other/commit", {"snapshot": text}, "snapshot"),
                (f"{cursor}/reset", {"start": "never"}, "start"),
                (f"{ORDERS}/cursors/a%20b/reset", {}, "cursor"),
                (f"{ORDERS}/cursors/none/reset", {}, "name"),
            ):
                refused = await server.ask("POST", path, told)
                assert refused.status in (400, 404, 413), (path, told, refused)
                assert refused.json["field"] == field, (path, told, refused)
            refused = await server.ask("PUT", cursor, {"retain": True})
            assert refused.status == 409

    asyncio.run(main())
