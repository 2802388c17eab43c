"""The target of a verb: a folder, or a server with credentials.

Rule 1: precedence is verb options, program options, environment, current context, default.
Rule 2: a token is never an option: other users see command lines. The token of a context is sent to
the server of that context only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from millrace.cli.contexts import Context, contexts_file, read_contexts
from millrace.cli.exit_errors import USAGE, ExitError, split_hint
from millrace.client.paths import is_short_address
from millrace.errors import Invalid

if TYPE_CHECKING:
    from millrace.pipeline import Where

DATA_VARIABLE = "MILLRACE_DATA"
URL_VARIABLE = "MILLRACE_URL"
CONTEXT_VARIABLE = "MILLRACE_CONTEXT"
TOKEN_VARIABLE = "MILLRACE_TOKEN"
TOKEN_FILE_VARIABLE = "MILLRACE_TOKEN_FILE"
CERTIFICATES_VARIABLE = "MILLRACE_CERTIFICATES"

DATA_DEFAULT = Path("millrace-data")


class TargetOptions(NamedTuple):
    """Options that name a folder or a server and the user's credentials."""

    data: str | None = None
    context: str | None = None
    token_file: Path | None = None
    certificates: Path | None = None


@dataclass(frozen=True, slots=True)
class ServerTarget:
    """A server's URL with credentials."""

    url: str
    token: str | None = None
    certificates: Path | None = None

    def __str__(self) -> str:
        return self.url

    def __repr__(self) -> str:
        return f"<Server {self.url}>"


Target = Path | ServerTarget


def is_address(text: str) -> bool:
    """Return True for the URL of a server, False for a path."""
    # pathlib has already collapsed two slashes into one.
    return "://" in text or text.startswith(("http:/", "https:/"))


def folder_of(text: str) -> Path:
    """Return the path of a folder.

    Raises:
        ExitError: the text looks like a server's address without scheme, and no such path exists.
    """
    if is_short_address(text):
        raise ExitError(
            f"{text!r} is neither a folder nor the URL of a server",
            f"write http://{text}, or ./{text} for a new folder",
            exit_code=USAGE,
            code="invalid",
        )
    return Path(text)


def choose_target(own: TargetOptions, whole: TargetOptions, environ: Mapping[str, str]) -> Target:
    """Return the target, by options of the verb and the program, environment and contexts.

    Raises:
        click.UsageError: the options contradict each other.
        ExitError: there is no such context, or a token cannot be read.
    """
    for given in (own, whole):
        if given.data is not None and given.context is not None:
            raise click.UsageError("give --data or --context, not both")
        if given.data is not None:
            return parse_target(given.data, own, environ)
        if given.context is not None:
            return _of_context(given.context, own, environ)
    for variable in (URL_VARIABLE, DATA_VARIABLE):
        if environ.get(variable):
            return parse_target(environ[variable], own, environ)
    current = environ.get(CONTEXT_VARIABLE) or read_contexts(contexts_file(environ)).current
    return _of_context(current, own, environ) if current else _folder(DATA_DEFAULT, own)


def parse_target(text: str, own: TargetOptions, environ: Mapping[str, str]) -> Target:
    """Return the folder or the server for a path or URL."""
    if not is_address(text):
        return _folder(folder_of(text), own)
    token = environ.get(TOKEN_VARIABLE)
    if own.token_file is not None:
        token = _token_of(own.token_file)
    elif not token and environ.get(TOKEN_FILE_VARIABLE):
        token = _token_of(Path(environ[TOKEN_FILE_VARIABLE]))
    certificates = own.certificates
    if certificates is None and environ.get(CERTIFICATES_VARIABLE) and text.startswith("https:"):
        certificates = Path(environ[CERTIFICATES_VARIABLE])
    return ServerTarget(text, token or None, certificates)


def _of_context(name: str, own: TargetOptions, environ: Mapping[str, str]) -> Target:
    context = read_contexts(contexts_file(environ)).find(name)
    found = parse_target(context.where, own, environ)
    if isinstance(found, Path) or not (context.token or context.token_file or context.certificates):
        return found
    token, certificates = found.token, found.certificates
    if own.token_file is None and (context.token or context.token_file):
        token = _context_token(context)
    if own.certificates is None and context.certificates:
        certificates = Path(context.certificates)
    return ServerTarget(found.url, token, certificates)


def _context_token(context: Context) -> str:
    return context.token or _token_of(Path(context.token_file))


def _folder(path: Path, own: TargetOptions) -> Path:
    if own.token_file is not None or own.certificates is not None:
        raise click.UsageError(f"{path} is a folder, and needs neither token nor certificates")
    return path


def _token_of(path: Path) -> str:
    from millrace.server.auth.secret_file import TOKEN_FILE, read_secret

    try:
        return read_secret(path, TOKEN_FILE)
    except FileNotFoundError:
        message, hint = f"there is no file {path} with a token", "give the file with --token-file"
    except Invalid as error:
        message, hint = split_hint(error.message)
    raise ExitError(message, hint, exit_code=USAGE, code="invalid")


def pipeline_location(target: Target) -> Where:
    """Return a folder or server as pipelines and batch jobs name it."""
    from millrace.pipeline import Where

    if isinstance(target, ServerTarget):
        certificates = str(target.certificates) if target.certificates else None
        return Where(target.url, "", target.token, certificates)
    return Where(path=str(target))
