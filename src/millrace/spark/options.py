"""The options of a read, checked: what Spark hands over is text, in whatever case.

Rule 1: an option that is not known is refused, and the nearest one is named: one that is misspelled
must not be left out in silence.
Rule 2: no option holds a secret.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Literal, cast

import msgspec

from millrace import limits
from millrace.core import check
from millrace.errors import Invalid
from millrace.spark.home import TOKEN, Home
from millrace.spark.start import EARLIEST, LATEST, Start, read_start, read_time

View = Literal["changes", "latest", "log"]
Format = Literal["json", "avro", "arrow"]

NAMES = (
    "url",
    "path",
    "queue",
    "space",
    "tokenFile",
    "certificates",
    "patience",
    "view",
    "cursor",
    "startingOffsets",
    "startingTimestamp",
    "startingSnapshot",
    "endingOffsets",
    "endingSnapshot",
    "maxOffsetsPerTrigger",
    "maxBytesPerTrigger",
    "minPartitions",
    "maxBytesPerPartition",
    "failOnDataLoss",
    "pinSeconds",
    "filterPushdown",
    "columns",
    "keys",
    "schema",
    "format",
)
"""Every option of a read, as its page spells it."""

_SECRETS = ("token", "password", "secret", "credentials")


class Options(msgspec.Struct, frozen=True):
    """What is read, and how."""

    home: Home
    queue: str
    space: str = "default"
    view: View = "changes"
    cursor: str = ""
    """Of a stream; empty: it makes one for itself."""
    starting: Start = EARLIEST
    ending: Start = LATEST
    """Of a batch."""
    rows_max: int | None = None
    """Of one micro-batch."""
    bytes_max: int | None = None
    partitions_min: int = 1
    partition_bytes: int = limits.SPARK_PARTITION_BYTES
    fail_on_data_loss: bool = True
    pin_seconds: float = limits.SPARK_BATCH_PIN_SECONDS
    pushdown: bool = False
    columns: tuple[str, ...] | None = None
    keys: tuple[bytes, ...] | None = None
    schema: str = ""
    format: Format = "json"


class _Given:
    """The options as they were given, by their names in lower case."""

    def __init__(self, told: Mapping[str, str]) -> None:
        self._told = {name.lower(): value for name, value in told.items()}
        known = {name.lower(): name for name in NAMES}
        for name in sorted(self._told):
            if name in _SECRETS:
                raise Invalid(
                    f"the option {name!r} would show a secret in plans and logs; write it to a "
                    f"file and give tokenFile, or set {TOKEN} for the driver and its executors",
                    field=name,
                )
            if name not in known:
                near = get_close_matches(name, known, n=1, cutoff=0.5)
                hint = f"; did you mean {known[near[0]]!r}?" if near else ""
                raise Invalid(
                    f"there is no option {name!r} of a Millrace read{hint}"
                    if near
                    else f"there is no option {name!r} of a Millrace read; there are "
                    f"{', '.join(NAMES)}",
                    field=name,
                )

    def text(self, name: str, default: str = "") -> str:
        return self._told.get(name.lower(), default).strip()

    def has(self, name: str) -> bool:
        return name.lower() in self._told

    def whole(self, name: str, most: int) -> int | None:
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
        text = self.text(name, str(default)).lower()
        if text not in ("true", "false"):
            raise Invalid(f"{name} is {check.shown(text)}, not true or false", field=name)
        return text == "true"

    def one_of(self, name: str, default: str, choices: tuple[str, ...]) -> str:
        text = self.text(name, default).lower()
        if text not in choices:
            raise Invalid(
                f"{name} is {check.shown(text)}; it is one of {', '.join(choices)}", field=name
            )
        return text


def read_options(told: Mapping[str, str], *, is_stream: bool | None) -> Options:
    """The options of a read; `is_stream` is None where it is not known yet.


    Raises:
        Invalid: one is not known, is missing, or has no value that it could have; `field` says
            which.
    """
    given = _Given(told)
    home = _home(given)
    queue = given.text("queue")
    if not queue:
        raise Invalid("queue is missing: which one is to be read?", field="queue")
    view = cast("View", given.one_of("view", "changes", ("changes", "latest", "log")))
    if is_stream:
        _refuse_in_streams(given, view)
    elif is_stream is False and given.has("cursor"):
        raise Invalid("cursor is an option of readStream; a batch has none", field="cursor")
    cursor = given.text("cursor")
    return Options(
        home=home,
        queue=check.name(queue, "queue"),
        space=check.name(given.text("space", "default"), "space"),
        view=view,
        cursor=check.name(cursor, "cursor") if cursor else "",
        starting=_starting(given),
        ending=_ending(given),
        rows_max=given.whole("maxOffsetsPerTrigger", 2**62),
        bytes_max=given.whole("maxBytesPerTrigger", 2**62),
        partitions_min=given.whole("minPartitions", limits.SPARK_PARTITIONS_MAX) or 1,
        partition_bytes=given.whole("maxBytesPerPartition", 2**62) or limits.SPARK_PARTITION_BYTES,
        fail_on_data_loss=given.flag("failOnDataLoss", default=True),
        pin_seconds=given.seconds(
            "pinSeconds", limits.SPARK_BATCH_PIN_SECONDS, limits.PIN_MS_MAX / 1000
        ),
        pushdown=given.flag("filterPushdown", default=False),
        columns=_columns(given),
        keys=_keys(given),
        schema=given.text("schema"),
        format=cast("Format", given.one_of("format", "json", ("json", "avro", "arrow"))),
    )


def _home(given: _Given) -> Home:
    url, path = given.text("url"), given.text("path")
    if bool(url) == bool(path):
        raise Invalid(
            "name either url, the address of a server, or path, a folder on this machine",
            field="url",
        )
    patience = given.seconds(
        "patience", limits.WIRE_PATIENCE_SECONDS, limits.WIRE_CONNECT_MS_MAX / 1000
    )
    host = socket.gethostname() if path else ""
    if path:
        # Tasks may stand elsewhere than the driver.
        path = str(Path(path.removeprefix("file:")).expanduser().absolute())
    return Home(url, path, given.text("tokenFile"), given.text("certificates"), patience, host)


def _refuse_in_streams(given: _Given, view: View) -> None:
    if view == "latest":
        raise Invalid(
            "view=latest is the state at one moment, which a stream never has; read it with "
            "spark.read, or stream view=changes and upsert it by key",
            field="view",
        )
    for name in ("endingOffsets", "endingSnapshot", "pinSeconds", "filterPushdown"):
        if given.has(name):
            raise Invalid(f"{name} is an option of spark.read; a stream has none", field=name)


def _starting(given: _Given) -> Start:
    names = [name for name in NAMES if name.startswith("starting") and given.has(name)]
    if len(names) > 1:
        raise Invalid(f"{' and '.join(names)} say both where to start; give one", field=names[1])
    if not names:
        return EARLIEST
    [name] = names
    text = given.text(name)
    if name == "startingSnapshot":
        return Start(ticket=text)
    if name == "startingTimestamp":
        return Start(time_ms=read_time(text, name))
    return read_start(text, name)


def _ending(given: _Given) -> Start:
    if given.has("endingOffsets") and given.has("endingSnapshot"):
        raise Invalid(
            "endingOffsets and endingSnapshot say both where to end; give one",
            field="endingSnapshot",
        )
    if given.has("endingSnapshot"):
        return Start(ticket=given.text("endingSnapshot"))
    return read_start(given.text("endingOffsets", "latest"), "endingOffsets")


def _columns(given: _Given) -> tuple[str, ...] | None:
    if not given.has("columns"):
        return None
    return tuple(name.strip() for name in given.text("columns").split(","))


def _keys(given: _Given) -> tuple[bytes, ...] | None:
    """A JSON list of texts, or texts parted by commas."""
    if not given.has("keys"):
        return None
    text = given.text("keys")
    if text.startswith("["):
        try:
            found = msgspec.json.decode(text, type=list[str])
        except msgspec.MsgspecError as error:
            raise Invalid(f"keys is no JSON list of texts: {error}", field="keys") from None
    else:
        found = [part.strip() for part in text.split(",")]
    if len(found) > limits.SPARK_KEYS_MAX:
        raise Invalid(
            f"keys are {len(found)}, at most {limits.SPARK_KEYS_MAX}; join with a table of them",
            field="keys",
            limit=limits.SPARK_KEYS_MAX,
        )
    return tuple(dict.fromkeys(key.encode() for key in found))
