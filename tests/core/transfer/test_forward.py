"""Conditions under which a queue accepts a topic's parcel."""

from __future__ import annotations

from millrace.core.commands import CreateQueue, Publish
from millrace.core.model import CATALOG, NewMessage, ShardId
from millrace.core.spec import QueueSpec
from millrace.core.state.fold import Reader
from millrace.core.topic_commands import (
    ConfigureSubscription,
    CreateTopic,
    Forward,
    ForwardResult,
    Subscribe,
    SubscribeResult,
)
from millrace.core.topics import filters
from tests.support.models.commit_group import Group
from tests.support.transcript.topics import pack

TOPIC, QUEUE = ShardId(1), ShardId(2)
EVEN, ODD = filters.text({"kind": "even"}), filters.text({"kind": "odd"})


def test_a_parcel_that_was_packed_by_an_older_filter_is_left_alone() -> None:
    group = Group()
    group.ask((CATALOG, CreateTopic("default", "numbers", 100)))
    group.ask((CATALOG, CreateQueue("default", "a", QueueSpec())))
    [subscribed] = group.ask((TOPIC, Subscribe("a", "default", "a", EVEN)))
    assert isinstance(subscribed, SubscribeResult)
    number = subscribed.subscription
    messages = [
        NewMessage(b"%d" % n, None, (("kind", b"odd" if n % 2 else b"even"),)) for n in range(4)
    ]
    group.ask((TOPIC, Publish(tuple(messages))))
    older = pack(group, TOPIC, number, EVEN, 0, 4)
    group.ask((TOPIC, ConfigureSubscription("a", ODD)))
    [answer] = group.ask((TOPIC, Forward((older,))))
    assert isinstance(answer, ForwardResult)
    assert [parcel.moved for parcel in answer.parcels] == [False]
    assert not group.seqs(QUEUE, Reader())
    group.ask((TOPIC, Forward((pack(group, TOPIC, number, ODD, 0, 4),))))
    rows = group.store.rows(QUEUE, group.seqs(QUEUE, Reader()))
    assert [row.body for row in rows] == [b"1", b"3"]
