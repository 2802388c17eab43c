"""Queues, topics and users that are declared in the settings.

Rule: each start and reload sets declared objects as the file says, and leaves others alone. No
queue, topic or user is deleted because the file no longer names it. Removing a declared token from
a user in the file revokes it.
"""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any, cast

import msgspec

from millrace import limits
from millrace.client.millrace import Millrace
from millrace.client.queue import Queue
from millrace.client.settings import QueueSettings, make_spec
from millrace.client.topic import validate_lag
from millrace.core import validate
from millrace.core.spec import QueueSpec
from millrace.decoding import convert
from millrace.errors import Invalid, NotFound, Refused
from millrace.server.auth.access import Quota, User, parse_rule
from millrace.server.auth.audit import Actor
from millrace.server.auth.store import UserStore
from millrace.server.aws.fault import Fault
from millrace.server.aws.queue_info import CREATED, MODIFIED, SALT
from millrace.server.sqs import attributes

BY = Actor("settings")
"""The actor of changes by the settings."""

_FIXED = ("shards", "route", "beside")
"""Options that are fixed at creation, and not settings of the queue."""

_DECLARED = "declared-"
"""Prefix of the names of declared tokens; the beginning of the digest follows."""

_DIGEST = re.compile(r"sha256:([0-9a-f]{64})")

Where = Callable[..., str]
"""Returns file and line of keys."""


class ErrorLocation:
    """Context manager that adds file, line and key to errors."""

    def __init__(self, where: Where, *keys: str) -> None:
        self._where = where
        self._keys = keys

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, Refused):
            place = self._where(*self._keys, *([error.field] if error.field else []))
            said = f"{place}: {'.'.join(self._keys)}: {error.message}"
            raise Invalid(said, field=error.field, limit=error.limit) from error


_NOWHERE = ErrorLocation(lambda *_: "the settings")


@dataclass(frozen=True, slots=True)
class DeclaredQueue:
    """A declared queue."""

    space: str
    name: str
    settings: dict[str, object]
    shards: int | None = None
    route: str | None = None
    beside: str | None = None
    is_sqs: bool = False
    """True if it has the settings of an SQS queue."""
    at: ErrorLocation = field(default=_NOWHERE, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class DeclaredTopic:
    """A declared topic and its subscribed queues."""

    space: str
    name: str
    max_lag: int | None = None
    subscribe: tuple[tuple[str, dict[str, object] | None], ...] = ()
    at: ErrorLocation = field(default=_NOWHERE, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class DeclaredUser:
    """A declared user, and the digests of their tokens."""

    user: User
    digests: tuple[bytes, ...] = ()
    at: ErrorLocation = field(default=_NOWHERE, compare=False, repr=False)


# --- Read -----------------------------------------------------------------------------------------


def read_queues(values: object, where: Where) -> tuple[DeclaredQueue, ...]:
    """Parse the table `[queues]`.

    Raises:
        Invalid: it has an error; the text names file, line and field.
    """
    out: list[DeclaredQueue] = []
    for key, table in _tables(values, "queues", where):
        with (at := ErrorLocation(where, "queues", key)):
            space, name = _named(key, "queue")
            is_sqs = SQS in table
            given = read(space, name, table) if is_sqs else table
            settings = {one: value for one, value in given.items() if one not in _FIXED}
            make_spec(space, cast("QueueSettings", settings))
            shards, route = table.get("shards"), table.get("route")
            if shards is not None:
                shards = validate.count(shards, "shards", limits.SHARDS_MAX)
            route, beside = validate.route(route), table.get("beside")
            if beside is not None:
                beside = validate.name(beside, "beside")
            out.append(DeclaredQueue(space, name, settings, shards, route, beside, is_sqs, at))
    return tuple(out)


def read_topics(values: object, where: Where) -> tuple[DeclaredTopic, ...]:
    """Parse the table `[topics]`; errors as in `read_queues`."""
    out: list[DeclaredTopic] = []
    for key, table in _tables(values, "topics", where):
        with (at := ErrorLocation(where, "topics", key)):
            _known(table, ("max_lag", "subscribe"), "topic")
            space, name = _named(key, "topic", limits.TOPIC_NAME_CHARS_MAX)
            lag = table.get("max_lag")
            if lag is not None:
                lag = validate_lag(lag)
            subscribe = table.get("subscribe", [])
            if not isinstance(subscribe, list):
                raise Invalid("subscribe is no list of queues", field="subscribe")
            queues = tuple(map(_subscription, subscribe))
            out.append(DeclaredTopic(space, name, lag, queues, at))
    return tuple(out)


def _subscription(value: object) -> tuple[str, dict[str, object] | None]:
    if isinstance(value, str):
        return validate.name(value, "subscribe"), None
    if not isinstance(value, dict):
        raise Invalid(
            f"subscribe has {validate.shown(value)}, not a queue or {{queue = …, filter = …}}",
            field="subscribe",
        )
    _known(value, ("queue", "filter"), "subscription")
    wanted = value.get("filter")
    if wanted is not None and not isinstance(wanted, dict):
        raise Invalid("filter is no table of headers", field="filter")
    return validate.name(value.get("queue"), "subscribe"), wanted


def read_users(values: object, where: Where) -> tuple[DeclaredUser, ...]:
    """Parse the table `[users]`; errors as in `read_queues`."""
    out: list[DeclaredUser] = []
    for key, table in _tables(values, "users", where):
        with (at := ErrorLocation(where, "users", key)):
            _known(table, ("rules", "quota", "tokens"), "user")
            name = validate.name(key, "user")
            rules = tuple(map(parse_rule, _texts(table.get("rules", []), "rules")))
            quota = read_quota(table.get("quota", {}))
            digests = tuple(map(_digest, _texts(table.get("tokens", []), "tokens")))
            out.append(DeclaredUser(User(name, rules, quota), digests, at))
    return tuple(out)


def read_quota(value: object) -> Quota:
    """Parse a table of quotas.

    Raises:
        Invalid: a quota is unknown, or is not a number from 0 on.
    """
    if not isinstance(value, dict):
        raise Invalid("quota is no table", field="quota")
    _known(value, Quota.__struct_fields__, "quota")
    try:
        quota = convert(value, Quota)
    except msgspec.ValidationError as error:
        raise Invalid(f"quota: {error}", field="quota") from error
    for name in Quota.__struct_fields__:
        amount = value.get(name, 0)
        if not 0 <= amount < 2**53:
            raise Invalid(f"{name} is {amount}, not a number from 0 on", field=name, limit=0)
    return quota


def _texts(value: object, field: str) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        raise Invalid(f"{field} is {validate.shown(value)}, not a list of texts", field=field)
    return value


def _digest(text: str) -> bytes:
    found = _DIGEST.fullmatch(text)
    if found is None:
        raise Invalid(
            "tokens has something else than 'sha256:' and 64 hexadecimal digits; a token itself "
            "does not belong into a file of settings: `millrace token digest` makes one of it",
            field="tokens",
        )
    return bytes.fromhex(found[1])


def _named(key: str, field: str, most: int = limits.NAME_CHARS_MAX) -> tuple[str, str]:
    space, slash, name = key.partition("/")
    if not slash:
        space, name = "default", key
    space, name = validate.name(space, "space"), validate.name(name, field, most)
    if space == "system":
        raise Invalid("the space 'system' belongs to the server", field="space")
    return space, name


def _known(table: Mapping[str, object], names: tuple[str, ...], what: str) -> None:
    for name in table:
        if name not in names:
            near = get_close_matches(name, names, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(names)}"
            raise Invalid(f"{validate.shown(name)} is no setting of a {what}; {hint}", field=name)


def _tables(values: object, name: str, where: Where) -> list[tuple[str, dict[str, Any]]]:
    if not isinstance(values, dict):
        raise Invalid(f"{where(name)}: {name} is no table; write [{name}.NAME]", field=name)
    for key, table in values.items():
        if not isinstance(table, dict):
            said = f"{name}.{key} is no table; write [{name}.{key}]"
            raise Invalid(f"{where(name, key)}: {said}", field=key)
    return list(values.items())


# --- Apply ----------------------------------------------------------------------------------------


async def declare_queues(millrace: Millrace, queues: tuple[DeclaredQueue, ...]) -> None:
    """Create missing queues, and update the settings of existing ones.

    Raises:
        Invalid: a queue exists with other options that are fixed at creation, or a dead-letter
            queue is missing; the error names file, line and queue.
    """
    found: dict[tuple[str, str], Queue] = {}
    for one in _by_place(queues):
        with one.at:
            found[one.space, one.name] = await _declare_queue(millrace, one)
    for one in queues:
        letters = one.settings.get("dead_letter")
        if letters is not None:
            with one.at:
                await found[one.space, one.name].configure(dead_letter=cast("str", letters))


def _by_place(queues: Sequence[DeclaredQueue]) -> list[DeclaredQueue]:
    """Return the queues in their order, each after the declared queue beside which it is placed."""
    ordered: list[DeclaredQueue] = []
    left = list(queues)
    while left:
        missing = {(one.space, one.name) for one in left}
        ready = [one for one in left if (one.space, one.beside) not in missing]
        # Queues beside each other in a circle are refused when they are made.
        ordered += ready or left
        left = [one for one in left if one not in ready] if ready else []
    return ordered


async def _declare_queue(millrace: Millrace, one: DeclaredQueue) -> Queue:
    try:
        queue = await millrace.find(one.name, space=one.space)
    except NotFound:
        made = _at_first(born(one.settings) if one.is_sqs else one.settings)
        return await millrace.queue(
            one.name,
            space=one.space,
            shards=one.shards,
            route=one.route,
            beside=one.beside,
            **made,
        )
    if (one.shards, one.route, one.beside) != (None, None, None):
        await millrace.queue(
            one.name, space=one.space, shards=one.shards, route=one.route, beside=one.beside
        )
    settings = one.settings
    if one.is_sqs:
        settings = grown(one.space, await queue.spec(), settings)
    if given := _at_first(settings):
        await queue.configure(**given)
    return queue


def _at_first(settings: Mapping[str, object]) -> QueueSettings:
    """Return settings without the dead-letter queue, which may be created later."""
    return cast(
        "QueueSettings", {name: value for name, value in settings.items() if name != "dead_letter"}
    )


async def declare_topics(millrace: Millrace, topics: tuple[DeclaredTopic, ...]) -> None:
    """Create missing topics and subscriptions.

    Raises:
        Invalid: a queue to subscribe is missing, or is subscribed with another filter; the error
            names file, line and topic.
    """
    for one in topics:
        with one.at:
            topic = await millrace.topic(one.name, space=one.space)
            if one.max_lag is not None:
                await topic.configure(max_lag=one.max_lag)
            for queue, wanted in one.subscribe:
                await topic.subscribe(queue, filter=wanted)


async def declare_users(book: UserStore, users: tuple[DeclaredUser, ...]) -> None:
    """Create and update declared users and their tokens.

    Raises:
        Invalid: a limit is exceeded; the error names file, line and user.
    """
    for one in users:
        with one.at:
            await _declare_user(book, one)


async def _declare_user(book: UserStore, one: DeclaredUser) -> None:
    known = book.roll.user(one.user.name)
    if known is None:
        await book.add_user(one.user, BY)
    elif (known.rules, known.quota) != (one.user.rules, one.user.quota):
        await book.set_user(one.user, BY)
    user = book.roll.user(one.user.name)
    tokens = book.roll.tokens(one.user.name)
    there = {found.digest: found for found in tokens if user and found.of == user.id}
    for digest in one.digests:
        if digest not in there:
            name = f"{_DECLARED}{digest[:6].hex()}"
            await book.put_digest(digest, one.user.name, name, BY)
    for digest, token in there.items():
        if token.name.startswith(_DECLARED) and digest not in one.digests:
            await book.revoke_token(token, BY)


# --- Declared queues with the attributes that SQS CreateQueue would give them --------------------
#
# Rule 1: settings that are impossible for SQS queues are refused together with `sqs`: SQS clients
# would meet unknown behaviour.
# Rule 2: notes that CreateQueue writes once for a new queue are written once here too. A restart
# with the same file changes none of them.

SQS = "sqs"
"""The setting with the attributes."""

_ALWAYS = {"keyed": False, "retention": "work", "delivery": "messages", "shards": 1}
"""Fixed settings of every SQS queue."""

_ORDERS = {True: ("group",), False: ("none", "fair")}
"""Orders of FIFO queues, and of standard queues, which become fair automatically."""


def read(space: str, name: str, table: Mapping[str, object]) -> dict[str, object]:
    """Return the settings of a queue with the SQS attributes `sqs` and further settings.

    Raises:
        Invalid: an attribute is unknown or has an invalid value, or no SQS queue has such settings.
    """
    is_fifo = name.endswith(".fifo")
    given = _attribute_texts(name, table[SQS], is_fifo=is_fifo)
    try:
        attributes.check_name(name, is_fifo=is_fifo)
        found = attributes.parse_attributes(given, lambda _: space, is_fifo=is_fifo, is_new=True)
    except Fault as fault:
        raise Invalid(fault.message, field=SQS) from fault
    beside = {one: value for one, value in table.items() if one != SQS}
    _see(beside, is_fifo=is_fifo)
    made = {**attributes.default_settings(is_fifo=is_fifo), **found.settings, **beside}
    notes = beside.get("notes", {})
    # Invalid notes are refused together with the other settings.
    made["notes"] = {**found.notes, **notes} if isinstance(notes, dict) else notes
    _see_letters(made.get("dead_letter"), is_fifo=is_fifo)
    return made


def _attribute_texts(name: str, given: object, *, is_fifo: bool) -> dict[str, str]:
    """Return the attributes as texts, the form of the SQS API."""
    if not isinstance(given, dict):
        raise Invalid("sqs is no table of attributes, such as {VisibilityTimeout = 60}", field=SQS)
    texts: dict[str, str] = {}
    for attribute, value in given.items():
        if attribute not in attributes.SETTABLE:
            near = get_close_matches(attribute, attributes.SETTABLE, n=1)
            way = f"did you mean {near[0]!r}?" if near else "AWS has no such attribute to be set"
            raise Invalid(
                f"{validate.shown(attribute)} is no attribute of a queue of SQS; {way}", field=SQS
            )
        if isinstance(value, dict | list):
            raise Invalid(f"{attribute} is no text; {_instead(attribute)}", field=SQS)
        text = str(value).lower() if isinstance(value, bool) else str(value)
        words = attributes.refused(attribute, text)
        if words:
            raise Invalid(f"{attribute} is {validate.shown(value)}, not {words}", field=SQS)
        if attribute == "FifoQueue" and (text == "true") != is_fifo:
            must = "must not end" if is_fifo else "must end"
            kind = "a standard" if is_fifo else "a FIFO"
            raise Invalid(
                f"FifoQueue is {text}, and the name of {kind} queue {must} with '.fifo': "
                f"{validate.shown(name)}",
                field=SQS,
            )
        texts[attribute] = text
    # The name determines it, and CreateQueue accepts no other value.
    texts.pop("FifoQueue", None)
    return texts


def _instead(attribute: str) -> str:
    if attribute == "RedrivePolicy":
        return "name dead_letter and max_deliveries beside sqs, or write it as JSON, in quotes"
    return "write it as JSON, in quotes"


def _see(beside: Mapping[str, object], *, is_fifo: bool) -> None:
    """Check that the other settings are possible for an SQS queue."""
    for setting, usual in _ALWAYS.items():
        if beside.get(setting, usual) != usual:
            raise _otherwise(setting, beside[setting], f"every queue of SQS has {usual!r}")
    if "route" in beside:
        raise _otherwise("route", beside["route"], "a queue of SQS has one shard")
    order = beside.get("order")
    if order is not None and order not in _ORDERS[is_fifo]:
        kind = "FIFO" if is_fifo else "standard"
        orders = " or ".join(map(repr, _ORDERS[is_fifo]))
        raise _otherwise("order", order, f"a {kind} queue of SQS has {orders}")
    blocking = "message" if is_fifo else "lease"
    if beside.get("group_blocking", blocking) != blocking:
        kind = "FIFO" if is_fifo else "standard"
        given = beside["group_blocking"]
        raise _otherwise("group_blocking", given, f"a {kind} queue of SQS has {blocking!r}")
    dedup = beside.get("dedup")
    if isinstance(dedup, int | float) and dedup < limits.SQS_DEDUP_SECONDS:
        seconds = limits.SQS_DEDUP_SECONDS
        raise _otherwise("dedup", dedup, f"SQS knows an id again for {seconds} seconds")


def _see_letters(letters: object, *, is_fifo: bool) -> None:
    if isinstance(letters, str) and letters and letters.endswith(".fifo") != is_fifo:
        kind = "FIFO" if is_fifo else "standard"
        raise _otherwise(
            "dead_letter", letters, f"dead letters of a {kind} queue go to a {kind} queue"
        )


def _otherwise(setting: str, value: object, why: str) -> Invalid:
    return Invalid(
        f"{setting} is {validate.shown(value)} beside sqs, and {why}; leave one of them out",
        field=setting,
    )


def born(settings: Mapping[str, object]) -> dict[str, object]:
    """Return the settings of a queue that is created now."""
    return {**settings, "notes": {**_written(), **_notes(settings)}}


def grown(space: str, spec: QueueSpec, settings: Mapping[str, object]) -> dict[str, object]:
    """Return the settings for an existing queue; without effect if it has them all.

    Missing notes are added, for queues that were created without SQS, or declared by a server
    version without salt. A queue that became fair stays fair.
    """
    wanted = dict(settings)
    if (spec.order, wanted["order"]) == ("fair", "none"):
        del wanted["order"]
    written, has = _written(), dict(spec.notes)
    notes = {name: text for name, text in written.items() if name not in has}
    if make_spec(space, cast("QueueSettings", wanted)).onto(spec) != spec:
        notes[MODIFIED] = written[MODIFIED]
    return {**wanted, "notes": {**notes, **_notes(settings)}}


def _written() -> dict[str, str]:
    """Return the notes that CreateQueue writes for a new queue."""
    now = str(int(time.time()))
    return {CREATED: now, MODIFIED: now, SALT: secrets.token_hex(16)}


def _notes(settings: Mapping[str, object]) -> Mapping[str, str]:
    return cast("Mapping[str, str]", settings["notes"])
