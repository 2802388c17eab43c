"""`millrace token`: access tokens of users."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from millrace.cli.command_group import CommandGroup
from millrace.cli.exit_errors import ExitError
from millrace.cli.formatting import time_text
from millrace.cli.parameter_types import DURATION
from millrace.cli.shell import Shell
from millrace.cli.users import (
    actor_of,
    find_secrets,
    find_user,
    list_secrets,
    open_users,
    secret_fields,
)
from millrace.cli.verb import epilog, verb
from millrace.server.auth.access import digest_of, is_token


@click.group(
    cls=CommandGroup,
    epilog=epilog("""
        millrace token new ada --name laptop --for 90d
        millrace token list
        millrace token revoke ada laptop
    """),
)
def token() -> None:
    """Create, list or revoke access tokens.

    A program sends its token as `authorization: Bearer TOKEN`. A token is printed once, when it is
    created; only its digest is stored.
    """


@verb(
    "new",
    examples="""
        millrace token new ada
        millrace token new ada --name laptop --for 90d
        millrace token new ada --name ci --file ci.token
    """,
)
@click.argument("user")
@click.option("--name", default="token", show_default=True, help="Name of the token.")
@click.option(
    "--for", "seconds", type=DURATION, metavar="TIME", help="Expire after this time. [never]"
)
@click.option(
    "--file",
    type=click.Path(path_type=Path),
    help="Write the token to this file, with mode 0600, instead of printing it.",
)
async def new(
    shell: Shell, user: str, *, name: str, seconds: float | None, file: Path | None
) -> None:
    """Create a token for USER and print it; it cannot be shown again."""
    from millrace.server.auth.secret_file import write_secret

    async with open_users(shell) as book:
        find_user(book, user)
        made, text = await book.new_token(user, name, actor_of(shell, book), seconds=seconds)
    until = f"expires {time_text(made.expires_ms)}" if made.expires_ms else "does not expire"
    shell.out.note(f"token {made.name} of {user}, {made.id}, {until}; it is not shown again")
    if file is None:
        shell.out.line("token", {**secret_fields(made), "token": text}, text)
    else:
        write_secret(file, text)
        shell.out.line("token", {**secret_fields(made), "file": str(file)}, f"wrote {file}")


@verb("list", examples="millrace token list")
@click.argument("user", required=False)
async def list_tokens(shell: Shell, user: str | None) -> None:
    """List names and ids of the tokens of USER, or of all users."""
    await list_secrets(shell, user, "token", lambda roll: roll.tokens(user))


@verb("revoke", examples="millrace token revoke ada laptop")
@click.argument("user")
@click.argument("name")
async def revoke(shell: Shell, user: str, name: str) -> None:
    """Revoke the tokens of USER with this NAME or id, at once."""
    async with open_users(shell) as book:
        find_user(book, user)
        found = find_secrets(book.roll.tokens(user), user, name, "token")
        for one in found:
            await book.revoke_token(one, actor_of(shell, book))
    for one in found:
        shell.out.line("revoked", secret_fields(one), f"revoked {one.name} of {user}, {one.id}")


@verb("digest", examples="millrace token new ada | millrace token digest")
async def digest(shell: Shell) -> None:
    """Print the digest of a token from standard input, for a settings file."""
    if sys.stdin.isatty():
        raise click.UsageError("pipe the token in: `millrace token digest < FILE`")
    text = sys.stdin.readline(200).strip()
    if not is_token(text):
        raise ExitError("this is not a token", "a token is 'mr_' and 43 letters and digits")
    made = f"sha256:{digest_of(text).hex()}"
    shell.out.line("digest", {"digest": made}, made)


for _verb in (new, list_tokens, revoke, digest):
    token.add_command(_verb)
