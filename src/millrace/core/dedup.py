"""The rules of de-duplication: a message whose id was used lately is a repeat of the first one.

Rule 1: a repeat is answered as the first one was, and changes nothing, whatever became of that one.
Rule 2: a purge may forget ids; the ids of the messages that it ended are new again.
Rule 3: an id is remembered for the time that the queue said when it was used; a producer's number
is looked at before, and keys after.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from typing import TypeVar

import msgspec
import numpy as np

from millrace.core import expiry, picking, points
from millrace.core.block import Block
from millrace.core.commands import Aside, Need, Publish
from millrace.core.draft import Draft
from millrace.core.idcells import DedupCell
from millrace.core.leased_commands import Life
from millrace.core.model import Kind, Message, QueueSpec
from millrace.core.points import Name
from millrace.core.view import View
from millrace.errors import Invalid, Refused

Rows = Block | tuple[Message, ...]
R = TypeVar("R", Aside, Life)


def check_spec(spec: QueueSpec) -> Refused | None:
    """Whether the settings fit together."""
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


def id_name(text: str) -> Name:
    """The cell of an id: of one length, however long the id is."""
    return Kind.DEDUP, sha256(text.encode()).digest()


def names_of(view: View, command: Publish) -> list[Name | None]:
    """The cells of the rows' ids, row by row; empty where none has one. While a batch is decided
    they are hashed once: lookup, check and decision all ask."""
    is_by_body = command.by_body and view.spec.dedup_by_body
    if not (command.ids or is_by_body):
        return []
    # A command before this one may have changed what the queue says of bodies.
    at = (id(command), is_by_body)
    known = view.facts.names.get(at)
    if known is None:
        known = view.facts.names[at] = (command, _hashed(command, is_by_body=is_by_body))
    return known[1]


def _hashed(command: Publish, *, is_by_body: bool) -> list[Name | None]:
    ids: Sequence[str | None] = command.ids
    if is_by_body:
        bodies = _bodies(command.rows)
        given = ids or (None,) * len(bodies)
        ids = [
            sha256(body).hexdigest() if one is None and body is not None else one
            for one, body in zip(given, bodies, strict=True)
        ]
    return [None if one is None else id_name(one) for one in ids]


def _bodies(rows: Rows) -> list[bytes | None]:
    if not isinstance(rows, Block):
        return [message.body for message in rows]
    bodies: list[bytes | None] = list(rows.bodies.values(0, rows.count))
    for at in rows.deletes():
        bodies[at] = None
    return bodies


def check_publish(draft: Draft, command: Publish) -> Refused | Need | None:
    """Whether ids may be used here, and what of them the store must be asked for."""
    spec = draft.view.spec
    if command.ids:
        refused = _check_time(spec)
        if refused is not None:
            return refused
    names = names_of(draft.view, command)
    return points.need(draft, [name for name in names if name is not None]) if names else None


def split(draft: Draft, names: Sequence[Name | None]) -> dict[int, int]:
    """Which rows are repeats: place → the first one's seq, or minus its place where it is of the
    same publish (minus 1: of the first row)."""
    repeats: dict[int, int] = {}
    here: dict[Name, int] = {}
    forgotten = draft.view.pointers.forgotten
    for at, name in enumerate(names):
        if name is None:
            continue
        if name in here:
            repeats[at] = -1 - here[name]
            continue
        cell = points.look(draft, name)
        if isinstance(cell, DedupCell) and cell.until_ms > draft.now and cell.seq > forgotten:
            repeats[at] = cell.seq
        else:
            here[name] = at
    return repeats


def without(command: Publish, repeats: dict[int, int]) -> Publish:
    """The publish without the rows that are repeats."""
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
        return picking.take(rows, np.array(kept, np.int64))
    return tuple(rows[at] for at in kept)


def _runs(runs: Sequence[R], kept: Sequence[int]) -> tuple[R, ...]:
    by_place = {run.at + at: run for run in runs for at in range(run.count)}
    return tuple(
        msgspec.structs.replace(by_place[old], at=at, count=1)
        for at, old in enumerate(kept)
        if old in by_place
    )


def seqs_of(count: int, first: int, repeats: dict[int, int]) -> tuple[int, ...]:
    """Where each row is, the repeats too; the others lie side by side from `first` on."""
    seqs: list[int] = []
    for at in range(count):
        found = repeats.get(at)
        if found is None:
            seqs.append(first)
            first += 1
        else:
            seqs.append(found if found > 0 else seqs[-1 - found])
    return tuple(seqs)


def remember(draft: Draft, names: Sequence[Name | None], seqs: Sequence[int]) -> None:
    """The ids of these rows, which are new, are used from now on."""
    until_ms = draft.now + draft.view.spec.dedup_ms
    used: list[bytes] = []
    for name, seq in zip(names, seqs, strict=True):
        if name is not None:
            points.put(draft, name, DedupCell(seq, until_ms))
            used.append(name[1])
    expiry.put_ids(draft, until_ms, used)
