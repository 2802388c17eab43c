"""The public surface is as its golden files say; `UPDATE=1` writes them anew, for review.

A line that goes or changes breaks a program, a client, a dashboard or data of somebody: it needs a
release note and a way to migrate. A new line needs neither.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.cli.desk import Desk
from tests.frozen import surface

GOLDEN = Path(__file__).parent / "golden"


def blocks(text: str) -> list[str]:
    """Return the lines that begin something, each with the indented ones below it, sorted.

    Routes are listed in the order in which their modules are imported, which is nobody's concern.
    """
    return sorted(re.split(r"\n(?=\S)", text.rstrip("\n")))


def check(name: str, lines: Iterable[str]) -> None:
    path, now = GOLDEN / f"{name}.txt", "".join(f"{line}\n" for line in lines)
    if os.environ.get("UPDATE"):
        path.write_text(now, encoding="utf-8")
    assert blocks(path.read_text(encoding="utf-8")) == blocks(now)


@pytest.mark.parametrize("name", surface.LISTS)
def test_the_surface_is_as_its_golden_file_says(name: str) -> None:
    check(name, surface.LISTS[name]())


def test_everything_that_programs_import_is_there() -> None:
    """Guides may be reworded: what they have imported once stays, whatever they say today."""
    lines = (GOLDEN / "imports.txt").read_text(encoding="utf-8").splitlines()
    assert len(lines) > len(surface.PROMISED)
    assert [line for line in lines if not surface.is_importable(line)] == []


VERBS = """
demo
queue list
queue show orders
queue make made --max-failures 3
queue configure made --max-failures 4
publish made body --header a=b
publish made other --delay 1h
peek made
peek orders --count 3
get made 1
explain made 1
lease made
queue list --space default
topic make news
topic subscribe news made
topic list
topic show news
topic unsubscribe news made
topic delete news --yes
follow orders --once
health
redrive made
queue purge made --yes
queue delete made --yes
dump {data}
dump {data} cells
dump {data} log
dump {data} blocks orders
dump {data} rows orders
check {data}
backup {data} {home}/backup
verify {home}/backup
restore {home}/backup {home}/restored
"""
"""Command lines whose JSON is frozen."""


@pytest.mark.process
def test_json_of_verbs_has_the_keys_that_its_golden_file_says(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    found: list[tuple[str, list[dict[str, object]]]] = []
    for line in VERBS.split("\n"):
        words = line.format(data=desk.data, home=tmp_path).split()
        if words:
            found.append((line, desk.lines(*words)))
    check("json-keys", surface.json_keys(found))
