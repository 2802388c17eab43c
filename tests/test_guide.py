"""What pages say of names and bounds is what the program has."""

from __future__ import annotations

import re
from pathlib import Path

import click

from millrace import limits
from millrace.cli.commands.serve import serve
from millrace.server.access import VERBS

ROOT = Path(__file__).resolve().parents[1]
GUIDE = ROOT / "docs" / "guide"
MIB = 1024 * 1024


def read(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def test_every_flag_of_the_servers_page_is_one_of_serve() -> None:
    assert isinstance(serve, click.Command)
    known = {name for one in serve.params for name in one.opts}
    told = set(re.findall(r"`(--[a-z-]+)", read(GUIDE / "serving.md")))
    assert "--set" in told
    assert told <= known


def test_every_verb_is_told_of() -> None:
    [names] = re.findall(r"verbs \((.*?), or `\*`\)", read(GUIDE / "cli.md"))
    assert names == ", ".join(f"`{verb}`" for verb in VERBS)
    rows = re.findall(r"^\| `([a-z]+)` \|", read(GUIDE / "security.md"), re.M)
    assert rows[: len(VERBS)] == list(VERBS)


def test_bounds_of_bad_clients_are_those_of_the_server() -> None:
    [body] = re.findall(r"^\| a body \|.*$", read(GUIDE / "security.md"), re.M)
    assert f"together {limits.HTTP_BODIES_BYTES_MAX // MIB} MiB" in body
    assert limits.HTTP_SHARE == 2
    assert "one user half of what the others leave" in body


def test_every_proof_that_can_be_made_is_told_of() -> None:
    made = set(re.findall(r"^([a-z-]+):.*## ", read(ROOT / "Makefile"), re.M))
    told = set(re.findall(r"`make ([a-z-]+)", read(ROOT / "CONTRIBUTING.md")))
    everyday = {"help", "setup", "run", "serve", "test", "fmt", "docs", "clean"}
    everyday |= {"check", "lint", "types", "imports", "spelling"}
    assert told - everyday == made - everyday
