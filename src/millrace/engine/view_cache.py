"""The views of a group's shards: loaded when they are first needed, let go when there are many."""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import suppress

from millrace import limits
from millrace.core.model import VIEWED, ShardId
from millrace.core.view import View
from millrace.errors import Corrupt
from millrace.journal.base import Journal
from millrace.store.base import Store


def load_view(shard: ShardId, journal: Journal, store: Store) -> View | None:
    """The view of what the store holds, or None if there is no such shard."""
    meta = store.meta(shard)
    if meta is None:
        return None
    cells = (cell for kind in VIEWED for cell in store.cells(shard, kind))
    return View.load(shard, journal.epoch, journal.history, meta, cells)


class Unseen:
    """Shards that may not have been used since the start: what is too old in them must go, too."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._left: list[ShardId] | None = None

    def look(self, views: dict[ShardId, View], load: Callable[[ShardId], View | None]) -> None:
        """Load the views of the next few; those in which nothing goes by age are not kept."""
        if self._left is None:
            self._left = self._store.shards()
        taken = self._left[-limits.UNSEEN_STEP :]
        del self._left[-limits.UNSEEN_STEP :]
        for shard in taken:
            if shard in views:
                continue
            # If it is damaged, whoever uses it hears of that.
            with suppress(Corrupt):
                view = load(shard)
                if view is not None and view.is_idle():
                    del views[shard]


def views_to_drop(views: Collection[View], is_awaited: Callable[[ShardId], bool]) -> list[View]:
    """Those beyond the bound that were used longest ago and are not needed in memory."""
    beyond = len(views) - limits.VIEWS_MAX
    if beyond <= 0:
        return []
    idle = [view for view in views if view.is_idle() and not is_awaited(view.shard)]
    return sorted(idle, key=lambda view: view.time_ms)[:beyond]
