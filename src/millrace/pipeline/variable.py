"""Environment variables in settings, and redaction of their values."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping

from millrace.errors import Invalid
from millrace.sinks.wording import masked

_VARIABLE = re.compile(r"\$(?:\{([A-Za-z_][A-Za-z0-9_]*)\}|([A-Za-z_][A-Za-z0-9_]*))")
_SHORT = 4
"""Shorter values are not redacted: they would hide half of every message, and no secret is that
short.
"""


class ProcessEnvironment(Mapping[str, str]):
    """The environment of this process, read when a variable is looked up.

    It is the default wherever a pipeline needs an environment. Its repr shows no values, so that a
    logged `Setting` reveals no secrets.
    """

    def __getitem__(self, name: str) -> str:
        return os.environ[name]

    def __iter__(self) -> Iterator[str]:
        return iter(os.environ)

    def __len__(self) -> int:
        return len(os.environ)

    def __repr__(self) -> str:
        return "ProcessEnvironment()"


def filled(settings: Mapping[str, object], environ: Mapping[str, str]) -> dict[str, object]:
    """Return the settings with the values of `$NAME` and `${NAME}`; `$$` is one `$`.

    Raises:
        Invalid: a variable is not set.
    """
    return {name: _filled(value, name, environ) for name, value in settings.items()}


def _filled(value: object, field: str, environ: Mapping[str, str]) -> object:
    if isinstance(value, str):
        return fill(value, field, environ)
    if isinstance(value, list):
        return [_filled(one, field, environ) for one in value]
    if isinstance(value, dict):
        return {name: _filled(one, field, environ) for name, one in value.items()}
    return value


def fill(text: str, field: str, environ: Mapping[str, str]) -> str:
    """Return the text with its variables replaced by their values."""
    return "$".join(_plain(part, field, environ) for part in text.split("$$"))


def _plain(text: str, field: str, environ: Mapping[str, str]) -> str:
    def value(match: re.Match[str]) -> str:
        name = match[1] or match[2]
        if name not in environ:
            raise Invalid(
                f"{field} names the variable {name}, which is not set; export {name}=…",
                field=field,
            )
        return environ[name]

    return _VARIABLE.sub(value, text)


def names_in(value: object) -> set[str]:
    """Return the names of all variables in the settings."""
    if isinstance(value, str):
        parts = value.split("$$")
        return {match[1] or match[2] for part in parts for match in _VARIABLE.finditer(part)}
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list | tuple):
        return {name for one in value for name in names_in(one)}
    return set()


def hide(text: str, names: set[str], environ: Mapping[str, str]) -> str:
    """Return the text without the values of these variables and without passwords in URLs."""
    for name in sorted(names, key=lambda name: -len(environ.get(name, ""))):
        secret = environ.get(name, "")
        if len(secret) >= _SHORT:
            text = text.replace(secret, f"${name}")
    return masked(text)
