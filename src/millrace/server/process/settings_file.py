"""The settings file: TOML, with the line numbers of its keys."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from millrace import limits
from millrace.errors import Invalid

NEWLINE = b"\n"

Keys = tuple[str, ...]

_KEY = re.compile(
    r"""\s*((?:[A-Za-z0-9_-]+|"[^"]*"|'[^']*')(?:\s*\.\s*(?:[A-Za-z0-9_-]+|"[^"]*"|'[^']*'))*)\s*="""
)


class ConfigFile:
    """The content of a settings file, and the lines of its keys."""

    def __init__(self, path: Path, text: str, values: dict[str, object]) -> None:
        self.path = path
        self.values = values
        self._lines = lines_of(text)

    def where(self, *keys: str) -> str:
        """Return the path, and the line of the keys if known."""
        for count in range(len(keys), 0, -1):
            line = self._lines.get(keys[:count])
            if line is not None:
                return f"{self.path}, line {line}"
        return str(self.path)


def read_file(path: Path) -> ConfigFile:
    """Read and parse a settings file.

    Raises:
        Invalid: it cannot be read, is too large, or is not TOML; the error names file and line.
    """
    try:
        with path.open("rb") as file:
            data = file.read(limits.CONFIG_BYTES_MAX + 1)
    except OSError as error:
        raise Invalid(
            f"{path} cannot be read: {error.strerror or error}", field="config"
        ) from error
    if len(data) > limits.CONFIG_BYTES_MAX:
        most = limits.CONFIG_BYTES_MAX
        raise Invalid(f"{path} has more than {most} bytes", field="config", limit=most)
    try:
        text = data.decode("utf-8")
        return ConfigFile(path, text, tomllib.loads(text))
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise Invalid(f"{path}, line {line}: this is no UTF-8", field="config") from error
    except tomllib.TOMLDecodeError as error:
        last = f"at line {data.count(NEWLINE) + 1}, the last"
        said = str(error).replace("at end of document", last)
        raise Invalid(f"{path} is no TOML: {said}", field="config") from error
    except ValueError as error:
        raise Invalid(f"{path} has a number that is too long", field="config") from error
    except RecursionError as error:
        raise Invalid(f"{path} is nested too deeply", field="config") from error


def lines_of(text: str) -> dict[Keys, int]:
    """Return the line of the first use of each key, for TOML in its usual layout."""
    found: dict[Keys, int] = {}
    table: Keys = ()
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("["):
            keys = _keys(line)
            if keys:
                table = keys
                found.setdefault(table, number)
            continue
        match = _KEY.match(line)
        if match is not None:
            keys = _keys(f"{match[1]} = 0")
            for count in range(1, len(keys) + 1):
                found.setdefault((*table, *keys[:count]), number)
    return found


def _keys(line: str) -> Keys:
    """Return the keys of a line that is TOML by itself."""
    try:
        value: object = tomllib.loads(line)
    except (ValueError, RecursionError):
        return ()
    keys: list[str] = []
    while isinstance(value, dict | list) and value:
        if isinstance(value, list):
            value = value[0]
        else:
            key, value = next(iter(value.items()))
            keys.append(key)
    return tuple(keys)
