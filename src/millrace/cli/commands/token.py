"""`millrace token`: what users are known by."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from millrace.cli.ending import Ended
from millrace.cli.kinds import DURATION
from millrace.cli.people import by, find_user, list_secrets, named, open_book, secret_fields
from millrace.cli.shell import Shell
from millrace.cli.text import moment
from millrace.cli.verb import epilog, verb
from millrace.cli.verbs import Verbs
from millrace.server.access import digest_of, is_token


@click.group(
    cls=Verbs,
    epilog=epilog("""
        millrace token new ada --name laptop --for 90d
        millrace token list
        millrace token revoke ada laptop
    """),
)
def token() -> None:
    """Make, list or revoke tokens.

    A program sends its token as `authorization: Bearer TOKEN`. A token is told once, when it is
    made; nobody can read it again, for only its digest is kept.
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
@click.option("--name", default="token", show_default=True, help="What to call it.")
@click.option("--for", "seconds", type=DURATION, metavar="TIME", help="It expires after this.")
@click.option(
    "--file",
    type=click.Path(path_type=Path),
    help="Write it to this file, of mode 0600, instead of printing it.",
)
async def new(
    shell: Shell, user: str, *, name: str, seconds: float | None, file: Path | None
) -> None:
    """Make a token for USER, and print it: this once."""
    from millrace.server.secret import write_secret

    async with open_book(shell) as book:
        find_user(book, user)
        made, text = await book.new_token(user, name, by(shell, book), seconds=seconds)
    until = f"expires {moment(made.expires_ms)}" if made.expires_ms else "does not expire"
    shell.out.note(f"token {made.name} of {user}, {made.id}, {until}; it is not shown again")
    if file is None:
        shell.out.line("token", {**secret_fields(made), "token": text}, text)
    else:
        write_secret(file, text)
        shell.out.line("token", {**secret_fields(made), "file": str(file)}, f"wrote {file}")


@verb("list", examples="millrace token list")
@click.argument("user", required=False)
async def list_tokens(shell: Shell, user: str | None) -> None:
    """List the tokens of USER, or of all: their names and ids, never themselves."""
    await list_secrets(shell, user, "token", lambda roll: roll.tokens(user))


@verb("revoke", examples="millrace token revoke ada laptop")
@click.argument("user")
@click.argument("name")
async def revoke(shell: Shell, user: str, name: str) -> None:
    """Revoke the tokens of USER that have this NAME, or the one with this id; at once."""
    async with open_book(shell) as book:
        find_user(book, user)
        found = named(book.roll.tokens(user), user, name, "token")
        for one in found:
            await book.revoke_token(one, by(shell, book))
    for one in found:
        shell.out.line("revoked", secret_fields(one), f"revoked {one.name} of {user}, {one.id}")


@verb("digest", examples="millrace token new ada | millrace token digest")
async def digest(shell: Shell) -> None:
    """Print the digest of a token that is piped in, as a file of settings has it."""
    if sys.stdin.isatty():
        raise click.UsageError("pipe the token in: `millrace token digest < FILE`")
    text = sys.stdin.readline(200).strip()
    if not is_token(text):
        raise Ended("this is no token", "a token is 'mr_' and 43 letters and digits")
    made = f"sha256:{digest_of(text).hex()}"
    shell.out.line("digest", {"digest": made}, made)


for _verb in (new, list_tokens, revoke, digest):
    token.add_command(_verb)
