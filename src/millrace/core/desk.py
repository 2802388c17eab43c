"""The drafts of a commit group that are decided together."""

from __future__ import annotations

from collections.abc import Callable

from millrace.core.draft import Draft
from millrace.core.model import Millis, ShardId
from millrace.core.view import View


class Desk:
    """The drafts of one commit group's batch, made as commands need them."""

    def __init__(self, view: Callable[[ShardId], View | None], now: Millis) -> None:
        self._view = view
        self.now = now
        self.drafts: dict[ShardId, Draft] = {}

    def draft(self, shard: ShardId) -> Draft | None:
        """The shard's draft, or None if there is no such shard (any more)."""
        draft = self.drafts.get(shard)
        if draft is None:
            view = self._view(shard)
            if view is None or view.dropped:
                return None
            draft = self.drafts[shard] = Draft(view, self.now)
        return None if draft.view.dropped else draft

    def view(self, shard: ShardId) -> View | None:
        """The shard as it is now, by its draft too, or None if there is no such shard."""
        view = self._view(shard)
        return None if view is None or view.dropped else view

    def make(self, view: View) -> Draft:
        """A draft for a shard that begins with this batch."""
        draft = self.drafts[view.shard] = Draft(view, self.now)
        return draft
