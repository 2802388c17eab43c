"""The page on Dynamiq's routes: its requests are answered as it says, and its tables are whole."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path

import pytest

from millrace import limits
from millrace.core import bounds
from millrace.server.dynamiq.routes import ROUTES
from tests.server.rest.harness import Answer, served

PAGE = Path(__file__).resolve().parents[3] / "docs" / "guide" / "dynamiq.md"
TEXT = PAGE.read_text(encoding="utf-8")
BLOCK = re.compile(r"^```http\n(.*?)\n\n(\d+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
ROW = re.compile(r"^\| `([A-Z]+) (\S+)` \| (.+?) \| (.+?) \| (.+?) \|$", re.MULTILINE)


def told(answer: Answer) -> str:
    """What came back, written as the page has it."""
    if answer.headers["content-type"].startswith("text/plain"):
        return answer.body.decode()
    return json.dumps(json.loads(answer.body), sort_keys=True)


def said(text: str) -> str:
    """What the page says, in the same form."""
    return text if text.startswith("$") else json.dumps(json.loads(text), sort_keys=True)


@pytest.mark.parametrize("is_front", [False, True], ids=["owner", "front"])
def test_the_requests_of_the_page_are_answered_so(tmp_path: Path, *, is_front: bool) -> None:
    async def main() -> None:
        names: dict[str, str] = {}

        def filled(text: str) -> str:
            return re.sub(r"\$(\w+)", lambda found: names.get(found[1], found[0]), text)

        async with served(tmp_path, is_front=is_front) as server:
            for asked, status, answered in BLOCK.findall(TEXT):
                line, _, body = asked.partition("\n")
                method, path = filled(line).split(" ")
                answer = await server.ask(method, path, body.encode() or None)
                assert answer.status == int(status), (line, answer)
                expected, found = filled(said(answered.strip())), told(answer)
                pattern = re.sub(r"\\\$(\w+)", r"(?P<\1>\\d+)", re.escape(expected))
                matched = re.fullmatch(pattern, found)
                assert matched is not None, (line, expected, found)
                names.update(matched.groupdict())
        assert names.keys() == {"first", "second"}

    asyncio.run(main())


def test_every_route_is_in_the_table_with_its_verb() -> None:
    rows = {(method, path): verb for method, path, verb, _, _ in ROW.findall(TEXT)}
    assert {at: verb.split("`")[1] for at, verb in rows.items()} == {
        (route.method, route.path): route.verb for route in ROUTES.all
    }
    assert len(BLOCK.findall(TEXT)) == TEXT.count("```http")


def test_every_test_that_the_table_names_is_there() -> None:
    named = {name for row in ROW.findall(TEXT) for name in re.findall(r"`(test_\w+)`", row[4])}
    assert all("`test_" in row[4] for row in ROW.findall(TEXT))
    known = {
        name
        for path in Path(__file__).parent.glob("test_*.py")
        for name in re.findall(r"^def (test_\w+)", path.read_text(encoding="utf-8"), re.MULTILINE)
    }
    assert named <= known


def test_bounds_are_those_of_the_program() -> None:
    assert f"follows the load; up to {bounds.PARTITIONS_MAX} " in TEXT
    assert f"an address of more than {limits.HTTP_URL_BYTES_MAX // 1024} KiB" in TEXT
    assert f"up to {limits.LEASE_MESSAGES_MAX:,} |" in TEXT
    assert f"more than {limits.ARRIVAL_SECONDS_MAX} seconds" in TEXT
