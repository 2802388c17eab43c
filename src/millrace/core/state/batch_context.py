"""The drafts of all shards of a commit group for one batch."""

from __future__ import annotations

from collections.abc import Callable

from millrace.core.model import Millis, ShardId
from millrace.core.state.draft import Draft
from millrace.core.state.view import View


class BatchContext:
    """The drafts of one batch of a commit group, created as commands need them."""

    def __init__(self, view: Callable[[ShardId], View | None], now: Millis) -> None:
        self._view = view
        self.now = now
        self.drafts: dict[ShardId, Draft] = {}

    def draft(self, shard: ShardId) -> Draft | None:
        """Return the shard's draft, or None if there is no such shard (any more)."""
        draft = self.drafts.get(shard)
        if draft is None:
            view = self._view(shard)
            if view is None or view.dropped:
                return None
            draft = self.drafts[shard] = Draft(view, self.now)
        return None if draft.view.dropped else draft

    def view(self, shard: ShardId) -> View | None:
        """Return the view of the shard, changes of its draft included, or None if there is none."""
        view = self._view(shard)
        return None if view is None or view.dropped else view

    def make(self, view: View) -> Draft:
        """Return a draft for a shard that begins with this batch."""
        draft = self.drafts[view.shard] = Draft(view, self.now)
        return draft
