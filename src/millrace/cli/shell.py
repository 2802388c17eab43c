"""What every verb is given: the folder or server that is meant, and where answers go."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING

from millrace.cli.bounds import SEGMENT_BYTES
from millrace.cli.ending import USAGE, Ended
from millrace.cli.printing import Printer
from millrace.errors import NotFound

if TYPE_CHECKING:
    from millrace import Millrace, Queue, Settings
    from millrace.cli.target import Server, Target

DEFAULT_SPACE = "default"
"""The space of queues that are named without one."""


class Shell:
    """The folder or server, and the output, of one call of the program."""

    def __init__(
        self,
        target: Target,
        *,
        is_json: bool,
        patience: float | None,
        segment_bytes: int = SEGMENT_BYTES,
    ) -> None:
        """`patience`: how many seconds to wait for a folder in use or a server that does not
        answer; None: only for a folder that was taken just now."""
        self.target = target
        self._segment_bytes = segment_bytes
        self.out = Printer(is_json=is_json)
        self.patience = patience

    def at(self, target: Target) -> Shell:
        """The same for another folder or server."""
        other = Shell(
            target,
            is_json=self.out.is_json,
            patience=self.patience,
            segment_bytes=self._segment_bytes,
        )
        return other

    def folder(self, why: str) -> Path:
        """The folder.

        Raises:
            Ended: it is a server; `why` says what a folder is needed for.
        """
        if isinstance(self.target, Path):
            return self.target
        raise not_files(self.target, why)

    @asynccontextmanager
    async def open(
        self, *, make: bool = False, settings: Settings | None = None
    ) -> AsyncIterator[Millrace]:
        """The queues of the folder, which is let go at the end; with `make`, it may be a new one.

        Those of a server are asked for there. Unless `settings` are given, they are fit for a
        program that ends soon.

        Raises:
            Ended: there is no such folder, or one with other things in it.
        """
        if isinstance(self.target, Path):
            _judge_folder(self.target, make=make)
            millrace = await self._take(self.target, settings)
        else:
            millrace = await self._connect(self.target)
        try:
            yield millrace
        finally:
            await millrace.close()

    async def _take(self, path: Path, settings: Settings | None) -> Millrace:
        import millrace
        from millrace.server.taking import take_folder

        if settings is None:
            settings = millrace.Settings(segment_bytes=self._segment_bytes)
        return await take_folder(path, settings, patience=self.patience)

    async def _connect(self, server: Server) -> Millrace:
        import millrace

        return await millrace.connect(
            server.url,
            token=server.token,
            certificates=server.certificates,
            patience=self.patience or 0,
        )


def _is_being_made(path: Path) -> bool:
    """Whether there is a lock alone: another process is about to make the rest."""
    return path.is_dir() and {one.name for one in path.iterdir()} == {"lock"}


def _judge_folder(path: Path, *, make: bool) -> None:
    if holds_queues(path) or (make and _is_being_made(path)):
        return
    name_another = "--data PATH or MILLRACE_DATA names another one"
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise Ended(f"{path} is no folder of queues", name_another, code="not_found")
    if not make:
        hint = f"`millrace queue make NAME` or `millrace demo` makes it; {name_another}"
        raise Ended(f"there is no folder {path}", hint, code="not_found")


def holds_queues(path: Path) -> bool:
    """Whether a folder was made by an engine."""
    return any((path / name).exists() for name in ("identity", "index", "log"))


def not_files(address: object, why: str) -> Ended:
    """Of a server, what needs its files cannot be done from elsewhere."""
    return Ended(
        f"{why}, and {address} is a server",
        "run it on the server's machine, with the path of its folder",
        exit_code=USAGE,
        code="not_files",
    )


def split_name(name: str) -> tuple[str, str]:
    """Space and name of a queue that is given as `name` or as `space/name`."""
    space, slash, rest = name.partition("/")
    return (space, rest) if slash else (DEFAULT_SPACE, name)


def shown_name(queue: Queue) -> str:
    """The queue as it is named on the command line."""
    return queue.name if queue.space == DEFAULT_SPACE else f"{queue.space}/{queue.name}"


async def find_queue(millrace: Millrace, name: str) -> Queue:
    """The queue of this name.

    Raises:
        Ended: there is none; the hint names the nearest.
    """
    space, rest = split_name(name)
    try:
        return await millrace.find(rest, space=space)
    except NotFound:
        known = await millrace.queues(space=space)
    make = f"`millrace queue make {name}` makes it"
    if rest in await millrace.topics(space=space):
        make = f"{name} is a topic: `millrace topic --help`"
        known = []
    raise Ended(f"there is no queue {name!r}", suggest(rest, known, make), code="not_found")


def suggest(wanted: str, known: Iterable[str], otherwise: str) -> str:
    """The nearest of the known names, or what to do if none is near."""
    near = get_close_matches(wanted, list(known), n=1)
    return f"did you mean {near[0]!r}? if not, {otherwise}" if near else otherwise
