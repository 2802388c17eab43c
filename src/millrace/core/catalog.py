"""The rules of the catalog, and of the settings of its queues."""

from __future__ import annotations

import msgspec

from millrace import limits
from millrace.core import (
    aside,
    bury,
    dedup,
    expiry,
    groups,
    lease,
    length,
    notes,
    partitions,
    reorder,
    retain,
    topic,
)
from millrace.core.answers import QueueRef
from millrace.core.commands import Configure, CreateQueue, DeleteQueue, Found, Need, SpecPart
from millrace.core.desk import Desk
from millrace.core.draft import Draft
from millrace.core.model import CATALOG, CatalogCell, QueueCell, QueueSpec, ShardId
from millrace.core.receipt import SECRET_BYTES_MAX, SECRET_BYTES_MIN
from millrace.core.view import View
from millrace.errors import Exists, Invalid, NotFound, Refused, Retry, TooLarge


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
        fixed = _check_shards(command, found)
        if fixed is not None:
            return fixed
        wanted = _wanted(command.spec, stored)
        other = _differences(stored, wanted)
        if draft is None or other:
            orders = (stored.order, wanted.order)
            is_fixed = stored.keyed != wanted.keyed or (
                stored.order != wanted.order and orders != reorder.CHANGE
            )
            way = "make another queue" if is_fixed else "configure it to change them"
            return Exists(
                f"queue {command.name!r} is there with other settings: {', '.join(other)}; {way}",
                field="spec",
            )
        return QueueRef(shards, made=False, route=found.route, ids=found.ids)
    counts = catalog.view.catalog
    if counts is None:
        return NotFound("the catalog was never begun", field="catalog")
    if len(catalog.view.queues) + len(catalog.view.topics) >= limits.QUEUES_MAX:
        return TooLarge(
            f"there are {limits.QUEUES_MAX} queues and topics; delete one first",
            field="name",
            limit=limits.QUEUES_MAX,
        )
    spec = _wanted(command.spec, QueueSpec())
    refused = aside.check_spec(spec) or dedup.check_spec(spec) or retain.check_spec(spec)
    refused = refused or expiry.check_spec(spec) or groups.check_spec(spec)
    refused = refused or partitions.check_spec(spec) or length.check_spec(spec)
    refused = refused or notes.check(spec.notes)
    refused = refused or bury.check_dead_letter(desk, None, spec) or _check_route(spec, command)
    if refused is not None:
        return refused
    unbound = topic.unbound_to(desk, catalog.view, command.space, command.name)
    spec = msgspec.structs.replace(spec, notes=topic.with_queue_notes(spec.notes, unbound))
    last, route = counts.shard + (command.shards or 1), command.route or "key"
    shards = tuple(ShardId(shard) for shard in range(counts.shard + 1, last + 1))
    catalog.put_catalog(CatalogCell(last, counts.secret))
    ids = 0
    for shard in shards:
        made = desk.make(View(shard, catalog.view.epoch, catalog.view.history))
        made.changes.made = 3 if spec.keyed else 1
        made.put_spec(spec)
        ids = partitions.make(made, counts.secret) if spec.is_partitioned else 0
    catalog.put_queue(key, QueueCell(shards, route, ids))
    topic.begin_of_queue(desk, unbound, shards)
    return QueueRef(shards, made=True, route=route, ids=ids)


def _check_shards(command: CreateQueue, found: QueueCell) -> Refused | None:
    """A queue that is there has the shards that it was made with."""
    count = len(found.shards)
    if command.shards not in (None, count):
        return Exists(
            f"queue {command.name!r} has {count} shards, not {command.shards}: their number is "
            "fixed when the queue is made; make another queue",
            field="shards",
        )
    if command.route not in (None, found.route):
        return Exists(
            f"queue {command.name!r} is routed by {found.route!r}, not {command.route!r}: that is "
            "fixed when the queue is made; make another queue",
            field="route",
        )
    return None


def _one_shard_for_bodies() -> Invalid:
    return Invalid(
        "equal bodies may go to different shards, and never meet: name the messages by ids",
        field="dedup_by_body",
    )


def _has_others(desk: Desk, draft: Draft) -> bool:
    """Whether the queue of this shard has other ones."""
    found = desk.draft(CATALOG)
    key = found.view.owners.get(draft.view.shard) if found is not None else None
    return found is not None and key is not None and len(found.view.queues[key].shards) > 1


def _check_route(spec: QueueSpec, command: CreateQueue) -> Refused | None:
    if command.shards is not None and not 1 <= command.shards <= limits.SHARDS_MAX:
        return TooLarge(
            f"a queue has 1 to {limits.SHARDS_MAX} shards", field="shards", limit=limits.SHARDS_MAX
        )
    if (command.shards or 1) == 1:
        return None
    if spec.dedup_by_body:
        return _one_shard_for_bodies()
    if spec.is_partitioned:
        return Invalid(
            "delivery 'partitions' slices the ids of one shard; leave shards out", field="shards"
        )
    if spec.order == "strict":
        return Invalid("order 'strict' is that of one shard; take 'group'", field="shards")
    if spec.is_grouped and (command.route != "group" or spec.keyed):
        return Invalid(
            f"the messages of a group must meet in one shard: order {spec.order!r} takes "
            "route 'group', and no keys that must meet as well",
            field="route",
        )
    if spec.keyed and command.route not in (None, "key"):
        return Invalid(
            "the revisions of a key must meet in one shard: a keyed queue is routed by 'key'",
            field="route",
        )
    return None


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


def check_configure(desk: Desk, draft: Draft, command: Configure) -> Refused | Retry | Need | None:
    spec = draft.view.spec
    wanted = _wanted(command.spec, spec)
    if wanted.keyed != spec.keyed:
        return Invalid("whether a queue is keyed is fixed when it is made", field="keyed")
    if wanted.delivery != spec.delivery:
        return Invalid("the delivery of a queue is fixed when it is made", field="delivery")
    if spec.retention == "log" and wanted.retention == "work" and draft.view.pointers.next > 1:
        return Invalid(
            "what was settled under retention 'log' stays, and nothing would ever end it under "
            "'work'; make another queue",
            field="retention",
        )
    if wanted == spec:
        return None
    if wanted.dedup_by_body and _has_others(desk, draft):
        return _one_shard_for_bodies()
    refused = aside.check_spec(wanted, draft.view) or dedup.check_spec(wanted)
    refused = refused or expiry.check_spec(wanted) or retain.check_spec(wanted)
    refused = refused or groups.check_spec(wanted) or partitions.check_spec(wanted)
    refused = refused or length.check_spec(wanted) or notes.check(wanted.notes, most=command.most)
    if command.spec.dead_letter is not None:
        # The one that is named already may have been deleted since; all else can still be changed.
        refused = refused or bury.check_dead_letter(desk, draft.view.shard, wanted)
    if refused is not None or wanted.order == spec.order:
        return refused
    return reorder.check(draft, spec, wanted, has_others=_has_others(desk, draft))


def do_configure(draft: Draft, command: Configure) -> QueueSpec:
    before = draft.view.spec
    wanted = _wanted(command.spec, before)
    if wanted != before:
        is_changed = wanted.order != before.order
        waiting = reorder.take(draft) if is_changed else ()
        draft.put_spec(wanted)
        if is_changed:
            reorder.do(draft, waiting)
        lease.configured(draft)
        groups.configured(draft, before)
        partitions.configured(draft)
    return wanted


def _differences(stored: QueueSpec, wanted: QueueSpec) -> list[str]:
    """The settings that are not as they are wanted, as they are, and as programs name them."""
    kept = msgspec.structs.asdict(stored)
    asked = msgspec.structs.asdict(wanted)
    return [_setting(name, kept[name]) for name in kept if kept[name] != asked[name]]


def _setting(name: str, value: object) -> str:
    if name == "notes":
        # They may be long.
        return name
    if name.endswith("_ms") and isinstance(value, int):
        return f"{name.removesuffix('_ms')} is {value / 1000:g} s"
    if name.endswith("_us") and isinstance(value, int):
        return f"{name.removesuffix('_us')} is {1_000_000 / value if value else 0:g}"
    return f"{name} is {value!r}"


def _wanted(named: QueueSpec | SpecPart, spec: QueueSpec) -> QueueSpec:
    """The settings that are asked for, where they would otherwise be `spec`."""
    return named.onto(spec) if isinstance(named, SpecPart) else named
