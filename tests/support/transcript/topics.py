"""Transcripts, words of topics.

`create_topic orders max_lag:5`, `configure_topic orders max_lag:9`, `delete_topic orders`,
`subscribe orders to:billing as:bills {"type":"order"}`, `configure_subscription orders bills {}`,
`unsubscribe orders bills`, all but the last also with `note:name=text`,
`subscribe orders to:billing durable letters:dead link:text`, and
`forward orders` (what each subscription lacks), `forward orders 2 upto:5` (one of them, and not
all of it), `forward orders 1 after:0` (what it does not lack).
"""

from __future__ import annotations

import json

import numpy as np

from millrace.core.commands import Command
from millrace.core.format import block_ops
from millrace.core.model import CATALOG, ShardId
from millrace.core.publishing import life_headers
from millrace.core.state.fold import Reader
from millrace.core.topic_commands import (
    ConfigureSubscription,
    ConfigureTopic,
    CreateTopic,
    DeleteTopic,
    Forward,
    Parcel,
    Subscribe,
    Unsubscribe,
)
from millrace.core.topics import filters
from tests.support.models.commit_group import Group
from tests.support.transcript.options import most_of, notes_of

TOPIC_VERBS = (
    "create_topic",
    "configure_topic",
    "delete_topic",
    "subscribe",
    "configure_subscription",
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
    most = None if lag is None else int(lag)
    wanted = [filters.text(json.loads(word)) for word in words if word[0] == "{"]
    notes = notes_of(words)
    match verb:
        case "create_topic":
            return CATALOG, CreateTopic(_SPACE, name, most, notes)
        case "configure_topic":
            return CATALOG, ConfigureTopic(_SPACE, name, shard, most, notes, most_of(words))
        case "delete_topic":
            return CATALOG, DeleteTopic(_SPACE, name, int(options.get("shard", 0)))
        case "subscribe":
            text, queue = "".join(wanted), options["to"]
            letters = f"{_SPACE}/{options['letters']}" if "letters" in options else ""
            of_queue = (("link", options["link"]),) if "link" in options else ()
            return shard, Subscribe(
                options.get("as", queue),
                _SPACE,
                queue,
                text,
                notes,
                "durable" in plain,
                letters,
                of_queue,
            )
        case "configure_subscription":
            change = wanted[0] if wanted else None
            return shard, ConfigureSubscription(plain[0], change, notes)
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
        return Parcel(number, after, upto, None, filter=text)
    block = block_ops.join([block_ops.of_rows(batch) for batch in batches])
    count = block.count
    wanted = filters.load(text)
    if wanted is not None:
        block = block_ops.take(block, np.flatnonzero(wanted.mask(block)))
    turns = life_headers.unpack(block, [(block.count, group.now)], group.now)
    rows = block if block.count else None
    return Parcel(number, after, upto, rows, count - block.count, *turns, text)
