"""The context of a verb: its folder or server, its output, and lookups by name."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING

from millrace.cli.bounds import SEGMENT_BYTES
from millrace.cli.exit_errors import USAGE, ExitError
from millrace.cli.printing import Printer
from millrace.errors import NotFound

if TYPE_CHECKING:
    from millrace import Millrace, Queue, Settings
    from millrace.cli.target import ServerTarget, Target

DEFAULT_SPACE = "default"
"""The space of queues named without one."""


class Shell:
    """The folder or server, and the output, of one run of the program."""

    def __init__(
        self,
        target: Target,
        *,
        is_json: bool,
        patience: float | None,
        segment_bytes: int = SEGMENT_BYTES,
    ) -> None:
        """Set the target and output format.

        `patience` is the timeout in seconds for a folder in use or an unreachable server; None
        waits only for a folder that was opened a moment ago.
        """
        self.target = target
        self._segment_bytes = segment_bytes
        self.out = Printer(is_json=is_json)
        self.patience = patience

    def at(self, target: Target) -> Shell:
        """Return a shell with the same options for another folder or server."""
        other = Shell(
            target,
            is_json=self.out.is_json,
            patience=self.patience,
            segment_bytes=self._segment_bytes,
        )
        return other

    def folder(self, why: str) -> Path:
        """Return the path of the folder.

        Raises:
            ExitError: the target is a server; `why` begins the message.
        """
        if isinstance(self.target, Path):
            return self.target
        raise folder_required(self.target, why)

    @asynccontextmanager
    async def open(
        self, *, make: bool = False, settings: Settings | None = None
    ) -> AsyncIterator[Millrace]:
        """Open the folder until the context ends, or connect to the server.

        With `make`, a missing folder is created. The default settings suit short-lived processes.

        Raises:
            ExitError: the folder does not exist, or holds other files.
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
        from millrace.server.process.folder_takeover import take_folder

        if settings is None:
            settings = millrace.Settings(segment_bytes=self._segment_bytes)
        return await take_folder(path, settings, patience=self.patience)

    async def _connect(self, server: ServerTarget) -> Millrace:
        import millrace

        return await millrace.connect(
            server.url,
            token=server.token,
            certificates=server.certificates,
            patience=self.patience or 0,
        )


def _is_being_made(path: Path) -> bool:
    """Return True if the folder has only a lock file: another process is creating it."""
    return path.is_dir() and {one.name for one in path.iterdir()} == {"lock"}


def _judge_folder(path: Path, *, make: bool) -> None:
    if is_millrace_folder(path) or (make and _is_being_made(path)):
        return
    name_another = "--data PATH or MILLRACE_DATA gives another one"
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise ExitError(f"{path} is not a folder of queues", name_another, code="not_found")
    if not make:
        hint = f"`millrace queue make NAME` or `millrace demo` creates it; {name_another}"
        raise ExitError(f"there is no folder {path}", hint, code="not_found")


def is_millrace_folder(path: Path) -> bool:
    """Return True if an engine has created this folder."""
    return any((path / name).exists() for name in ("identity", "index", "log"))


def folder_required(address: object, why: str) -> ExitError:
    """Return the error for a verb that needs files, called with the URL of a server."""
    return ExitError(
        f"{why}, and {address} is a server",
        "run it on the server's machine, with the path of its folder",
        exit_code=USAGE,
        code="not_files",
    )


def split_name(name: str) -> tuple[str, str]:
    """Split a queue given as `name` or `space/name` into space and name."""
    space, slash, rest = name.partition("/")
    return (space, rest) if slash else (DEFAULT_SPACE, name)


def display_name(queue: Queue) -> str:
    """Return a queue's name as on the command line: `name` or `space/name`."""
    return queue.name if queue.space == DEFAULT_SPACE else f"{queue.space}/{queue.name}"


async def find_queue(millrace: Millrace, name: str) -> Queue:
    """Return the queue of this name.

    Raises:
        ExitError: it does not exist; the hint suggests the nearest name.
    """
    space, rest = split_name(name)
    try:
        return await millrace.find(rest, space=space)
    except NotFound:
        known = await millrace.queues(space=space)
    make = f"`millrace queue make {name}` creates it"
    if rest in await millrace.topics(space=space):
        make = f"{name} is a topic: `millrace topic --help`"
        known = []
    raise ExitError(f"there is no queue {name!r}", suggest(rest, known, make), code="not_found")


def suggest(wanted: str, known: Iterable[str], otherwise: str) -> str:
    """Return a hint: the nearest known name and `otherwise`, or `otherwise` alone."""
    near = get_close_matches(wanted, list(known), n=1)
    return f"did you mean {near[0]!r}? if not, {otherwise}" if near else otherwise
