"""What each principal may have: a rate of requests and of bytes, and so much at a time.

Rule 1: the time is given; nothing here waits, reads a clock or fails to be bounded.
Rule 2: what is refused was not counted, and the error says when to come again.
Rule 3: what a principal has at a time is what this process knows of: leases and pins that it has
handed out since it started. What outlives a process, queues and cursors, is counted in the book.
Rule 4: where several processes serve the same users, each has its share of what may be had, so that
all of them together give out no more; but each at least one at a time.
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from itertools import islice
from typing import Literal

from millrace import limits
from millrace.errors import Exhausted
from millrace.server.access import UNBOUNDED, Principal, Quota
from millrace.server.bucket import Bucket

Kind = Literal["in_flight", "pins", "sessions"]
"""Messages that are leased; snapshots that are held; sessions that are open by calls."""

_WHAT: dict[Kind, tuple[str, str]] = {
    "in_flight": ("messages in flight", "settle some first"),
    "pins": ("snapshots", "let one go first"),
    "sessions": ("sessions", "close one first"),
}
"""What it is called, and how to have less."""

NEVER_MS = 2**63
"""When that ends which has to be let go."""

_BURST_SECONDS = 2
"""After a pause one may have what the rate gives in so many seconds."""


@dataclass(slots=True)
class _Rates:
    quota: Quota
    requests: Bucket | None
    bytes: Bucket | None


@dataclass(slots=True)
class _Hold:
    name: str
    kind: Kind
    count: int
    until_ms: int
    note: object = None


class Quotas:
    """Counts what principals use.

    `default` is for those fields of a principal's own quota that are 0.
    """

    def __init__(
        self,
        default: Quota = UNBOUNDED,
        *,
        principals_max: int = limits.QUOTA_PRINCIPALS_MAX,
        held_max: int = limits.QUOTA_HELD_MAX,
        shares: int = 1,
    ) -> None:
        self._default = default
        self._shares = shares
        self._merged: dict[Quota, Quota] = {}
        """Of quotas of users, what they are with the default."""
        self._principals_max = principals_max
        self._held_max = held_max
        self._rates: dict[str, _Rates] = {}
        """Who asked last is at the end."""
        self._held: dict[Hashable, _Hold] = {}
        self._totals: dict[tuple[str, Kind], int] = {}
        self._ends: list[tuple[int, int, Hashable]] = []
        """When holds end, first ones first; some of it may be out of date."""
        self._number = 0

    def configure(self, default: Quota) -> None:
        """From now on this is for those who have none of their own."""
        self._default = default
        self._merged.clear()

    def of(self, principal: Principal) -> Quota:
        """What a principal may have: their own quota, and the default where that says nothing."""
        own, default = principal.quota, self._default
        if own is UNBOUNDED or own == UNBOUNDED:
            return default
        if default == UNBOUNDED:
            return own
        found = self._merged.get(own)
        if found is None:
            if len(self._merged) >= self._principals_max:
                self._merged.clear()
            fields = Quota.__struct_fields__
            found = Quota(*(getattr(own, name) or getattr(default, name) for name in fields))
            self._merged[own] = found
        return found

    def share(self, principal: Principal, field: Literal["sessions", "streams", "jobs"]) -> int:
        """How many they may have at a time in this process, of those that it counts apart; 0: as
        many as there are."""
        most: int = getattr(self.of(principal), field)
        return -(-most // self._shares)

    # --- Rates --------------------------------------------------------------------------------

    def take(self, principal: Principal, now_ms: int, *, size: int = 0) -> None:
        """Count a request, and the bytes of its body as far as they are known.

        Raises:
            Exhausted: one of the two was used up; nothing was counted.
        """
        rates = self._rates_of(principal, now_ms)
        if rates is None:
            return
        if rates.requests is not None:
            after_ms = rates.requests.take(1, now_ms)
            if after_ms:
                raise _exhausted(principal, "requests", "requests a second", rates, after_ms)
        if rates.bytes is not None:
            after_ms = rates.bytes.take(size, now_ms)
            if after_ms:
                if rates.requests is not None:
                    rates.requests.owe(-1)
                raise _exhausted(principal, "bytes", "bytes a second", rates, after_ms)

    def bounds(self, principal: Principal, kind: Kind) -> bool:
        """Whether they may have so many at a time, and no more."""
        quota = self.of(principal)
        return bool(quota.in_flight if kind == "in_flight" else getattr(quota, kind))

    def counts_bytes(self, principal: Principal) -> bool:
        """Whether bytes are counted for them."""
        return bool(self.of(principal).bytes)

    def owe(self, principal: Principal, now_ms: int, size: int) -> None:
        """Count bytes that were not known before: of a body without a length, of an answer."""
        rates = self._rates_of(principal, now_ms)
        if rates is not None and rates.bytes is not None:
            rates.bytes.owe(size)

    def owe_requests(self, principal: Principal, now_ms: int, count: int) -> None:
        """Count what came in one request, and is worth several."""
        rates = self._rates_of(principal, now_ms)
        if rates is not None and rates.requests is not None:
            rates.requests.owe(count)

    def _rates_of(self, principal: Principal, now_ms: int) -> _Rates | None:
        quota = self.of(principal)
        if not (quota.requests or quota.bytes):
            return None
        found = self._rates.pop(principal.name, None)
        if found is None or found.quota != quota:
            if len(self._rates) >= self._principals_max:
                del self._rates[next(iter(self._rates))]
            shares = self._shares
            requests = _bucket(quota.requests / shares, now_ms)
            found = _Rates(quota, requests, _bucket(quota.bytes / shares, now_ms))
        self._rates[principal.name] = found
        return found

    # --- At a time ----------------------------------------------------------------------------

    def reserve(self, principal: Principal, kind: Kind, count: int, now_ms: int) -> Reservation:
        """Take up to so many, for a call that may yet come to nothing.

        There may be fewer in it than were asked for, but always one.

        Raises:
            Exhausted: they have as many as they may; nothing was counted.
        """
        quota = self.of(principal)
        most = -(-int(getattr(quota, kind)) // self._shares)
        if not most or count < 1:
            return Reservation(self, count, None)
        self._let_go_over(now_ms)
        room = most - self._totals.get((principal.name, kind), 0)
        if room <= 0:
            what, how = _WHAT[kind]
            raise Exhausted(
                f"{principal.name} has {most - room} {what}, and may have {most}; {how}",
                field=kind,
                limit=most,
                after_ms=1000,
            )
        granted = min(count, room)
        self._number += 1
        at = ("reserved", self._number)
        self._hold(at, _Hold(principal.name, kind, granted, NEVER_MS))
        return Reservation(self, granted, at)

    def hold(
        self,
        principal: Principal,
        kind: Kind,
        count: int,
        id: Hashable,
        until_ms: int,
        note: object = None,
    ) -> None:
        """Count what somebody has already, whatever they may have; in the place of what was counted
        by this id. Whoever counts it may note what they have to know of it."""
        self._drop(id)
        self._hold(id, _Hold(principal.name, kind, count, until_ms, note))

    def note(self, id: Hashable) -> object:
        """What was noted of what is counted by this id; None: nothing."""
        hold = self._held.get(id)
        return None if hold is None else hold.note

    def count(self, id: Hashable) -> int:
        """How many are counted by this id."""
        hold = self._held.get(id)
        return 0 if hold is None else hold.count

    def keep(self, at: Hashable, count: int, id: Hashable, until_ms: int) -> None:
        """What was reserved has come to so many, which are held until a time unless they end."""
        hold = self._drop(at)
        if hold is not None and count > 0:
            self._drop(id)
            self._hold(id, _Hold(hold.name, hold.kind, count, until_ms))

    def keep_each(self, at: Hashable, ids: Iterable[Hashable], until_ms: int) -> None:
        """The same of things that end one by one."""
        hold = self._drop(at)
        if hold is not None:
            for id in ids:
                self._drop(id)
                self._hold(id, _Hold(hold.name, hold.kind, 1, until_ms))

    def replace(self, old: Hashable, new: Hashable, until_ms: int) -> None:
        """What was held under one id is held under another from now on."""
        hold = self._drop(old)
        if hold is not None:
            self._drop(new)
            self._hold(new, _Hold(hold.name, hold.kind, hold.count, until_ms))

    def extend(self, id: Hashable, until_ms: int) -> None:
        """What is held is held for longer, or for less."""
        hold = self._held.get(id)
        if hold is not None:
            hold.until_ms = until_ms
            self._note_end(id, until_ms)

    def let_go(self, id: Hashable, count: int | None = None) -> None:
        """So many of what is held have ended, whoever ended them; None: all."""
        hold = self._held.get(id)
        if hold is None:
            return
        if count is None or count >= hold.count:
            self._drop(id)
        else:
            hold.count -= count
            self._totals[hold.name, hold.kind] -= count

    @property
    def is_holding(self) -> bool:
        """Whether anything is counted that could be let go."""
        return bool(self._held)

    def oldest(self, name: str, kind: Kind, count: int, *, ends: bool = True) -> list[Hashable]:
        """The ids of what a principal has had for the longest; so many at most. `ends`: only of
        what ends by itself."""
        found = (
            id
            for id, hold in self._held.items()
            if hold.name == name and hold.kind == kind and (hold.until_ms != NEVER_MS or not ends)
        )
        return list(islice(found, count))

    def held(self, name: str, kind: Kind, now_ms: int) -> int:
        """How many a principal has now."""
        self._let_go_over(now_ms)
        return self._totals.get((name, kind), 0)

    def _hold(self, id: Hashable, hold: _Hold) -> None:
        if len(self._held) >= self._held_max:
            self._drop(next(iter(self._held)))
        self._held[id] = hold
        key = (hold.name, hold.kind)
        self._totals[key] = self._totals.get(key, 0) + hold.count
        if hold.until_ms != NEVER_MS:
            self._note_end(id, hold.until_ms)

    def _drop(self, id: Hashable) -> _Hold | None:
        hold = self._held.pop(id, None)
        if hold is not None:
            key = (hold.name, hold.kind)
            self._totals[key] -= hold.count
            if not self._totals[key]:
                del self._totals[key]
        return hold

    def _note_end(self, id: Hashable, until_ms: int) -> None:
        self._number += 1
        heapq.heappush(self._ends, (until_ms, self._number, id))
        if len(self._ends) > 2 * len(self._held) + 64:
            self._ends = [
                (hold.until_ms, number, at)
                for number, (at, hold) in enumerate(self._held.items())
                if hold.until_ms != NEVER_MS
            ]
            heapq.heapify(self._ends)

    def _let_go_over(self, now_ms: int) -> None:
        while self._ends and self._ends[0][0] <= now_ms:
            _, _, id = heapq.heappop(self._ends)
            hold = self._held.get(id)
            if hold is not None and hold.until_ms <= now_ms:
                self._drop(id)


class Reservation:
    """What a call may have at most, until it is known what it has."""

    __slots__ = ("_at", "_quotas", "count")

    def __init__(self, quotas: Quotas, count: int, at: Hashable | None) -> None:
        self._quotas = quotas
        self._at = at
        self.count = count

    @property
    def is_counted(self) -> bool:
        """Whether it bounds anything, and was neither kept nor cancelled."""
        return self._at is not None

    def keep(self, id: Hashable, count: int, until_ms: int) -> None:
        """The call has so many, known by an id, until a time; once."""
        if self._at is not None:
            self._quotas.keep(self._at, count, id, until_ms)
            self._at = None

    def keep_each(self, ids: Iterable[Hashable], until_ms: int) -> None:
        """The call has these, each of which ends by itself; once."""
        if self._at is not None:
            self._quotas.keep_each(self._at, ids, until_ms)
            self._at = None

    def cancel(self) -> None:
        """The call has nothing; harmless the second time, and once it was kept."""
        if self._at is not None:
            self._quotas.let_go(self._at)
            self._at = None


def _bucket(rate: float, now_ms: int) -> Bucket | None:
    return Bucket(rate, max(rate * _BURST_SECONDS, 1), now_ms) if rate else None


def _exhausted(
    principal: Principal, field: str, what: str, rates: _Rates, after_ms: int
) -> Exhausted:
    most = rates.quota.requests if field == "requests" else rates.quota.bytes
    return Exhausted(
        f"{principal.name} may have {most:g} {what}; come again in {after_ms} ms",
        field=field,
        limit=int(most),
        after_ms=after_ms,
    )
