"""What holds for every route of the table, also for those that are still to come."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest

from millrace import limits
from millrace.server.auth.access import VERBS
from millrace.server.rest.routes import MODULES, ROUTES
from millrace.server.web.route import (
    Nothing,
    RequestContext,
    Route,
    Routes,
)
from tests.server.rest.harness import ROLES, Answer, Served, served

NAMES = {"space": "default", "queue": "orders", "topic": "news"}


def address(route: Route, **names: str) -> str:
    """An address of the route."""
    return re.sub(r"\{(\w+)\}", lambda found: (NAMES | names).get(found[1], "1"), route.path)


def guarded() -> list[Route]:
    """The routes for which one must be known."""
    return [route for route in ROUTES.all if route.verb != "public"]


def weaker(route: Route) -> str:
    """Rules that allow everything but what the route asks for."""
    return ",".join(verb for verb in VERBS if verb != route.verb)


async def ask(server: Served, route: Route, role: str | None, **names: str) -> Answer:
    return await server.ask(route.method, address(route, **names), role=role)


def test_every_module_has_routes() -> None:
    named = {Path(module.__file__ or "").stem for module in MODULES}
    folder = Path(MODULES[0].__file__ or "").parent
    with_routes = {
        path.stem
        for path in folder.glob("*.py")
        if re.search(r"^@ROUTES\.", path.read_text(encoding="utf-8"), re.MULTILINE)
    }
    assert named == with_routes


def test_only_few_routes_are_public() -> None:
    public = {(route.method, route.path) for route in ROUTES.all if route.verb == "public"}
    assert public == {("GET", "/healthz"), ("GET", "/readyz")}


def test_who_is_not_known_is_refused_everywhere_in_the_same_words(tmp_path: Path) -> None:
    async def main() -> None:
        async with served(tmp_path) as server:
            await server.millrace.topic("news")
            before = await state(server)
            answers = {
                (answer.status, answer.body)
                for route in guarded()
                for role in (None, "unheard-of", "")
                for answer in [await ask(server, route, role)]
            }
            assert len(answers) == 1
            assert answers.pop()[0] == 401
            assert await state(server) == before

    asyncio.run(main())


METHODS = ("GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE")


def test_who_is_not_known_learns_no_address_by_any_method(tmp_path: Path) -> None:
    """What is there, what is not, and what takes another method, are refused alike."""

    async def main() -> None:
        async with served(tmp_path) as server:
            public = {route.path for route in ROUTES.all if route.verb == "public"}
            paths = {address(route) for route in ROUTES.all if route.path not in public}
            said: set[tuple[int, bytes]] = set()
            for path in sorted({*paths, "/", "/v1/none", "/v1/spaces/system/queues/access", "/x"}):
                for method in METHODS:
                    answer = await server.ask(method, path, role=None)
                    said.add((answer.status, answer.body))
            # A HEAD has no body.
            assert {status for status, _ in said} == {401}
            assert len(said) == 2
            for method in METHODS[2:]:
                assert (await server.ask(method, "/healthz", role=None)).status == 401

    asyncio.run(main())


def test_who_may_do_all_else_is_refused_everywhere(tmp_path: Path) -> None:
    async def main() -> None:
        async with served(tmp_path) as server:
            await server.millrace.topic("news")
            before = await state(server)
            for route in guarded():
                if route.verb == "known":
                    continue
                rules = (f"allow {weaker(route)} */*", "allow * other/*", "allow * default/other")
                server.door.know("weak", rules)
                refused = await ask(server, route, "weak")
                assert (refused.status, refused.json["code"]) == (403, "denied"), route.path
                server.door.know("torn", ("allow * */*", f"deny {route.verb} */*"))
                assert (await ask(server, route, "torn")).status == 403, route.path
            assert await state(server) == before

    asyncio.run(main())


def test_the_space_system_is_for_admins_alone(tmp_path: Path) -> None:
    async def main() -> None:
        async with served(tmp_path) as server:
            server.door.know("weak", ("allow publish,work,read,manage */*",))
            for route in guarded():
                if route.verb != "known" and "{space}" in route.path:
                    refused = await ask(server, route, "weak", space="system")
                    assert refused.status == 403, route.path

    asyncio.run(main())


def test_what_is_nowhere_is_answered_so(tmp_path: Path) -> None:
    async def main() -> None:
        async with served(tmp_path) as server:
            for route in guarded():
                if "{queue}" in route.path or "{topic}" in route.path:
                    answer = await ask(server, route, "root", queue="none", topic="none")
                    assert answer.status < 500, (route.method, route.path, answer)

    asyncio.run(main())


async def state(server: Served) -> object:
    """What nobody may have changed."""
    queue = await server.millrace.find("orders")
    names = await server.millrace.queues(), await server.millrace.topics()
    return names, await queue.stats(), await queue.spec(), await queue.cursors()


def test_roles_are_known_by_their_names() -> None:
    assert "weak" not in ROLES


def test_few_addresses_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "ADDRESSES_KNOWN_MAX", 2)
    routes = Routes()
    routes.json("GET", "/a/{name}", "known", Nothing, Nothing)(_nothing)
    for name in ("x", "y", "z", "x", "%41"):
        found = routes.find(f"/a/{name}")
        assert found is not None
        assert found[1] == {"name": "A" if name == "%41" else name}
    assert routes.find("/a/x/more") is None
    routes.json("GET", "/a/{name}/more", "known", Nothing, Nothing)(_nothing)
    assert routes.find("/a/x/more") is not None


async def _nothing(ask: RequestContext, told: Nothing) -> Nothing:
    """Nothing."""
    return told
