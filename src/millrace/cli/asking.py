"""Asking before something that cannot be undone."""

from __future__ import annotations

import sys

import click

from millrace.cli.ending import USAGE, Ended


def confirm(question: str, *, yes: bool) -> None:
    """Ask, if there is someone to ask."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise Ended(
            "this cannot be undone, and nobody is there to be asked",
            "give --yes if it is meant",
            exit_code=USAGE,
            code="unconfirmed",
        )
    if not click.confirm(question, err=True):
        raise Ended("nothing was changed", "answer y if it is meant", code="unconfirmed")
