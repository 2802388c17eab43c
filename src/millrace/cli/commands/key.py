"""`millrace key`: access keys, for programs that sign their requests."""

from __future__ import annotations

import click

from millrace.cli.command_group import CommandGroup
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


@click.group(
    cls=CommandGroup,
    epilog=epilog("""
        millrace key new ada --name boto
        millrace key list
    """),
)
def key() -> None:
    """Create, list or revoke access keys.

    An access key is an id and a secret, with which clients of SQS and SNS sign requests (SigV4). A
    secret is printed once and not stored: it is derived from the id and the file `access.key` in
    the folder, of mode 0600. Without that file all access keys are invalid; back it up separately,
    since backups do not include it.
    """


@verb("new", examples="millrace key new ada --name boto --for 90d")
@click.argument("user")
@click.option("--name", default="key", show_default=True, help="Name of the key.")
@click.option(
    "--for", "seconds", type=DURATION, metavar="TIME", help="Expire after this time. [never]"
)
@click.option("--account", metavar="DIGITS", help="AWS account of the key: twelve digits.")
async def new(
    shell: Shell, user: str, *, name: str, seconds: float | None, account: str | None
) -> None:
    """Create an access key for USER, and print its id and secret; it cannot be shown again."""
    async with open_users(shell, with_keys=True) as book:
        find_user(book, user)
        made, secret = await book.new_key(
            user, name, actor_of(shell, book), seconds=seconds, account=account or ""
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
    """List the access keys of USER, or of all users, without secrets."""
    await list_secrets(shell, user, "key", lambda roll: roll.access_keys(user))


@verb("revoke", examples="millrace key revoke ada key")
@click.argument("user")
@click.argument("name")
async def revoke(shell: Shell, user: str, name: str) -> None:
    """Revoke the access keys of USER with this NAME or id, at once."""
    async with open_users(shell) as book:
        find_user(book, user)
        found = find_secrets(book.roll.access_keys(user), user, name, "key")
        for one in found:
            await book.revoke_key(one, actor_of(shell, book))
    for one in found:
        shell.out.line("revoked", secret_fields(one), f"revoked {one.name} of {user}, {one.id}")


for _verb in (new, list_keys, revoke):
    key.add_command(_verb)
