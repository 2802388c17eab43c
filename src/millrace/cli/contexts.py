"""Named contexts: folders and servers with credentials, in a configuration file of the user.

Rule 1: the file is replaced atomically, with mode 0600, by one writer at a time.
Rule 2: it is validated when it is read; unknown fields are errors.
Rule 3: a file that holds a token is refused if other users may read it.
"""

from __future__ import annotations

import fcntl
import json
import os
import stat
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from millrace.cli.bounds import CONTEXTS_BYTES_MAX
from millrace.cli.exit_errors import USAGE, ExitError
from millrace.cli.shell import suggest
from millrace.decoding import convert

FILE_VARIABLE = "MILLRACE_CONTEXTS"
"""Path of the file of contexts; `MILLRACE_CONFIG` is for the settings of a server."""


class Context(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A folder, or a server with credentials."""

    data: str = ""
    url: str = ""
    token: str = ""
    token_file: str = ""
    certificates: str = ""

    @property
    def where(self) -> str:
        """The folder, or the URL of the server."""
        return self.url or self.data


class Contexts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All contexts of a user, and the name of the current one."""

    current: str = ""
    contexts: dict[str, Context] = {}

    def find(self, name: str) -> Context:
        """Return the context of this name.

        Raises:
            ExitError: there is none; the hint suggests the nearest name.
        """
        found = self.contexts.get(name)
        if found is None:
            make = f"`millrace context add {name} URL` makes it"
            raise ExitError(
                f"there is no context {name!r}",
                suggest(name, self.contexts, make),
                code="not_found",
            )
        return found


def contexts_file(environ: Mapping[str, str]) -> Path:
    """Return the path of the file of contexts."""
    named = environ.get(FILE_VARIABLE)
    if named:
        return Path(named)
    base = environ.get("XDG_CONFIG_HOME", "")
    # The XDG specification says to ignore relative paths.
    folder = Path(base) if base.startswith("/") else Path.home() / ".config"
    return folder / "millrace" / "contexts.toml"


def read_contexts(path: Path) -> Contexts:
    """Read and validate the file of contexts; without a file, there are none.

    Raises:
        ExitError: it cannot be read, is invalid, or exposes a token to other users.
    """
    try:
        with path.open("rb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            data = file.read(CONTEXTS_BYTES_MAX + 1)
    except FileNotFoundError:
        return Contexts()
    except OSError as error:
        raise _unreadable(path, error.strerror or str(error)) from error
    if len(data) > CONTEXTS_BYTES_MAX:
        raise _unreadable(path, f"it has more than {CONTEXTS_BYTES_MAX} bytes")
    try:
        found = convert(tomllib.loads(data.decode()), Contexts)
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as error:
        raise _unreadable(path, f"it is no TOML: {error}") from error
    except msgspec.ValidationError as error:
        raise _unreadable(path, str(error)) from error
    for name, one in found.contexts.items():
        if bool(one.url) == bool(one.data):
            raise _unreadable(path, f"{name} has neither data nor url, or both")
    if mode & 0o077 and any(one.token for one in found.contexts.values()):
        raise ExitError(
            f"{path} holds a token, and its mode is {mode:04o}: others may read it",
            f"run `chmod 600 {path}`",
            exit_code=USAGE,
            code="insecure",
        )
    return found


@contextmanager
def changing(path: Path) -> Iterator[list[Contexts]]:
    """Lock the file and yield its contexts in a list of one; write back what the list then has."""
    path = Path(os.path.realpath(path))
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        held = [read_contexts(path)]
        before = held[0]
        yield held
        if held[0] != before:
            _write(path, _text(held[0]))
            os.fsync(folder)
    finally:
        os.close(folder)


def _write(path: Path, text: str) -> None:
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
    except BaseException:
        with suppress(FileNotFoundError):
            beside.unlink()
        raise


def _text(contexts: Contexts) -> str:
    """Return the contexts as TOML; printable JSON strings are valid TOML strings."""
    lines = ["# Written by `millrace context`, which does not keep comments."]
    if contexts.current:
        lines.append(f"current = {_quoted(contexts.current)}")
    for name, one in sorted(contexts.contexts.items()):
        lines += ["", f"[contexts.{_quoted(name)}]"]
        fields = {field: getattr(one, field) for field in one.__struct_fields__}
        lines += [f"{field} = {_quoted(value)}" for field, value in fields.items() if value]
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    if not text.isprintable():
        raise ExitError(f"{text!r} is no text on one line", "give another one", exit_code=USAGE)
    return json.dumps(text, ensure_ascii=False)


def _unreadable(path: Path, why: str) -> ExitError:
    return ExitError(
        f"the contexts in {path} cannot be read: {why}",
        f"see to the file, or name another one with {FILE_VARIABLE}",
        exit_code=USAGE,
        code="invalid",
    )
