"""How a verb ends that could not do what was asked: one line, a hint, an exit code.

| code | meaning |
|---|---|
| 0 | done |
| 1 | refused: the request is wrong, and will be tomorrow |
| 2 | usage: an option or an argument is wrong; nothing was tried |
| 3 | not now: the folder is in use, no server answers, or there is no room; try again |
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
"""The last two are what a shell makes of a program that SIGINT or SIGPIPE has ended."""


class Ended(click.ClickException):
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


def ended(error: MillraceError, verb: str) -> Ended:
    """What an error of the engine means to someone at a terminal."""
    code = REFUSED
    if isinstance(error, Retry | Unknown):
        code = RETRY
    elif isinstance(error, Fatal | Quarantined):
        code = FATAL
    message = " ".join(error.message.split())
    hint = _hint(error, verb)
    if hint is None:
        what, own = parted(message)
        if own.startswith(_MENDS) or (own and error.field == "token_file"):
            message, hint = what, own
        else:
            hint = _usual(error, verb)
    return Ended(message, hint, exit_code=code, code=error.code)


_MENDS = ("run `", "pip install ", "install ", "`millrace ", "say --", "take --")
"""Where the last clause of a message begins so, it is the hint."""


def parted(message: str) -> tuple[str, str]:
    """What is said before the last semicolon, and behind it; without one, all of it and nothing."""
    what, semicolon, rest = message.rpartition("; ")
    return (what, rest) if semicolon else (rest, "")


def _usual(error: MillraceError, verb: str) -> str:
    """Where to read on, of errors of which no more is known here."""
    if isinstance(error, Invalid) and verb.startswith("pipeline") and error.field != "to":
        return "docs/guide/pipelines.md says what a declaration may hold"
    if isinstance(error, Invalid) and verb == "serve":
        if error.field == "sqs":
            return "docs/guide/sqs.md lists the attributes of declared queues"
        return "docs/guide/serving.md lists the settings, and `millrace serve --help` the flags"
    return f"`millrace {verb} --help` says what may be given"


def _hint(error: MillraceError, verb: str) -> str | None:
    """What to do about errors of a kind; None: the message has to say it."""
    match error:
        case InUse():
            return (
                "end that process, or wait for it with --patience 30s; `millrace dump` shows a "
                "folder in use"
            )
        case Full():
            return "settle or purge something, or make room on the disk, and try again"
        case Closed():
            return "see that the address is right and a server runs there; --patience 30s waits"
        case Retry():
            return "try again"
        case Unknown():
            return "look whether it was done before you do it again"
        case Unauthenticated():
            return "name a token by --token-file, MILLRACE_TOKEN or `millrace context add`"
        case Denied():
            return "`millrace user may NAME VERB QUEUE` says which rule decides"
        case Corrupt() if verb in ("restore", "verify"):
            return "use another backup; what was begun of a folder is marked, and may be removed"
        case Exists() if error.field == "into":
            return "name another folder"
        case Corrupt():
            return "nothing was changed; `millrace check PATH` says what is damaged"
        case Copied():
            return "open it once with millrace.open(path, fork=True), if it is to live on its own"
        case DiskFailed() | Fatal():
            return "see to the disk, then run this again: what was not answered may have been done"
        case Exists() if error.field == "retain":
            return "leave --retain out, or `millrace cursor delete QUEUE NAME` and begin anew"
        case Exists() if error.field == "user":
            return "`millrace user set` changes rules and quotas of one who is there"
        case Exists():
            return "leave the settings out, or change them with `millrace queue configure`"
        case Fenced():
            return "see that it runs once; the one that was started last has the cursor"
        case Stale() if verb.startswith("pipeline"):
            return "see that it runs once; `millrace pipeline status FILE` says how far it is"
        case Stale() if error.field in ("fence", "cursor", "boundary"):
            return "see that it runs once; the next call goes on where the sink is"
        case Superseded():
            return "drop it: the newer revision is in the queue"
        case Stale():
            return "drop it, or lease it again; `millrace explain QUEUE SEQ` says who has it"
        case Gone():
            return "`millrace explain QUEUE SEQ` says whether an earlier settle has counted"
        case Forged():
            return "give the receipt as `millrace lease` has printed it, with the queue it is of"
        case OutOfOrder():
            return f"go on with --number {error.expected}"
        case NotFound() if error.message.startswith("there is no queue"):
            return "`millrace queue list` says which there are"
        case CursorExpired() if verb.startswith("pipeline"):
            return "`millrace pipeline rewind FILE --to beginning`, or `--to end`"
        case CursorExpired() if error.field == "boundary":
            return "empty the sink, and it gets all that the queue still has"
        case CursorExpired():
            return "`millrace cursor reset QUEUE NAME` begins anew"
        case _:
            return None
