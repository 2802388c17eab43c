"""Acts of whoever manages, as they are written down."""

from __future__ import annotations

from typing import NamedTuple

from millrace.server.record import Kind


class Made(NamedTuple):
    """What is made or ended: counted as this."""

    kind: Kind
    name: str


class Act(NamedTuple):
    """Something that is done to what there is, where the route alone does not tell what."""

    name: str
    """What is done."""
    target: str
    """To what."""
    makes: Made | None = None
    """Something that is not there yet, and counts against the quota of whoever makes it."""
    ends: Made | None = None
    """Something that counts no longer."""


def queue_made(space: str, name: str) -> Made:
    """A queue, as it is counted."""
    return Made("queues", f"{space}/{name}")


def topic_made(space: str, name: str) -> Made:
    """A topic; a queue of the same name is another thing."""
    return Made("queues", f"{space}/topic:{name}")


def subscription_made(space: str, topic: str, name: str) -> Made:
    """A subscription, as it is counted."""
    return Made("subscriptions", f"{space}/{topic}/{name}")
