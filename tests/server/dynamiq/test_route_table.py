"""What holds for every one of Dynamiq's routes."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

from millrace.server.auth.access import VERBS
from millrace.server.dynamiq.routes import MODULES, ROUTES
from millrace.server.process import route_table
from millrace.server.rest.routes import ROUTES as OWN
from millrace.server.web.route import Route
from tests.server.dynamiq.harness import MAIL, NEWS, error
from tests.server.rest.harness import Served, served
from tests.server.rest.test_route_table import METHODS, state

NAMES = {"queue": "mail", "topic": "news", "subscription": "mail"}

EXPECTED = {
    ("GET", "/v1/queues"): "known",
    ("PUT", "/v1/queues/{queue}"): "manage",
    ("GET", "/v1/queues/{queue}"): "read",
    ("PATCH", "/v1/queues/{queue}"): "manage",
    ("DELETE", "/v1/queues/{queue}"): "manage",
    ("PUT", "/v1/queues/{queue}/message"): "publish",
    ("GET", "/v1/queues/{queue}/messages/{messages}"): "work",
    ("GET", "/v1/queues/{queue}/message/{message}"): "read",
    ("DELETE", "/v1/queues/{queue}/message/{message}"): "work",
    ("DELETE", "/v1/queues/{queue}/messages/{messages}"): "work",
    ("GET", "/v1/topics"): "known",
    ("PUT", "/v1/topics/{topic}"): "manage",
    ("GET", "/v1/topics/{topic}"): "read",
    ("DELETE", "/v1/topics/{topic}"): "manage",
    ("PUT", "/v1/topics/{topic}/queues/{subscription}"): "manage",
    ("DELETE", "/v1/topics/{topic}/queues/{subscription}"): "manage",
    ("PUT", "/v1/topics/{topic}/message"): "publish",
    ("GET", "/v1/status/servers"): "known",
    ("GET", "/v1/status/partitionrange"): "known",
}


def address(route: Route) -> str:
    return re.sub(r"\{(\w+)\}", lambda found: NAMES.get(found[1], "1"), route.path)


def test_every_route_is_there_and_asks_for_its_verb() -> None:
    assert {(route.method, route.path): route.verb for route in ROUTES.all} == EXPECTED
    assert {(route.face, route.space) for route in ROUTES.all} == {("dynamiq", "default")}
    assert [one for one in route_table.ROUTES.all if one.face == "dynamiq"] == ROUTES.all
    assert not any(one.face == "dynamiq" or one.space for one in OWN.all)


def test_every_module_has_routes() -> None:
    named = {Path(module.__file__ or "").stem for module in MODULES}
    folder = Path(MODULES[0].__file__ or "").parent
    with_routes = {
        path.stem
        for path in folder.glob("*.py")
        if re.search(r"^@ROUTES\.", path.read_text(encoding="utf-8"), re.MULTILINE)
    }
    assert named == with_routes


def test_who_is_not_known_learns_no_address_by_any_method(tmp_path: Path) -> None:
    async def main() -> None:
        async with served(tmp_path) as server:
            said: set[tuple[int, bytes]] = set()
            for path in sorted({"/v1/none", *(address(route) for route in ROUTES.all)}):
                for method in METHODS:
                    for role in (None, "unheard-of"):
                        answer = await server.ask(method, path, role=role)
                        said.add((answer.status, answer.body))
            assert {status for status, _ in said} == {401}
            # A HEAD has no body.
            assert len(said) == 2

    asyncio.run(main())


async def _prepared(server: Served) -> object:
    await server.ask("PUT", MAIL)
    await server.ask("PUT", NEWS)
    await server.ask("PUT", f"{MAIL}/message", b"x")
    return await _state(server)


async def _state(server: Served) -> object:
    mail = await server.millrace.find("mail")
    news = await server.millrace.find_topic("news")
    return await state(server), await mail.stats(), await mail.spec(), await news.describe()


def test_who_may_do_all_else_is_refused_everywhere(tmp_path: Path) -> None:
    async def main() -> None:
        async with served(tmp_path) as server:
            before = await _prepared(server)
            for route in ROUTES.all:
                if route.verb == "known":
                    continue
                weaker = ",".join(verb for verb in VERBS if verb != route.verb)
                rules = (f"allow {weaker} */*", "allow * other/*", "allow * default/other")
                server.door.know("weak", rules)
                server.door.know("torn", ("allow * */*", f"deny {route.verb} default/*"))
                for role in ("weak", "torn"):
                    refused = await server.ask(route.method, address(route), role=role)
                    assert error(refused)[0] == 403, (route, role)
            assert await _state(server) == before

    asyncio.run(main())


def test_only_what_one_may_do_something_with_is_listed(tmp_path: Path) -> None:
    async def main() -> None:
        async with served(tmp_path) as server:
            await _prepared(server)
            server.door.know("some", ("allow watch default/mail",))
            assert (await server.ask("GET", "/v1/queues", role="some")).json == {"queues": ["mail"]}
            assert (await server.ask("GET", "/v1/topics", role="some")).json == {"topics": []}

    asyncio.run(main())


def test_names_that_none_may_have_are_refused(tmp_path: Path) -> None:
    async def main() -> None:
        async with served(tmp_path) as server:
            for name in ("a%20b", "a%2Fb", "%FF", "x" * 400, "%00", "%0A"):
                for path in (f"/v1/queues/{name}", f"/v1/topics/{name}"):
                    for method in ("PUT", "DELETE"):
                        refused = await server.ask(method, path)
                        assert error(refused)[0] == 422, (method, path)
            assert await server.millrace.queues() == ["orders"]
            assert await server.millrace.topics() == []

    asyncio.run(main())


def test_other_methods_are_answered_with_those_there_are(tmp_path: Path) -> None:
    async def main() -> None:
        async with served(tmp_path) as server:
            other = await server.ask("POST", MAIL)
            assert (other.status, other.headers["allow"]) == (405, "DELETE, GET, PATCH, PUT")

    asyncio.run(main())
