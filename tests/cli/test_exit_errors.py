"""How the program begins and ends: exit codes, folders in use or damaged, what is not installed."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import click
import pytest

from millrace.cli.exit_errors import exit_error
from millrace.cli.program import program
from millrace.errors import Invalid, MillraceError, Refused
from tests.cli.desk import SECONDS, Desk, command

HEAVY = ["asyncio", "duckdb", "lmdb", "msgspec", "numpy", "pyarrow", "rich"]


def python(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the program in an interpreter that was prepared by some code."""
    words = [sys.executable, "-c", f"{code}\nfrom millrace.cli import main\nmain()", *arguments]
    return subprocess.run(words, capture_output=True, text=True, timeout=SECONDS, check=False)


@pytest.mark.process
def test_help_waits_for_nothing() -> None:
    code = f"import atexit, sys; atexit.register(lambda: print({HEAVY} & sys.modules.keys()))"
    code = code.replace(str(HEAVY), f"set({HEAVY})")
    done = python(code, "--help")
    assert done.returncode == 0
    assert done.stdout.splitlines()[-1] == "set()"


@pytest.mark.process
def test_no_pandas_is_loaded(desk: Desk) -> None:
    pytest.importorskip("pandas")
    code = "import atexit, sys; atexit.register(lambda: print('pandas' in sys.modules))"
    for words in (["peek", "mail", "--data", str(desk.data)], ["check", str(desk.data)]):
        done = python(code, *words)
        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines()[-1] == "False"


@pytest.mark.process
@pytest.mark.parametrize("name", ["click", "rich"])
def test_says_what_is_not_installed(name: str) -> None:
    done = python(f"import sys; sys.modules[{name!r}] = None", "--help")
    assert done.returncode == 1
    assert done.stderr == (
        f"Error: the command line needs {name}, which is not installed\n"
        "Hint: pip install 'millrace[cli]'\n"
    )


@pytest.mark.parametrize(
    ("error", "message", "hint"),
    [
        (Invalid("needs x; install millrace[x]", field="steps"), "needs x", "install millrace[x]"),
        (
            Refused("never ran; `millrace pipeline run` runs it"),
            "never ran",
            "`millrace pipeline run` runs it",
        ),
        (Invalid("t; run `chmod 600 t`", field="token_file"), "t", "run `chmod 600 t`"),
        (Invalid("a; b", field="x"), "a; b", "docs/guide/pipelines.md describes"),
        (Invalid("seq 9", field="to"), "seq 9", "`millrace pipeline run --help`"),
    ],
)
def test_a_message_that_says_what_to_do_gets_no_second_hint(
    error: MillraceError, message: str, hint: str
) -> None:
    found = exit_error(error, "pipeline run")
    assert found.message == message
    assert found.hint.startswith(hint)


@pytest.mark.process
def test_jobs_say_that_spark_is_not_installed() -> None:
    done = python("import sys; sys.modules['pyspark'] = None", "job", "audit", "x")
    assert done.returncode == 2
    assert done.stderr == (
        "Error: jobs run on Spark, which is not installed\nHint: pip install 'millrace[spark]'\n"
    )


def all_verbs() -> list[tuple[str, click.Command]]:
    """Every verb but `dump` and `check`, which take their folder as an argument."""
    ctx = click.Context(program, info_name="millrace")
    found: list[tuple[str, click.Command]] = []
    for name in program.list_commands(ctx):
        verb = program.get_command(ctx, name)
        assert verb is not None
        if isinstance(verb, click.Group):
            found += [(f"{name} {each}", one) for each, one in verb.commands.items()]
        else:
            found.append((name, verb))
    return [(name, verb) for name, verb in found if name.split()[0] not in ("dump", "check")]


@pytest.mark.parametrize(("name", "verb"), all_verbs())
def test_every_verb_takes_the_shared_options(name: str, verb: click.Command) -> None:
    options = {option for parameter in verb.params for option in parameter.opts}
    shared = {"--data", "--json", "--patience"}
    if name in ("backup", "restore", "verify"):
        # They are given paths, as `dump` and `check` are.
        shared.discard("--data")
    elif name.startswith("context ") or name == "pipeline validate":
        # These are about names of folders and servers, or a declaration, and ask none of them.
        shared.discard("--data")
    elif name != "serve":
        shared |= {"--context", "--token-file", "--certificates"}
    assert shared <= options, name
    assert verb.help
    assert "Examples:" in (verb.epilog or "")


@pytest.mark.process
def test_a_folder_in_use(desk: Desk) -> None:
    with desk.start("follow", "mail", "--json") as process:
        assert process.stdout is not None
        process.stdout.readline()
        done = desk.run("queue", "list", "--patience", "0s")
        assert done.returncode == 3
        assert f"is in use by process {process.pid}".encode() in done.stderr
        assert b"Hint: stop that process" in done.stderr
        error = json.loads(desk.run("peek", "mail", "--json", "--patience", "0s").stderr)
        assert (error["type"], error["code"]) == ("error", "in_use")
        with desk.start("publish", "mail", "patient", "--patience", "1m") as waiting:
            process.terminate()
            assert process.wait() == 0
            assert waiting.wait() == 0
    assert desk.bodies("mail")[-1] == "patient"


def test_a_damaged_folder(desk: Desk) -> None:
    with (desk.data / "index" / "data.mdb").open("r+b") as file:
        file.write(bytes(2 * 4096))
    result = desk.call("queue", "list")
    assert result.exit_code == 4, result.stderr
    assert "Traceback" not in result.stderr
    assert result.stderr.startswith("Error: ")
    assert len(result.stderr.splitlines()) == 2


def test_a_folder_that_is_missing(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    result = desk.call("queue", "list")
    assert result.exit_code == 1
    assert "millrace demo" in result.stderr
    assert not desk.data.exists()


def test_the_nearest_names_the_folder(desk: Desk, tmp_path: Path) -> None:
    other = tmp_path / "other"
    desk.text("queue", "make", "here", "--data", other)
    assert [line["queue"] for line in desk.lines("--data", other, "queue", "list")] == ["here"]
    assert "orders" in desk.text("--data", other, "queue", "list", "--data", desk.data)
    assert "orders" in desk.text("queue", "list")


@pytest.mark.process
def test_the_default_folder(desk: Desk) -> None:
    environment = {k: v for k, v in os.environ.items() if k != "MILLRACE_DATA"}
    done = subprocess.run(
        [sys.executable, "-m", "millrace.cli", "queue", "list"],
        cwd=desk.home,
        env=environment,
        capture_output=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0
    assert b"orders" in done.stdout


@pytest.mark.process
def test_an_encoding_that_lacks_characters(desk: Desk) -> None:
    desk.text("publish", "mail", "grüße → Ada")
    done = desk.run("peek", "mail", PYTHONIOENCODING="latin-1")
    assert done.returncode == 0
    assert rb"\u2192 Ada" in done.stdout
    assert "grüße".encode("latin-1") in done.stdout


@pytest.mark.process
def test_output_that_finds_no_room(desk: Desk) -> None:
    for verb in ("peek mail", "follow mail --once --name report"):
        with Path("/dev/full").open("wb") as full:
            done = subprocess.run(
                command(*verb.split()),
                env=desk.environment(),
                stdout=full,
                stderr=subprocess.PIPE,
                timeout=SECONDS,
                check=False,
            )
        assert done.returncode == 1
        assert done.stderr.startswith(b"Error: cannot read or write a file: ")
        assert len(done.stderr.splitlines()) == 2
    assert desk.one("cursor", "list", "mail")["seq"] == 0


def on_terminal(desk: Desk, *arguments: str, typed: bytes = b"") -> tuple[int, str]:
    """Run the verb on a terminal of 60 columns; returns its exit code and what was shown."""
    ours, theirs = pty.openpty()
    try:
        process = subprocess.Popen(
            [sys.executable, "-m", "millrace.cli", *arguments],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env=desk.environment(COLUMNS="60", TERM="xterm"),
        )
        os.close(theirs)
        os.write(ours, typed)
        shown = b""
        while True:
            try:
                shown += os.read(ours, 65_536)
            except OSError:
                # Linux says so when the other side has been closed.
                break
        return process.wait(), shown.decode()
    finally:
        os.close(ours)


@pytest.mark.process
def test_rows_fit_a_terminal(desk: Desk) -> None:
    code, shown = on_terminal(desk, "peek", "orders")
    assert code == 0
    lines = shown.splitlines()
    assert len(lines) == 6
    assert "\x1b[1m" in lines[0]
    assert max(map(len, lines[1:])) <= 60
    assert "…" in lines[1]


@pytest.mark.process
def test_wide_columns_fit_a_terminal(desk: Desk) -> None:
    desk.text("publish", "mail", "x" * 99, "--key", "k" * 99, "--header", "name=" + "h" * 99)
    _, shown = on_terminal(desk, "peek", "mail")
    last = shown.splitlines()[-1]
    assert len(last) <= 60
    assert last.count("…") == 3


@pytest.mark.process
def test_asks_before_it_ends_anything(desk: Desk) -> None:
    code, shown = on_terminal(desk, "queue", "purge", "mail", typed=b"n\n")
    assert (code, "nothing was changed" in shown) == (1, True)
    assert len(desk.bodies("mail")) == 4
    code, shown = on_terminal(desk, "queue", "purge", "mail", typed=b"y\n")
    assert code == 0
    assert "Delete the 4 messages of mail?" in shown
    assert desk.bodies("mail") == []


@pytest.mark.process
def test_shows_progress_on_a_terminal_only(desk: Desk) -> None:
    (desk.home / "lines").write_text("x\n" * 5_000)
    arguments = ["publish", "mail", "--lines", "--file", str(desk.home / "lines")]
    assert desk.run(*arguments).stderr == b""
    code, shown = on_terminal(desk, *arguments)
    assert code == 0
    assert "publishing" in shown
    assert "published 5,000 messages" in shown
