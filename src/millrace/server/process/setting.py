"""The definition of one server setting: its type, parser and description.

Rule: an invalid value is refused; the error has the name of the setting, the accepted values and
the limit.
"""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from millrace.client.paths import is_short_address
from millrace.core import plain_types, validate
from millrace.errors import Invalid

T = TypeVar("T")

SEPARATOR = ";"
"""Separates several values in one text."""


@dataclass(frozen=True, slots=True)
class SettingType:
    """The type of a setting: validation and description of its values."""

    words: str
    """Description for people."""
    read: Callable[[str, object], object]
    """Validates a value, given the setting's name; raises `Invalid`."""
    is_text: bool = False
    """True if a text is the value itself; texts of other types are parsed as TOML."""
    is_flag: bool = False
    is_list: bool = False


@dataclass(frozen=True, slots=True)
class SettingInfo:
    """Metadata of a setting."""

    taken: SettingType
    what: str
    is_live: bool
    """True if it can change while the server runs."""


def setting(default: T, taken: SettingType, what: str, *, live: bool = False) -> T:
    """Declare a dataclass field as a setting."""
    made: T = field(default=default, metadata={"about": SettingInfo(taken, what, live)})
    return made


def from_text(name: str, taken: SettingType, text: str) -> object:
    """Parse the value of a setting from the environment or a flag.

    Raises:
        Invalid: the text is not a valid value.
    """
    if taken.is_list:
        parts = [part.strip() for part in text.split(SEPARATOR)]
        return taken.read(name, [part for part in parts if part])
    if taken.is_text:
        return taken.read(name, text)
    if taken.is_flag:
        flags = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}
        return taken.read(name, flags.get(text.strip().lower(), text))
    try:
        value = tomllib.loads(f"value = {text.strip()}")["value"]
    except (ValueError, RecursionError):
        value = text
    return taken.read(name, value)


def _refuse(name: str, value: object, words: str, limit: int | None = None) -> Invalid:
    return Invalid(f"{name} is {validate.shown(value)}, not {words}", field=name, limit=limit)


def whole(least: int, most: int) -> SettingType:
    """Return the type of integers within bounds."""

    def read(name: str, value: object) -> int:
        number = plain_types.whole(value)
        if number is None:
            raise _refuse(name, value, "a whole number")
        if not least <= number <= most:
            limit = least if number < least else most
            raise _refuse(name, value, f"within {least} and {most}", limit)
        return number

    return SettingType(f"a whole number from {least} to {most}", read)


def seconds(least: float, most: float) -> SettingType:
    """Return the type of seconds within bounds."""

    def read(name: str, value: object) -> float:
        number = plain_types.number(value)
        if number is None or number in (math.inf, -math.inf):
            raise _refuse(name, value, "a number of seconds")
        if not least <= number <= most:
            limit = least if number < least else most
            raise _refuse(name, value, f"within {least:g} and {most:g} seconds", int(limit))
        return number

    return SettingType(f"seconds, from {least:g} to {most:g}", read)


def share() -> SettingType:
    """Return the type of fractions, from 0 to 1."""

    def read(name: str, value: object) -> float:
        number = plain_types.number(value)
        if number is None or not 0 <= number <= 1:
            raise _refuse(name, value, "a number from 0 to 1", 1)
        return number

    return SettingType("a number from 0 to 1", read)


def _flag(name: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise _refuse(name, value, "true or false")
    return value


FLAG = SettingType("true or false", _flag, is_flag=True)


def _text(name: str, value: object) -> str:
    text = plain_types.text(value)
    if text is None or not text.isprintable():
        raise _refuse(name, value, "a text on one line")
    return text


TEXT = SettingType("a text", _text, is_text=True)


def _url(name: str, value: object) -> str:
    text = _text(name, value)
    if text and not text.startswith(("http://", "https://")):
        raise _refuse(name, value, "an address such as http://127.0.0.1:4318")
    return text


URL = SettingType("an address of HTTP", _url, is_text=True)


def _path(name: str, value: object) -> Path | None:
    text = str(value) if isinstance(value, Path) else plain_types.text(value)
    if text is None or "\0" in text:
        raise _refuse(name, value, "a path")
    try:
        return Path(text).expanduser() if text else None
    except RuntimeError as error:
        # The home folder of an unknown user (`~name`).
        raise _refuse(name, value, "a path; write it out without ~") from error


PATH = SettingType("a path", _path, is_text=True)


def _folder(name: str, value: object) -> Path:
    found = _path(name, value)
    if found is None:
        raise _refuse(name, value, "a path")
    if isinstance(value, str) and is_short_address(value):
        raise _refuse(
            name, value, f"a folder; say listen for an address, or ./{value} if it is one"
        )
    return found


FOLDER = SettingType("a path", _folder, is_text=True)


def one_of(*words: str) -> SettingType:
    """Return the type of texts from a fixed list."""

    def read(name: str, value: object) -> str:
        text = plain_types.text(value)
        if text not in words or text is None:
            raise _refuse(name, value, f"one of {', '.join(words)}")
        return text

    return SettingType(f"one of {', '.join(words)}", read, is_text=True)


def shaped(pattern: str, words: str) -> SettingType:
    """Return the type of texts that match a pattern."""
    shape = re.compile(pattern)

    def read(name: str, value: object) -> str:
        text = plain_types.text(value)
        if text is None or shape.fullmatch(text) is None:
            raise _refuse(name, value, words)
        return text

    return SettingType(words, read, is_text=True)


def several(words: str, read_one: Callable[[str, str], str]) -> SettingType:
    """Return the type of text lists; a single text needs no brackets."""

    def read(name: str, value: object) -> tuple[str, ...]:
        found = [value] if isinstance(value, str) else value
        if not isinstance(found, list | tuple):
            raise _refuse(name, value, f"a list of {words}")
        out: list[str] = []
        for one in found:
            text = plain_types.text(one)
            if text is None:
                raise _refuse(name, one, f"a text, as all of {words}")
            out.append(read_one(name, text))
        return tuple(out)

    return SettingType(words, read, is_text=True, is_list=True)
