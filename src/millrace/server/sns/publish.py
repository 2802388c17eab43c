"""Publishing.

Rule: the messages of a batch that are as they must be are published at once; each of the others is
told why it was not.
"""

from __future__ import annotations

import re

from millrace import limits
from millrace.errors import Invalid, TooLarge
from millrace.server.aws.calls import Call
from millrace.server.aws.fault import Fault
from millrace.server.sns.exchange import KnownTopic
from millrace.server.sns.faults import (
    bad_entry_id,
    batch_too_long,
    invalid,
    invalid_value,
    no_entries,
    same_ids,
    too_many_entries,
    unsupported,
)
from millrace.server.sns.message import Ready, ready, size_of
from millrace.server.sns.place import place_at, use_topic
from millrace.server.sns.service import SNS
from millrace.server.sns.shapes import (
    FailedEntry,
    PublishBatchIn,
    PublishBatchOut,
    PublishCall,
    PublishedEntry,
    PublishOut,
)

_ENTRY_ID = re.compile(rf"[A-Za-z0-9_-]{{1,{limits.SNS_ENTRY_ID_CHARS_MAX}}}")
_SEQUENCE_BASE = 10**19
"""Numbers of FIFO topics have twenty digits."""


def sequence_of(seq: int | None, *, is_fifo: bool) -> str | None:
    """The number of a message of a FIFO topic."""
    return f"{_SEQUENCE_BASE + (seq or 0)}" if is_fifo else None


@SNS.action("Publish", PublishCall, PublishOut)
async def publish(call: Call[PublishCall]) -> PublishOut:
    """Publish a message to all who are subscribed."""
    told = call.told
    if told.phone_number:
        raise unsupported("Publish to a phone number")
    arn = told.topic_arn or told.target_arn
    if not arn:
        raise invalid("TopicArn or TargetArn Reason: no value for required parameter")
    parameter = "TopicArn" if told.topic_arn else "TargetArn"
    if ":endpoint/" in arn:
        raise invalid(f"{parameter} Reason: No endpoint found for the target arn specified")
    place = place_at(call, arn, "publish", parameter)

    async def use(known: KnownTopic) -> PublishOut:
        one = ready(told, known.told(place.arn))
        try:
            sent = await known.topic.publish_many([one.message])
        except (Invalid, TooLarge) as error:
            raise invalid_value(error.message) from error
        seq = sent.seqs[0] if sent.seqs else None
        return PublishOut(one.id, sequence_of(seq, is_fifo=known.is_fifo))

    return await use_topic(call, place, use)


@SNS.action("PublishBatch", PublishBatchIn, PublishBatchOut)
async def publish_batch(call: Call[PublishBatchIn]) -> PublishBatchOut:
    """Publish up to ten messages to all who are subscribed."""
    entries = call.told.entries
    if not entries:
        raise no_entries()
    if len(entries) > limits.SNS_BATCH_MAX:
        raise too_many_entries()
    if len({entry.id for entry in entries}) < len(entries):
        raise same_ids()
    if any(_ENTRY_ID.fullmatch(entry.id) is None for entry in entries):
        raise bad_entry_id()
    place = place_at(call, call.told.topic_arn, "publish")

    async def use(known: KnownTopic) -> PublishBatchOut:
        topic = known.told(place.arn)
        # What is wrong with an entry does not make the batch smaller.
        if sum(map(size_of, entries)) > topic.bytes_max:
            raise batch_too_long()
        good: list[tuple[str, Ready]] = []
        failed: list[FailedEntry] = []
        for position, entry in enumerate(entries, 1):
            try:
                good.append((entry.id, ready(entry, topic, position)))
            except Fault as fault:
                failed.append(FailedEntry(entry.id, fault.query, fault.message, fault.is_sender))
        if not good:
            return PublishBatchOut([], failed)
        try:
            sent = await known.topic.publish_many([one.message for _, one in good])
        except (Invalid, TooLarge) as error:
            raise invalid_value(error.message) from error
        seqs: list[int | None] = list(sent.seqs) or [None] * len(good)
        done = [
            PublishedEntry(one.id, sequence_of(seq, is_fifo=known.is_fifo), id=id)
            for (id, one), seq in zip(good, seqs, strict=True)
        ]
        return PublishBatchOut(done, failed)

    return await use_topic(call, place, use)
