"""Parses raw options of Spark: texts under case-insensitive names.

Rule 1: an unknown option is refused, and the most similar name is suggested: a misspelled one must
not be ignored silently.

Rule 2: no option holds a secret.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path

from millrace import limits
from millrace.core import validate
from millrace.errors import Invalid
from millrace.spark.home import TOKEN, QueueEndpoint

HOME = ("url", "path", "queue", "space", "tokenFile", "certificates", "patience")
"""Every option for the location of a queue, in its documented spelling."""

_SECRETS = ("token", "password", "secret", "credentials")


class RawOptions:
    """The given options, by their names in lower case.

    Raises:
        Invalid: one is not among `names`; `what` describes in the message what the options are for.
    """

    def __init__(self, told: Mapping[str, str], names: Sequence[str], what: str) -> None:
        self._told = {name.lower(): value for name, value in told.items()}
        known = {name.lower(): name for name in names}
        for name in sorted(self._told):
            if name in _SECRETS:
                raise Invalid(
                    f"the option {name!r} would show a secret in plans and logs; write it to a "
                    f"file and give tokenFile, or set {TOKEN} for the driver and its executors",
                    field=name,
                )
            if name not in known:
                near = get_close_matches(name, known, n=1, cutoff=0.5)
                hint = f"did you mean {known[near[0]]!r}?" if near else ""
                raise Invalid(
                    f"there is no option {name!r} of a Millrace {what}; "
                    f"{hint or 'there are ' + ', '.join(names)}",
                    field=name,
                )

    def text(self, name: str, default: str = "") -> str:
        """Return the text of an option."""
        return self._told.get(name.lower(), default).strip()

    def has(self, name: str) -> bool:
        """Return True if the option was given."""
        return name.lower() in self._told

    def whole(self, name: str, most: int) -> int | None:
        """Return a positive integer up to `most`, or None if it was not given."""
        if not self.has(name):
            return None
        text = self.text(name)
        if not (text.isascii() and text.isdigit()) or not 1 <= int(text) <= most:
            raise Invalid(
                f"{name} is {validate.shown(text)}, not a number from 1 to {most}",
                field=name,
                limit=most,
            )
        return int(text)

    def seconds(self, name: str, default: float, most: float) -> float:
        """Return a number of seconds up to `most`."""
        if not self.has(name):
            return default
        try:
            found = float(self.text(name))
        except ValueError:
            found = -1.0
        if not 0 <= found <= most:
            raise Invalid(
                f"{name} is {validate.shown(self.text(name))}, not a number of seconds up to "
                f"{most:g}",
                field=name,
                limit=int(most),
            )
        return found

    def flag(self, name: str, *, default: bool) -> bool:
        """Return the value of a boolean option."""
        text = self.text(name, str(default)).lower()
        if text not in ("true", "false"):
            raise Invalid(f"{name} is {validate.shown(text)}, not true or false", field=name)
        return text == "true"

    def one_of(self, name: str, default: str, choices: tuple[str, ...]) -> str:
        """Return the value of an option that is one of several words."""
        text = self.text(name, default).lower()
        if text not in choices:
            raise Invalid(
                f"{name} is {validate.shown(text)}; it is one of {', '.join(choices)}", field=name
            )
        return text

    def home(self) -> QueueEndpoint:
        """Return the location of the queue."""
        url, path = self.text("url"), self.text("path")
        if bool(url) == bool(path):
            raise Invalid(
                "name either url, the address of a server, or path, a folder on this machine",
                field="url",
            )
        patience = self.seconds(
            "patience", limits.WIRE_PATIENCE_SECONDS, limits.WIRE_CONNECT_MS_MAX / 1000
        )
        host = socket.gethostname() if path else ""
        if path:
            # Tasks may have another working directory than the driver.
            path = str(Path(path.removeprefix("file:")).expanduser().absolute())
        return QueueEndpoint(
            url, path, self.text("tokenFile"), self.text("certificates"), patience, host
        )

    def queue(self) -> tuple[str, str]:
        """Return the space and the name of the queue."""
        queue = self.text("queue")
        if not queue:
            raise Invalid("queue is missing: which one is meant?", field="queue")
        space = validate.name(self.text("space", "default"), "space")
        return space, validate.name(queue, "queue")
