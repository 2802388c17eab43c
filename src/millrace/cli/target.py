"""What a verb works on: a folder, or a server that is named by its address.

Rule 1: what is nearest counts: the verb's options, the program's, the environment, the context in
use, the default.
Rule 2: a token is never an option: others see command lines. One that belongs to a context is sent
to the server of that context alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import click

from millrace.cli.contexts import Context, contexts_file, read_contexts
from millrace.cli.ending import USAGE, Ended, parted
from millrace.cli.given import Given
from millrace.client.paths import is_short_address
from millrace.errors import Invalid

DATA_VARIABLE = "MILLRACE_DATA"
URL_VARIABLE = "MILLRACE_URL"
CONTEXT_VARIABLE = "MILLRACE_CONTEXT"
TOKEN_VARIABLE = "MILLRACE_TOKEN"
TOKEN_FILE_VARIABLE = "MILLRACE_TOKEN_FILE"
CERTIFICATES_VARIABLE = "MILLRACE_CERTIFICATES"

DATA_DEFAULT = Path("millrace-data")


@dataclass(frozen=True, slots=True)
class Server:
    """A server, and what is needed to be let in."""

    url: str
    token: str | None = None
    certificates: Path | None = None

    def __str__(self) -> str:
        return self.url

    def __repr__(self) -> str:
        return f"<Server {self.url}>"


Target = Path | Server


def is_address(text: str) -> bool:
    """Whether a text is the address of a server and no path."""
    # Of a path, two slashes are one.
    return "://" in text or text.startswith(("http:/", "https:/"))


def folder_of(text: str) -> Path:
    """The folder of this name.

    Raises:
        Ended: there is none, and it looks like a server's address that was written short.
    """
    if is_short_address(text):
        raise Ended(
            f"{text!r} is neither a folder nor the address of a server",
            f"write http://{text}, or ./{text} for a new folder",
            exit_code=USAGE,
            code="invalid",
        )
    return Path(text)


def choose(own: Given, whole: Given, environ: Mapping[str, str]) -> Target:
    """What is meant, by the options of the verb, those of the program, and the environment.

    Raises:
        click.UsageError: the options contradict each other.
        Ended: there is no such context, or a token cannot be read.
    """
    for given in (own, whole):
        if given.data is not None and given.context is not None:
            raise click.UsageError("give --data or --context, not both")
        if given.data is not None:
            return named(given.data, own, environ)
        if given.context is not None:
            return _of_context(given.context, own, environ)
    for variable in (URL_VARIABLE, DATA_VARIABLE):
        if environ.get(variable):
            return named(environ[variable], own, environ)
    current = environ.get(CONTEXT_VARIABLE) or read_contexts(contexts_file(environ)).current
    return _of_context(current, own, environ) if current else _folder(DATA_DEFAULT, own)


def named(text: str, own: Given, environ: Mapping[str, str]) -> Target:
    """The folder or the server of this name."""
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
    return Server(text, token or None, certificates)


def _of_context(name: str, own: Given, environ: Mapping[str, str]) -> Target:
    context = read_contexts(contexts_file(environ)).find(name)
    found = named(context.where, own, environ)
    if isinstance(found, Path) or not (context.token or context.token_file or context.certificates):
        return found
    token, certificates = found.token, found.certificates
    if own.token_file is None and (context.token or context.token_file):
        token = _context_token(context)
    if own.certificates is None and context.certificates:
        certificates = Path(context.certificates)
    return Server(found.url, token, certificates)


def _context_token(context: Context) -> str:
    return context.token or _token_of(Path(context.token_file))


def _folder(path: Path, own: Given) -> Path:
    if own.token_file is not None or own.certificates is not None:
        raise click.UsageError(f"{path} is a folder, and needs neither token nor certificates")
    return path


def _token_of(path: Path) -> str:
    from millrace.server.secret import TOKEN_FILE, read_secret

    try:
        return read_secret(path, TOKEN_FILE)
    except FileNotFoundError:
        message, hint = f"there is no file {path} with a token", "name the file with --token-file"
    except Invalid as error:
        message, hint = parted(error.message)
    raise Ended(message, hint, exit_code=USAGE, code="invalid")
