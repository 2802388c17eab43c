"""Deduplication: a message whose id was used within the window is a repeat of the first one.

Rule 1: a repeat is answered as the first one was, and changes nothing, whatever happened to that
one.
Rule 2: a purge may forget ids; the ids of the messages that it ended are new again.
Rule 3: an id is remembered for the time that was configured when it was used; a producer's number
is checked before ids, and keys after them.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from typing import TypeVar

import msgspec
import numpy as np

from millrace.core.cells import DedupCell, Kind
from millrace.core.commands import Publish, RowSchedule, RowTtl
from millrace.core.format import block_ops
from millrace.core.format.block import Block
from millrace.core.model import NewMessage
from millrace.core.needs import Need
from millrace.core.retention import expiry
from millrace.core.spec import QueueSpec
from millrace.core.state import cell_lookup
from millrace.core.state.cell_lookup import CellName
from millrace.core.state.draft import Draft
from millrace.core.state.view import View
from millrace.errors import Invalid, Refused

Rows = Block | tuple[NewMessage, ...]
R = TypeVar("R", RowSchedule, RowTtl)


def check_spec(spec: QueueSpec) -> Refused | None:
    """Check that the settings fit together."""
    if not spec.dedup_by_body:
        return None
    if spec.keyed:
        return Invalid(
            "a keyed queue takes the same body again: what comes back to an earlier value is news",
            field="dedup_by_body",
        )
    return _check_time(spec)


def _check_time(spec: QueueSpec) -> Refused | None:
    if spec.dedup_ms:
        return None
    return Invalid("the queue remembers no ids: its dedup is 0", field="dedup", limit=0)


def id_name(text: str) -> CellName:
    """Return the cell of an id, whose key has a fixed length."""
    return Kind.DEDUP, sha256(text.encode()).digest()


def names_of(view: View, command: Publish) -> list[CellName | None]:
    """Return the cells of the rows' ids, row by row; empty if no row has one. While a batch is
    decided the hashes are cached: lookup, check and decision all need them."""
    is_by_body = command.by_body and view.spec.dedup_by_body
    if not (command.ids or is_by_body):
        return []
    # An earlier command of the batch may have changed the queue's deduplication by body.
    at = (id(command), is_by_body)
    cached = view.facts.names.get(at)
    if cached is None:
        cached = view.facts.names[at] = (command, _hashed(command, is_by_body=is_by_body))
    return cached[1]


def _hashed(command: Publish, *, is_by_body: bool) -> list[CellName | None]:
    ids: Sequence[str | None] = command.ids
    if is_by_body:
        bodies = _bodies(command.rows)
        given = ids or (None,) * len(bodies)
        ids = [
            sha256(body).hexdigest() if given_id is None and body is not None else given_id
            for given_id, body in zip(given, bodies, strict=True)
        ]
    return [None if given_id is None else id_name(given_id) for given_id in ids]


def _bodies(rows: Rows) -> list[bytes | None]:
    if not isinstance(rows, Block):
        return [message.body for message in rows]
    bodies: list[bytes | None] = list(rows.bodies.values(0, rows.count))
    for at in rows.deletes():
        bodies[at] = None
    return bodies


def check_publish(draft: Draft, command: Publish) -> Refused | Need | None:
    """Check that ids may be used here; returns the Need of ids that are not cached."""
    spec = draft.view.spec
    if command.ids:
        refused = _check_time(spec)
        if refused is not None:
            return refused
    names = names_of(draft.view, command)
    return cell_lookup.need(draft, [name for name in names if name is not None]) if names else None


def split(draft: Draft, names: Sequence[CellName | None]) -> dict[int, int]:
    """Return the repeats: row → seq of the first message with its id, or minus the row number of
    the first one (from 1) within the same publish."""
    repeats: dict[int, int] = {}
    first_rows: dict[CellName, int] = {}
    forgotten = draft.view.pointers.forgotten
    for at, name in enumerate(names):
        if name is None:
            continue
        if name in first_rows:
            repeats[at] = -1 - first_rows[name]
            continue
        cell = cell_lookup.look(draft, name)
        if isinstance(cell, DedupCell) and cell.until_ms > draft.now and cell.seq > forgotten:
            repeats[at] = cell.seq
        else:
            first_rows[name] = at
    return repeats


def without(command: Publish, repeats: dict[int, int]) -> Publish:
    """Return the publish without the rows that are repeats."""
    rows = command.rows
    count = rows.count if isinstance(rows, Block) else len(rows)
    kept = [at for at in range(count) if at not in repeats]
    return msgspec.structs.replace(
        command,
        rows=_taken(rows, kept),
        aside=_runs(command.aside, kept),
        lives=_runs(command.lives, kept),
    )


def _taken(rows: Rows, kept: Sequence[int]) -> Rows:
    if isinstance(rows, Block):
        return block_ops.take(rows, np.array(kept, np.int64))
    return tuple(rows[at] for at in kept)


def _runs(runs: Sequence[R], kept: Sequence[int]) -> tuple[R, ...]:
    by_place = {run.at + at: run for run in runs for at in range(run.count)}
    return tuple(
        msgspec.structs.replace(by_place[old], at=at, count=1)
        for at, old in enumerate(kept)
        if old in by_place
    )


def seqs_of(count: int, first: int, repeats: dict[int, int]) -> tuple[int, ...]:
    """Return the seq of each row, repeats included; all others have consecutive seqs from
    `first` on."""
    seqs: list[int] = []
    for at in range(count):
        repeat = repeats.get(at)
        if repeat is None:
            seqs.append(first)
            first += 1
        else:
            seqs.append(repeat if repeat > 0 else seqs[-1 - repeat])
    return tuple(seqs)


def remember(draft: Draft, names: Sequence[CellName | None], seqs: Sequence[int]) -> None:
    """Remember the ids of these new rows."""
    until_ms = draft.now + draft.view.spec.dedup_ms
    used: list[bytes] = []
    for name, seq in zip(names, seqs, strict=True):
        if name is not None:
            cell_lookup.put(draft, name, DedupCell(seq, until_ms))
            used.append(name[1])
    expiry.put_ids(draft, until_ms, used)
