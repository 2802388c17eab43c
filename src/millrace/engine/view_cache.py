"""Reads of the commit loop from the store: views of shards, and keys, ids and groups of a batch.

Views are loaded on first use and evicted, least recently used first, beyond `VIEWS_MAX`. Keys, ids
and groups are prefetched for a whole batch; a command that needs more reads it while it is decided.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from contextlib import suppress

from millrace import limits
from millrace.core.cells import VIEW_KINDS
from millrace.core.commands import ApplyTransaction, Publish
from millrace.core.decide import Answer, decide, learn
from millrace.core.format.block import key_list
from millrace.core.model import ShardId
from millrace.core.needs import Need
from millrace.core.ordering import groups
from millrace.core.ordering.group_numbers import numbers_of
from millrace.core.publishing import dedup
from millrace.core.state import cell_lookup
from millrace.core.state.cell_lookup import CellName
from millrace.core.state.draft import BatchContext
from millrace.core.state.view import View
from millrace.engine.command_request import CommandRequest
from millrace.errors import Corrupt, Fatal, Refused, Retry, detached
from millrace.journal.base import Journal
from millrace.store.base import Store


def load_view(shard: ShardId, journal: Journal, store: Store) -> View | None:
    """Load the view of a stored shard; None if there is no such shard."""
    meta = store.meta(shard)
    if meta is None:
        return None
    cells = (cell for kind in VIEW_KINDS for cell in store.cells(shard, kind))
    return View.load(shard, journal.epoch, journal.history, meta, cells)


class UnvisitedShards:
    """Shards that may be unused since the start: expired items in them must be dropped, too."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._left: list[ShardId] | None = None

    def load_next(self, views: dict[ShardId, View], load: Callable[[ShardId], View | None]) -> None:
        """Load the views of the next few shards, and keep those in which something can expire."""
        if self._left is None:
            self._left = self._store.shards()
        next_shards = self._left[-limits.UNSEEN_STEP :]
        del self._left[-limits.UNSEEN_STEP :]
        for shard in next_shards:
            if shard in views:
                continue
            # A command that uses the damaged shard reports it.
            with suppress(Corrupt):
                view = load(shard)
                if view is not None and view.is_idle():
                    del views[shard]


def views_to_drop(views: Collection[View], is_awaited: Callable[[ShardId], bool]) -> list[View]:
    """Return the views to evict: idle, not awaited, least recently used, and above `VIEWS_MAX`."""
    beyond = len(views) - limits.VIEWS_MAX
    if beyond <= 0:
        return []
    idle = [view for view in views if view.is_idle() and not is_awaited(view.shard)]
    return sorted(idle, key=lambda view: view.time_ms)[:beyond]


# --- Prefetch -------------------------------------------------------------------------------------


def prefetch_keys(
    requests: Iterable[CommandRequest], view: Callable[[ShardId], View | None], store: Store
) -> None:
    """Look up the keys, ids and groups of all publishes, with one store call per shard."""
    keys_by_shard: dict[ShardId, dict[bytes, None]] = {}
    names_by_shard: dict[ShardId, dict[CellName, None]] = {}
    views: dict[ShardId, View | None] = {}
    for request in requests:
        command = request.command
        kind = type(command)
        if kind is not Publish and kind is not ApplyTransaction:
            continue
        if request.is_plain:
            # The fast path of a single message.
            shard = request.shard
            if shard not in views:
                views[shard] = view(shard)
            shard_view = views[shard]
            if shard_view is None or not (shard_view.spec.keyed or shard_view.spec.is_grouped):
                continue
        parts = (
            command.parts if isinstance(command, ApplyTransaction) else ((request.shard, command),)
        )
        for shard, part in parts:
            if not isinstance(part, Publish):
                continue
            if shard not in views:
                views[shard] = view(shard)
            shard_view = views[shard]
            if shard_view is None:
                continue
            if part.ids:
                used = (name for name in dedup.names_of(shard_view, part) if name is not None)
                names_by_shard.setdefault(shard, {}).update(dict.fromkeys(used))
            if shard_view.spec.is_grouped:
                numbers = numbers_of(shard_view, part.rows)
                names_by_shard.setdefault(shard, {}).update(
                    dict.fromkeys(groups.unknown(shard_view, numbers))
                )
            if shard_view.spec.keyed:
                keys = keys_by_shard.setdefault(shard, {})
                keys.update((key, None) for key in key_list(part.rows) if key is not None)
    for shard, names in keys_by_shard.items():
        shard_view = views[shard]
        assert shard_view is not None
        wanted_keys = list(names)
        shard_view.facts.keys.update(zip(wanted_keys, store.find(shard, wanted_keys), strict=True))
    for shard, wanted_names in names_by_shard.items():
        shard_view = views[shard]
        if shard_view is not None and shard_view.stored_index and wanted_names:
            # The command that needs a damaged cell reports it.
            with suppress(Corrupt):
                cell_lookup.learn(
                    shard_view, list(wanted_names), store.points(shard, list(wanted_names))
                )


def decide_with_reads(
    context: BatchContext, request: CommandRequest, store: Store, *, in_flight: bool
) -> Answer | Refused | Retry | Corrupt | Need:
    """Decide a request, reading what it needs; return `Need` if entries in flight must be folded
    first.

    Returns `Corrupt`, and decides nothing, if a cell or row that it needs is damaged.

    Raises:
        Fatal: it needs again what it was given: a defect, which would loop for ever.
    """
    supplied: set[Need] | None = None
    while True:
        result = decide(context, request.shard, request.command)
        if not isinstance(result, Need):
            return result
        if result.stages and in_flight:
            return result
        supplied = supplied if supplied is not None else set()
        if result in supplied:
            raise Fatal(f"{type(request.command).__name__} needs the same twice: {result}")
        supplied.add(result)
        draft = context.draft(result.shard)
        assert draft is not None
        try:
            learn(draft, result, store)
        except Corrupt as error:
            # Only rows of this shard are damaged: other shards are not affected.
            return detached(error)
