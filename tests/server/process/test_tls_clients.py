"""A server in a process of its own, with TLS: who is let in, who is not, and what they are told."""

from __future__ import annotations

import asyncio
import re
import shutil
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

import millrace
from millrace.errors import MillraceError, Refused, Unauthenticated
from tests.cli.program import start
from tests.server.authority import DAY, Authority
from tests.server.server_process import Process
from tests.support.timeouts import scaled

ORDERS = "/v1/spaces/default/queues/orders"


class Doors:
    """A server with a certificate that can be exchanged, and an authority that is trusted."""

    def __init__(self, folder: Path) -> None:
        self.authority = Authority(folder)
        self.folder = folder
        self.data = folder / "data"
        self.certificate, self.key = folder / "server.pem", folder / "server.key"
        self.present(self.authority)

    def present(self, authority: Authority, *names: str, expires: datetime | None = None) -> None:
        """Put another certificate where the server's lies."""
        pair = authority.sign(*(names or ("localhost",)), expires=expires)
        shutil.copy(pair.certificate, self.certificate)
        shutil.copy(pair.key, self.key)

    def process(self) -> Process:
        options = ("--tls-certificate", self.certificate, "--tls-key", self.key)
        return Process(self.data, *options)


@pytest.fixture(scope="module")
def doors(
    starts_processes: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Doors, Process]]:
    found = Doors(tmp_path_factory.mktemp("doors"))
    with found.process() as server:
        yield found, server
        assert server.stop() == 0


async def spaces(
    url: str, token: str | None, certificates: Path | None = None
) -> list[str] | MillraceError:
    try:
        async with asyncio.timeout(scaled(60)):
            async with millrace.connect(url, token=token, certificates=certificates) as m:
                return await m.spaces()
    except MillraceError as error:
        return error


def tried(url: str, token: str | None, certificates: Path | None = None) -> MillraceError:
    """Why nobody is let in; at once, not when patience is at its end."""
    found = asyncio.run(spaces(url, token, certificates))
    assert isinstance(found, MillraceError)
    return found


def test_wrong_certificates_and_wrong_protocols_are_told_at_once(
    doors: tuple[Doors, Process],
) -> None:
    found, server = doors
    trusted, port = found.authority.path, server.port
    url = f"https://localhost:{port}"
    assert "system" in str(asyncio.run(spaces(url, server.token, trusted)))
    other = Authority(found.folder, "other")
    for address, certificates, words in (
        (url, other.path, "nobody who is trusted has signed it"),
        (url, None, "nobody who is trusted has signed it"),
        (f"https://127.0.0.1:{port}", trusted, "it is of another name"),
        (f"http://localhost:{port}", None, "https://"),
    ):
        error = tried(address, server.token, certificates)
        assert isinstance(error, Refused), error
        assert words in str(error)
    with Process(found.folder / "plain") as plain:
        error = tried(f"https://localhost:{plain.port}", plain.token, trusted)
        assert isinstance(error, Refused), error
        assert "does not speak TLS" in str(error)
        assert plain.stop() == 0


def test_a_broken_certificate_is_not_taken_up_and_a_new_one_is(
    doors: tuple[Doors, Process],
) -> None:
    found, server = doors
    url = f"https://localhost:{server.port}"
    spoilt: tuple[tuple[Callable[[], object], str], ...] = (
        (lambda: found.certificate.write_text("no PEM"), "does not hold a certificate"),
        (lambda: found.present(found.authority, expires=datetime.now(UTC) - DAY / 24), "expired"),
        (lambda: found.key.write_bytes(found.authority.sign().key.read_bytes()), "is not that of"),
        (found.key.unlink, "cannot be read"),
    )
    for spoil, words in spoilt:
        spoil()
        told = server.reload()
        assert told["type"] == "not_reloaded"
        assert words in str(told["message"])
        assert asyncio.run(spaces(url, server.token, found.authority.path)) == ["system"]
        found.present(found.authority)
    other = Authority(found.folder, "next")
    found.present(other)
    assert server.reload()["type"] == "reloaded"
    assert asyncio.run(spaces(url, server.token, other.path)) == ["system"]
    assert "trusted" in str(tried(url, server.token, found.authority.path))
    found.present(found.authority)
    assert server.reload()["type"] == "reloaded"


def test_tokens_that_are_not_good_are_refused_in_the_same_words(
    doors: tuple[Doors, Process],
) -> None:
    found, server = doors
    trusted, url = found.authority.path, f"https://localhost:{server.port}"

    def cli(*arguments: object) -> str:
        done = start("--data", found.data, *arguments)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def new(name: str, *options: object) -> str:
        made = re.search(r"mr_[\w-]{43}", cli("token", "new", "ada", "--name", name, *options))
        assert made is not None
        return made[0]

    cli("user", "add", "ada", "--rule", "allow * default/*")
    expired, revoked, kept = new("short", "--for", "1s"), new("revoked"), new("kept")
    assert asyncio.run(spaces(url, kept, trusted)) == []

    async def follow() -> list[type]:
        """On a kept connection, with a call that waits, while the token is revoked."""
        async with millrace.connect(url, token=revoked, certificates=trusted) as m:
            queue = await m.queue("orders")
            waiting = asyncio.create_task(queue.lease(1, wait=60))
            await queue.stats()
            await asyncio.to_thread(cli, "token", "revoke", "ada", "revoked")
            calls = (waiting, asyncio.create_task(queue.stats()))
            ended = await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), 60)
            return [type(one) for one in ended]

    assert asyncio.run(follow()) == [Unauthenticated] * 2
    wait = threading.Event()
    while isinstance(asyncio.run(spaces(url, expired, trusted)), list):
        wait.wait(0.1)
    cli("user", "remove", "ada", "--yes")
    said = {str(tried(url, token, trusted)) for token in (expired, revoked, kept, "mr_x", None)}
    assert len(said) == 1
    assert "millrace token new" in said.pop()
