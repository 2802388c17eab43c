"""Administrative operations as they are audited and counted."""

from __future__ import annotations

from typing import NamedTuple

from millrace.server.auth.records import Kind


class CountedObject(NamedTuple):
    """A created or deleted object, by the kind and name under which it counts."""

    kind: Kind
    name: str


class Act(NamedTuple):
    """The audited operation of a request whose route alone does not determine it."""

    name: str
    """Name of the operation."""
    target: str
    """Name of its target."""
    makes: CountedObject | None = None
    """An object that it creates, which counts against the user's quota."""
    ends: CountedObject | None = None
    """An object that it deletes, which counts no longer."""


def queue_made(space: str, name: str) -> CountedObject:
    """Return the counted object of a queue."""
    return CountedObject("queues", f"{space}/{name}")


def topic_made(space: str, name: str) -> CountedObject:
    """Return the counted object of a topic, which differs from that of a queue of the same name."""
    return CountedObject("queues", f"{space}/topic:{name}")


def subscription_made(space: str, topic: str, name: str) -> CountedObject:
    """Return the counted object of a subscription."""
    return CountedObject("subscriptions", f"{space}/{topic}/{name}")
