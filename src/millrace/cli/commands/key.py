"""`millrace key`: access keys, for programs that sign their requests."""

from __future__ import annotations

import click

from millrace.cli.kinds import DURATION
from millrace.cli.people import by, find_user, list_secrets, named, open_book, secret_fields
from millrace.cli.shell import Shell
from millrace.cli.verb import epilog, verb
from millrace.cli.verbs import Verbs


@click.group(
    cls=Verbs,
    epilog=epilog("""
        millrace key new ada --name boto
        millrace key list
    """),
)
def key() -> None:
    """Make, list or revoke access keys.

    An access key is an id and a secret, with which clients of SQS and SNS sign requests (SigV4). A
    secret is told once. It is not kept: it follows from the id and from the file `access.key` in
    the folder, of mode 0600. Without that file access keys are good for nothing; so keep it, apart
    from backups, which do not hold it.
    """


@verb("new", examples="millrace key new ada --name boto --for 90d")
@click.argument("user")
@click.option("--name", default="key", show_default=True, help="What to call it.")
@click.option("--for", "seconds", type=DURATION, metavar="TIME", help="It expires after this.")
@click.option(
    "--account", metavar="DIGITS", help="The account of AWS that it is of: twelve digits."
)
async def new(
    shell: Shell, user: str, *, name: str, seconds: float | None, account: str | None
) -> None:
    """Make an access key for USER, and print its id and its secret: this once."""
    async with open_book(shell, with_keys=True) as book:
        find_user(book, user)
        made, secret = await book.new_key(
            user, name, by(shell, book), seconds=seconds, account=account or ""
        )
    shell.out.note("the secret is not shown again")
    shell.out.listing(
        "key",
        {**secret_fields(made), "secret": secret},
        {"aws_access_key_id": made.id, "aws_secret_access_key": secret},
    )


@verb("list", examples="millrace key list")
@click.argument("user", required=False)
async def list_keys(shell: Shell, user: str | None) -> None:
    """List the access keys of USER, or of all; never their secrets."""
    await list_secrets(shell, user, "key", lambda roll: roll.access_keys(user))


@verb("revoke", examples="millrace key revoke ada key")
@click.argument("user")
@click.argument("name")
async def revoke(shell: Shell, user: str, name: str) -> None:
    """Revoke the access keys of USER that have this NAME, or the one with this id; at once."""
    async with open_book(shell) as book:
        find_user(book, user)
        found = named(book.roll.access_keys(user), user, name, "key")
        for one in found:
            await book.revoke_key(one, by(shell, book))
    for one in found:
        shell.out.line("revoked", secret_fields(one), f"revoked {one.name} of {user}, {one.id}")


for _verb in (new, list_keys, revoke):
    key.add_command(_verb)
