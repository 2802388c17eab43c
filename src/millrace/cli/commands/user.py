"""`millrace user`: users, access rules and quotas."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import click
import msgspec

from millrace.cli.command_group import CommandGroup
from millrace.cli.printing import TableColumn
from millrace.cli.shell import Shell, split_name
from millrace.cli.users import (
    QUOTA,
    RULE,
    actor_of,
    find_user,
    open_users,
    quota_text,
)
from millrace.cli.verb import confirm, epilog, verb
from millrace.decoding import convert
from millrace.server.auth.access import (
    VERBS,
    Quota,
    Rule,
    User,
    Verb,
    judge,
)

if TYPE_CHECKING:
    from millrace.server.auth.store import UserStore


@click.group(
    cls=CommandGroup,
    epilog=epilog("""
        millrace user add web --rule 'allow publish default/orders'
        millrace user list
        millrace user may ada publish orders
    """),
)
def user() -> None:
    """List, add, show, change or remove users, and test access rules.

    Users authenticate with tokens (`millrace token`) or access keys (`millrace key`).
    A rule is 'allow VERBS SPACE/NAME' or 'deny VERBS SPACE/NAME': verbs are publish, work, read,
    watch, manage and admin, joined by commas, or *; in names, * matches any part. Access is denied
    unless a rule allows it, and deny rules take precedence.
    """


_rules = click.option("--rule", "rules", type=RULE, multiple=True, help="Access rule; repeatable.")
_quotas = click.option(
    "--quota",
    "quotas",
    type=QUOTA,
    multiple=True,
    metavar="NAME=NUMBER",
    help=f"Limit of {', '.join(Quota.__struct_fields__)}; 0: the server's default. Repeatable.",
)


def _fields(one: User) -> dict[str, object]:
    return {
        "user": one.name,
        "rules": [str(rule) for rule in one.rules],
        "quota": msgspec.to_builtins(one.quota),
    }


@verb("list", examples="millrace user list")
async def list_users(shell: Shell) -> None:
    """List the users with their numbers of rules, tokens and keys."""
    rows: list[tuple[Mapping[str, object], list[str]]] = []
    async with open_users(shell) as book:
        for one in book.roll.users.values():
            tokens, keys = len(book.roll.tokens(one.name)), len(book.roll.access_keys(one.name))
            fields = {**_fields(one), "tokens": tokens, "keys": keys}
            counts = [len(one.rules), tokens, keys]
            rows.append((fields, [one.name, *map(str, counts), quota_text(one.quota)]))
    columns = [
        TableColumn("USER", is_long=True),
        TableColumn("RULES", is_number=True),
        TableColumn("TOKENS", is_number=True),
        TableColumn("KEYS", is_number=True),
        TableColumn("QUOTA", is_long=True),
    ]
    shell.out.table("user", columns, rows, empty="no users; `millrace user add NAME` adds one")


@verb(
    "add",
    examples="""
        millrace user add web --rule 'allow publish default/orders'
        millrace user add boss --rule 'allow * */*'
        millrace user add batch --rule 'allow work,read default/*' --quota requests=50
    """,
)
@click.argument("name")
@_rules
@_quotas
async def add(
    shell: Shell,
    name: str,
    *,
    rules: tuple[Rule, ...],
    quotas: tuple[tuple[str, float], ...],
) -> None:
    """Add the user NAME. Without a rule, all access is denied."""
    made = User(name, rules, convert(dict(quotas), Quota))
    async with open_users(shell, make=True) as book:
        await book.add_user(made, actor_of(shell, book))
    shell.out.line(
        "user",
        _fields(made),
        f"added {name}; `millrace token new {name}` creates a token, and for clients of AWS "
        f"`millrace key new {name}` a key",
    )


@verb("show", examples="millrace user show ada")
@click.argument("name")
async def show(shell: Shell, name: str) -> None:
    """Show rules, quota, tokens and keys of the user NAME."""
    async with open_users(shell) as book:
        one = find_user(book, name)
        tokens = [token.name for token in book.roll.tokens(name)]
        keys = [key.id for key in book.roll.access_keys(name)]
    texts = {
        "user": one.name,
        **{f"rule {at}": str(rule) for at, rule in enumerate(one.rules, 1)},
        "quota": quota_text(one.quota),
        "tokens": ", ".join(tokens) or "-",
        "keys": ", ".join(keys) or "-",
    }
    shell.out.listing("user", {**_fields(one), "tokens": tokens, "keys": keys}, texts)


@verb(
    "set",
    examples="""
        millrace user set ada --rule 'allow read */*' --rule 'deny read shop/*'
        millrace user set ada --add-rule 'allow work default/mail'
        millrace user set ada --drop-rule 'allow work default/mail' --quota in_flight=100
    """,
)
@click.argument("name")
@_rules
@click.option("--add-rule", "more", type=RULE, multiple=True, help="Add this rule; repeatable.")
@click.option("--drop-rule", "less", type=RULE, multiple=True, help="Remove this rule; repeatable.")
@_quotas
async def configure(
    shell: Shell,
    name: str,
    *,
    rules: tuple[Rule, ...],
    more: tuple[Rule, ...],
    less: tuple[Rule, ...],
    quotas: tuple[tuple[str, float], ...],
) -> None:
    """Change rules or quota of the user NAME; options not given leave them unchanged.

    --rule replaces all existing rules. Changes apply at once, also to open connections.
    """
    if not (rules or more or less or quotas):
        raise click.UsageError("nothing to change; give --rule, --add-rule, --drop-rule or --quota")
    async with open_users(shell) as book:
        old = find_user(book, name)
        kept = [rule for rule in rules or old.rules if rule not in less]
        kept += [rule for rule in more if rule not in kept]
        amounts = {**msgspec.structs.asdict(old.quota), **dict(quotas)}
        made = User(name, tuple(kept), convert(amounts, Quota))
        await book.set_user(made, actor_of(shell, book))
    shell.out.line("user", _fields(made), f"{name} has {len(kept)} rules: {_rules_text(made)}")


def _rules_text(one: User) -> str:
    return "; ".join(map(str, one.rules)) or "none, and may do nothing"


@verb("remove", examples="millrace user remove ada --yes")
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
async def remove(shell: Shell, name: str, *, yes: bool) -> None:
    """Remove the user NAME with all tokens and keys, at once."""
    async with open_users(shell) as book:
        find_user(book, name)
        count = _secrets(book, name)
        confirm(f"Remove {name} with {count} tokens and keys?", yes=yes)
        await book.remove_user(name, actor_of(shell, book))
    fields = {"user": name, "secrets": count}
    shell.out.line("removed", fields, f"removed {name}, and {count} tokens and keys")


def _secrets(book: UserStore, name: str) -> int:
    return len(book.roll.tokens(name)) + len(book.roll.access_keys(name))


@verb(
    "may",
    examples="""
        millrace user may ada publish orders
        millrace user may ada read default/mail --json
    """,
)
@click.argument("name")
@click.argument("action", type=click.Choice(VERBS), metavar="VERB")
@click.argument("queue")
async def may(shell: Shell, name: str, action: Verb, queue: str) -> int:
    """Test whether the user NAME is allowed VERB on QUEUE, and show the deciding rule.

    The exit code is 0 if allowed, and 1 if denied.
    """
    space, rest = split_name(queue)
    async with open_users(shell) as book:
        ruling = judge(find_user(book, name).rules, action, space, rest)
    rule = None if ruling.rule is None else str(ruling.rule)
    fields = {
        "user": name,
        "verb": action,
        "queue": f"{space}/{rest}",
        "may": ruling.allowed,
        "rule": rule,
        "why": ruling.why,
    }
    said = "yes" if ruling.allowed else "no"
    shell.out.line("may", fields, f"{said}: {f'{rule!r}: ' if rule else ''}{ruling.why}")
    return 0 if ruling.allowed else 1


for _verb in (list_users, add, show, configure, remove, may):
    user.add_command(_verb)
