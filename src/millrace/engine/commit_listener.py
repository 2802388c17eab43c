"""Those who work beside a host: they are told what happens, and ask for things as anyone does."""

from __future__ import annotations

from typing import Protocol

from millrace.core.changes import Batch
from millrace.core.view import View
from millrace.errors import Fatal


class CommitListener(Protocol):
    """Moves rows of a group's shards from one to another."""

    def stir(self, view: View, batch: Batch | None) -> None:
        """A shard with dead letters, or a topic: a batch of it was committed, or time has passed.

        Of a shard that has ended it is the last word.
        """
        ...

    def end(self, error: Fatal) -> None:
        """The host has failed: nothing more will be heard of anything."""
        ...
