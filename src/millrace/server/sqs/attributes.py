"""Queue attributes of SQS: validation, conversion to settings, and rendering.

An attribute with a counterpart in the core is stored as that setting: MessageRetentionPeriod is
`ttl`, DelaySeconds `delay`, RedrivePolicy `dead_letter` and `max_deliveries`. All other attributes
are stored in notes of the queue.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Literal, cast

import msgspec

from millrace import limits
from millrace.client.settings import QueueSettings
from millrace.decoding import json_decoder
from millrace.server.aws.fault import Fault, bad_value, invalid_parameter
from millrace.server.aws.names import AccountRegion, arn_of, read_arn
from millrace.server.aws.queue_info import (
    AS_AWS,
    CREATED,
    MODIFIED,
    PREFIX,
    SCOPE,
    SIZE,
    VISIBILITY,
    WAIT,
    QueueInfo,
    SqsLimits,
)
from millrace.server.sqs.faults import bad_attribute, fifo_attribute, unknown_attribute

_NAME = re.compile(rf"[A-Za-z0-9_-]{{1,{limits.SQS_NAME_CHARS_MAX}}}")
_RANGES = {
    VISIBILITY: (0, limits.SQS_VISIBILITY_SECONDS_MAX),
    WAIT: (0, limits.SQS_WAIT_SECONDS_MAX),
    SIZE: (limits.SQS_MESSAGE_BYTES_MIN, limits.SQS_MESSAGE_BYTES_MAX),
    "MessageRetentionPeriod": (limits.SQS_RETENTION_SECONDS_MIN, limits.SQS_RETENTION_SECONDS_MAX),
    "DelaySeconds": (0, limits.SQS_DELAY_SECONDS_MAX),
    "KmsDataKeyReusePeriodSeconds": (60, 86_400),
}
_FLAGS = ("FifoQueue", "ContentBasedDeduplication", "SqsManagedSseEnabled")
_WORDS = {
    SCOPE: ("messageGroup", "queue"),
    "FifoThroughputLimit": ("perQueue", "perMessageGroupId"),
}
ALLOW = "RedriveAllowPolicy"
_KEPT = (ALLOW, "KmsMasterKeyId")
_TEXTS = ("Policy", *_KEPT)
_KEY = f"{PREFIX}KmsMasterKeyId"
_MANAGED = f"{PREFIX}SqsManagedSseEnabled"
_NOTHING: Mapping[str, str] = {}
_FIFO_ONLY = ("ContentBasedDeduplication", SCOPE, "FifoThroughputLimit")
SETTABLE = (*_RANGES, *_FLAGS, *_WORDS, *_TEXTS, "RedrivePolicy")
_COUNTED = (
    "ApproximateNumberOfMessages",
    "ApproximateNumberOfMessagesNotVisible",
    "ApproximateNumberOfMessagesDelayed",
)
ALL = (*SETTABLE, *_COUNTED, "CreatedTimestamp", "LastModifiedTimestamp", "QueueArn")
KEY_SECONDS = "300"
"""Default of KmsDataKeyReusePeriodSeconds, as in SQS."""
RETENTION_SECONDS = 345_600
"""Default of MessageRetentionPeriod, as in SQS."""


def check_name(name: str, *, is_fifo: bool) -> None:
    """Validate the name of a new queue.

    Raises:
        Fault: the name is invalid, or its suffix does not match the kind of queue.
    """
    stem = name.removesuffix(".fifo")
    if is_fifo and not name.endswith(".fifo"):
        raise bad_value(
            name,
            "QueueName",
            "The name of a FIFO queue can only include alphanumeric "
            "characters, hyphens, or underscores, must end with .fifo suffix and be 1 "
            f"to {limits.SQS_NAME_CHARS_MAX} in length.",
        )
    if (
        _NAME.fullmatch(stem) is None
        or len(name) > limits.SQS_NAME_CHARS_MAX
        or (name.endswith(".fifo") and not is_fifo)
    ):
        raise invalid_parameter(
            "Can only include alphanumeric characters, hyphens, or underscores. 1 to "
            f"{limits.SQS_NAME_CHARS_MAX} in length"
        )


class ParsedAttributes(msgspec.Struct, frozen=True):
    """Queue attributes converted to settings of the core and notes."""

    settings: QueueSettings
    notes: dict[str, str]
    letters: tuple[str, str] | None = None
    """Space and name of the dead-letter queue."""

    def of(self, space: str, name: str) -> ParsedAttributes:
        """Return the same attributes for the queue of this name, which cannot be its own
        dead-letter queue.

        If the redrive policy names the queue itself, its messages stay and are received again.
        """
        if self.letters != (space, name):
            return self
        settings: QueueSettings = {**self.settings, "dead_letter": "", "max_deliveries": 0}
        return msgspec.structs.replace(self, settings=settings, letters=None)


class RedrivePolicy(msgspec.Struct, frozen=True):
    """A parsed RedrivePolicy: a dead-letter queue, and the receives until a message moves there."""

    deadLetterTargetArn: str  # noqa: N815
    maxReceiveCount: int  # noqa: N815


def default_settings(bounds: SqsLimits = AS_AWS, *, is_fifo: bool) -> QueueSettings:
    """Return the default settings of a new queue."""
    return {
        "ttl": RETENTION_SECONDS,
        "dedup": limits.SQS_DEDUP_SECONDS,
        "max_in_flight": bounds.in_flight,
        "order": "group" if is_fifo else "none",
        "group_blocking": "message" if is_fifo else "lease",
    }


def parse_attributes(
    given: Mapping[str, str],
    space_of: Callable[[AccountRegion], str],
    bounds: SqsLimits = AS_AWS,
    *,
    is_fifo: bool,
    is_new: bool,
    has: Mapping[str, str] = _NOTHING,
) -> ParsedAttributes:
    """Validate attributes and convert them to settings and notes.

    `has` are the present notes of the queue.

    Raises:
        Fault: an attribute is unknown or has an invalid value.
    """
    settings: dict[str, object] = {}
    notes: dict[str, str] = {}
    letters: tuple[str, str] | None = None
    for name, text in given.items():
        if is_new and not is_fifo and name in _WORDS:
            raise fifo_attribute(name)
        if name not in SETTABLE or (not is_fifo and name in _FIFO_ONLY):
            raise unknown_attribute(name)
        _see(name, text, bounds)
        if name == "FifoQueue":
            _see_fifo(text, is_fifo=is_fifo, is_new=is_new)
        elif name == "MessageRetentionPeriod":
            settings["ttl"] = int(text)
        elif name == SIZE:
            settings["message_bytes_max"] = int(text)
            notes[PREFIX + name] = text
        elif name == "DelaySeconds":
            settings["delay"] = int(text)
        elif name == "ContentBasedDeduplication":
            settings["dedup_by_body"] = text.lower() == "true"
        elif name == "RedrivePolicy":
            letters = _redrive(text, settings, space_of)
            notes[PREFIX + name] = text
        else:
            if name == "Policy" and text:
                _see_json(name, text)
            elif name == ALLOW and text and read_allowed(text) is None:
                raise bad_attribute(name)
            notes[PREFIX + name] = text.lower() if name in _FLAGS else text
    _see_throughput({**has, **notes})
    _choose_encryption(notes)
    return ParsedAttributes(cast("QueueSettings", settings), notes, letters)


def _see(name: str, text: str, bounds: SqsLimits) -> None:
    """Validate the value of one attribute.

    Raises:
        Fault: the value is invalid.
    """
    if name in _RANGES:
        least, most = _RANGES[name]
        if name == VISIBILITY:
            most = bounds.visibility_seconds
        elif name == SIZE:
            most = bounds.message_bytes
        is_whole = text.isascii() and text.isdigit() and len(text) < 10
        is_none = not text and name == "KmsDataKeyReusePeriodSeconds"
        is_fit = is_none or (is_whole and least <= int(text) <= most)
    elif name in _FLAGS:
        is_fit = text.lower() in ("true", "false")
    else:
        is_fit = name not in _WORDS or text in _WORDS[name]
    if not is_fit:
        raise bad_attribute(name)


def refused(name: str, text: str) -> str:
    """Return which values an attribute accepts, in words, if it refuses this one; else an empty
    string.
    """
    try:
        _see(name, text, AS_AWS)
    except Fault:
        if name in _RANGES:
            least, most = _RANGES[name]
            return f"a whole number from {least} to {most}"
        return " or ".join(_WORDS.get(name, ("true", "false")))
    return ""


def _see_fifo(text: str, *, is_fifo: bool, is_new: bool) -> None:
    if not is_fifo or (is_new and text.lower() == "false"):
        raise unknown_attribute("FifoQueue")
    if text.lower() == "false":
        raise bad_attribute("FifoQueue", "Modifying queue type is not supported.")


def _see_throughput(notes: Mapping[str, str]) -> None:
    is_by_group = notes.get(f"{PREFIX}FifoThroughputLimit") == "perMessageGroupId"
    if is_by_group and notes.get(PREFIX + SCOPE) != "messageGroup":
        raise bad_attribute(
            "FifoThroughputLimit",
            "perMessageGroupId can be set only when DeduplicationScope is messageGroup.",
        )


def _choose_encryption(notes: dict[str, str]) -> None:
    """Keep one kind of encryption of a queue: the one requested last replaces the other."""
    with_key = bool(notes.get(_KEY))
    if notes.get(_MANAGED) == "true":
        if with_key:
            raise bad_attribute(
                "SqsManagedSseEnabled",
                "You can use one type of server-side encryption (SSE) at one time. You can either "
                "enable KMS SSE or SQS SSE.",
            )
        notes[_KEY] = ""
    elif with_key:
        notes[_MANAGED] = "false"


def _see_json(name: str, text: str) -> None:
    try:
        found = msgspec.json.decode(text)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        raise bad_attribute(name) from None
    if not isinstance(found, dict):
        raise bad_attribute(name)


def _redrive(
    text: str, settings: dict[str, object], space_of: Callable[[AccountRegion], str]
) -> tuple[str, str] | None:
    if not text:
        settings["dead_letter"], settings["max_deliveries"] = "", 0
        return None
    policy = read_redrive(text)
    if policy is None:
        raise bad_value(text[:300], "RedrivePolicy", _why_none(text))
    if not 1 <= policy.maxReceiveCount <= limits.SQS_RECEIVES_MAX:
        raise bad_value(
            text[:300],
            "RedrivePolicy",
            f"Invalid value for maxReceiveCount: {policy.maxReceiveCount}, valid values are from 1 "
            f"to {limits.SQS_RECEIVES_MAX} both inclusive.",
        )
    target = read_arn(policy.deadLetterTargetArn)
    if target is None or target.service != "sqs":
        raise bad_value(text[:300], "RedrivePolicy", "Invalid value for deadLetterTargetArn.")
    settings["max_deliveries"] = policy.maxReceiveCount
    space = space_of(target.home)
    settings["dead_letter"] = target.name
    return space, target.name


def _why_none(text: str) -> str:
    """Return why a text is not a valid redrive policy."""
    try:
        found = msgspec.json.decode(text)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        found = None
    if isinstance(found, dict):
        for name in RedrivePolicy.__struct_fields__:
            if name not in found:
                return f"Redrive policy does not contain mandatory attribute: {name}."
    return "Redrive policy is not a valid JSON map."


def read_redrive(text: str) -> RedrivePolicy | None:
    """Parse a RedrivePolicy; return None if it is invalid."""
    try:
        found = msgspec.json.decode(text)
        if not isinstance(found, dict):
            return None
        count = found["maxReceiveCount"]
        if isinstance(count, bool) or not isinstance(count, int | str):
            return None
        return RedrivePolicy(str(found["deadLetterTargetArn"]), int(count))
    except (msgspec.MsgspecError, ValueError, TypeError, KeyError, RecursionError):
        return None


class RedriveAllowPolicy(msgspec.Struct, frozen=True):
    """A parsed RedriveAllowPolicy: the source queues whose dead letters a queue accepts."""

    redrivePermission: Literal["allowAll", "denyAll", "byQueue"]  # noqa: N815
    sourceQueueArns: tuple[str, ...] = ()  # noqa: N815


_allowed = json_decoder(RedriveAllowPolicy)


def read_allowed(text: str) -> RedriveAllowPolicy | None:
    """Parse a RedriveAllowPolicy; return None if it is invalid."""
    try:
        found = _allowed.decode(text)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None
    sources = found.sourceQueueArns
    if found.redrivePermission != "byQueue":
        return None if sources else found
    is_fit = 1 <= len(sources) <= limits.SQS_SOURCES_MAX
    return found if is_fit and all(map(read_arn, sources)) else None


def accepts_dead_letters(known: QueueInfo, source: str) -> bool:
    """Return whether a queue accepts the dead letters of the queue with this ARN."""
    allowed = read_allowed(known.note(ALLOW))
    if allowed is None or allowed.redrivePermission == "allowAll":
        return True
    return allowed.redrivePermission == "byQueue" and source in allowed.sourceQueueArns


class MessageCounts(msgspec.Struct, frozen=True):
    """The number of messages of a queue, by state."""

    ready: int
    in_flight: int
    delayed: int


def render_attributes(
    known: QueueInfo, home: AccountRegion, counts: MessageCounts
) -> dict[str, str]:
    """Return all attributes of a queue by their SQS names."""
    spec, notes = known.spec, known.notes
    found = {
        VISIBILITY: str(known.visibility_seconds),
        SIZE: str(known.max_bytes),
        WAIT: str(known.wait_seconds),
        "DelaySeconds": str(spec.delay_ms // 1000),
        "MessageRetentionPeriod": _retention(known),
        "ApproximateNumberOfMessages": str(counts.ready),
        "ApproximateNumberOfMessagesNotVisible": str(counts.in_flight),
        "ApproximateNumberOfMessagesDelayed": str(counts.delayed),
        "CreatedTimestamp": notes.get(CREATED, "0"),
        "LastModifiedTimestamp": notes.get(MODIFIED, notes.get(CREATED, "0")),
        "QueueArn": arn_of("sqs", home, known.queue.name),
        "SqsManagedSseEnabled": _managed(known),
    }
    if known.is_fifo:
        found["FifoQueue"] = "true"
        found["ContentBasedDeduplication"] = "true" if spec.dedup_by_body else "false"
        found[SCOPE] = known.note(SCOPE) or "queue"
        found["FifoThroughputLimit"] = known.note("FifoThroughputLimit") or "perQueue"
    for name in _KEPT:
        if known.note(name):
            found[name] = known.note(name)
    policy = policy_of(known, home)
    if policy:
        found["Policy"] = policy
    if known.note("KmsMasterKeyId"):
        found["KmsDataKeyReusePeriodSeconds"] = (
            known.note("KmsDataKeyReusePeriodSeconds") or KEY_SECONDS
        )
    if spec.dead_letter:
        found["RedrivePolicy"] = _policy(known, home)
    elif redrives_itself(known, home):
        found["RedrivePolicy"] = _with_number(known.note("RedrivePolicy"))
    return found


def _retention(known: QueueInfo) -> str:
    """Return the retention in seconds; the maximum of SQS for queues that keep messages forever."""
    seconds = known.spec.ttl_ms // 1000 or limits.SQS_RETENTION_SECONDS_MAX
    return str(min(seconds, limits.SQS_RETENTION_SECONDS_MAX))


def _managed(known: QueueInfo) -> str:
    given = known.note("SqsManagedSseEnabled")
    return given or ("false" if known.note("KmsMasterKeyId") else "true")


def _with_number(text: str) -> str:
    """Return a redrive policy whose maxReceiveCount is a number, else as it was given."""
    found = msgspec.json.decode(text)
    if isinstance(found["maxReceiveCount"], int):
        return text
    return msgspec.json.encode(found | {"maxReceiveCount": int(found["maxReceiveCount"])}).decode()


def redrives_itself(known: QueueInfo, home: AccountRegion) -> bool:
    """Return whether the redrive policy names the queue itself: its messages stay where they are.

    The engine has no dead-letter queue then.
    """
    if known.spec.dead_letter:
        return False
    given = known.note("RedrivePolicy")
    policy = read_redrive(given) if given else None
    return policy is not None and policy.deadLetterTargetArn == arn_of(
        "sqs", home, known.queue.name
    )


def _policy(known: QueueInfo, home: AccountRegion) -> str:
    """Return the RedrivePolicy: the text that was set if it still matches the settings, else a new
    one.
    """
    spec, given = known.spec, known.note("RedrivePolicy")
    policy = read_redrive(given) if given else None
    name = spec.dead_letter.rpartition("/")[2]
    if (
        policy is not None
        and policy.maxReceiveCount == spec.max_deliveries
        and policy.deadLetterTargetArn.endswith(f":{name}")
    ):
        return _with_number(given)
    made = {
        "deadLetterTargetArn": arn_of("sqs", home, name),
        "maxReceiveCount": spec.max_deliveries,
    }
    return msgspec.json.encode(made).decode()


# -------------------------------------------------------------------------------------------------
# The policy of a queue: the text of the Policy attribute, and statements that AddPermission added
# since.
#
# Each added statement is a note of its own, with its label in the key, so that concurrent
# additions of different processes are all kept.

POLICY = f"{PREFIX}Policy"
VERSION = "2008-10-17"
"""Version of a policy that AddPermission creates."""
PERMISSION = f"{PREFIX}permission:"


def read_policy(known: QueueInfo) -> tuple[dict[str, object], list[object]]:
    """Return the Policy attribute and its statements; both empty if the note is invalid."""
    read = _decoded(known.notes.get(POLICY, ""))
    policy: dict[str, object] = read if isinstance(read, dict) else {}
    found = policy.get("Statement", [])
    return policy, list(found) if isinstance(found, list) else [found]


def _decoded(text: str) -> object:
    try:
        return msgspec.json.decode(text) if text else {}
    except (msgspec.MsgspecError, ValueError, RecursionError):
        # Another API may have written it.
        return {}


def is_labelled(statement: object, label: str) -> bool:
    """Return whether a statement has this label."""
    return isinstance(statement, dict) and statement.get("Sid") == label


def policy_of(known: QueueInfo, home: AccountRegion) -> str:
    """Return the complete policy, unchanged if no statements were added; empty if there is no
    policy.
    """
    added = [text for name, text in sorted(known.notes.items()) if name.startswith(PERMISSION)]
    if not added:
        return known.notes.get(POLICY, "")
    policy, statements = read_policy(known)
    arn = arn_of("sqs", home, known.queue.name)
    policy.setdefault("Version", VERSION)
    policy.setdefault("Id", f"{arn}/SQSDefaultPolicy")
    policy["Statement"] = [*statements, *map(_decoded, added)]
    return msgspec.json.encode(policy).decode()


def one_or_all(texts: list[str]) -> str | list[str]:
    """Return the texts as policies have them: a single one by itself, several as a list."""
    return texts[0] if len(texts) == 1 else texts


def without_permissions(known: QueueInfo) -> dict[str, str]:
    """Return note changes that remove all added statements, since a new policy replaces them."""
    return {name: "" for name in known.notes if name.startswith(PERMISSION)}
