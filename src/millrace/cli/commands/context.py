"""`millrace context`: names for folders and servers, one of which is current."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from millrace.cli.command_group import CommandGroup
from millrace.cli.contexts import Context, Contexts, changing, contexts_file, read_contexts
from millrace.cli.exit_errors import USAGE, ExitError
from millrace.cli.printing import TableColumn
from millrace.cli.shell import Shell
from millrace.cli.target import folder_of, is_address
from millrace.cli.verb import epilog, verb


@click.group(
    cls=CommandGroup,
    epilog=epilog("""
        millrace context add here millrace-data --use
        millrace context list
        millrace context show
    """),
)
def context() -> None:
    """Manage contexts: names for folders and servers with credentials.

    Verbs use the context in use, unless options or environment variables give another folder or
    server; `--context NAME` selects one for a single call. Contexts are stored in
    millrace/contexts.toml of the user's config folder, or in the file MILLRACE_CONTEXTS.
    """


@verb(
    "add",
    examples="""
        millrace context add here millrace-data --use
        millrace context add prod https://queues.example:7070 --token-file prod.token
        millrace context add prod https://queues.example:7070 --token - < prod.token
    """,
    has_data=False,
)
@click.argument("name")
@click.argument("where", metavar="PATH|URL")
@click.option(
    "--token-file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="File with the token; read at each use.",
)
@click.option(
    "--token", type=click.Choice(["-"]), help="Read the token from standard input and store it."
)
@click.option(
    "--certificates",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Trusted CA certificates for HTTPS, as PEM.",
)
@click.option("--use", is_flag=True, help="Use it from now on.")
@click.option("--replace", is_flag=True, help="Replace an existing context of this name.")
async def add(
    shell: Shell,
    name: str,
    where: str,
    *,
    token_file: Path | None,
    token: str | None,
    certificates: Path | None,
    use: bool,
    replace: bool,
) -> None:
    """Add the context NAME for a folder or a server, without connecting to it."""
    made = _made(where, token_file, certificates, keeps_token=token is not None)
    path = contexts_file(os.environ)
    with changing(path) as held:
        known = dict(held[0].contexts)
        if name in known and not replace and known[name] != made:
            raise ExitError(
                f"there is a context {name!r} already: {known[name].where}",
                "--replace overwrites it",
                code="exists",
            )
        known[_checked(name)] = made
        held[0] = Contexts(name if use else held[0].current, known)
    what = "in use: " if use else ""
    shell.out.line("context", _fields(name, made, is_current=use), f"{what}{name}, {made.where}")


@verb("list", examples="millrace context list", has_data=False)
async def list_contexts(shell: Shell) -> None:
    """List the contexts; the one in use is marked."""
    found = read_contexts(contexts_file(os.environ))
    rows = [
        (
            _fields(name, one, is_current=name == found.current),
            ["*" if name == found.current else "", name, one.where, _access(one)],
        )
        for name, one in sorted(found.contexts.items())
    ]
    columns = [
        TableColumn("IN USE"),
        TableColumn("CONTEXT", is_long=True),
        TableColumn("WHERE", is_long=True),
        TableColumn("KNOWN BY"),
    ]
    empty = "no contexts; `millrace context add NAME PATH|URL` adds one"
    shell.out.table("context", columns, rows, empty=empty)


@verb(
    "use",
    examples="""
        millrace context add here millrace-data && millrace context use here
        millrace context use --none
    """,
    has_data=False,
)
@click.argument("name", required=False)
@click.option("--none", is_flag=True, help="Use no context.")
async def use(shell: Shell, name: str | None, *, none: bool) -> None:
    """Use the context NAME by default."""
    if (name is None) != none:
        raise click.UsageError("give the name of a context, or --none")
    with changing(contexts_file(os.environ)) as held:
        where = "" if name is None else held[0].find(name).where
        held[0] = Contexts(name or "", held[0].contexts)
    text = "none is in use" if name is None else f"in use: {name}, {where}"
    shell.out.line("use", {"context": name}, text)


@verb(
    "show",
    examples="""
        millrace context add here millrace-data && millrace context show here
        millrace context show
    """,
    has_data=False,
)
@click.argument("name", required=False)
async def show(shell: Shell, name: str | None) -> None:
    """Show the context NAME, or the one in use, without its token."""
    found = read_contexts(contexts_file(os.environ))
    chosen = name or found.current
    if not chosen:
        shell.out.line("context", {"context": None}, "none is in use")
        return
    one = found.find(chosen)
    texts = {
        "context": chosen,
        "in use": "yes" if chosen == found.current else "no",
        "where": one.where,
        "known by": _access(one) or "nothing",
        "trusts": one.certificates or "what the system trusts",
    }
    shell.out.listing("context", _fields(chosen, one, is_current=chosen == found.current), texts)


@verb(
    "remove",
    examples="millrace context add here millrace-data && millrace context remove here",
    has_data=False,
)
@click.argument("name")
async def remove(shell: Shell, name: str) -> None:
    """Remove the context NAME; its folder or server is unchanged."""
    with changing(contexts_file(os.environ)) as held:
        known = dict(held[0].contexts)
        held[0].find(name)
        del known[name]
        held[0] = Contexts("" if held[0].current == name else held[0].current, known)
    shell.out.line("removed", {"context": name}, f"removed {name}")


def _made(
    where: str, token_file: Path | None, certificates: Path | None, *, keeps_token: bool
) -> Context:
    """Return the context after validating URL, token and certificates."""
    import millrace
    from millrace.server.auth.access import is_token

    if not is_address(where):
        if keeps_token or token_file is not None or certificates is not None:
            raise click.UsageError(f"{where} is a folder, and needs neither token nor certificates")
        return Context(data=str(folder_of(where).absolute()))
    if keeps_token and token_file is not None:
        raise click.UsageError("give --token-file or --token, not both")
    millrace.connect(where)
    if certificates is not None and not where.startswith("https:"):
        raise click.UsageError("certificates go with https")
    token = sys.stdin.readline().strip() if keeps_token else ""
    if keeps_token and not is_token(token):
        raise ExitError("standard input has no token", "`millrace token new` makes one")
    return Context(
        url=where,
        token=token,
        token_file="" if token_file is None else str(token_file.absolute()),
        certificates="" if certificates is None else str(certificates.absolute()),
    )


def _checked(name: str) -> str:
    if not name or not name.isprintable() or len(name) > 80 or name.startswith("-"):
        raise ExitError(
            f"{name!r} is not a valid name", "use letters and digits, at most 80", exit_code=USAGE
        )
    return name


def _access(one: Context) -> str:
    if one.token:
        return "a token"
    return f"the token in {one.token_file}" if one.token_file else ""


def _fields(name: str, one: Context, *, is_current: bool) -> dict[str, object]:
    told = {field: getattr(one, field) or None for field in one.__struct_fields__}
    return {"context": name, "in_use": is_current, **told, "token": bool(one.token)}


for _verb in (add, list_contexts, use, show, remove):
    context.add_command(_verb)
