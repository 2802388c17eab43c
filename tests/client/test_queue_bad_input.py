"""Bad input gets a clear error that names the field and the limit, and changes nothing."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import datetime
from itertools import repeat
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from millrace import errors, limits
from millrace.client.message import Message
from millrace.client.queue import Queue
from tests.client.harness import opened, run

Bad = tuple[
    type[errors.MillraceError], str | None, int | None, Callable[[Queue], Awaitable[object]]
]
"""The error, the field and the limit that it names, and the call."""

LONG_NAME = "n" * (limits.NAME_CHARS_MAX + 1)
LONG_KEY = "k" * (limits.KEY_BYTES_MAX + 1)
BODY = bytes(limits.BODY_BYTES_MAX + 1)
ANY: Any = object()
"""What a program without type checks might pass."""

HUGE = 10**5000
"""Python refuses to write it out."""


def beyond_utf8() -> pa.RecordBatch:
    """Return Arrow text that is not valid UTF-8."""
    text = pa.array([b"\xff"]).view(pa.utf8())
    items = pa.StructArray.from_arrays([text, pa.array([b"x"])], names=["name", "value"])
    return pa.record_batch(
        {"value": pa.array([b"x"]), "headers": pa.ListArray.from_arrays([0, 1], items)}
    )


PUBLISH: dict[str, Bad] = {
    "oversize body": (
        errors.TooLarge,
        "body",
        limits.BODY_BYTES_MAX,
        lambda q: q.publish(BODY),
    ),
    "text as body": (errors.Invalid, "body", None, lambda q: q.publish("text")),  # type: ignore[arg-type]
    "number as body": (errors.Invalid, "body", None, lambda q: q.publish(ANY)),
    "neither body nor key": (errors.Invalid, "key", None, lambda q: q.publish(None)),
    "oversize key": (
        errors.TooLarge,
        "key",
        limits.KEY_BYTES_MAX,
        lambda q: q.publish(b"", key=LONG_KEY),
    ),
    "key that is long in bytes": (
        errors.TooLarge,
        "key",
        limits.KEY_BYTES_MAX,
        lambda q: q.publish(b"", key="é" * 201),
    ),
    "empty key": (errors.Invalid, "key", None, lambda q: q.publish(b"", key="")),
    "number as key": (errors.Invalid, "key", None, lambda q: q.publish(b"", key=ANY)),
    "key beyond UTF-8": (errors.Invalid, "key", None, lambda q: q.publish(b"", key="\ud800")),
    "too many headers": (
        errors.TooLarge,
        "headers",
        limits.HEADERS_MAX,
        lambda q: q.publish(b"", headers=[("a", "b")] * (limits.HEADERS_MAX + 1)),
    ),
    "headers without end": (
        errors.TooLarge,
        "headers",
        limits.HEADERS_MAX,
        lambda q: q.publish(b"", headers=repeat(("a", "b"))),
    ),
    "a number that cannot be written out": (
        errors.TooLarge,
        "number",
        2**63 - 1,
        lambda q: q.publish(b"", producer="p", number=HUGE),
    ),
    "oversize header": (
        errors.TooLarge,
        "headers",
        limits.HEADER_BYTES_MAX,
        lambda q: q.publish(b"", headers={"a": bytes(limits.HEADER_BYTES_MAX)}),
    ),
    "oversize header name": (
        errors.TooLarge,
        "headers",
        limits.HEADER_BYTES_MAX,
        lambda q: q.publish(b"", headers={"é" * (limits.HEADER_BYTES_MAX // 2): "x"}),
    ),
    "header without value": (
        errors.Invalid,
        "headers",
        None,
        lambda q: q.publish(b"", headers=["ab"]),  # type: ignore[list-item]
    ),
    "number as header": (
        errors.Invalid,
        "headers",
        None,
        lambda q: q.publish(b"", headers={"a": ANY}),
    ),
    "number as headers": (errors.Invalid, "headers", None, lambda q: q.publish(b"", headers=ANY)),
    "header beyond UTF-8": (
        errors.Invalid,
        "headers",
        None,
        lambda q: q.publish(b"", headers={"\ud800": "x"}),
    ),
    "number without producer": (
        errors.Invalid,
        "producer",
        None,
        lambda q: q.publish(b"", number=0),
    ),
    "producer without number": (
        errors.Invalid,
        "number",
        None,
        lambda q: q.publish(b"", producer="p"),
    ),
    "number zero": (
        errors.Invalid,
        "number",
        None,
        lambda q: q.publish(b"", producer="p", number=0),
    ),
    "number beyond 63 bits": (
        errors.TooLarge,
        "number",
        2**63 - 1,
        lambda q: q.publish(b"", producer="p", number=2**63),
    ),
    "number that skips": (
        errors.OutOfOrder,
        "number",
        1,
        lambda q: q.publish(b"", producer="p", number=2),
    ),
    "producer with a bad name": (
        errors.Invalid,
        "producer",
        None,
        lambda q: q.publish(b"", producer="a b", number=1),
    ),
    "producer without a name": (
        errors.Invalid,
        "producer",
        None,
        lambda q: q.publish(b"", producer="", number=1),
    ),
    "producer with a long name": (
        errors.TooLarge,
        "producer",
        limits.NAME_CHARS_MAX,
        lambda q: q.publish(b"", producer=LONG_NAME, number=1),
    ),
    "unknown mode": (
        errors.Invalid,
        "mode",
        None,
        lambda q: q.publish(b"", producer="p", number=1, mode=ANY),
    ),
    "range without its start": (
        errors.Invalid,
        "after",
        None,
        lambda q: q.publish(b"", producer="p", number=1, mode="range"),
    ),
    "start without range": (
        errors.Invalid,
        "after",
        None,
        lambda q: q.publish_many([b""], producer="p", number=1, after=0),
    ),
    "start without producer": (
        errors.Invalid,
        "producer",
        None,
        lambda q: q.publish_many([b""], after=0),
    ),
    "range that ends before it begins": (
        errors.Invalid,
        "after",
        None,
        lambda q: q.publish_many([b""], producer="p", number=3, mode="range", after=3),
    ),
    "no rows": (errors.Invalid, "rows", None, lambda q: q.publish_many([])),
    "rows that are none": (errors.Invalid, "rows", None, lambda q: q.publish_many(ANY)),
    "one body as rows": (errors.Invalid, "rows", None, lambda q: q.publish_many(b"x")),  # type: ignore[arg-type]
    "a row of text": (errors.Invalid, "body", None, lambda q: q.publish_many([b"x", ANY])),
    "too many rows": (
        errors.TooLarge,
        "rows",
        limits.PUBLISH_MESSAGES_MAX,
        lambda q: q.publish_many([b""] * (limits.PUBLISH_MESSAGES_MAX + 1)),
    ),
    "too many messages": (
        errors.TooLarge,
        "rows",
        limits.PUBLISH_MESSAGES_MAX,
        lambda q: q.publish_many([Message(b"")] * (limits.PUBLISH_MESSAGES_MAX + 1)),
    ),
    "an oversize body among others": (
        errors.TooLarge,
        "body",
        limits.BODY_BYTES_MAX,
        lambda q: q.publish_many([b"x", BODY]),
    ),
    "an oversize message among others": (
        errors.TooLarge,
        "key",
        limits.KEY_BYTES_MAX,
        lambda q: q.publish_many([Message(b"x"), Message(b"y", LONG_KEY)]),
    ),
    "more than a record": (
        errors.TooLarge,
        "rows",
        ANY,
        lambda q: q.publish_many([bytes(100_000)] * 20),
    ),
    "more than a block can count": (
        errors.TooLarge,
        "rows",
        2**31 - 1,
        lambda q: q.publish_many([BODY[:-1]] * 130),
    ),
    "a batch without values": (
        errors.Invalid,
        "batch",
        None,
        lambda q: q.publish_many(pa.record_batch({"body": [b"x"]})),
    ),
    "a batch with an unknown column": (
        errors.Invalid,
        "batch",
        None,
        lambda q: q.publish_many(pa.record_batch({"value": [b"x"], "seq": [1]})),
    ),
    "a batch of numbers": (
        errors.Invalid,
        "value",
        None,
        lambda q: q.publish_many(pa.record_batch({"value": [1]})),
    ),
    "a batch without rows": (
        errors.Invalid,
        "rows",
        None,
        lambda q: q.publish_many(pa.record_batch({"value": pa.array([], pa.binary())})),
    ),
    "a table without rows": (
        errors.Invalid,
        "rows",
        None,
        lambda q: q.publish_many(pa.table({"value": pa.array([], pa.binary())})),
    ),
    "a batch with an oversize key": (
        errors.TooLarge,
        "key",
        limits.KEY_BYTES_MAX,
        lambda q: q.publish_many(pa.record_batch({"value": [b"x"], "key": [LONG_KEY]})),
    ),
    "a batch with an empty key": (
        errors.Invalid,
        "key",
        None,
        lambda q: q.publish_many(pa.record_batch({"value": [b"x"], "key": [b""]})),
    ),
    "a batch with a row of nothing": (
        errors.Invalid,
        "key",
        None,
        lambda q: q.publish_many(pa.record_batch({"value": pa.array([None], pa.binary())})),
    ),
    "a batch with headers of another shape": (
        errors.Invalid,
        "headers",
        None,
        lambda q: q.publish_many(pa.record_batch({"value": [b"x"], "headers": [["h"]]})),
    ),
    "a batch with too many headers": (
        errors.TooLarge,
        "headers",
        limits.HEADERS_MAX,
        lambda q: q.publish_many(
            pa.record_batch(
                {
                    "value": [b"x"],
                    "headers": [[{"name": "a", "value": b"b"}] * (limits.HEADERS_MAX + 1)],
                }
            )
        ),
    ),
    "a batch with oversize headers": (
        errors.TooLarge,
        "headers",
        limits.HEADER_BYTES_MAX,
        lambda q: q.publish_many(
            pa.record_batch(
                {
                    "value": [b"x", b"y"],
                    "headers": [[], [{"name": "a", "value": bytes(limits.HEADER_BYTES_MAX)}]],
                }
            )
        ),
    ),
    "a batch with a header beyond UTF-8": (
        errors.Invalid,
        "headers",
        None,
        lambda q: q.publish_many(beyond_utf8()),
    ),
    "a stage with a bad name": (errors.Invalid, "stage", None, lambda q: q.stage("", [b"x"])),
    "a stage without rows": (errors.Invalid, "rows", None, lambda q: q.stage("s", [])),
    "an unknown stage": (
        errors.NotFound,
        "stages",
        None,
        lambda q: q.publish_staged(["missing"]),
    ),
    "no stages": (errors.Invalid, "stages", None, lambda q: q.publish_staged([])),
    "one name as stages": (errors.Invalid, "stages", None, lambda q: q.publish_staged("s")),
    "a stage twice": (
        errors.Refused,
        ANY,
        None,
        lambda q: q.publish_staged(["there", "there"]),
    ),
    "a producer without a name to ask for": (
        errors.Invalid,
        "producer",
        None,
        lambda q: q.producer(""),
    ),
}

WORK: dict[str, Bad] = {
    "a lease of more than can be written out": (
        errors.TooLarge,
        "count",
        limits.LEASE_MESSAGES_MAX,
        lambda q: q.lease(HUGE),
    ),
    "a lease for longer than can be written out": (
        errors.TooLarge,
        "seconds",
        limits.LEASE_MS_MAX // 1000,
        lambda q: q.lease(seconds=HUGE),
    ),
    "a release that failed perhaps": (
        errors.Invalid,
        "failed",
        None,
        lambda q: q.release([], failed=ANY),
    ),
    "a lease of none": (errors.Invalid, "count", None, lambda q: q.lease(0)),
    "a lease of true": (errors.Invalid, "count", None, lambda q: q.lease(True)),
    "a lease of half": (errors.Invalid, "count", None, lambda q: q.lease(0.5)),  # type: ignore[arg-type]
    "a lease of too many": (
        errors.TooLarge,
        "count",
        limits.LEASE_MESSAGES_MAX,
        lambda q: q.lease(limits.LEASE_MESSAGES_MAX + 1),
    ),
    "a lease for less than no time": (
        errors.Invalid,
        "seconds",
        None,
        lambda q: q.lease(seconds=-1),
    ),
    "a lease for no number of seconds": (
        errors.Invalid,
        "seconds",
        None,
        lambda q: q.lease(seconds=float("nan")),
    ),
    "a lease for ever": (
        errors.TooLarge,
        "seconds",
        limits.LEASE_MS_MAX // 1000,
        lambda q: q.lease(seconds=float("inf")),
    ),
    "a lease for too long": (
        errors.TooLarge,
        "seconds",
        limits.LEASE_MS_MAX // 1000,
        lambda q: q.lease(seconds=limits.LEASE_MS_MAX / 1000 + 1),
    ),
    "a wait for too long": (
        errors.TooLarge,
        "wait",
        limits.LEASE_WAIT_MS_MAX // 1000,
        lambda q: q.lease(wait=limits.LEASE_WAIT_MS_MAX / 1000 + 1),
    ),
    "a name that is a step in a path": (
        errors.Invalid,
        "name",
        None,
        lambda q: q.cursor(".."),
    ),
    "a forged receipt": (errors.Forged, "receipt", None, lambda q: q.settle("A" * 76)),
    "text as receipt": (errors.Forged, "receipt", None, lambda q: q.settle("receipt")),
    "bytes as receipt": (errors.Forged, "receipt", None, lambda q: q.settle([b"receipt"])),  # type: ignore[list-item]
    "a number as leases": (errors.Invalid, "leases", None, lambda q: q.settle(5)),  # type: ignore[arg-type]
    "a number as lease": (errors.Forged, "receipt", None, lambda q: q.release([ANY])),
    "a forged receipt among others": (
        errors.Forged,
        "receipt",
        None,
        lambda q: q.extend(["A" * 76], 10),
    ),
    "an extension for too long": (
        errors.TooLarge,
        "seconds",
        limits.LEASE_MS_MAX // 1000,
        lambda q: q.extend([], 10**9),
    ),
}

LOOK: dict[str, Bad] = {
    "a peek at none": (errors.Invalid, "count", None, lambda q: q.peek(0)),
    "a peek at too many": (
        errors.TooLarge,
        "count",
        limits.PEEK_MESSAGES_MAX,
        lambda q: q.peek(limits.PEEK_MESSAGES_MAX + 1),
    ),
    "a peek after less than nothing": (errors.Invalid, "after", None, lambda q: q.peek(after=-1)),
    "no seq": (errors.Invalid, "seq", None, lambda q: q.get(0)),
    "text as seq": (errors.Invalid, "seq", None, lambda q: q.get("1")),  # type: ignore[arg-type]
    "a seq that cannot be written out": (errors.Invalid, "seq", None, lambda q: q.get(HUGE)),
    "a seq beyond 63 bits": (errors.Invalid, "seq", None, lambda q: q.get(2**63)),
    "no seq to explain": (errors.Invalid, "seq", None, lambda q: q.explain(-5)),
}

FOLLOW: dict[str, Bad] = {
    "a cursor with a bad name": (errors.Invalid, "name", None, lambda q: q.cursor("a/b")),
    "a cursor with a long name": (
        errors.TooLarge,
        "name",
        limits.NAME_CHARS_MAX,
        lambda q: q.cursor(LONG_NAME),
    ),
    "an unknown start": (errors.Invalid, "start", None, lambda q: q.cursor("c", start="middle")),
    "no start": (errors.Invalid, "start", None, lambda q: q.cursor("c", start=ANY)),
    "a start before the first": (errors.Invalid, "start", 3, lambda q: q.cursor("c", start=0)),
    "a start behind the last": (errors.Invalid, "start", 3, lambda q: q.cursor("c", start=9)),
    "a start that cannot be written out": (
        errors.Invalid,
        "start",
        None,
        lambda q: q.cursor("c", start=HUGE),
    ),
    "a start as long as a book": (
        errors.Invalid,
        "start",
        None,
        lambda q: q.cursor("c", start="b" * 10_000),
    ),
    "a cursor that retains perhaps": (
        errors.Invalid,
        "retain",
        None,
        lambda q: q.cursor("c", retain=ANY),
    ),
    "a start without a time zone": (
        errors.Invalid,
        "start",
        None,
        lambda q: q.cursor("c", start=datetime(2026, 1, 1)),
    ),
}

SETTINGS: dict[str, Bad] = {
    "an unknown retention": (
        errors.Invalid,
        "retention",
        None,
        lambda q: q.configure(retention="forever"),
    ),
    "deletes for less than no time": (
        errors.Invalid,
        "keep_deletes",
        None,
        lambda q: q.configure(keep_deletes=-1),
    ),
    "deletes for too long": (
        errors.TooLarge,
        "keep_deletes",
        limits.KEEP_DELETES_MS_MAX // 1000,
        lambda q: q.configure(keep_deletes=1e12),
    ),
}

ALL = PUBLISH | WORK | LOOK | FOLLOW | SETTINGS


def test_bad_input_changes_nothing(tmp_path: Path) -> None:
    """In one folder, so that damage by one case would show in the next."""

    async def main() -> None:
        async with opened(tmp_path) as m:
            queue = await m.queue("orders")
            await queue.publish_many([b"1", b"2"])
            await queue.stage("there", [b"3"])
            leases = await queue.lease(1)
            before = await state(queue)
            for what, (kind, field, limit, call) in ALL.items():
                with pytest.raises(errors.MillraceError) as caught:
                    await call(queue)
                error = caught.value
                assert isinstance(error, kind), (what, error)
                assert field is ANY or error.field == field, (what, error.field)
                assert limit is ANY or error.limit == limit, (what, error.limit)
                assert str(error), what
                assert len(str(error)) < 500, what
                assert await state(queue) == before, what
            await leases[0].settle()
            assert await queue.publish(b"good") == 3

    run(main())


async def state(queue: Queue) -> object:
    return (
        await queue.stats(),
        await queue.peek(),
        await queue.cursors(),
        await queue.stages(),
        await queue.spec(),
        await queue.producer("p"),
        (await queue.explain(2)).state,
    )
