"""Pools: queues whose messages are known by their tags alone, and what they lock.

A lock is what nobody else may have meanwhile: the message itself, its group, its partition. It is
held from the call on until its time is over, or until whoever has it ends its messages, and it
outlives the process. That of a session ends with the process, at the latest.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from tests.crash.book import Fate
from tests.crash.events import (
    Answer,
    AnyEvent,
    Done,
    Draw,
    Drawn,
    LookPool,
    Lost,
    Pour,
    Refused,
    Spill,
)
from tests.crash.findings import Findings
from tests.crash.scene import BRIEF

EXPECTED_REFUSALS = ("full", "closed")


def is_mortal(pool: str, tag: int) -> bool:
    """Whether the message has a time to live."""
    return pool == BRIEF and tag % 2 == 0


@dataclass(slots=True)
class _Row:
    sending: Fate = Fate.OPEN
    settling: Fate = Fate.NO


@dataclass(slots=True)
class _Lock:
    op: int
    """The call that has it."""
    until_ms: int | None
    """At the earliest; None: the process's end."""
    tags: set[int] = field(default_factory=set)
    """What it has of that call and has not tried to end."""


@dataclass(slots=True)
class _Pool:
    rows: dict[int, _Row] = field(default_factory=dict)
    over: set[int] = field(default_factory=set)
    """Tags that must not be seen again."""
    settled: int = 0
    locks: dict[str, _Lock] = field(default_factory=dict)


class Pools:
    """The books of all pools."""

    def __init__(self, findings: Findings, counts: Counter[str]) -> None:
        self._findings = findings
        self._counts = counts
        self._pools: dict[str, _Pool] = {}
        self._tried: dict[int, Pour | Draw | Spill] = {}

    def hear(self, event: AnyEvent) -> bool:
        """Take in an event; whether it is about a pool."""
        match event:
            case LookPool():
                self._look(event, self._pool(event.pool))
            case Pour() | Draw() | Spill():
                self._attempt(event, self._pool(event.pool))
            case Answer() if event.op in self._tried:
                attempt = self._tried.pop(event.op)
                self._answer(event, attempt, self._pool(attempt.pool))
            case _:
                return False
        return True

    def end_life(self) -> None:
        """The process is no more, and no session of it lasts."""
        self._counts["unknown"] += len(self._tried)
        self._tried.clear()
        for pool in self._pools.values():
            pool.locks = {
                key: lock for key, lock in pool.locks.items() if lock.until_ms is not None
            }

    def _pool(self, name: str) -> _Pool:
        return self._pools.setdefault(name, _Pool())

    def _attempt(self, event: Pour | Draw | Spill, pool: _Pool) -> None:
        self._tried[event.op] = event
        if isinstance(event, Pour):
            pool.rows.update((tag, _Row()) for tag in event.tags)
        if isinstance(event, Spill):
            for lock in pool.locks.values():
                lock.tags -= set(event.tags)
            for tag in event.tags if event.is_settle else ():
                row = pool.rows.get(tag)
                if row is not None and row.settling is Fate.NO:
                    row.settling = Fate.OPEN

    def _answer(self, event: Answer, attempt: Pour | Draw | Spill, pool: _Pool) -> None:
        match event, attempt:
            case Refused(), _:
                self._refused(event, attempt, pool)
            case Done(), Pour():
                for tag in attempt.tags:
                    pool.rows[tag].sending = Fate.YES
            case Drawn(), Draw():
                self._drawn(event, attempt, pool)
            case Done(), Spill():
                pass
            case Lost(), Spill():
                self._spilled(attempt, event.refused, pool)
            case _:
                raise AssertionError(f"{event} does not answer {attempt}")

    def _refused(self, event: Refused, attempt: Pour | Draw | Spill, pool: _Pool) -> None:
        if event.code not in EXPECTED_REFUSALS:
            self._fault("misjudged", attempt.pool, f"{attempt} was refused as {event.code}")
        if isinstance(attempt, Pour):
            for tag in attempt.tags:
                self._end(pool, tag)
        if isinstance(attempt, Spill):
            self._spilled(attempt, attempt.tags, pool)

    def _spilled(self, attempt: Spill, refused: Iterable[int], pool: _Pool) -> None:
        for tag in attempt.tags if attempt.is_settle else ():
            row = pool.rows.get(tag)
            if row is not None and row.settling is not Fate.YES:
                row.settling = Fate.NO if tag in set(refused) else Fate.YES

    # --- Handing out -----------------------------------------------------------------------------

    def _drawn(self, event: Drawn, attempt: Draw, pool: _Pool) -> None:
        self._counts["drawn"] += len(event.rows)
        self._counts[f"drawn from {attempt.pool}"] += len(event.rows)
        for tag in event.late:
            self._fault("late", attempt.pool, f"{tag} was handed out")
        until_ms = attempt.at_ms + attempt.lease_ms if attempt.lease_ms else None
        for tag, key in event.rows:
            row = self._see(attempt.pool, pool, tag, "handed out")
            if row is not None and row.settling is Fate.YES:
                self._fault("revived", attempt.pool, f"{tag} was settled, and handed out again")
            lock = pool.locks.get(key)
            if lock is None or lock.op != event.op:
                if lock is not None and self._is_locked(lock, event.at_ms):
                    self._fault("shared", attempt.pool, f"{tag} was handed out: {key} is locked")
                lock = pool.locks[key] = _Lock(event.op, until_ms)
            lock.tags.add(tag)

    def _is_locked(self, lock: _Lock, now_ms: int) -> bool:
        return bool(lock.tags) and (lock.until_ms is None or now_ms < lock.until_ms)

    def _see(self, name: str, pool: _Pool, tag: int, where: str) -> _Row | None:
        row = pool.rows.get(tag)
        if row is None:
            self._fault("revived" if tag in pool.over else "phantom", name, f"{tag} was {where}")
            return None
        row.sending = Fate.YES
        return row

    # --- Looking ---------------------------------------------------------------------------------

    def _look(self, look: LookPool, pool: _Pool) -> None:
        """Compare with all that is there."""
        name = look.pool
        for tag, count in Counter(look.rows).items():
            if count > 1:
                self._fault("doubled", name, f"{tag} is there {count} times")
            self._see(name, pool, tag, "seen")
        there = set(look.rows)
        for tag, row in list(pool.rows.items()):
            if tag in there:
                if row.settling is Fate.YES:
                    self._fault("revived", name, f"{tag} was settled, and is there again")
                row.settling = Fate.NO
                continue
            if row.settling is not Fate.NO:
                pool.settled += 1
            elif row.sending is Fate.YES and not is_mortal(name, tag):
                self._fault("lost", name, f"{tag} is not there")
            self._end(pool, tag)
        counters = look.counters
        ended = sum(value for key, value in counters.items() if key not in ("published", "live"))
        if counters["published"] != counters["live"] + ended:
            self._fault("miscounted", name, f"{counters} do not add up")
        if name != BRIEF and counters.get("settled", 0) != pool.settled:
            self._fault("miscounted", name, f"{pool.settled} were settled, not {counters}")
        if name == BRIEF:
            self._counts["expired"] = counters.get("expired", 0)

    def _end(self, pool: _Pool, tag: int) -> None:
        del pool.rows[tag]
        pool.over.add(tag)

    def _fault(self, kind: str, pool: str, text: str) -> None:
        self._findings.add(kind, f"{pool}: {text}")
