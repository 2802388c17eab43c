"""The options of a read, validated.

Rule 1: an option that does not apply to a stream, or to a batch, is refused there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, cast

import msgspec

from millrace import limits, sync
from millrace.core import validate
from millrace.errors import Invalid
from millrace.spark.home import QueueEndpoint, reach
from millrace.spark.raw_options import HOME, RawOptions
from millrace.spark.start import EARLIEST, LATEST, Start, read_start, read_time

View = Literal["changes", "latest", "log"]
Format = Literal["json", "avro", "arrow"]

NAMES = (
    *HOME,
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
    "body",
)
"""Every option of a read, in its documented spelling."""


class Options(msgspec.Struct, frozen=True):
    """The parsed options of a read."""

    home: QueueEndpoint
    queue: str
    space: str = "default"
    view: View = "changes"
    cursor: str = ""
    """Name of the cursor of a stream; empty: one is generated."""
    starting: Start = EARLIEST
    ending: Start = LATEST
    """The end of a batch read."""
    rows_max: int | None = None
    """Limits of one micro-batch."""
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
    body: str = ""
    """With a schema: the column for raw bodies; empty: no such column."""


def read_options(told: Mapping[str, str], *, is_stream: bool | None) -> Options:
    """Parse the options of a read; `is_stream` is None if it is not known yet.

    Raises:
        Invalid: one is unknown, missing, or has an invalid value; `field` names it.
    """
    given = RawOptions(told, NAMES, "read")
    home, (space, queue) = given.home(), given.queue()
    view = cast("View", given.one_of("view", "changes", ("changes", "latest", "log")))
    if is_stream:
        _refuse_in_streams(given, view)
    cursor = given.text("cursor")
    found = Options(
        home=home,
        queue=queue,
        space=space,
        view=view,
        cursor=validate.name(cursor, "cursor") if cursor else "",
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
        body=given.text("body"),
    )
    if found.body and not found.schema:
        raise Invalid(
            "body names a column for bodies beside their schema; without one they are in value",
            field="body",
        )
    if is_stream is False:
        _refuse_in_batches(given)
    return found


def _refuse_in_streams(given: RawOptions, view: View) -> None:
    if view == "latest":
        raise Invalid(
            "view=latest is the state at one moment, which a stream never has; read it with "
            "spark.read, or stream view=changes and upsert it by key",
            field="view",
        )
    for name in ("endingOffsets", "endingSnapshot", "pinSeconds", "filterPushdown"):
        if given.has(name):
            raise Invalid(f"{name} is an option of spark.read; a stream has none", field=name)


def _refuse_in_batches(given: RawOptions) -> None:
    for name in ("cursor", "maxOffsetsPerTrigger", "maxBytesPerTrigger", "failOnDataLoss"):
        if given.has(name):
            raise Invalid(f"{name} is an option of readStream; a batch has none", field=name)


def _starting(given: RawOptions) -> Start:
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


def _ending(given: RawOptions) -> Start:
    if given.has("endingOffsets") and given.has("endingSnapshot"):
        raise Invalid(
            "endingOffsets and endingSnapshot say both where to end; give one",
            field="endingSnapshot",
        )
    if given.has("endingSnapshot"):
        return Start(ticket=given.text("endingSnapshot"))
    found = read_start(given.text("endingOffsets", "latest"), "endingOffsets")
    if found == EARLIEST:
        raise Invalid(
            "endingOffsets is earliest, and nothing would be read; it is latest, seqs, or a time",
            field="endingOffsets",
        )
    return found


def _columns(given: RawOptions) -> tuple[str, ...] | None:
    if not given.has("columns"):
        return None
    return tuple(name.strip() for name in given.text("columns").split(","))


def _keys(given: RawOptions) -> tuple[bytes, ...] | None:
    """Parse a JSON list of texts, or texts separated by commas."""
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


# --- Address of a queue that is written, as the options of a data source name it -----------------
#
# Rule 1: an address is pickled to the tasks that write rows; connections are made there, and kept
# for the lifetime of the process.


class Address(msgspec.Struct, frozen=True, kw_only=True):
    """A queue of a server, or in a shared folder."""

    home: QueueEndpoint
    space: str
    queue: str

    @classmethod
    def of(cls, given: RawOptions) -> Address:
        """Read the address from options.

        Raises:
            Invalid: an option is missing, or has an invalid value.
        """
        space, queue = given.queue()
        return cls(home=given.home(), space=space, queue=queue)

    @classmethod
    def told(cls, options: Mapping[str, str]) -> Address:
        """Read the address from options that contain nothing else."""
        return cls.of(RawOptions(options, HOME, "queue"))

    def reach(self) -> sync.Queue:
        """Return the queue, over a cached connection of this process.

        Raises:
            NotFound: the queue does not exist; it is not created here.
            Closed: the server does not respond.
        """
        return reach(self.home).blocking().find(self.queue, space=self.space)
