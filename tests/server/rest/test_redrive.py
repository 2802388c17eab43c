"""Redriving over REST: jobs that can be watched and called off."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from millrace import limits
from millrace.server.auth.access import DEFAULT_QUOTA, UNBOUNDED
from tests.server.rest.harness import Served, served, until, until_told

SPACE = "/v1/spaces/default"
ORDERS = f"{SPACE}/queues/orders"
DEAD = f"{SPACE}/queues/dead"


async def bury(server: Served, count: int) -> None:
    """Have so many dead letters of `orders`."""
    await server.ask("PUT", DEAD)
    await server.ask("PATCH", ORDERS, {"dead_letter": "dead"})
    told = {
        "messages": [
            {"body": str(number), "key": f"k{number}", "headers": {"kind": f"a{number % 2}"}}
            for number in range(count)
        ]
    }
    await server.ask("POST", f"{ORDERS}/messages", told)
    leased = await server.ask("POST", f"{ORDERS}/leases", {"count": count})
    receipts = [one["receipt"] for one in leased.items("messages")]
    await server.ask("POST", f"{ORDERS}/discard", {"receipts": receipts})
    dead = await server.millrace.find("dead")

    async def are_there() -> bool:
        return (await dead.stats())["live"] == count

    await until_told(are_there)


def test_dead_letters_are_counted_and_moved_by_what_they_are(tmp_path: Path) -> None:
    async def main() -> None:
        async with served(tmp_path) as server:
            await bury(server, 6)
            told = {"headers": {"kind": "*1"}, "dry_run": True, "wait": 30}
            dry = await server.ask("POST", f"{DEAD}/redrives", told)
            assert (dry.status, dry.json["state"]) == (202, "done")
            assert (dry.json["total"], dry.json["moved"], dry.json["kept"]) == (3, 0, 3)
            told = {"headers": {"kind": "a1"}, "key": "k[13]", "wait": 30}
            done = await server.ask("POST", f"{DEAD}/redrives", told)
            assert (done.json["state"], done.json["moved"]) == ("done", 2)
            assert (await (await server.millrace.find("orders")).stats())["live"] == 2
            listed = (await server.ask("GET", f"{DEAD}/redrives")).items("redrives")
            assert [one["id"] for one in listed] == [dry.json["id"], done.json["id"]]
            one = await server.ask("GET", f"{DEAD}/redrives/{done.json['id']}")
            assert one.json == done.json
            elsewhere = await server.ask("GET", f"{ORDERS}/redrives/{done.json['id']}")
            assert (elsewhere.status, elsewhere.json["field"]) == (404, "job")

    asyncio.run(main())


def test_a_redrive_is_called_off(tmp_path: Path) -> None:
    async def main() -> None:
        async with served(tmp_path) as server:
            await bury(server, 20)
            made = await server.ask("POST", f"{DEAD}/redrives", {"rate": 1})
            path = f"{DEAD}/redrives/{made.json['id']}"

            async def has_begun() -> bool:
                return (await server.ask("GET", path)).json["moved"] != 0

            await until_told(has_begun)
            ended = await server.ask("DELETE", path)
            assert ended.json["state"] == "cancelled"
            orders, dead = await server.millrace.find("orders"), await server.millrace.find("dead")
            lives = (await orders.stats())["live"], (await dead.stats())["live"]
            assert sum(lives) == 20
            assert lives[0] == ended.json["moved"]
            again = await server.ask("DELETE", path)
            assert again.json == ended.json

    asyncio.run(main())


def test_a_redrive_publishes_only_where_its_caller_may(tmp_path: Path) -> None:
    async def main() -> None:
        async with served(tmp_path) as server:
            await bury(server, 2)
            await server.millrace.queue("access", space="system")
            # As from before such headers were refused.
            dead = await server.millrace.find("dead")
            await dead.publish(b"x", headers={"millrace-dead-queue": "system/access"})
            server.door.know("mender", ("allow work default/dead", "allow publish default/orders"))
            done = await server.ask("POST", f"{DEAD}/redrives", {"wait": 30}, role="mender")
            assert (done.json["moved"], done.json["kept"]) == (2, 1)
            for to in ("system/access", "dead", "default/other"):
                refused = await server.ask("POST", f"{DEAD}/redrives", {"to": to}, role="mender")
                assert refused.status == 403, to
            system = await server.millrace.find("access", space="system")
            assert (await system.stats())["published"] == 0

    asyncio.run(main())


@pytest.mark.parametrize(
    ("told", "field"),
    [
        ({"rate": 0}, "rate"),
        ({"rate": -1}, "rate"),
        ({"rate": 1e300}, "rate"),
        ({"to": "a b"}, "to"),
        ({"headers": {"x": 5}}, "headers[...]"),
        ({"key": "*" * 2000}, "key"),
        ({"dry_run": "yes"}, "dry_run"),
    ],
)
def test_bad_redrives_are_refused(tmp_path: Path, told: object, field: str) -> None:
    async def main() -> None:
        async with served(tmp_path) as server:
            refused = await server.ask("POST", f"{ORDERS}/redrives", told)
            assert refused.status in (400, 413)
            assert refused.json["field"] == field
            assert (await server.ask("GET", f"{ORDERS}/redrives")).json == {"redrives": []}

    asyncio.run(main())


def test_jobs_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        monkeypatch.setattr(limits, "JOBS_RUNNING_MAX", 1)
        async with served(tmp_path) as server:
            await bury(server, 10)
            monkeypatch.setattr(limits, "JOBS_REMEMBERED_MAX", 2)
            one = await server.ask("POST", f"{DEAD}/redrives", {"rate": 0.5})
            assert one.json["state"] == "running"
            full = await server.ask("POST", f"{DEAD}/redrives", {})
            assert (full.status, full.json["field"]) == (503, "jobs")
            await server.ask("DELETE", f"{DEAD}/redrives/{one.json['id']}")
            for _ in range(3):
                told = {"dry_run": True, "wait": 30}
                assert (await server.ask("POST", f"{DEAD}/redrives", told)).status == 202
            assert len((await server.ask("GET", f"{DEAD}/redrives")).items("redrives")) == 2

    asyncio.run(main())


def test_sec_13_redrives_of_tenants_keep_no_backup_and_no_other_tenant_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        monkeypatch.setattr(limits, "JOBS_RUNNING_MAX", 10)
        async with served(tmp_path / "data") as server:
            await bury(server, 60)
            server.app.quotas.configure(DEFAULT_QUOTA)
            allowed = ("allow work,publish default/*",)
            for name in ("ta", "tb"):
                server.door.know(name, allowed)
            begun = 0
            while (
                answer := await server.ask("POST", f"{DEAD}/redrives", {"rate": 0.001}, role="ta")
            ).status == 202:
                begun += 1
            assert (begun, answer.status) == (limits.USER_JOBS_MAX, 429)
            assert (answer.json["field"], answer.json["limit"]) == ("jobs", limits.USER_JOBS_MAX)
            others = await server.ask("POST", f"{DEAD}/redrives", {"rate": 0.001}, role="tb")
            assert others.status == 202
            # However many there are of all tenants together.
            server.app.quotas.configure(UNBOUNDED)
            number = full = 0
            while not full:
                server.door.know(f"t{number}", allowed)
                slow = {"rate": 0.001}
                answer = await server.ask("POST", f"{DEAD}/redrives", slow, role=f"t{number}")
                full = answer.status == 503
                number += 1
            assert number <= limits.JOBS_RUNNING_MAX
            told = {"into": str(tmp_path / "vault"), "wait": 50}
            assert (await server.ask("POST", "/v1/backups", told)).json["state"] == "done"

    asyncio.run(main())


def test_a_stop_calls_redrives_off(tmp_path: Path) -> None:
    async def main() -> None:
        async with served(tmp_path) as server:
            await bury(server, 10)
            await server.ask("POST", f"{DEAD}/redrives", {"rate": 0.5})
            [job] = server.app.jobs.of(("default", "dead"))
            server.app.stop()
            await until(lambda: job.state == "cancelled")

    asyncio.run(main())
