"""Transcripts, words of topics.

`create_topic orders max_lag:5`, `configure_topic orders max_lag:9`, `delete_topic orders`,
`subscribe orders to:billing as:bills {"type":"order"}`, `unsubscribe orders bills`, and
`forward orders` (what each subscription lacks), `forward orders 2 upto:5` (one of them, and not
all of it), `forward orders 1 after:0` (what it does not lack).
"""

from __future__ import annotations

import json

import numpy as np

from millrace.core import carry, filters, picking
from millrace.core.commands import Command
from millrace.core.fold import Reader
from millrace.core.model import CATALOG, ShardId
from millrace.core.topic_commands import (
    ConfigureTopic,
    CreateTopic,
    DeleteTopic,
    Forward,
    Parcel,
    Subscribe,
    Unsubscribe,
)
from millrace.testing.group import Group

TOPIC_VERBS = (
    "create_topic",
    "configure_topic",
    "delete_topic",
    "subscribe",
    "unsubscribe",
    "forward",
)
_SPACE = "default"


def topic_command(
    group: Group, shard: ShardId, verb: str, name: str, words: list[str]
) -> tuple[ShardId, Command]:
    """What the words ask, and of which shard."""
    options = dict(word.split(":", 1) for word in words if ":" in word and word[0] != "{")
    plain = [word for word in words if ":" not in word]
    lag = options.get("max_lag")
    match verb:
        case "create_topic":
            return CATALOG, CreateTopic(_SPACE, name, None if lag is None else int(lag))
        case "configure_topic":
            return CATALOG, ConfigureTopic(_SPACE, name, shard, int(options["max_lag"]))
        case "delete_topic":
            return CATALOG, DeleteTopic(_SPACE, name, int(options.get("shard", 0)))
        case "subscribe":
            wanted = [json.loads(word) for word in words if word[0] == "{"]
            text = filters.text(wanted[0] if wanted else None)
            queue = options["to"]
            return shard, Subscribe(options.get("as", queue), _SPACE, queue, text)
        case "unsubscribe":
            return shard, Unsubscribe(plain[0])
        case _:
            return shard, forward_all(group, shard, [int(word) for word in plain], options)


def forward_all(
    group: Group, shard: ShardId, numbers: list[int], options: dict[str, str]
) -> Forward:
    """What subscriptions lack of the rows that are folded, all of them or these."""
    view, meta = group.view(shard), group.store.meta(shard)
    parcels: list[Parcel] = []
    if view is not None and meta is not None:
        upto = int(options.get("upto", meta.last_seq))
        for number, cell in view.subscriptions.items():
            after = int(options.get("after", cell.passed))
            if after < upto and number in (numbers or view.subscriptions):
                parcels.append(pack(group, shard, number, cell.filter, after, upto))
    return Forward(tuple(parcels))


def pack(group: Group, shard: ShardId, number: int, text: str, after: int, upto: int) -> Parcel:
    """The rows (after, upto] as far as they pass a filter."""
    batches = list(group.store.scan(shard, after, upto, Reader()))
    if not batches:
        return Parcel(number, after, upto, None)
    block = picking.join([picking.of_rows(batch) for batch in batches])
    count = block.count
    wanted = filters.load(text)
    if wanted is not None:
        block = picking.take(block, np.flatnonzero(wanted.mask(block)))
    turns = carry.unpack(block, [(block.count, group.now)], group.now)
    rows = block if block.count else None
    return Parcel(number, after, upto, rows, count - block.count, *turns)
