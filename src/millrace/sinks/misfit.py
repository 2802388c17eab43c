"""Readable messages for validation errors of settings, with advice on the correct value."""

from __future__ import annotations

import re
from difflib import get_close_matches
from typing import Literal, get_args, get_origin

import msgspec

_UNKNOWN = "Object contains unknown field `"
_NO_CHOICE = "Invalid enum value "
_MISSING = "Object missing required field `"
_KIND = re.compile(r"Expected `(\w+)`, got `(\w+)`")

_KINDS = {
    "str": "text in quotes",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "object": "a table",
    "array": "a list",
}
"""Names of value types in messages."""


def misfit(error: msgspec.ValidationError, kind: object) -> tuple[str, str]:
    """Return the name of the wrong field of `kind`, or an empty text, and a message."""
    text, _, path = str(error).partition(" - at `$")
    field = path.strip("`.").partition(".")[0].partition("[")[0]
    known = _fields(kind)
    if not field and text.startswith(_UNKNOWN):
        field = text.removeprefix(_UNKNOWN).rstrip("`")
        if not known:
            return field, text
        near = get_close_matches(field, known, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(known)}"
        return field, f"there is no setting {field!r}; {hint}"
    if text.startswith(_NO_CHOICE) and get_origin(known.get(field)) is Literal:
        choices = ", ".join(map(str, get_args(known[field])))
        return field, f"{text.removeprefix(_NO_CHOICE)} is none of {choices}"
    if not field and text.startswith(_MISSING):
        field = text.removeprefix(_MISSING).rstrip("`")
        return field, f"the setting {field!r} is missing"
    kinds = _KIND.fullmatch(text)
    if kinds is not None and field:
        wanted, got = (_KINDS.get(kind, kind) for kind in kinds.groups())
        return field, f"it is {got}, and should be {wanted}"
    if not field and "`" in text:
        field = text.split("`")[1]
    return field, text


def _fields(kind: object) -> dict[str, object]:
    if not (isinstance(kind, type) and issubclass(kind, msgspec.Struct)):
        return {}
    return {found.encode_name: found.type for found in msgspec.structs.fields(kind)}
