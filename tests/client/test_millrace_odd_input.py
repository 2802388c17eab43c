"""Odd arguments of objects made before any call to a queue: refused with a clear message."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import millrace
import millrace.sync
from millrace import errors
from millrace.client.millrace import Millrace
from tests.client.harness import SMALL, embedded

HUGE = 10**5000
"""Python writes out no integer of so many digits."""

PAIR: Any = np.array([1, 2])
"""Neither true nor false."""


async def handle(lease: object) -> None:
    """Do nothing."""


@pytest.mark.parametrize("module", [millrace, millrace.sync])
@pytest.mark.parametrize(
    ("field", "given"),
    [
        ("path", {"path": "\0"}),
        ("path", {"path": "\ud800"}),
        ("path", {"path": ""}),
        ("path", {"path": HUGE}),
        ("path", {"path": b"folder"}),
        ("path", {"path": None}),
        ("fork", {"fork": PAIR}),
        ("fork", {"fork": None}),
        ("settings", {"settings": PAIR}),
        ("settings", {"settings": {}}),
        ("settings", {"settings": 0}),
    ],
)
def test_opening(module: Any, field: str, given: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(errors.Invalid) as caught:
        module.open(**{"path": tmp_path / "folder", **given})
    assert caught.value.field == field
    assert not (tmp_path / "folder").exists()


def test_a_file_is_called_one(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.touch()
    with pytest.raises(errors.Invalid, match="is a file, not a folder"):
        millrace.sync.open(path)


@embedded
async def test_workers(m: Millrace) -> None:
    queue = await m.queue("orders")
    odd: list[tuple[str, Callable[[], object]]] = [
        ("handle", lambda: millrace.Worker(queue, HUGE)),  # type: ignore[arg-type]
        ("queue", lambda: millrace.Worker(None, handle)),  # type: ignore[arg-type]
        ("queue", lambda: millrace.Worker(HUGE, handle)),  # type: ignore[arg-type]
        ("prefetch", lambda: millrace.Worker(queue, handle, prefetch=PAIR)),
        ("queue", lambda: millrace.sync.Worker(queue, handle)),  # type: ignore[arg-type]
        ("queue", lambda: millrace.sync.Worker(None, handle)),  # type: ignore[arg-type]
    ]
    for field, make in odd:
        with pytest.raises(errors.Invalid) as caught:
            make()
        assert caught.value.field == field


@embedded
async def test_parts_of_transactions(m: Millrace) -> None:
    queue = await m.queue("orders")
    cursor: Any = await queue.cursor("follower")
    wrong: list[Any] = [None, "x", cursor, HUGE]
    async with m.transaction() as t:
        for each in wrong:
            for call in (t.commit, t.unpin):
                with pytest.raises(errors.Invalid) as caught:
                    call(each)
                assert caught.value.field == "snapshot"


def test_parts_of_blocking_transactions(tmp_path: Path) -> None:
    with millrace.sync.open(tmp_path, settings=SMALL) as m, m.transaction() as t:
        wrong: Any = "x"
        with pytest.raises(errors.Invalid):
            t.commit(wrong)
        with pytest.raises(errors.Invalid):
            t.unpin(wrong)


@embedded
async def test_rows(m: Millrace) -> None:
    queue = await m.queue("orders")
    twice = pa.RecordBatch.from_arrays([pa.array([b"1"]), pa.array([b"2"])], ["value", "value"])
    with pytest.raises(errors.Invalid, match="once"):
        await queue.publish_many(twice)
    for row in ((b"body", b"key"), {"body": b"body"}):
        with pytest.raises(errors.Invalid, match=r"millrace\.Message"):
            await queue.publish_many([row])  # type: ignore[list-item]
    view = memoryview(b"body")
    view.release()
    with pytest.raises(errors.Invalid, match="body"):
        await queue.publish(view)


@embedded
async def test_the_nearest_queue_is_named(m: Millrace) -> None:
    await m.queue("orders")
    with pytest.raises(errors.NotFound, match="did you mean 'orders'"):
        await m.find("order")
    with pytest.raises(errors.NotFound, match=r"there is no queue 'x' in 'default'$"):
        await m.find("x")


@embedded
async def test_a_bound_is_told_in_the_unit_that_was_asked_for(m: Millrace) -> None:
    queue = await m.queue("orders")
    with pytest.raises(errors.TooLarge, match="up to 43200 s") as caught:
        await queue.lease(seconds=43_201)
    assert caught.value.limit == 43_200


@embedded
async def test_answers_of_a_transaction_come_after_it(m: Millrace) -> None:
    await m.queue("orders")
    async with m.transaction() as t:
        later = t.publish("orders", b"x")
        with pytest.raises(errors.Closed, match="after the transaction's context"):
            _ = later.value
    assert later.value == 1


@embedded
async def test_who_forgets_the_context_of_a_transaction_is_warned(m: Millrace) -> None:
    queue = await m.queue("orders")
    t = m.transaction()
    t.publish(queue, b"x")
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        del t
        gc.collect()
    assert "none of its 1 parts was done" in str(told[0].message)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        m.transaction()
        with suppress(ZeroDivisionError):
            async with m.transaction() as failed:
                failed.publish(queue, b"x")
                raise ZeroDivisionError
        del failed
        gc.collect()
    assert told == []
