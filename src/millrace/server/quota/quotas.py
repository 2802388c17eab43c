"""Quotas of each user: rates of requests and bytes, and bounds on items held at the same time.

Rule 1: the time is passed in; nothing here waits or reads a clock, and all memory is bounded.
Rule 2: a refused request is not counted, and the error says after which time to retry.
Rule 3: bounds on items apply to the leases and pins that this process has granted since it started.
Queues and cursors, which outlive a process, are counted in the user store.
Rule 4: where several processes serve the same users, each enforces its share of the quota, so that
all of them together do not exceed it; each share is at least 1.
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from itertools import islice
from typing import Literal

from millrace import limits
from millrace.errors import Exhausted
from millrace.server.auth.access import UNBOUNDED, Principal, Quota
from millrace.server.auth.token_bucket import TokenBucket

Kind = Literal["in_flight", "pins", "sessions"]
"""Leased messages; pinned snapshots; open sessions."""

_WHAT: dict[Kind, tuple[str, str]] = {
    "in_flight": ("messages in flight", "settle some first"),
    "pins": ("snapshots", "let one go first"),
    "sessions": ("sessions", "close one first"),
}
"""Name of each kind in error texts, and the remedy."""

NEVER_MS = 2**63
"""End of items that do not expire: they count until `let_go`."""

_BURST_SECONDS = 2
"""Size of the burst after a pause: what the rate yields in this time, in seconds."""


@dataclass(slots=True)
class _Rates:
    quota: Quota
    requests: TokenBucket | None
    bytes: TokenBucket | None


@dataclass(slots=True)
class _Hold:
    name: str
    kind: Kind
    count: int
    until_ms: int
    note: object = None


class Quotas:
    """Counts the usage of each user against their quota.

    `default` replaces those fields of a user's own quota that are 0.
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
        """Cache of users' quotas merged with the default."""
        self._principals_max = principals_max
        self._held_max = held_max
        self._rates: dict[str, _Rates] = {}
        """Least recently used first."""
        self._held: dict[Hashable, _Hold] = {}
        self._totals: dict[tuple[str, Kind], int] = {}
        self._ends: list[tuple[int, int, Hashable]] = []
        """Heap of the ends of holds; it may contain outdated entries."""
        self._number = 0

    def configure(self, default: Quota) -> None:
        """Replace the default quota."""
        self._default = default
        self._merged.clear()

    def of(self, principal: Principal) -> Quota:
        """Return the quota of a user: their own, with the default for fields that are 0."""
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
        """Return how many of `field` a user may have at a time in this process, or 0 if
        unbounded."""
        most: int = getattr(self.of(principal), field)
        return -(-most // self._shares)

    # --- Rates --------------------------------------------------------------------------------

    def take(self, principal: Principal, now_ms: int, *, size: int = 0) -> None:
        """Count a request, and the bytes of its body as far as they are known.

        Raises:
            Exhausted: one of the two rates is used up; nothing was counted.
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
        """Return whether the number of items of this kind is bounded for the user."""
        quota = self.of(principal)
        return bool(quota.in_flight if kind == "in_flight" else getattr(quota, kind))

    def counts_bytes(self, principal: Principal) -> bool:
        """Return whether a rate of bytes applies to the user."""
        return bool(self.of(principal).bytes)

    def owe(self, principal: Principal, now_ms: int, size: int) -> None:
        """Count bytes whose number was unknown before: of a body without a length, of an answer."""
        rates = self._rates_of(principal, now_ms)
        if rates is not None and rates.bytes is not None:
            rates.bytes.owe(size)

    def owe_requests(self, principal: Principal, now_ms: int, count: int) -> None:
        """Count further requests, for one HTTP request that is worth several."""
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
        """Reserve up to `count` items for a call that may still fail or return nothing.

        The reservation may have fewer than `count`, but at least one.

        Raises:
            Exhausted: the user holds as many as the quota allows; nothing was counted.
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
        """Count items that a user has already, even above the quota; replaces the earlier count of
        `id`. `note` is an object that the caller stores with it."""
        self._drop(id)
        self._hold(id, _Hold(principal.name, kind, count, until_ms, note))

    def note(self, id: Hashable) -> object:
        """Return the note that is stored with an id, or None."""
        hold = self._held.get(id)
        return None if hold is None else hold.note

    def count(self, id: Hashable) -> int:
        """Return the number of items counted under an id."""
        hold = self._held.get(id)
        return 0 if hold is None else hold.count

    def keep(self, at: Hashable, count: int, id: Hashable, until_ms: int) -> None:
        """Turn a reservation into `count` items held under `id` until `until_ms`, or until
        `let_go`."""
        hold = self._drop(at)
        if hold is not None and count > 0:
            self._drop(id)
            self._hold(id, _Hold(hold.name, hold.kind, count, until_ms))

    def keep_each(self, at: Hashable, ids: Iterable[Hashable], until_ms: int) -> None:
        """Turn a reservation into items that end one by one, each with its own id."""
        hold = self._drop(at)
        if hold is not None:
            for id in ids:
                self._drop(id)
                self._hold(id, _Hold(hold.name, hold.kind, 1, until_ms))

    def replace(self, old: Hashable, new: Hashable, until_ms: int) -> None:
        """Count an item under a new id instead of its old one."""
        hold = self._drop(old)
        if hold is not None:
            self._drop(new)
            self._hold(new, _Hold(hold.name, hold.kind, hold.count, until_ms))

    def extend(self, id: Hashable, until_ms: int) -> None:
        """Change the time until which an item counts."""
        hold = self._held.get(id)
        if hold is not None:
            hold.until_ms = until_ms
            self._note_end(id, until_ms)

    def let_go(self, id: Hashable, count: int | None = None) -> None:
        """Stop counting `count` items of an id, or all of them if None, for whatever reason they
        ended."""
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
        """True if any item is counted."""
        return bool(self._held)

    def oldest(self, name: str, kind: Kind, count: int, *, ends: bool = True) -> list[Hashable]:
        """Return the ids of the items that a user has held the longest, at most `count`. With
        `ends`, only of items that expire."""
        found = (
            id
            for id, hold in self._held.items()
            if hold.name == name and hold.kind == kind and (hold.until_ms != NEVER_MS or not ends)
        )
        return list(islice(found, count))

    def held(self, name: str, kind: Kind, now_ms: int) -> int:
        """Return the number of items that a user holds now."""
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
    """An upper bound reserved for a call until its result is known."""

    __slots__ = ("_at", "_quotas", "count")

    def __init__(self, quotas: Quotas, count: int, at: Hashable | None) -> None:
        self._quotas = quotas
        self._at = at
        self.count = count

    @property
    def is_counted(self) -> bool:
        """True if it counts against a quota and was neither kept nor cancelled yet."""
        return self._at is not None

    def keep(self, id: Hashable, count: int, until_ms: int) -> None:
        """Count `count` items under `id` until `until_ms`; only the first call has an effect."""
        if self._at is not None:
            self._quotas.keep(self._at, count, id, until_ms)
            self._at = None

    def keep_each(self, ids: Iterable[Hashable], until_ms: int) -> None:
        """Count each of these ids as one item that ends by itself; only the first call has an
        effect."""
        if self._at is not None:
            self._quotas.keep_each(self._at, ids, until_ms)
            self._at = None

    def cancel(self) -> None:
        """Return the reserved items; without effect after a call of `keep`, `keep_each` or
        `cancel`."""
        if self._at is not None:
            self._quotas.let_go(self._at)
            self._at = None


def _bucket(rate: float, now_ms: int) -> TokenBucket | None:
    return TokenBucket(rate, max(rate * _BURST_SECONDS, 1), now_ms) if rate else None


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
