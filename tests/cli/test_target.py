"""Verbs on a server that is named by its address, by the environment or by a context."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from millrace.cli.contexts import FILE_VARIABLE
from millrace.cli.exit_errors import ExitError
from millrace.cli.program import program
from millrace.cli.target import ServerTarget, TargetOptions, choose_target
from tests.cli.desk import Desk, command
from tests.client.test_remote_http import Machine
from tests.server.server_process import Process
from tests.support.timeouts import scaled


class Visitor:
    """Someone who has no folder, but the address of a server and a token."""

    def __init__(self, home: Path, server: Process) -> None:
        self.home = home
        self.server = server
        self.contexts = home / "contexts.toml"
        self.token_file = home / "visitor.token"
        self.token_file.touch(0o600)
        self.token_file.write_text(server.token)

    def call(self, *arguments: object, given: str = "", **environ: str) -> Result:
        known = {"MILLRACE_DATA": "", FILE_VARIABLE: str(self.contexts)}
        words = [str(argument) for argument in arguments]
        result = CliRunner().invoke(program, words, input=given, env={**known, **environ})
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result

    def text(self, *arguments: object, given: str = "", **environ: str) -> str:
        result = self.call(*arguments, given=given, **environ)
        assert result.exit_code == 0, result.output
        return result.stdout

    def lines(self, *arguments: object, given: str = "", **environ: str) -> list[dict[str, object]]:
        text = self.text(*arguments, "--json", given=given, **environ)
        return [json.loads(line) for line in text.splitlines()]


@pytest.fixture(scope="module")
def server(starts_processes: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    folder = tmp_path_factory.mktemp("served")
    with Process(folder / "data") as server:
        yield server


@pytest.fixture
def visitor(tmp_path: Path, server: Process) -> Visitor:
    return Visitor(tmp_path, server)


@pytest.fixture
def known(visitor: Visitor) -> Visitor:
    """A visitor whose context is in use."""
    address, token_file = visitor.server.address, visitor.token_file
    visitor.text("context", "add", "prod", address, "--token-file", token_file, "--use")
    return visitor


# --- Verbs --------------------------------------------------------------------------------------


def test_every_verb_of_queues_works_on_an_address(known: Visitor) -> None:
    assert "prod" in known.text("context", "list")
    known.text("queue", "make", "jobs", "--keyed")
    assert known.lines("queue", "list")[0]["queue"] == "jobs"
    known.text("queue", "configure", "jobs", "--max-failures", 3)
    known.text("publish", "jobs", "one", "--key", "a")
    known.text("publish", "jobs", "--lines", "--key-separator", ":", given="b:two\nc:three\n")
    [leased] = known.lines("lease", "jobs")
    known.text("extend", "jobs", leased["receipt"], "--for", "1m")
    known.text("settle", "jobs", leased["receipt"])
    receipts = known.text("lease", "jobs", "--receipts")
    known.text("release", "jobs", "-", given=receipts)
    assert [line["body"] for line in known.lines("peek", "jobs")] == ["two", "three"]
    assert known.lines("get", "jobs", 2)[0]["body"] == "two"
    assert known.lines("explain", "jobs", 1)[0]["state"] == "settled"
    assert known.lines("follow", "jobs", "--once", "--name", "report")
    assert [line["cursor"] for line in known.lines("cursor", "list", "jobs")] == ["report"]
    known.text("cursor", "reset", "jobs", "report", "--to", "beginning")
    assert "2" in known.text("sql", "select count(*) as n from jobs").split()
    known.text("topic", "make", "news")
    known.text("topic", "subscribe", "news", "jobs")
    known.text("topic", "publish", "news", "hello", "--key", "d")
    assert known.lines("top", "--times", 1)
    assert known.lines("health")[0]["damaged"] == []
    known.text("work", "jobs", "--once", "--", "true")
    known.text("queue", "delete", "jobs", "--yes")
    known.text("topic", "delete", "news", "--yes")


@pytest.mark.process
def test_dead_letters_are_moved_over_an_address(known: Visitor) -> None:
    known.text("queue", "make", "dead")
    known.text("queue", "make", "mail", "--max-failures", 1, "--dead-letter", "dead")
    known.text("publish", "mail", "bad")
    known.call("work", "mail", "--once", "--", "false")
    while not known.lines("peek", "dead"):
        continue
    [moved] = known.lines("redrive", "dead", "--to", "mail")
    assert moved["moved"] == 1
    for name in ("mail", "dead"):
        known.text("queue", "delete", name, "--yes")


def test_a_server_is_backed_up_where_it_is(known: Visitor, tmp_path: Path) -> None:
    result = known.call("backup", "--context", "prod", "backups")
    assert (result.exit_code, "whole path" in result.stderr) == (1, True)
    known.text("backup", "--context", "prod", tmp_path / "backups")
    address, token = known.server.address, known.server.token
    known.text("backup", address, tmp_path / "backups", MILLRACE_TOKEN=token)
    assert known.lines("verify", tmp_path / "backups")
    assert "not archived" in known.text("backup", "--context", "prod", "--unfollow")


def test_users_are_managed_over_an_address(known: Visitor) -> None:
    known.text("user", "add", "ada", "--rule", "allow publish default/*")
    assert known.call("user", "may", "ada", "publish", "jobs").exit_code == 0
    [made] = known.lines("token", "new", "ada")
    refused = known.call("queue", "make", "x", MILLRACE_TOKEN=str(made["token"]))
    assert refused.exit_code == 0, "the context's own token is nearer than the environment's"
    environ = {"MILLRACE_URL": known.server.address, "MILLRACE_TOKEN": str(made["token"])}
    refused = known.call("queue", "make", "y", **environ)
    assert (refused.exit_code, "may not manage" in refused.stderr) == (1, True)
    notes = known.lines("peek", "system/audit", "--count", 1000)
    acts = [json.loads(str(note["body"])) for note in notes]
    assert {"who": "admin", "act": "user.add"}.items() <= [
        act for act in acts if act["act"] == "user.add"
    ][-1].items()
    refused = known.call("key", "new", "ada")
    assert (refused.exit_code, "is a server" in refused.stderr) == (2, True)
    known.text("user", "remove", "ada", "--yes")
    known.text("queue", "delete", "x", "--yes")


@pytest.mark.parametrize(
    "words",
    [
        ("restore", "URL", "into"),
        ("verify", "URL"),
        ("dump", "URL"),
        ("check", "URL"),
        ("serve", "--data", "URL"),
    ],
)
def test_what_needs_files_says_so(visitor: Visitor, words: tuple[str, ...]) -> None:
    address = visitor.server.address
    result = visitor.call(*(address if word == "URL" else word for word in words))
    assert result.exit_code == 2
    assert "is a server" in result.stderr
    assert "Hint: run it on the server's machine" in result.stderr


# --- How a place is named -----------------------------------------------------------------------


def test_an_address_is_named_as_a_folder_is(visitor: Visitor) -> None:
    address, token_file = visitor.server.address, visitor.token_file
    token = visitor.server.token
    for words, environ in [
        (("queue", "list", "--data", address, "--token-file", token_file), {}),
        (("--data", address, "queue", "list", "--token-file", token_file), {}),
        (("queue", "list", "--data", address), {"MILLRACE_TOKEN": token}),
        (("queue", "list"), {"MILLRACE_URL": address, "MILLRACE_TOKEN_FILE": str(token_file)}),
    ]:
        visitor.text(*words, **environ)
    result = visitor.call("queue", "list", "--data", address)
    assert (result.exit_code, "--token-file" in result.stderr) == (1, True)
    result = visitor.call("queue", "list", "--data", address, MILLRACE_TOKEN="mrt_wrong")
    assert result.exit_code == 1


def test_whoever_does_not_answer_is_named_at_once(visitor: Visitor) -> None:
    result = visitor.call("queue", "list", "--data", "http://127.0.0.1:1")
    assert result.exit_code == 3
    assert "nobody answers at 127.0.0.1:1" in result.stderr
    assert "--patience" in result.stderr
    result = visitor.call("queue", "list", "--data", "ftp://example")
    assert (result.exit_code, "https://" in result.stderr) == (1, True)


def test_an_address_is_not_served(
    visitor: Visitor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = visitor.call("serve", MILLRACE_DATA="localhost:7070")
    assert (result.exit_code, "say listen for an address" in result.stderr) == (1, True)
    assert not Path("localhost:7070").exists()


def test_what_is_nearest_counts(tmp_path: Path) -> None:
    contexts = tmp_path / "contexts.toml"
    contexts.write_text(
        'current = "here"\n[contexts.here]\ndata = "/here"\n'
        '[contexts.there]\nurl = "https://there"\ntoken = "mine"\n[contexts.bare]\nurl = "http://b"'
    )
    contexts.chmod(0o600)
    environ = {FILE_VARIABLE: str(contexts)}
    none = TargetOptions()

    def found(own: TargetOptions = none, whole: TargetOptions = none, **more: str) -> object:
        return choose_target(own, whole, {**environ, **more})

    assert choose_target(none, none, {FILE_VARIABLE: str(tmp_path / "none")}) == Path(
        "millrace-data"
    )
    assert found() == Path("/here")
    assert found(MILLRACE_CONTEXT="there") == ServerTarget("https://there", "mine")
    assert found(MILLRACE_DATA="x", MILLRACE_CONTEXT="there") == Path("x")
    assert found(MILLRACE_DATA="x", MILLRACE_URL="http://u") == ServerTarget("http://u")
    assert found(none, TargetOptions("y"), MILLRACE_URL="http://u") == Path("y")
    assert found(
        TargetOptions(context="there"), TargetOptions("y"), MILLRACE_TOKEN="t"
    ) == ServerTarget("https://there", "mine")
    # A token of the environment goes where no context has one of its own.
    assert found(TargetOptions(context="bare"), MILLRACE_TOKEN="t") == ServerTarget("http://b", "t")
    assert found(TargetOptions("https://o"), MILLRACE_CERTIFICATES="ca.pem") == ServerTarget(
        "https://o", None, Path("ca.pem")
    )
    with pytest.raises(ExitError, match="no context 'there-'") as caught:
        found(TargetOptions(context="there-"))
    assert "did you mean 'there'?" in caught.value.hint
    with pytest.raises(click.UsageError, match="not both"):
        found(TargetOptions("x", "there"))
    with pytest.raises(click.UsageError, match="is a folder"):
        found(TargetOptions("x", None, tmp_path / "token"))
    with pytest.raises(ExitError, match="no file"):
        found(TargetOptions("http://x", None, tmp_path / "token"))
    (tmp_path / "loose").write_text("t")
    (tmp_path / "loose").chmod(0o644)
    with pytest.raises(ExitError, match=r"others may read or change it$") as caught:
        found(TargetOptions("http://x", None, tmp_path / "loose"))
    assert caught.value.hint == f"run `chmod 600 {tmp_path / 'loose'}`"
    (tmp_path / "void").touch(0o600)
    with pytest.raises(ExitError, match=r"is empty$") as caught:
        found(TargetOptions("http://x", None, tmp_path / "void"))
    assert caught.value.hint == "write the token to it"
    for short in ("localhost:7070", "queues.example:80"):
        with pytest.raises(ExitError, match="neither a folder nor the URL") as caught:
            found(TargetOptions(short))
        assert f"write http://{short}" in caught.value.hint
    assert found(TargetOptions("./a:1")) == Path("a:1")
    assert "mine" not in repr(found(TargetOptions(context="there")))


# --- Contexts -----------------------------------------------------------------------------------


def test_contexts_are_kept_for_their_owner_alone(known: Visitor) -> None:
    assert known.contexts.stat().st_mode & 0o777 == 0o600
    address, token = known.server.address, known.server.token
    known.text("context", "add", "kept", address, "--token", "-", given=token + "\n")
    assert token in known.contexts.read_text()
    assert token not in known.text("context", "show", "kept")
    assert token not in known.text("context", "list", "--json")
    known.text("queue", "list", "--context", "kept")
    known.text("--context", "kept", "queue", "list")
    known.contexts.chmod(0o644)
    refused = known.call("queue", "list")
    assert (refused.exit_code, "chmod 600" in refused.stderr) == (2, True)
    known.contexts.chmod(0o600)
    assert sorted(os.listdir(known.home)) == ["contexts.toml", "visitor.token"]


def test_contexts_are_added_used_and_removed(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    desk.text("demo")
    visitor = Visitor.__new__(Visitor)
    visitor.contexts = tmp_path / "deep" / "config" / "contexts.toml"
    visitor.text("context", "list")
    visitor.text("context", "add", "shop", desk.data)
    visitor.text("context", "add", "shop", desk.data)
    refused = visitor.call("context", "add", "shop", tmp_path)
    assert (refused.exit_code, "--replace" in refused.stderr) == (1, True)
    assert "none is in use" in visitor.text("context", "show")
    visitor.text("context", "use", "shop")
    assert [line["queue"] for line in visitor.lines("queue", "list")] == ["mail", "orders"]
    [shown] = visitor.lines("context", "show")
    assert (shown["context"], shown["in_use"], shown["data"]) == ("shop", True, str(desk.data))
    visitor.text("context", "add", "a.b", "https://x:1", "--replace", "--use")
    assert 'contexts."a.b"' in visitor.contexts.read_text()
    visitor.text("context", "use", "--none")
    assert "none is in use" in visitor.text("context", "show")
    visitor.text("context", "remove", "shop")
    assert visitor.call("context", "show", "shop").exit_code == 1
    assert visitor.call("context", "use").exit_code == 2
    assert visitor.call("context", "add", "x", "https://x:1?q").exit_code == 1
    short = visitor.call("context", "add", "x", "localhost:7070")
    assert (short.exit_code, "http://localhost:7070" in short.stderr) == (2, True)
    assert visitor.call("context", "add", "x", tmp_path, "--token-file", "t").exit_code == 2
    assert visitor.call("context", "add", "x", "https://x", "--token", "-").exit_code == 1


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("current = ", "no TOML"),
        ("[contexts.x]\n", "neither data nor url"),
        ('[contexts.x]\nurl = "http://x"\ntokne = "t"\n', "tokne"),
        ("contexts = 5\n", "contexts"),
    ],
)
def test_a_file_that_is_wrong_is_named(tmp_path: Path, text: str, why: str) -> None:
    visitor = Visitor.__new__(Visitor)
    visitor.contexts = tmp_path / "contexts.toml"
    visitor.contexts.write_text(text)
    before = visitor.contexts.read_bytes()
    result = visitor.call("context", "add", "here", tmp_path)
    assert result.exit_code == 2
    assert (str(visitor.contexts) in result.stderr, why in result.stderr) == (True, True)
    assert visitor.contexts.read_bytes() == before


@pytest.mark.process
def test_work_goes_on_when_its_server_was_killed(tmp_path: Path) -> None:
    server = Machine(tmp_path / "served")
    try:
        visitor = Visitor.__new__(Visitor)
        visitor.contexts = tmp_path / "contexts.toml"
        known = {"MILLRACE_URL": server.address, "MILLRACE_TOKEN": server.token}
        visitor.text("queue", "make", "jobs", given="", **known)
        with subprocess.Popen(
            command("work", "jobs", "--", "sh", "-c", "cat; echo"),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, **known},
        ) as working:
            assert working.stdout is not None
            visitor.text("publish", "jobs", "before", given="", **known)
            assert working.stdout.readline() == b"before\n"
            server.kill()
            server.start()
            visitor.text("publish", "jobs", "after", given="", **known)
            assert working.stdout.readline() == b"after\n"
            working.terminate()
            _, said = working.communicate(timeout=scaled(60))
        assert (working.returncode, said.splitlines()[-1]) == (0, b"2 settled")
    finally:
        server.close()
