"""The SNS actions Publish and PublishBatch.

Rule: a batch is published as a whole, or refused as a whole with the error of its first invalid
entry.
"""

from __future__ import annotations

import re

from millrace import limits
from millrace.errors import Invalid, TooLarge
from millrace.server.aws.actions import AwsCall
from millrace.server.aws.envelope_delivery import sequence_of
from millrace.server.aws.message_attributes import trace_of
from millrace.server.sns.faults import (
    bad_entry_id,
    batch_too_long,
    invalid,
    invalid_value,
    no_entries,
    no_value,
    same_ids,
    too_many_entries,
    unsupported,
)
from millrace.server.sns.message import publishable, size_of
from millrace.server.sns.resource_lookup import place_at, use_topic
from millrace.server.sns.schemas import (
    PublishBatchIn,
    PublishBatchOut,
    PublishCall,
    PublishedEntry,
    PublishOut,
)
from millrace.server.sns.state import SNS
from millrace.server.sns.topic_cache import TopicInfo

_ENTRY_ID = re.compile(rf"[A-Za-z0-9_-]{{1,{limits.SNS_ENTRY_ID_CHARS_MAX}}}")


@SNS.action("Publish", PublishCall, PublishOut)
async def publish(call: AwsCall[PublishCall]) -> PublishOut:
    """Publish a message to all subscribers of a topic."""
    told = call.told
    if told.phone_number:
        raise unsupported("Publish to a phone number")
    parameter = "TargetArn" if told.topic_arn is None else "TopicArn"
    arn = told.target_arn if told.topic_arn is None else told.topic_arn
    if arn is None:
        raise no_value("TopicArn or TargetArn")
    if ":endpoint/" in arn:
        raise invalid(f"{parameter} Reason: No endpoint found for the target arn specified")
    place = place_at(call, arn, "publish", parameter)
    trace = trace_of(call.ask.request.headers)

    async def use(known: TopicInfo) -> PublishOut:
        one = publishable(told, known.told(place.arn), trace=trace)
        try:
            sent = await known.topic.publish_many([one.message])
        except (Invalid, TooLarge) as error:
            raise invalid_value(error.message) from error
        seq = sent.seqs[0] if sent.seqs else None
        return PublishOut(one.id, sequence_of(seq or 0) if known.is_fifo else None)

    return await use_topic(call, place, use)


@SNS.action("PublishBatch", PublishBatchIn, PublishBatchOut)
async def publish_batch(call: AwsCall[PublishBatchIn]) -> PublishBatchOut:
    """Publish up to ten messages to all subscribers of a topic."""
    entries = call.told.entries
    if not entries:
        raise no_entries()
    if len(entries) > limits.SNS_BATCH_MAX:
        raise too_many_entries()
    if len({entry.id for entry in entries}) < len(entries):
        raise same_ids()
    for entry in entries:
        if _ENTRY_ID.fullmatch(entry.id) is None:
            raise bad_entry_id(entry.id)
    place = place_at(call, call.told.topic_arn, "publish")
    trace = trace_of(call.ask.request.headers)

    async def use(known: TopicInfo) -> PublishBatchOut:
        topic = known.told(place.arn)
        # Invalid entries count in the size of the batch too.
        if sum(map(size_of, entries)) > topic.bytes_max:
            raise batch_too_long()
        made = [
            publishable(entry, topic, position, trace=trace)
            for position, entry in enumerate(entries, 1)
        ]
        try:
            sent = await known.topic.publish_many([one.message for one in made])
        except (Invalid, TooLarge) as error:
            raise invalid_value(error.message) from error
        seqs: list[int | None] = list(sent.seqs) or [None] * len(made)
        done = [
            PublishedEntry(one.id, sequence_of(seq or 0) if known.is_fifo else None, id=entry.id)
            for entry, one, seq in zip(entries, made, seqs, strict=True)
        ]
        return PublishBatchOut(done, [])

    return await use_topic(call, place, use)
