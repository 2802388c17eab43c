"""The rules of the catalog, and of the settings of its queues."""

from __future__ import annotations

import msgspec

from millrace import limits
from millrace.core import aside, bury, dedup, retain, topic
from millrace.core.commands import (
    Configure,
    CreateQueue,
    DeleteQueue,
    Found,
    QueueRef,
    SpecPart,
)
from millrace.core.desk import Desk
from millrace.core.draft import Draft
from millrace.core.model import CATALOG, CatalogCell, QueueCell, QueueSpec, ShardId
from millrace.core.receipt import SECRET_BYTES_MAX, SECRET_BYTES_MIN
from millrace.core.view import View
from millrace.errors import Exists, Invalid, NotFound, Refused, TooLarge


def found(draft: Draft, command: Found) -> CatalogCell | Refused:
    if not SECRET_BYTES_MIN <= len(command.secret) <= SECRET_BYTES_MAX:
        return Invalid(
            f"a secret has {SECRET_BYTES_MIN} to {SECRET_BYTES_MAX} bytes",
            field="secret",
            limit=SECRET_BYTES_MAX,
        )
    if draft.view.catalog is None:
        draft.put_catalog(CatalogCell(int(CATALOG), command.secret))
    catalog = draft.view.catalog
    assert catalog is not None
    return catalog


def queue_key(space: str, name: str) -> bytes:
    """The catalog's key of a queue; names have no zero byte."""
    return f"{space}\0{name}".encode()


def create(desk: Desk, catalog: Draft, command: CreateQueue) -> QueueRef | Refused:
    key = queue_key(command.space, command.name)
    found = catalog.view.queues.get(key)
    if found is not None:
        shards = tuple(ShardId(shard) for shard in found.shards)
        draft = desk.draft(shards[0])
        stored = draft.view.spec if draft is not None else QueueSpec()
        other = _differences(stored, _wanted(command.spec, stored))
        if draft is None or other:
            return Exists(
                f"queue {command.name!r} is there with other settings: {', '.join(other)}; "
                "configure it to change them",
                field="spec",
            )
        return QueueRef(shards, made=False)
    counts = catalog.view.catalog
    if counts is None:
        return NotFound("the catalog was never begun", field="catalog")
    if len(catalog.view.queues) >= limits.QUEUES_MAX:
        return TooLarge(
            f"there are {limits.QUEUES_MAX} queues; delete one first",
            field="name",
            limit=limits.QUEUES_MAX,
        )
    spec = _wanted(command.spec, QueueSpec())
    refused = aside.check_spec(spec) or dedup.check_spec(spec) or retain.check_spec(spec)
    refused = refused or bury.check_dead_letter(desk, None, spec)
    if refused is not None:
        return refused
    shard = ShardId(counts.shard + 1)
    catalog.put_catalog(CatalogCell(shard, counts.secret))
    catalog.put_queue(key, QueueCell((shard,)))
    made = desk.make(View(shard, catalog.view.epoch, catalog.view.history))
    made.changes.made = 3 if spec.keyed else 1
    made.put_spec(spec)
    return QueueRef((shard,), made=True)


def delete(desk: Desk, catalog: Draft, command: DeleteQueue) -> bool:
    key = queue_key(command.space, command.name)
    found = catalog.view.queues.get(key)
    if found is None:
        return False
    catalog.put_queue(key, None)
    for shard in found.shards:
        draft = desk.draft(ShardId(shard))
        if draft is not None:
            topic.end_of_queue(desk, draft)
            draft.changes.dropped = True
            draft.view.dropped = True
    return True


# --- Settings ----------------------------------------------------------------------------------


def configure(desk: Desk, draft: Draft, command: Configure) -> QueueSpec | Refused:
    spec = draft.view.spec
    wanted = _wanted(command.spec, spec)
    if wanted.keyed != spec.keyed:
        return Invalid("whether a queue is keyed is fixed when it is made", field="keyed")
    if spec.retention == "log" and wanted.retention == "work" and draft.view.pointers.next > 1:
        return Invalid(
            "what was settled under retention 'log' stays, and nothing would ever end it under "
            "'work'; make another queue",
            field="retention",
        )
    if wanted != spec:
        refused = aside.check_spec(wanted, draft.view) or dedup.check_spec(wanted)
        refused = refused or retain.check_spec(wanted)
        refused = refused or bury.check_dead_letter(desk, draft.view.shard, wanted)
        if refused is not None:
            return refused
        draft.put_spec(wanted)
    return wanted


def _differences(stored: QueueSpec, wanted: QueueSpec) -> list[str]:
    """The settings that are not as they are wanted, as they are."""
    kept = msgspec.structs.asdict(stored)
    asked = msgspec.structs.asdict(wanted)
    return [f"{name} is {kept[name]!r}" for name in kept if kept[name] != asked[name]]


def _wanted(named: QueueSpec | SpecPart, spec: QueueSpec) -> QueueSpec:
    """The settings that are asked for, where they would otherwise be `spec`."""
    return named.onto(spec) if isinstance(named, SpecPart) else named
