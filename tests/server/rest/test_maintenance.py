"""Care of the data over REST."""

from __future__ import annotations

import asyncio
from pathlib import Path

import millrace
from tests.server.rest.harness import SMALL, served

ORDERS = "/v1/spaces/default/queues/orders"


def test_a_backup_is_made_while_all_else_goes_on(tmp_path: Path) -> None:
    async def main() -> None:
        folder, vault = tmp_path / "data", tmp_path / "vault"
        async with served(folder) as server:
            await server.ask("POST", f"{ORDERS}/messages", {"body": "x"})
            told = {"into": str(vault), "follow": True, "wait": 50}
            made = await server.ask("POST", "/v1/backups", told)
            assert (made.status, made.json["state"]) == (202, "done"), made
            assert made.text("path").startswith(str(vault))
            one = await server.ask("GET", f"/v1/backups/{made.json['id']}")
            assert one.json == made.json
            assert (await server.ask("GET", "/v1/backups")).items("backups") == [made.json]
            health = (await server.ask("GET", "/v1/health")).json
            assert (health["archive"], health["refuses"]) == (str(vault), None)
            for was_there in (True, False):
                assert (await server.ask("POST", "/v1/unfollow")).json == {"was_there": was_there}
        await millrace.restore(vault, tmp_path / "again")
        async with millrace.open(tmp_path / "again", settings=SMALL) as m:
            assert (await (await m.find("orders")).stats())["live"] == 1

    asyncio.run(main())


def test_bad_backups_are_refused(tmp_path: Path) -> None:
    async def main() -> None:
        async with served(tmp_path / "data") as server:
            for into in ("", "here", "../there", "/a\0b", "~"):
                refused = await server.ask("POST", "/v1/backups", {"into": into})
                assert (refused.status, refused.json["field"]) == (400, "into"), into
            inside = {"into": str(tmp_path / "data" / "x"), "wait": 50}
            failed = await server.ask("POST", "/v1/backups", inside)
            assert (failed.status, failed.json["state"]) == (202, "failed")
            problem = failed.json["problem"]
            assert isinstance(problem, dict)
            assert problem["field"] == "into"
            assert (await server.ask("GET", "/v1/backups/99")).status == 404

    asyncio.run(main())


def test_sec_14_whoever_is_denied_something_makes_no_backup_of_everything(tmp_path: Path) -> None:
    async def main() -> None:
        async with served(tmp_path / "data") as server:
            server.door.know("most", ("allow admin */*", "deny * system/*", "deny * tb/*"))
            server.door.know("admin", ("allow admin */*",))
            told = {"into": str(tmp_path / "vault"), "wait": 50}
            for method, path, body in (
                ("POST", "/v1/backups", told),
                ("GET", "/v1/backups", None),
                ("POST", "/v1/unfollow", None),
                ("GET", "/v1/health", None),
            ):
                refused = await server.ask(method, path, body, role="most")
                assert (refused.status, refused.json["code"]) == (403, "denied"), path
                assert "deny *" in refused.text("detail")
            assert not (tmp_path / "vault").exists()
            assert (await server.ask("POST", "/v1/backups", told, role="admin")).status == 202

    asyncio.run(main())
