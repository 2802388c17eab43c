"""The queues that the program under test uses, and the settings under which it runs."""

from __future__ import annotations

from dataclasses import dataclass

from millrace import Settings


@dataclass(frozen=True, slots=True)
class Shape:
    """What the ledger has to know of a queue."""

    keyed: bool = False
    followed: bool = False
    """It has a retaining cursor, which sees everything."""


FOLLOWER = "follower"
"""The name of the retaining cursors."""

TURNS = "turns"
"""Messages of this queue have priorities and delays."""

QUEUES = {
    "plain": Shape(followed=True),
    "keyed": Shape(keyed=True, followed=True),
    "input": Shape(),
    "output": Shape(followed=True),
    "mirror": Shape(),
    "archive": Shape(),
    TURNS: Shape(followed=True),
}
"""`input` is worked on in transactions that publish to `output`; the cursor of `keyed` is moved in
transactions that publish to `mirror`; `archive` is never settled, and purged now and then."""

FRAGILE, DEAD = "fragile", "dead"
"""Messages of the one that fail twice, or are discarded, are moved to the other."""

MAX_FAILURES = 2

TOPIC = "told"

TOLD_ALL, TOLD_SOME = "told-all", "told-some"
"""What is published to the topic is forwarded to the one, and a part of it to the other."""

REEL = "reel"
"""A log whose only worker is sent back now and then."""

CROWD, RANKS, SLICES, BRIEF, DESK = "crowd", "ranks", "slices", "brief", "desk"
"""Queues whose messages are known by their tags alone: one with several shards, one whose messages
wait for those of their group, one with partitions, one where every other message expires, and one
that is worked on by sessions."""

POOLS = (CROWD, RANKS, SLICES, BRIEF, DESK)

PARTITIONS = 3

LIFE_MS = 250
"""The time to live of messages that have one."""

LASTING = {*QUEUES, FRAGILE, DEAD, TOLD_ALL, TOLD_SOME, REEL, *POOLS}
"""Queues that nobody deletes."""

KEYS = 60
"""So few keys that most publishes replace something."""

SETTINGS = Settings(
    segment_bytes=512 * 1024,
    log_segments_max=12,
    log_segments_free=2,
    log_segments_unsealed=1,
    checkpoint_seconds=0.05,
    checkpoint_log_bytes=64 * 1024,
)
"""So small that a second of work sees checkpoints, sealing, recycling and files written anew."""

TRACED = Settings(
    segment_bytes=256 * 1024,
    log_segments_max=8,
    log_segments_free=1,
    log_segments_unsealed=0,
    checkpoint_seconds=0.01,
    checkpoint_log_bytes=32 * 1024,
)
"""For programs whose every system call is recorded: yet smaller."""
