"""The checkers of topics: what was published reaches every queue that is subscribed, once.

One queue is subscribed all the time and gets everything, so that it tells the topic's order; one
gets what passes a filter; others come and go. Nobody takes anything out of them.

D1 each OK publish is there, once, in the order of the topic, where it passes the filter; nothing
   else is there; what the publisher was told about each queue is so
D2 a queue that was subscribed for a while has a run of the topic without gaps, from the first
   message that came after the subscription was known, however its filter is written
D3 what is noted of a subscription is there
"""

from __future__ import annotations

from tests.support.checkers.history import History, TopicPublish, TopicRead

WANTED = b"even"
"""The value of the header `kind` that the filter lets pass."""

EVERYTHING, FILTERED, PASSING = "left", "right", "passing"
"""The queues: of all messages, of those that pass the filter, and one that comes and goes."""


def check_topics(history: History) -> list[str]:
    """Everything that is wrong with what topics have forwarded."""
    found: list[str] = []
    reads = history.of(TopicRead)
    whole = next((read for read in reads if read.queue == EVERYTHING and read.is_ok), None)
    calls = history.of(TopicPublish)
    if whole is None:
        return found
    kinds = {tag: kind for call in calls for tag, kind in call.rows}
    order = [tag for _, tag in whole.rows]
    if len(order) != len(set(order)):
        found.append(f"D1: doubled in {EVERYTHING}: {_doubled(order)}")
    found += _check_loss(calls, order)
    rows = {EVERYTHING: {tag: seq for seq, tag in whole.rows}}
    for read in reads:
        tags = [tag for _, tag in read.rows]
        if read.queue == FILTERED and read.is_ok:
            rows[FILTERED] = {tag: seq for seq, tag in read.rows}
            wanted = [tag for tag in order if kinds.get(tag) == WANTED]
            if tags != wanted:
                found.append(f"D1: {FILTERED} has {tags}, and should have {wanted}")
        elif read.queue == PASSING and read.is_ok:
            found += _check_run(calls, order, read)
    for call in calls:
        found += _check_told(call, rows)
    return found


def _check_loss(calls: list[TopicPublish], order: list[str]) -> list[str]:
    found: list[str] = []
    place = {tag: at for at, tag in enumerate(order)}
    known: dict[str, int] = {}
    may_be = {tag for call in calls if call.may_be_done for tag, _ in call.rows}
    for call in calls:
        for at, (tag, _) in enumerate(call.rows):
            if call.is_ok and tag not in place:
                found.append(f"D1: {tag} was published, and is not in {EVERYTHING}")
            elif call.is_ok and call.first is not None:
                known[tag] = call.first + at
    found += [
        f"D1: {tag} is in {EVERYTHING}, and was refused" for tag in order if tag not in may_be
    ]
    seqs = [known[tag] for tag in order if tag in known]
    if seqs != sorted(seqs):
        found.append(f"D1: {EVERYTHING} is not in the order of the topic: {seqs}")
    return found


def _check_run(calls: list[TopicPublish], order: list[str], read: TopicRead) -> list[str]:
    tags = [tag for _, tag in read.rows]
    if not tags:
        return []
    if tags[0] not in order:
        return [f"D2: {PASSING} has {tags[0]}, which was not published"]
    begin = order.index(tags[0])
    if tags != order[begin : begin + len(tags)]:
        return [f"D2: {PASSING} has {tags}, which is no run of {order}"]
    later = {
        tag for call in calls if call.is_ok and call.number > read.since for tag, _ in call.rows
    }
    missed = [tag for tag in order[:begin] if tag in later]
    # An earlier attempt at the same publish may have come before the subscription.
    early = {tag for call in calls if call.number <= read.since for tag, _ in call.rows}
    missed = [tag for tag in missed if tag not in early]
    return [f"D2: {PASSING} was subscribed, and misses {missed}"] if missed else []


def _check_told(call: TopicPublish, rows: dict[str, dict[str, int]]) -> list[str]:
    found: list[str] = []
    for queue, fates in call.queues.items():
        for (tag, kind), fate in zip(call.rows, fates, strict=True):
            if queue not in rows:
                continue
            if fate == "filtered":
                if queue != FILTERED or kind == WANTED:
                    found.append(f"D1: {tag} was said to be filtered by {queue}")
            elif isinstance(fate, int) and rows[queue].get(tag) != fate:
                found.append(f"D1: {tag} was said to be {fate} of {queue}, which is {rows[queue]}")
            elif fate == "gone":
                found.append(f"D1: {tag} was said to find no subscription of {queue}")
    return found


def _doubled(tags: list[str]) -> list[str]:
    return sorted({tag for tag in tags if tags.count(tag) > 1})
