"""What deciding needs from the store: fetched for a whole batch first, and then as it turns out."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress

from millrace.core import dedup, groups, points
from millrace.core.block import key_list
from millrace.core.commands import Need, Publish, Transaction
from millrace.core.decide import Answer, decide, learn
from millrace.core.desk import Desk
from millrace.core.group_list import numbers_of
from millrace.core.model import ShardId
from millrace.core.points import Name
from millrace.core.view import View
from millrace.engine.request import Request
from millrace.errors import Corrupt, Fatal, Refused, Retry, detached
from millrace.store.base import Store


def fetch_keys(
    requests: Iterable[Request], view: Callable[[ShardId], View | None], store: Store
) -> None:
    """Look up keys, ids and groups of all publishes at once: one call to the store per shard."""
    wanted: dict[ShardId, dict[bytes, None]] = {}
    asked: dict[ShardId, dict[Name, None]] = {}
    views: dict[ShardId, View | None] = {}
    for request in requests:
        command = request.command
        kind = type(command)
        if kind is not Publish and kind is not Transaction:
            continue
        if request.is_plain:
            # The way of a single message, which must cost little.
            shard = request.shard
            if shard not in views:
                views[shard] = view(shard)
            found = views[shard]
            if found is None or not (found.spec.keyed or found.spec.is_grouped):
                continue
        parts = command.parts if isinstance(command, Transaction) else ((request.shard, command),)
        for shard, part in parts:
            if not isinstance(part, Publish):
                continue
            if shard not in views:
                views[shard] = view(shard)
            found = views[shard]
            if found is None:
                continue
            if part.ids:
                used = (name for name in dedup.names_of(found, part) if name is not None)
                asked.setdefault(shard, {}).update(dict.fromkeys(used))
            if found.spec.is_grouped:
                numbers = numbers_of(found, part.rows)
                asked.setdefault(shard, {}).update(dict.fromkeys(groups.unknown(found, numbers)))
            if found.spec.keyed:
                keys = wanted.setdefault(shard, {})
                keys.update((key, None) for key in key_list(part.rows) if key is not None)
    for shard, names in wanted.items():
        found = views[shard]
        assert found is not None
        known = list(names)
        found.facts.keys.update(zip(known, store.find(shard, known), strict=True))
    for shard, points_of in asked.items():
        found = views[shard]
        if found is not None and found.stored_index and points_of:
            # If a cell is damaged, the command that needs it hears of that.
            with suppress(Corrupt):
                points.learn(found, list(points_of), store.points(shard, list(points_of)))


def decide_fetching(
    desk: Desk, request: Request, store: Store, *, in_flight: bool
) -> Answer | Refused | Retry | Corrupt | Need:
    """Decide, fetching what is needed; `Need` comes back if it must be folded first.

    Nothing is decided where what is needed is damaged: `Corrupt` comes back.

    Raises:
        Fatal: it needs again what it was told: a defect, which would go on for ever.
    """
    told: set[Need] | None = None
    while True:
        result = decide(desk, request.shard, request.command)
        if not isinstance(result, Need):
            return result
        if result.stages and in_flight:
            return result
        told = told if told is not None else set()
        if result in told:
            raise Fatal(f"{type(request.command).__name__} needs the same twice: {result}")
        told.add(result)
        draft = desk.draft(result.shard)
        assert draft is not None
        try:
            learn(draft, result, store)
        except Corrupt as error:
            # Rows of this shard are damaged: others neither need them nor suffer for it.
            return detached(error)
