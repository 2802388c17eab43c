"""Types of options and arguments: durations, sizes, start positions, times, seqs, headers."""

from __future__ import annotations

import os
import re
from datetime import UTC, datetime

import click

from millrace import Place as MessagePlace

_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)?")
_SIZE = re.compile(r"(\d+)\s*([KMGT]?)i?B?")
_POWERS = ["", "K", "M", "G", "T"]
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


class DurationType(click.ParamType):  # type: ignore[type-arg]
    """A duration in seconds, or with a unit: 500ms, 30s, 5m, 1h, 2d."""

    name = "duration"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        if isinstance(value, int | float):
            return float(value)
        match = _DURATION.fullmatch(str(value).strip())
        if match is None:
            self.fail(f"{value!r} is not a duration; give 500ms, 30s, 5m, 1h or 2d", param, ctx)
        return float(match[1]) * _UNITS[match[2] or "s"]


class SizeType(click.ParamType):  # type: ignore[type-arg]
    """A size in bytes, or with a unit: 500, 64KB, 10MB, 2GB, 1TB (powers of 1,024)."""

    name = "size"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> int:
        if isinstance(value, int):
            return value
        match = _SIZE.fullmatch(str(value).strip())
        if match is None:
            self.fail(f"{value!r} is not a size; give 500, 64KB, 10MB, 2GB or 1TB", param, ctx)
        power: int = _POWERS.index(match[2] or "")
        return int(match[1]) << 10 * power


class StartType(click.ParamType):  # type: ignore[type-arg]
    """A start position in a queue: beginning, end, a seq, a position, or a time."""

    name = "place"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> str | int | datetime:
        if isinstance(value, int | datetime):
            return value
        text = str(value)
        if text in ("beginning", "end") or text.startswith("pos1."):
            return text
        if text.isdecimal():
            return int(text)
        try:
            moment = datetime.fromisoformat(text)
        except ValueError:
            self.fail(
                f"{text!r} is not a start position; give beginning, end, a seq, a position, or a "
                "time such as 2026-11-15T09:30:00Z",
                param,
                ctx,
            )
        return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


class TimeType(click.ParamType):  # type: ignore[type-arg]
    """An ISO 8601 time; UTC unless it has a time zone."""

    name = "time"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> datetime:
        if isinstance(value, datetime):
            return value
        try:
            moment = datetime.fromisoformat(str(value))
        except ValueError:
            self.fail(f"{value!r} is not a time; give it as 2026-11-15T09:30:00Z", param, ctx)
        return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


class SeqType(click.ParamType):  # type: ignore[type-arg]
    """The seq of a message, or SHARD:SEQ in a queue with several shards."""

    name = "seq"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> int:
        if isinstance(value, int):
            return value
        shard, colon, seq = str(value).rpartition(":")
        if not seq.isdecimal() or (colon and not shard.isdecimal()):
            self.fail(f"{value!r} is not a seq; give a number, or SHARD:SEQ", param, ctx)
        return MessagePlace.of(int(shard), int(seq)) if colon else int(seq)


class HeaderType(click.ParamType):  # type: ignore[type-arg]
    """A header as NAME=VALUE."""

    name = "name=value"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, bytes]:
        if isinstance(value, tuple):
            return value
        name, sign, content = str(value).partition("=")
        if not sign or not name:
            self.fail(f"{value!r} is not a header; give it as NAME=VALUE", param, ctx)
        return name, argument_bytes(content)


def argument_bytes(text: str) -> bytes:
    """Return the bytes of an argument as the shell passed them, UTF-8 or not."""
    return os.fsencode(text)


DURATION = DurationType()
SIZE = SizeType()
START = StartType()
TIME = TimeType()
SEQ = SeqType()
HEADER = HeaderType()
