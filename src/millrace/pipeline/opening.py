"""Where the queues of a pipeline are."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

import msgspec

from millrace import sync
from millrace.client.embedded import EmbeddedEngine
from millrace.client.millrace import engine_of
from millrace.errors import Invalid
from millrace.pipeline.declaration import Pipeline, Source
from millrace.pipeline.variable import fill
from millrace.server.secret import TOKEN_FILE, read_secret


class Where(msgspec.Struct, frozen=True):
    """A server, or a folder."""

    url: str = ""
    path: str = ""
    token: str | None = None
    certificates: str | None = None
    token_file: str = ""
    """A file that holds the token; other processes are told of this."""

    def settings(self) -> dict[str, object]:
        """The same for a sink that is a queue; a token is never among them."""
        if not self.url:
            # Sinks look for a relative one beside the declaration.
            return {"path": str(Path(self.path).absolute()) if self.path else ""}
        found: dict[str, object] = {"url": self.url}
        if self.token_file:
            found["token_file"] = self.token_file
        if self.certificates:
            found["certificates"] = self.certificates
        return found

    def options(self) -> dict[str, str]:
        """The same for Spark's source and sink; a token is never among them."""
        if not self.url:
            # Their processes may stand in another folder.
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
    """Where a source is: as it says itself, else where the caller works.

    Raises:
        Invalid: neither says it, or a variable is not set.
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
    """The queues there, until the context ends; with `share`, a folder that nobody else has open
    can be used by other processes meanwhile."""
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
    """Whether this process has the folder, and not another one that shares it."""
    return isinstance(engine_of(m._twin), EmbeddedEngine)
