"""Declared queues with the attributes that SQS CreateQueue would give them.

Rule 1: settings that are impossible for SQS queues are refused together with `sqs`: SQS clients
would meet unknown behaviour.
Rule 2: notes that CreateQueue writes once for a new queue are written once here too. A restart with
the same file changes none of them.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping
from difflib import get_close_matches
from typing import cast

from millrace import limits
from millrace.client.settings import QueueSettings, make_spec
from millrace.core import validate
from millrace.core.spec import QueueSpec
from millrace.errors import Invalid
from millrace.server.aws.fault import Fault
from millrace.server.aws.queue_info import CREATED, MODIFIED, SALT
from millrace.server.sqs import attributes

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
    given = _texts(name, table[SQS], is_fifo=is_fifo)
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


def _texts(name: str, given: object, *, is_fifo: bool) -> dict[str, str]:
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
