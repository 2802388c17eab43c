"""Command groups: suggest the nearest name on a typo, and import commands lazily."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from importlib import import_module
from typing import ClassVar, NamedTuple

import click


class LazyCommand(NamedTuple):
    """Module and attribute of a command, and its short help."""

    module: str
    attribute: str
    help: str


class CommandGroup(click.Group):
    """A group that suggests the nearest command for an unknown name."""

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


class LazyCommandGroup(CommandGroup):
    """A group whose commands are imported when called; the short help needs no import."""

    homes: ClassVar[Mapping[str, LazyCommand]] = {}

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
