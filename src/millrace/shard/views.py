"""The views of a group's shards: loaded when they are first needed, let go when there are many."""

from __future__ import annotations

from collections.abc import Callable, Collection

from millrace import limits
from millrace.core.model import ShardId
from millrace.core.view import View
from millrace.journal.base import Journal
from millrace.store.base import Store


def load_view(shard: ShardId, journal: Journal, store: Store) -> View | None:
    """The view of what the store holds, or None if there is no such shard."""
    meta = store.meta(shard)
    if meta is None:
        return None
    return View.load(shard, journal.epoch, journal.history, meta, store.cells(shard))


def views_to_drop(views: Collection[View], is_awaited: Callable[[ShardId], bool]) -> list[View]:
    """Those beyond the bound that were used longest ago and are not needed in memory."""
    beyond = len(views) - limits.VIEWS_MAX
    if beyond <= 0:
        return []
    idle = [view for view in views if view.is_idle() and not is_awaited(view.shard)]
    return sorted(idle, key=lambda view: view.time_ms)[:beyond]
