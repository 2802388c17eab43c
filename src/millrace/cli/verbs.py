"""How verbs are found: by name, imported when they are wanted, the nearest suggested."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from importlib import import_module
from typing import ClassVar, NamedTuple

import click


class Home(NamedTuple):
    """Where a verb comes from, and what it does in a few words."""

    module: str
    attribute: str
    help: str


class Verbs(click.Group):
    """A group that knows what was probably meant."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if self.get_command(ctx, name) is None and not name.startswith("-"):
            known = self.list_commands(ctx)
            near = get_close_matches(name, known, n=1)
            meant = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(known)}"
            ctx.fail(f"there is no {name!r}; {meant}")
        return super().resolve_command(ctx, args)


class LateVerbs(Verbs):
    """Verbs that are imported when they are called; their help is known before."""

    homes: ClassVar[Mapping[str, Home]] = {}

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.homes)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        home = self.homes.get(cmd_name)
        if home is None:
            return None
        command: click.Command = getattr(import_module(home.module), home.attribute)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, home.help) for name, home in self.homes.items()])
