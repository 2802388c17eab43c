"""Declares verbs: shared options, examples in the help, exit codes, confirmation.

A verb is a coroutine function whose arguments are a `Shell` and its own options. It may return an
exit code.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import click

from millrace import limits
from millrace.cli.bounds import SEGMENT_BYTES
from millrace.cli.exit_errors import (
    BROKEN_PIPE,
    INTERRUPTED,
    USAGE,
    ExitError,
    exit_error,
)
from millrace.cli.parameter_types import DURATION
from millrace.cli.shell import Shell
from millrace.cli.target import (
    DATA_DEFAULT,
    DATA_VARIABLE,
    URL_VARIABLE,
    Target,
    TargetOptions,
    choose_target,
)
from millrace.errors import MillraceError
from millrace.event_loop import new_loop

SEGMENT_VARIABLE = "MILLRACE_SEGMENT_BYTES"

Body = Callable[..., Coroutine[Any, Any, int | None]]


def verb(
    name: str,
    *,
    examples: str,
    has_data: bool = True,
    has_access: bool = False,
    is_fast: bool = False,
) -> Callable[[Body], click.Command]:
    """Declare a coroutine function as a verb; `examples` are command lines, one on each line.

    `has_data`: the verb works on the target of `--data`; others take paths as arguments.
    `has_access`: it gets the options for credentials as arguments. `is_fast`: it is long-running,
    and uses the fastest event loop available.
    """

    def make(body: Body) -> click.Command:
        def callback(
            *,
            is_json: bool,
            patience: float | None = None,
            segment_bytes: int = SEGMENT_BYTES,
            **arguments: Any,
        ) -> None:
            ctx = click.get_current_context()
            target: Target = DATA_DEFAULT
            if has_data:
                own = TargetOptions(
                    **{field: arguments.pop(field) for field in TargetOptions._fields}
                )
                target = choose_target(own, TargetOptions(**ctx.find_root().obj), os.environ)
            shell = Shell(
                target,
                is_json=is_json,
                patience=patience,
                segment_bytes=segment_bytes,
            )
            new = new_loop if is_fast else None
            ctx.exit(_run(body(shell, **arguments), ctx.command_path, new, is_json=is_json))

        # Click collects decorators in reverse; the verb's own options come first in the help.
        own = reversed(getattr(body, "__click_params__", []))
        return click.Command(
            name,
            callback=callback,
            params=[
                *own,
                *([_data_option()] if has_data else []),
                *(_access_options() if has_data or has_access else []),
                *_shared_options(),
            ],
            help=inspect.getdoc(body),
            epilog=epilog(examples),
        )

    return make


def epilog(examples: str) -> str:
    """Return the examples as the end of a help text."""
    lines = "\n".join(f"  {line.strip()}" for line in examples.strip().splitlines())
    return f"\b\nExamples:\n{lines}"


def _data_option() -> click.Option:
    return click.Option(
        ["--data"],
        metavar="PATH|URL",
        help="Folder with the queues, or URL of a server. "
        f"[{URL_VARIABLE}, {DATA_VARIABLE}, the context in use, or ./{DATA_DEFAULT}]",
    )


def _access_options() -> list[click.Option]:
    """Return the options for a context and for credentials."""
    return [
        click.Option(
            ["--context"], metavar="NAME", help="Name of a folder or server in `millrace context`."
        ),
        click.Option(
            ["--token-file"],
            type=click.Path(path_type=Path),
            metavar="FILE",
            help="File with your access token. [MILLRACE_TOKEN, MILLRACE_TOKEN_FILE]",
        ),
        click.Option(
            ["--certificates"],
            type=click.Path(path_type=Path),
            metavar="FILE",
            help="Trusted CA certificates for HTTPS, as PEM. [MILLRACE_CERTIFICATES]",
        ),
    ]


def _shared_options() -> list[click.Option]:
    return [
        click.Option(["--json", "is_json"], is_flag=True, help="Print one JSON object per line."),
        click.Option(
            ["--patience"],
            type=DURATION,
            metavar="TIME",
            help="Timeout for a folder in use, or a server that does not answer. "
            f"[{limits.FOLDER_TAKEN_SECONDS:g}s for a folder opened a moment ago, else 0s]",
        ),
        # Rarely needed: the guide documents the environment variable.
        click.Option(
            ["--segment-bytes"],
            type=int,
            default=SEGMENT_BYTES,
            envvar=SEGMENT_VARIABLE,
            hidden=True,
        ),
    ]


def _run(
    work: Coroutine[Any, Any, int | None],
    path: str,
    new: Callable[[], asyncio.AbstractEventLoop] | None,
    *,
    is_json: bool,
) -> int:
    try:
        try:
            with asyncio.Runner(loop_factory=new) as runner:
                return runner.run(work) or 0
        finally:
            sys.stdout.flush()
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # The reader has closed the pipe; without this, the interpreter would fail again at exit.
        with open(os.devnull, "w") as nowhere:
            os.dup2(nowhere.fileno(), sys.stdout.fileno())
        return BROKEN_PIPE
    except (ExitError, MillraceError, OSError) as error:
        failure = _failure(error, path)
        failure.is_json = is_json
        raise failure from None


def _failure(error: ExitError | MillraceError | OSError, path: str) -> ExitError:
    if isinstance(error, ExitError):
        return error
    if isinstance(error, MillraceError):
        return exit_error(error, path.partition(" ")[2])
    # The engine reports its own disk errors; this is an input or output file.
    name = f"{error.filename}: " if isinstance(error.filename, str) else ""
    return ExitError(
        f"cannot read or write a file: {name}{error.strerror or error}",
        "check the file, or the output, and run this again",
        code="file",
    )


def confirm(question: str, *, yes: bool) -> None:
    """Ask for confirmation on a terminal; elsewhere, require `--yes`."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise ExitError(
            "this cannot be undone, and there is no terminal to ask for confirmation",
            "give --yes to confirm",
            exit_code=USAGE,
            code="unconfirmed",
        )
    if not click.confirm(question, err=True):
        raise ExitError("nothing was changed", "answer y to confirm", code="unconfirmed")
