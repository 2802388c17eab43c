"""The examples that end the help of each verb, run by a shell as a user would."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import click
import pytest

from millrace.cli.program import program
from millrace.client.embedded import EmbeddedEngine
from millrace.client.millrace import Millrace
from millrace.errors import Quarantined
from millrace.node import Node, real_ports
from millrace.server.auth.access import make_token
from millrace.settings import Settings
from tests.cli.desk import SECONDS, SEGMENT_BYTES, Desk
from tests.engine.poison import publish_poison
from tests.pipeline.scene import KIND
from tests.support.timeouts import scaled


def examples(command: click.Command) -> list[str]:
    """The command lines of a help text, without what is said beside them."""
    text = (command.epilog or "").partition("Examples:\n")[2].partition("\n\n")[0]
    return [re.split(r"\s{3,}", line.strip())[0] for line in text.splitlines() if line.strip()]


def collected() -> list[tuple[str, str]]:
    """Verb and command line."""
    ctx = click.Context(program, info_name="millrace")
    found = [("millrace", line) for line in examples(program)]
    for name in program.list_commands(ctx):
        if name == "job":
            # These need Spark, and are run on the one that the tests of jobs have.
            continue
        command = program.get_command(ctx, name)
        assert command is not None
        parts: list[click.Command] = [command]
        if isinstance(command, click.Group):
            parts += command.commands.values()
        found += [(name, line) for part in parts for line in examples(part)]
    return found


DECLARED = f"""
name = "orders"
[source]
queue = "orders"
[sinks.ledger]
kind = "{KIND}"
path = "ledger.db"
"""


@pytest.mark.process
@pytest.mark.parametrize(("verb", "line"), collected())
def test_example(verb: str, line: str, tmp_path: Path) -> None:
    if "jq" in line.split() and shutil.which("jq") is None:
        pytest.skip("jq is not installed")
    desk = Desk(tmp_path)
    if not line.startswith("millrace demo"):
        desk.text("demo")
    if verb == "topic":
        desk.text("topic", "make", "news")
        desk.text("topic", "subscribe", "news", "mail")
    if verb == "cursor":
        desk.text("follow", "orders", "--once", "--name", "report")
    if verb in ("user", "token", "key"):
        desk.text("user", "add", "ada", "--rule", "allow publish,read default/*")
        desk.text("token", "new", "ada", "--name", "laptop")
        desk.text("key", "new", "ada")
    if verb == "context":
        (tmp_path / "prod.token").write_text(make_token(bytes(32)))
    if verb == "pipeline":
        path = tmp_path / "orders.toml"
        path.write_text(DECLARED.replace("ledger.db", str(tmp_path / "ledger.db")))
        desk.text("pipeline", "run", path, "--once")
    if verb == "repair":
        asyncio.run(spoil(desk.data))
    if verb in ("check", "dump"):
        # These are given the folder as an argument.
        desk.data.rename(tmp_path / "data")
    done = run_script(served(line) if verb == "serve" else line, tmp_path)
    assert done.returncode == 0, done.stderr
    assert "Error" not in done.stderr


async def spoil(folder: Path) -> None:
    """Have a queue quarantined."""
    node = await Node.open(real_ports(folder), Settings(segment_bytes=int(SEGMENT_BYTES)))
    async with Millrace(EmbeddedEngine(node)) as m:
        queue = await m.find("orders")
        await publish_poison(node, queue)
        with pytest.raises(Quarantined):
            await queue.peek(10_000)


def served(line: str) -> str:
    """The same, at a port that is free, until it has said that it serves."""
    command = re.sub(r"( --listen \S+|$)", " --listen 127.0.0.1:0", line, count=1)
    return f"""
        coproc {command}
        pid=$COPROC_PID
        read -r said <&"${{COPROC[0]}}"
        [[ $said == serving* ]]
        kill -TERM $pid
        wait $pid
    """


def run_script(script: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Have a shell run it, in which the program can be found."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {k: v for k, v in os.environ.items() if not k.startswith("MILLRACE")}
    return subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        cwd=folder,
        env={
            **environment,
            "PATH": path,
            "MILLRACE_SEGMENT_BYTES": SEGMENT_BYTES,
            "MILLRACE_ENGINE_SEGMENT_BYTES": SEGMENT_BYTES,
            "XDG_CONFIG_HOME": str(folder / "config"),
            "PYTHONPATH": str(GUIDE.parents[2]),
        },
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=scaled(3 * SECONDS),
        check=False,
    )


GUIDE = Path(__file__).resolve().parents[2] / "docs" / "guide" / "cli.md"


@pytest.mark.process
def test_the_guide_can_be_followed(tmp_path: Path) -> None:
    blocks = re.findall(r"^```sh\n(.*?)^```", GUIDE.read_text(), re.MULTILINE | re.DOTALL)
    assert len(blocks) > 8
    done = run_script("".join(blocks), tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Error" not in done.stderr
    assert "message 2 was replaced by message 6, of the same key" in done.stdout


def test_the_guide_names_every_verb() -> None:
    text = GUIDE.read_text()
    ctx = click.Context(program)
    assert [verb for verb in program.list_commands(ctx) if f"millrace {verb}" not in text] == []
