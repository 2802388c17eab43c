"""Creates, configures and deletes queues."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from millrace import limits
from millrace.core import notes
from millrace.core.answers import QueueRef
from millrace.core.cells import CatalogCell, QueueCell
from millrace.core.commands import (
    Configure,
    CreateQueue,
    DeleteQueue,
    InitCatalog,
    SpecPart,
)
from millrace.core.delivery import lease
from millrace.core.format.receipt import SECRET_BYTES_MAX, SECRET_BYTES_MIN
from millrace.core.model import CATALOG, ShardId
from millrace.core.needs import Need
from millrace.core.ordering import deferred, groups, partitions
from millrace.core.ordering.group_numbers import number_of
from millrace.core.publishing import dedup
from millrace.core.retention import expiry, log_retention, max_length
from millrace.core.spec import QueueSpec
from millrace.core.state.draft import BatchContext, Draft
from millrace.core.state.group_state import GroupInFlight
from millrace.core.state.view import View
from millrace.core.topics import topic
from millrace.core.transfer import dead_letter
from millrace.errors import Exists, Full, Invalid, NotFound, Refused, Retry, TooLarge


def init_catalog(draft: Draft, command: InitCatalog) -> CatalogCell | Refused:
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
    """Return the catalog's key of a queue; names have no zero byte."""
    return f"{space}\0{name}".encode()


def create(context: BatchContext, catalog: Draft, command: CreateQueue) -> QueueRef | Refused:
    key = queue_key(command.space, command.name)
    stored_cell = catalog.view.queues.get(key)
    if stored_cell is not None:
        shards = tuple(ShardId(shard) for shard in stored_cell.shards)
        draft = context.draft(shards[0])
        stored = draft.view.spec if draft is not None else QueueSpec()
        fixed = _check_shards(command, stored_cell) or _check_place(catalog.view, command)
        if fixed is not None:
            return fixed
        wanted = _wanted(command.spec, stored)
        other = _differences(stored, wanted)
        if draft is None or other:
            orders = (stored.order, wanted.order)
            is_fixed = stored.keyed != wanted.keyed or (
                stored.order != wanted.order and orders != FAIR_CHANGE
            )
            way = "make another queue" if is_fixed else "configure it to change them"
            return Exists(
                f"queue {command.name!r} is there with other settings: {', '.join(other)}; {way}",
                field="spec",
            )
        return QueueRef(
            shards,
            made=False,
            route=stored_cell.route,
            ids=stored_cell.ids,
            placed_by=stored_cell.placed_by,
        )
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
    refused = deferred.check_spec(spec) or dedup.check_spec(spec) or log_retention.check_spec(spec)
    refused = refused or expiry.check_spec(spec) or groups.check_spec(spec)
    refused = refused or partitions.check_spec(spec) or max_length.check_spec(spec)
    refused = refused or notes.check(spec.notes)
    refused = (
        refused or dead_letter.check_dead_letter(context, None, spec) or _check_route(spec, command)
    )
    if refused is not None:
        return refused
    placed_by = _place_beside(catalog.view, command.beside)
    if isinstance(placed_by, NotFound):
        return placed_by
    unbound = topic.unbound_to(context, catalog.view, command.space, command.name)
    spec = msgspec.structs.replace(spec, notes=topic.with_queue_notes(spec.notes, unbound))
    last, route = counts.shard + (command.shards or 1), command.route or "key"
    shards = tuple(ShardId(shard) for shard in range(counts.shard + 1, last + 1))
    catalog.put_catalog(CatalogCell(last, counts.secret))
    ids = 0
    for shard in shards:
        made = context.make(View(shard, catalog.view.epoch, catalog.view.history))
        made.changes.made = 3 if spec.keyed else 1
        made.put_spec(spec)
        ids = partitions.make(made, counts.secret) if spec.is_partitioned else 0
    catalog.put_queue(key, QueueCell(shards, route, ids, placed_by))
    topic.begin_of_queue(context, unbound, shards)
    return QueueRef(shards, made=True, route=route, ids=ids, placed_by=placed_by)


def _place_beside(view: View, beside: str) -> str | NotFound:
    """Return the name that places the queue `beside` in a commit group; empty without one."""
    if not beside:
        return ""
    other = view.queues.get(beside.replace("/", "\0").encode())
    if other is None:
        return NotFound(
            f"there is no queue {beside!r} to be placed beside; create it first", field="beside"
        )
    return other.placed_by or beside


def _check_place(view: View, command: CreateQueue) -> Refused | None:
    """Refuse an existing queue that is not in the commit group of the named one."""
    placed_by = _place_beside(view, command.beside)
    if isinstance(placed_by, NotFound):
        return placed_by
    own = f"{command.space}/{command.name}"
    stored = view.queues[queue_key(command.space, command.name)].placed_by or own
    if placed_by and placed_by != stored:
        return Exists(
            f"queue {command.name!r} is not placed beside {command.beside!r}: that is fixed when "
            "the queue is made; make another queue",
            field="beside",
        )
    return None


def _check_shards(command: CreateQueue, queue: QueueCell) -> Refused | None:
    """Refuse a number of shards other than that of the existing queue."""
    count = len(queue.shards)
    if command.shards not in (None, count):
        return Exists(
            f"queue {command.name!r} has {count} shards, not {command.shards}: their number is "
            "fixed when the queue is made; make another queue",
            field="shards",
        )
    if command.route not in (None, queue.route):
        return Exists(
            f"queue {command.name!r} is routed by {queue.route!r}, not {command.route!r}: that is "
            "fixed when the queue is made; make another queue",
            field="route",
        )
    return None


def _one_shard_for_bodies() -> Invalid:
    return Invalid(
        "equal bodies may go to different shards, and never meet: name the messages by ids",
        field="dedup_by_body",
    )


def _has_others(context: BatchContext, draft: Draft) -> bool:
    """Return True if the queue of this shard has other shards."""
    catalog = context.draft(CATALOG)
    key = catalog.view.owners.get(draft.view.shard) if catalog is not None else None
    return catalog is not None and key is not None and len(catalog.view.queues[key].shards) > 1


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


def delete(context: BatchContext, catalog: Draft, command: DeleteQueue) -> bool:
    key = queue_key(command.space, command.name)
    queue = catalog.view.queues.get(key)
    if queue is None:
        return False
    catalog.put_queue(key, None)
    for shard in queue.shards:
        draft = context.draft(ShardId(shard))
        if draft is not None:
            topic.end_of_queue(context, draft)
            draft.changes.dropped = True
            draft.view.dropped = True
    return True


# --- Settings ----------------------------------------------------------------------------------


def check_configure(
    context: BatchContext, draft: Draft, command: Configure
) -> Refused | Retry | Need | None:
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
    if wanted.dedup_by_body and _has_others(context, draft):
        return _one_shard_for_bodies()
    refused = deferred.check_spec(wanted, draft.view) or dedup.check_spec(wanted)
    refused = refused or expiry.check_spec(wanted) or log_retention.check_spec(wanted)
    refused = refused or groups.check_spec(wanted) or partitions.check_spec(wanted)
    refused = (
        refused or max_length.check_spec(wanted) or notes.check(wanted.notes, most=command.most)
    )
    if command.spec.dead_letter is not None:
        # The dead-letter queue in the stored settings may have been deleted since; all else can
        # still be changed.
        refused = refused or dead_letter.check_dead_letter(context, draft.view.shard, wanted)
    if refused is not None or wanted.order == spec.order:
        return refused
    return check_fair(draft, spec, wanted, has_others=_has_others(context, draft))


def do_configure(draft: Draft, command: Configure) -> QueueSpec:
    before = draft.view.spec
    wanted = _wanted(command.spec, before)
    if wanted != before:
        is_changed = wanted.order != before.order
        waiting = take_waiting(draft) if is_changed else ()
        draft.put_spec(wanted)
        if is_changed:
            make_fair(draft, waiting)
        lease.configured(draft)
        groups.configured(draft, before)
        partitions.configured(draft)
    return wanted


def _differences(stored: QueueSpec, wanted: QueueSpec) -> list[str]:
    """Return the settings that differ, with their stored values, by their names in programs."""
    kept = msgspec.structs.asdict(stored)
    wanted_values = msgspec.structs.asdict(wanted)
    return [_setting(name, kept[name]) for name in kept if kept[name] != wanted_values[name]]


def _setting(name: str, value: object) -> str:
    if name == "notes":
        # Values may be long.
        return name
    if name.endswith("_ms") and isinstance(value, int):
        return f"{name.removesuffix('_ms')} is {value / 1000:g} s"
    if name.endswith("_us") and isinstance(value, int):
        return f"{name.removesuffix('_us')} is {1_000_000 / value if value else 0:g}"
    return f"{name} is {value!r}"


def _wanted(named: QueueSpec | SpecPart, spec: QueueSpec) -> QueueSpec:
    """Return the requested settings; missing ones are those of `spec`."""
    return named.onto(spec) if isinstance(named, SpecPart) else named


# --- Change of the order to `fair` ---------------------------------------------------------------
# Rule 1: the order of a queue is fixed at creation; the only exception is `none` to `fair`.
# Rule 2: all messages present at the change belong to the group without a name: those in flight
# first, behind them the waiting ones in the order of seqs. The batch of the change writes their
# group cells, so that afterwards the queue equals one that was created fair, and no other code
# knows of the change.
# Rule 3: that batch is bounded. While the queue holds too many messages, or any deferred ones, the
# change is refused with a retry, and the queue keeps its order.

FAIR_CHANGE = ("none", "fair")
"""The only allowed change of the order: (from, to)."""

NAMELESS = number_of(b"")
"""The number of the group without a name."""


def check_fair(
    draft: Draft, before: QueueSpec, wanted: QueueSpec, *, has_others: bool
) -> Refused | Retry | Need | None:
    """Check a change of the order from `none` to `fair`; a Need asks the store for rows first."""
    if (before.order, wanted.order) != FAIR_CHANGE:
        return Invalid(
            "the order of a queue is fixed when it is made, but that 'none' may become 'fair'",
            field="order",
        )
    if before.keyed or before.retention != "work" or before.is_partitioned or has_others:
        return Invalid(
            "only a work queue with one shard, and without keys and partitions, may become fair",
            field="order",
        )
    view = draft.view
    for kind, window in view.windows.items() if view.pointers.aside else ():
        if window.first() is not None:
            return _not_now("messages with delays or priorities wait")
        low = window.wanted_from()
        if low is not None:
            return Need(view.shard, cells=(kind, low, limits.WINDOW_CELLS))
    limit = limits.REORDERED_MESSAGES_MAX - len(view.holder)
    if limit < 0:
        return _not_now(f"{len(view.holder)} messages are in flight")
    need = lease.need_fresh(draft, limit + 1)
    if need is not None:
        return need
    if lease.count_fresh(view) > limit:
        return _not_now(f"more than {limit} messages wait")
    return groups.need_to_enter(draft, [NAMELESS])


def _not_now(why: str) -> Full:
    return Full(
        f"{why}; a queue becomes fair while no more than {limits.REORDERED_MESSAGES_MAX} messages "
        "are there, and none waits apart",
        field="order",
        limit=limits.REORDERED_MESSAGES_MAX,
    )


def take_waiting(draft: Draft) -> Sequence[int]:
    """Return the waiting messages, before the order is changed."""
    groups.return_due(draft)
    return list(lease.take_fresh(draft, limits.REORDERED_MESSAGES_MAX))


def make_fair(draft: Draft, waiting: Sequence[int]) -> None:
    """Give messages in flight and these waiting ones to the group without a name."""
    view = draft.view
    flight = GroupInFlight(more=False)
    for number in sorted(set(view.holder.values())):
        held = view.leases[number]
        seqs = held.open | held.freed
        if seqs:
            held.groups = dict.fromkeys(seqs, NAMELESS)
            flight.count += len(seqs)
            draft.put_lease(held)
    if flight.count:
        for seq in view.returned:
            flight.give_back(seq)
        view.groups.flights[NAMELESS] = flight
        groups.look(view, NAMELESS, flight)
    if waiting:
        groups.enter(draft, waiting, [NAMELESS] * len(waiting))
    draft.put_pointers(msgspec.structs.replace(view.pointers, next=view.last_seq + 1))
