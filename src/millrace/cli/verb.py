"""What all verbs share: options, examples in the help, and how they run and end.

A verb is a coroutine function that is given a `Shell`, and whatever its own options say. It may
return an exit code.
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
from millrace.cli.ending import BROKEN_PIPE, INTERRUPTED, Ended, ended
from millrace.cli.given import Given
from millrace.cli.kinds import DURATION
from millrace.cli.shell import Shell
from millrace.cli.target import DATA_DEFAULT, DATA_VARIABLE, URL_VARIABLE, Target, choose
from millrace.errors import MillraceError
from millrace.loop import new_loop

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
    """Make a coroutine function a verb; `examples` are command lines, one on each line.

    `has_data`: it works on the folder or server that is named for all verbs; others are given
    paths. `has_access`: it is told itself which options name a server and its user.
    `is_fast`: it runs for long, on the fastest event loop there is.
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
                own = Given(**{field: arguments.pop(field) for field in Given._fields})
                target = choose(own, ctx.find_root().obj, os.environ)
            shell = Shell(
                target,
                is_json=is_json,
                patience=patience,
                segment_bytes=segment_bytes,
            )
            new = new_loop if is_fast else None
            ctx.exit(_run(body(shell, **arguments), ctx.command_path, new, is_json=is_json))

        # Click keeps them in reverse, and options of the verb's own come first in its help.
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
    """The end of a help text."""
    lines = "\n".join(f"  {line.strip()}" for line in examples.strip().splitlines())
    return f"\b\nExamples:\n{lines}"


def _data_option() -> click.Option:
    return click.Option(
        ["--data"],
        metavar="PATH|URL",
        help="The folder with the queues, or the address of a server. "
        f"[{URL_VARIABLE}, {DATA_VARIABLE}, the context in use, or ./{DATA_DEFAULT}]",
    )


def _access_options() -> list[click.Option]:
    """How a server is named and its user known."""
    return [
        click.Option(
            ["--context"], metavar="NAME", help="The folder or server of `millrace context`."
        ),
        click.Option(
            ["--token-file"],
            type=click.Path(path_type=Path),
            metavar="FILE",
            help="What a server knows you by. [MILLRACE_TOKEN, MILLRACE_TOKEN_FILE]",
        ),
        click.Option(
            ["--certificates"],
            type=click.Path(path_type=Path),
            metavar="FILE",
            help="Whose signatures of a server are trusted, as PEM. [MILLRACE_CERTIFICATES]",
        ),
    ]


def _shared_options() -> list[click.Option]:
    return [
        click.Option(
            ["--json", "is_json"], is_flag=True, help="One JSON object per line, for programs."
        ),
        click.Option(
            ["--patience"],
            type=DURATION,
            metavar="TIME",
            help="Wait so long for a folder that is in use, or a server that does not answer. "
            f"[{limits.FOLDER_TAKEN_SECONDS:g}s for a folder that was taken just now, else 0s]",
        ),
        # For few: the guide tells of the variable.
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
        # Whoever read has had enough. The interpreter must not find out once more at its end.
        with open(os.devnull, "w") as nowhere:
            os.dup2(nowhere.fileno(), sys.stdout.fileno())
        return BROKEN_PIPE
    except (Ended, MillraceError, OSError) as error:
        failure = _failure(error, path)
        failure.is_json = is_json
        raise failure from None


def _failure(error: Ended | MillraceError | OSError, path: str) -> Ended:
    if isinstance(error, Ended):
        return error
    if isinstance(error, MillraceError):
        return ended(error, path.partition(" ")[2])
    # Of the engine's disk the engine speaks itself; this is a file that was read or written.
    name = f"{error.filename}: " if isinstance(error.filename, str) else ""
    return Ended(
        f"a file could not be read or written: {name}{error.strerror or error}",
        "see to the file, or to where the output goes, and run this again",
        code="file",
    )
