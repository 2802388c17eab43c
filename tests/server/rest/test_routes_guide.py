"""The requests in the guide are answered as it says."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path

import pytest

from tests.server.rest.harness import served

PAGE = Path(__file__).resolve().parents[3] / "docs" / "guide" / "rest.md"
BLOCK = re.compile(r"^```(http|python)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
ANY = "…"


class Reader:
    """Compares answers with what the page says, and keeps what it names."""

    def __init__(self) -> None:
        self.names: dict[str, str] = {}

    def filled(self, text: str) -> str:
        return re.sub(r"\$(\w+)", lambda found: self.names[found[1]], text)

    def check(self, said: object, found: object) -> None:
        if isinstance(said, str) and said.startswith("$"):
            assert isinstance(found, str)
            self.names[said[1:]] = found
        elif isinstance(said, dict):
            assert isinstance(found, dict)
            wanted = {name for name in said if name != ANY}
            assert wanted == set(found) if ANY not in said else wanted <= set(found), found
            for name in wanted:
                self.check(said[name], found[name])
        elif isinstance(said, list):
            assert isinstance(found, list)
            assert len(said) == len(found), found
            for one, other in zip(said, found, strict=True):
                self.check(one, other)
        elif said != ANY:
            assert said == found


@pytest.mark.parametrize("is_front", [False, True], ids=["owner", "front"])
def test_the_requests_of_the_guide_are_answered_so(tmp_path: Path, *, is_front: bool) -> None:
    async def main() -> None:
        async with served(tmp_path, is_front=is_front) as server:
            await server.millrace.delete_queue("orders")
            reader = Reader()
            blocks = BLOCK.findall(PAGE.read_text(encoding="utf-8"))
            assert len(blocks) > 20
            for kind, text in blocks:
                if kind == "python":
                    names = {"url": f"http://127.0.0.1:{server.port}", "token": "root"}
                    await asyncio.to_thread(exec, text, names)
                    continue
                asked, told = text.strip().split("\n\n")
                line, _, body = asked.partition("\n")
                method, path = reader.filled(line).split(" ")
                sent = json.loads(reader.filled(body)) if body else None
                answer = await server.ask(method, path, sent)
                status, _, said = told.partition("\n")
                assert answer.status == int(status), (line, answer)
                reader.check(json.loads(said), answer.json)

    asyncio.run(main())
