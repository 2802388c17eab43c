"""The page says what is so: its commands are run, and its table has every route."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from millrace.server.cassieq.routes import MODULES, ROUTES
from millrace.server.cassieq.signature import LEVELS
from tests.server.server_process import Process
from tests.support.timeouts import scaled

HERE = Path(__file__).resolve().parent
PAGE = (HERE.parents[2] / "docs" / "guide" / "cassieq.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"^```sh\n(.*?)^```\n(?:\n```text\n(.*?)^```$)?", re.MULTILINE | re.DOTALL)
ROW = re.compile(r"^\| `(GET|POST|PUT|DELETE) (/[^`?]*)[^`]*` \|.*\| (`test_.*`) \|$", re.MULTILINE)


@pytest.mark.process
@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_the_commands_print_what_stands_below_them(tmp_path: Path) -> None:
    blocks = BLOCK.findall(PAGE)
    assert len(blocks) > 5
    script = "echo ----\n".join(commands for commands, _ in blocks)
    with Process(tmp_path / "post") as server:
        script = script.replace("127.0.0.1:7070", f"127.0.0.1:{server.port}")
        done = subprocess.run(
            ["bash", "-eu", "-c", script],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
            timeout=scaled(60),
        )
        assert server.stop() == 0
    assert done.returncode == 0, done.stderr
    for (commands, said), found in zip(blocks, done.stdout.split("----\n"), strict=True):
        wanted = "[^\n]+".join(map(re.escape, said.split("…")))
        assert re.fullmatch(wanted, found), (commands, found)


def test_the_table_has_every_route_and_its_tests_are_there() -> None:
    names = {"space": "a", "queue": "q"}
    listed = {(method, f"/api/v1{path}") for method, path, _ in ROW.findall(PAGE)}
    there = {
        (
            route.method,
            re.sub(r"\{(\w+)\}", lambda at: f"{{{names.get(at[1], at[1])}}}", route.path),
        )
        for route in ROUTES.all
    }
    assert listed == there
    tests = "".join(path.read_text(encoding="utf-8") for path in HERE.glob("test_*.py"))
    for _, _, told in ROW.findall(PAGE):
        for name in re.findall(r"`(\w+)`", told):
            assert f"def {name}(" in tests, name


def test_the_table_has_every_letter() -> None:
    told = re.findall(r"^\| `(\w)` \| (\w+) \|", PAGE, re.MULTILINE)
    assert told == [(level.letter, level.name) for level in LEVELS]


def test_every_module_with_routes_is_in_the_table() -> None:
    named = {Path(module.__file__ or "").stem for module in MODULES}
    folder = Path(MODULES[0].__file__ or "").parent
    assert named == {
        path.stem
        for path in folder.glob("*.py")
        if re.search(r"^@ROUTES\.", path.read_text(encoding="utf-8"), re.MULTILINE)
    }
