"""Errors that end a verb: a message of one line, a hint and an exit code.

| code | meaning |
|---|---|
| 0 | done |
| 1 | refused: the request is invalid, and a retry will not help |
| 2 | usage: an option or an argument is invalid; nothing was done |
| 3 | retry later: the folder is in use, no server answers, or the disk is full |
| 4 | the folder is damaged, the disk has failed, or the queue is quarantined |
"""

from __future__ import annotations

import json
from typing import IO

import click

from millrace.errors import (
    Closed,
    Copied,
    Corrupt,
    CursorExpired,
    Denied,
    DiskFailed,
    Exists,
    Fatal,
    Fenced,
    Forged,
    Full,
    Gone,
    InUse,
    Invalid,
    MillraceError,
    NotFound,
    OutOfOrder,
    Quarantined,
    Retry,
    Stale,
    Superseded,
    Unauthenticated,
    Unknown,
)

REFUSED = 1
USAGE = 2
RETRY = 3
FATAL = 4
INTERRUPTED = 130
BROKEN_PIPE = 141
"""The last two are the exit codes of a shell for a program killed by SIGINT or SIGPIPE."""


class ExitError(click.ClickException):
    """Ends a verb with a message, a hint and an exit code."""

    def __init__(
        self, message: str, hint: str, *, exit_code: int = REFUSED, code: str = "refused"
    ) -> None:
        super().__init__(message)
        self.hint = hint
        self._exit_code = exit_code
        self.code = code
        self.is_json = False

    @property
    def exit_code(self) -> int:  # type: ignore[override]
        return self._exit_code

    def show(self, file: IO[str] | None = None) -> None:
        if self.is_json:
            fields = {
                "type": "error",
                "code": self.code,
                "message": self.message,
                "hint": self.hint,
            }
            click.echo(json.dumps(fields), err=True)
        else:
            click.echo(f"Error: {self.message}\nHint: {self.hint}", err=True)


def exit_error(error: MillraceError, verb: str) -> ExitError:
    """Return the error with exit code and hint for an error of the engine."""
    code = REFUSED
    if isinstance(error, Retry | Unknown):
        code = RETRY
    elif isinstance(error, Fatal | Quarantined):
        code = FATAL
    message = " ".join(error.message.split())
    hint = _hint(error, verb)
    if hint is None:
        what, own = split_hint(message)
        if own.startswith(_MENDS) or (own and error.field == "token_file"):
            message, hint = what, own
        else:
            hint = _usual(error, verb)
    return ExitError(message, hint, exit_code=code, code=error.code)


_MENDS = ("run `", "pip install ", "install ", "`millrace ", "say --", "take --")
"""A message's last clause is its hint if it begins with one of these."""


def split_hint(message: str) -> tuple[str, str]:
    """Split a message at its last semicolon into text and hint; without one, the hint is empty."""
    what, semicolon, rest = message.rpartition("; ")
    return (what, rest) if semicolon else (rest, "")


def _usual(error: MillraceError, verb: str) -> str:
    """Return the fallback hint: a page of the guide, or the help of the verb."""
    if isinstance(error, Invalid) and verb.startswith("pipeline") and error.field != "to":
        return "docs/guide/pipelines.md describes declarations"
    if isinstance(error, Invalid) and verb == "serve":
        if error.field == "sqs":
            return "docs/guide/sqs.md lists the attributes of declared queues"
        return "docs/guide/server.md lists the settings, and `millrace serve --help` the flags"
    return f"`millrace {verb} --help` lists arguments and options"


def _hint(error: MillraceError, verb: str) -> str | None:
    """Return the hint for an error's class, or None if the message itself must contain it."""
    match error:
        case InUse():
            return (
                "stop that process, or wait for it with --patience 30s; `millrace dump` shows a "
                "folder in use"
            )
        case Full():
            return "settle or purge messages, or free disk space, and try again"
        case Closed():
            return "check the address, and that a server runs there; --patience 30s waits for it"
        case Retry():
            return "try again"
        case Unknown():
            return "check whether it was done before you repeat it"
        case Unauthenticated():
            return "give a token by --token-file, MILLRACE_TOKEN or `millrace context add`"
        case Denied():
            return "`millrace user may NAME VERB QUEUE` says which rule decides"
        case Corrupt() if verb in ("restore", "verify"):
            return "use another backup; the unfinished folder is marked as such, and may be removed"
        case Exists() if error.field == "into":
            return "name another folder"
        case Corrupt():
            return "nothing was changed; `millrace check PATH` says what is damaged"
        case Copied():
            return "open it once with millrace.open(path, fork=True), if it is to be independent"
        case DiskFailed() | Fatal():
            return "repair the disk, then run this again: unanswered calls may have taken effect"
        case Exists() if error.field == "retain":
            return "omit --retain, or `millrace cursor delete QUEUE NAME` and start anew"
        case Exists() if error.field == "user":
            return "`millrace user set` changes rules and quotas of an existing user"
        case Exists():
            return "omit the settings, or change them with `millrace queue configure`"
        case Fenced():
            return "run it only once; the instance started last owns the cursor"
        case Stale() if verb.startswith("pipeline"):
            return "run it only once; `millrace pipeline status FILE` shows its progress"
        case Stale() if error.field in ("fence", "cursor", "boundary"):
            return "run it only once; the next call resumes at the sink's boundary"
        case Superseded():
            return "drop it: a newer revision is in the queue"
        case Stale():
            return "drop it, or lease it again; `millrace explain QUEUE SEQ` shows its lease"
        case Gone():
            return "`millrace explain QUEUE SEQ` shows whether an earlier settle took effect"
        case Forged():
            return "give the receipt exactly as `millrace lease` printed it, with its queue"
        case OutOfOrder():
            return f"continue with --number {error.expected}"
        case NotFound() if error.message.startswith("there is no queue"):
            return "`millrace queue list` lists the queues"
        case CursorExpired() if verb.startswith("pipeline"):
            return "`millrace pipeline rewind FILE --to beginning`, or `--to end`"
        case CursorExpired() if error.field == "boundary":
            return "empty the sink; it then gets all messages still in the queue"
        case CursorExpired():
            return "`millrace cursor reset QUEUE NAME` starts it anew"
        case _:
            return None
