"""Options as Spark hands them over: text, under names in whatever case.

Rule 1: an option that is not known is refused, and the nearest one is named: one that is misspelled
must not be left out in silence.
Rule 2: no option holds a secret.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path

from millrace import limits
from millrace.core import check
from millrace.errors import Invalid
from millrace.spark.home import TOKEN, Home

HOME = ("url", "path", "queue", "space", "tokenFile", "certificates", "patience")
"""Every option that says where a queue is, as its page spells it."""

_SECRETS = ("token", "password", "secret", "credentials")


class Given:
    """The options as they were given, by their names in lower case.

    Raises:
        Invalid: one is none of `names`; `what` says what they are options of.
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
        """What it says."""
        return self._told.get(name.lower(), default).strip()

    def has(self, name: str) -> bool:
        """Whether it was given."""
        return name.lower() in self._told

    def whole(self, name: str, most: int) -> int | None:
        """A whole number from 1 on; None: it was not given."""
        if not self.has(name):
            return None
        text = self.text(name)
        if not (text.isascii() and text.isdigit()) or not 1 <= int(text) <= most:
            raise Invalid(
                f"{name} is {check.shown(text)}, not a number from 1 to {most}",
                field=name,
                limit=most,
            )
        return int(text)

    def seconds(self, name: str, default: float, most: float) -> float:
        """A number of seconds."""
        if not self.has(name):
            return default
        try:
            found = float(self.text(name))
        except ValueError:
            found = -1.0
        if not 0 <= found <= most:
            raise Invalid(
                f"{name} is {check.shown(self.text(name))}, not a number of seconds up to {most:g}",
                field=name,
                limit=int(most),
            )
        return found

    def flag(self, name: str, *, default: bool) -> bool:
        """Whether it is true."""
        text = self.text(name, str(default)).lower()
        if text not in ("true", "false"):
            raise Invalid(f"{name} is {check.shown(text)}, not true or false", field=name)
        return text == "true"

    def one_of(self, name: str, default: str, choices: tuple[str, ...]) -> str:
        """One of the words that it may be."""
        text = self.text(name, default).lower()
        if text not in choices:
            raise Invalid(
                f"{name} is {check.shown(text)}; it is one of {', '.join(choices)}", field=name
            )
        return text

    def home(self) -> Home:
        """Where the queue is."""
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
            # Tasks may stand elsewhere than the driver.
            path = str(Path(path.removeprefix("file:")).expanduser().absolute())
        return Home(url, path, self.text("tokenFile"), self.text("certificates"), patience, host)

    def queue(self) -> tuple[str, str]:
        """The space and the name of the queue."""
        queue = self.text("queue")
        if not queue:
            raise Invalid("queue is missing: which one is meant?", field="queue")
        space = check.name(self.text("space", "default"), "space")
        return space, check.name(queue, "queue")
