"""Location of a pipeline's queues, and access to them, with tokens passed through files."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import NamedTemporaryFile

import msgspec

from millrace import sync
from millrace.client.embedded import EmbeddedEngine
from millrace.client.millrace import engine_of
from millrace.errors import Invalid
from millrace.pipeline.declaration import Pipeline, Source
from millrace.pipeline.variable import fill
from millrace.server.auth.secret_file import TOKEN_FILE, read_secret


class Where(msgspec.Struct, frozen=True):
    """The address and credentials of a server, or the path of a folder."""

    url: str = ""
    path: str = ""
    token: str | None = None
    certificates: str | None = None
    token_file: str = ""
    """A file that holds the token; other processes get the token by its path."""

    def settings(self) -> dict[str, object]:
        """Return the settings of a queue sink at this location; they never contain a token."""
        if not self.url:
            # Sinks resolve a relative path against the declaration's folder.
            return {"path": str(Path(self.path).absolute()) if self.path else ""}
        found: dict[str, object] = {"url": self.url}
        if self.token_file:
            found["token_file"] = self.token_file
        if self.certificates:
            found["certificates"] = self.certificates
        return found

    def options(self) -> dict[str, str]:
        """Return the options of Spark's source and sink at this location; they never contain a
        token.
        """
        if not self.url:
            # Spark's processes may have another working directory.
            return {"path": str(Path(self.path).absolute()) if self.path else ""}
        found = {"url": self.url}
        if self.token_file:
            found["tokenFile"] = self.token_file
        if self.certificates:
            found["certificates"] = self.certificates
        return found

    def __repr__(self) -> str:
        return f"<Where {self.url or self.path}>"


def where_of(
    pipeline: Pipeline, source: Source, otherwise: Where, environ: Mapping[str, str]
) -> Where:
    """Return the location of a source: its own, otherwise the caller's.

    Raises:
        Invalid: neither names a location, or a variable is not set.
    """
    if source.path:
        return Where(path=str(pipeline.at(fill(source.path, "path", environ))))
    if not source.url:
        if not otherwise.url and not otherwise.path:
            raise Invalid("the source names no url and no path", field="url")
        return otherwise
    token, file = environ.get("MILLRACE_TOKEN"), environ.get("MILLRACE_TOKEN_FILE", "")
    if source.token_file:
        file = str(pipeline.at(fill(source.token_file, "token_file", environ)))
    if file:
        file = os.path.abspath(file)
        try:
            token = read_secret(Path(file), TOKEN_FILE)
        except FileNotFoundError:
            raise Invalid(
                f"there is no file {file} with a token; name it by token_file in the declaration, "
                "or by MILLRACE_TOKEN_FILE",
                field=TOKEN_FILE,
            ) from None
    url = fill(source.url, "url", environ)
    return Where(url, "", token, environ.get("MILLRACE_CERTIFICATES"), file)


@contextmanager
def opened(where: Where, *, share: bool = False) -> Iterator[sync.Millrace]:
    """Open the queues there until the context ends.

    With `share`, a folder that no other process has open is shared with other processes for that
    time.
    """
    with ExitStack() as stack:
        if where.url:
            yield stack.enter_context(
                sync.connect(where.url, token=where.token, certificates=where.certificates)
            )
            return
        if not os.path.isdir(where.path):
            raise Invalid(f"there is no folder {where.path}", field="path")
        m = stack.enter_context(sync.open(where.path))
        if share and _is_owner(m):
            stack.enter_context(sync.share(m))
        yield m


def _is_owner(m: sync.Millrace) -> bool:
    """Return True if this process owns the folder, rather than another process that shares it."""
    return isinstance(engine_of(m._twin), EmbeddedEngine)


# --- Passes a token to Spark's processes through a file ------------------------------------------
#
# Rule 1: no option and no setting contains a token, since plans, logs and checkpoints show them.
# They name a file with the token, and each process reads it.
# Rule 2: a token that came without a file is put into one that only its user can read, and that
# disappears with this process, however it ends. It is not available on other machines.


@contextmanager
def shown(where: Where) -> Iterator[Where]:
    """Return the location with a file that holds its token until the context ends."""
    if where.token is None or where.token_file:
        yield where
    elif hasattr(os, "memfd_create"):
        with open(os.memfd_create("millrace-token"), "wb", buffering=0) as file:
            # The file is created readable by all, and readers of secrets refuse such a file.
            os.fchmod(file.fileno(), 0o600)
            file.write(where.token.encode())
            path = f"/proc/{os.getpid()}/fd/{file.fileno()}"
            yield msgspec.structs.replace(where, token_file=path)
    else:
        with NamedTemporaryFile("wb", buffering=0, prefix="millrace-") as file:
            file.write(where.token.encode())
            yield msgspec.structs.replace(where, token_file=file.name)
