"""The naive model of a shard, in lists and dictionaries.

It shares no rule with the core, only its words. It has no cells, windows, layers or intervals: each
query scans all rows. For commands that are answered by several seqs or errors, the model gives the
names of the errors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import zip_longest

from millrace.core import bounds
from millrace.core.model import NewMessage
from tests.support.models.followers import Answer, ModelFollowers
from tests.support.models.parts import (
    Answered,
    Limits,
    ModelLease,
    ModelRow,
)


@dataclass
class Model(ModelFollowers):
    """One shard. Calls are in the order of the commands; `end_batch` after those of each batch."""

    leases: dict[int, ModelLease] = field(default_factory=dict)
    producers: dict[str, tuple[int, dict[int, Answered]]] = field(default_factory=dict)
    stages: dict[str, list[NewMessage]] = field(default_factory=dict)
    ended_stages: set[str] = field(default_factory=set)
    lease_id: int = 0
    limits: Limits = field(default_factory=Limits)
    used: dict[str, tuple[int, int]] = field(default_factory=dict)
    """De-duplication id → the first one's seq, and until when that is known."""
    dedup_ms: int = 0
    attempts: dict[str, tuple[int, int, int]] = field(default_factory=dict)
    """Attempt id → its lease, when that was, and until when."""
    has_replaced: bool = False
    """Whether a message was replaced since the last purge: then it becomes no log."""
    dead: list[tuple[int, str, int, int]] = field(default_factory=list)
    """What the other queue was given: seq here, why, deliveries, failures."""

    def end_batch(self) -> None:
        """A pin shows what its batch left."""
        for pin in self.pins.values():
            if pin.rows is None:
                pin.rows = self.visible(retain=pin.retain)
                pin.boundary, pin.floor, pin.purged = self.last, self.floor, self.purged
        self.ended_stages.clear()

    # --- Publish ------------------------------------------------------------------------------

    def publish(
        self,
        messages: list[NewMessage],
        producer: str = "",
        number: int = 0,
        ids: Sequence[str | None] = (),
    ) -> Answer:
        """Append them, unless the number was used before; dense producers only.

        A message whose id was used within the window is left out, and answered by the first one's
        seq.
        """
        last, answers = self.producers.get(producer, (0, {}))
        if producer:
            if number <= last:
                return (*answers[number], "repeated")
            if number != last + 1:
                return "OutOfOrder"
        if any(m.body is None and (m.key is None or not self.keyed) for m in messages):
            return "Invalid"
        first, count = self.last + 1, len(messages)
        seqs = [self._append_once(m, one) for m, one in zip_longest(messages, ids)]
        repeated = sum(seq < first for seq in seqs) + len(seqs) - len(set(seqs))
        answer: tuple[object, ...] = (first, count)
        if repeated:
            told = (seqs[0], 1) if count == 1 else (None, 0)
            where = (seqs[0], 1) if count == 1 else (tuple(seqs), count)
            is_all = all(seq < first for seq in seqs)
            answer = (*where, "repeated") if is_all else where
        else:
            told = (first, count)
        if producer:
            self.producers[producer] = (number, {**answers, number: told})
        return answer

    def _append_once(self, message: NewMessage, one: str | None) -> int:
        seq, until = self.used.get(one or "", (0, 0))
        if until > self.now:
            return seq
        self._append(message)
        if one is not None:
            self.used[one] = (self.last, self.now + self.dedup_ms)
        return self.last

    def _append(self, message: NewMessage) -> None:
        if self.keyed and message.key is not None:
            for row in self.rows.values():
                if row.key == message.key and row.state in ("live", "kept"):
                    self._end(row, "superseded")
        seq = self.last + 1
        self.rows[seq] = ModelRow(seq, message.key, message.body, self.now)

    def _end(self, row: ModelRow, why: str) -> None:
        row.state = why
        if row.lease:
            self._leave(row, why)

    def _leave(self, row: ModelRow, why: str) -> None:
        lease = self.leases[row.lease]
        lease.seqs[row.seq] = why
        row.lease = 0
        if not {"open", "freed", "doomed"} & set(lease.seqs.values()):
            lease.ended = self.now

    def stage(self, name: str, messages: list[NewMessage]) -> Answer:
        if name in self.ended_stages:
            return "Retry"
        if any(m.body is None and (m.key is None or not self.keyed) for m in messages):
            return "Invalid"
        self.stages.setdefault(name, []).extend(messages)
        return len(self.stages[name])

    def publish_staged(self, names: list[str]) -> Answer:
        if len(set(names)) < len(names):
            return "Invalid"
        if not set(names) <= set(self.stages):
            return "NotFound"
        self.ended_stages |= set(names)
        return self.publish([message for name in names for message in self.stages.pop(name)])

    def drop_stage(self, name: str) -> Answer:
        if name in self.stages:
            self.ended_stages.add(name)
        return self.stages.pop(name, None) is not None

    # --- Work ---------------------------------------------------------------------------------

    def lease(self, count: int, lease_ms: int, token: int, attempt: str = "") -> Answer:
        """Lease released and expired messages first, then undelivered ones, both by seq.

        A repeated call is answered as before, as long as its messages are unchanged.
        """
        before, at, until = self.attempts.get(attempt, (0, 0, 0))
        known = self.leases.get(before)
        if known and self.now < min(at + bounds.ATTEMPT_REMEMBERED_MS, until):
            untouched = {"open"} == set(known.seqs.values())
            if untouched and {until} == set(known.deadlines.values()):
                rows = [self.rows[seq] for seq in known.seqs]
                return {row.seq: (row.deliveries, row.failures) for row in rows}
        ready = sorted((row for row in self.rows.values() if self._is_ready(row)), key=_turn)
        if self.limits.max_in_flight:
            count = min(count, self.limits.max_in_flight - self._held())
        if count <= 0:
            return {}
        taken: list[ModelRow] = []
        for row in ready:
            if len(taken) == count:
                break
            if row.lease and self.leases[row.lease].seqs[row.seq] == "open":
                row.failures += 1
            if (why := self._why_doomed(row)) and row.lease:
                self._doom(row, why)
            else:
                taken.append(row)
        if not taken:
            return {}
        self.lease_id += 1
        deadline = self.now + lease_ms
        for row in taken:
            if row.lease:
                self._leave(row, "overtaken")
            row.deliveries += 1
            row.lease, row.is_fresh = self.lease_id, False
        seqs = [row.seq for row in taken]
        if attempt:
            self.attempts[attempt] = (self.lease_id, self.now, deadline)
        self.leases[self.lease_id] = ModelLease(
            token, dict.fromkeys(seqs, "open"), dict.fromkeys(seqs, deadline)
        )
        return {row.seq: (row.deliveries, row.failures) for row in taken}

    def _held(self) -> int:
        """Return the number of messages in flight."""
        holds = [(self.leases[row.lease], row.seq) for row in self.rows.values() if row.lease]
        return sum(
            lease.seqs[seq] in ("open", "freed") and lease.deadlines[seq] > self.now
            for lease, seq in holds
        )

    def _is_ready(self, row: ModelRow) -> bool:
        if row.state != "live" or row.body is None:
            return False
        if not row.lease:
            return row.is_fresh
        lease = self.leases[row.lease]
        return lease.seqs[row.seq] != "doomed" and lease.deadlines[row.seq] <= self.now

    def _why_doomed(self, row: ModelRow) -> str:
        limits = self.limits
        if 0 < limits.max_failures <= row.failures:
            return "failures"
        return "deliveries" if 0 < limits.max_deliveries <= row.deliveries else ""

    def _doom(self, row: ModelRow, why: str) -> None:
        row.doom = why
        if self.limits.buries:
            self.leases[row.lease].seqs[row.seq] = "doomed"
        else:
            self._bury(row, "dropped")

    def _bury(self, row: ModelRow, how: str) -> None:
        self._leave(row, "buried")
        if not self.log:
            row.state = how

    def bury(self, seqs: list[int]) -> Answer:
        """Move those of them that are doomed; returns how many there were."""
        rows = [self.rows[seq] for seq in seqs]
        rows = [row for row in rows if row.lease]
        rows = [row for row in rows if self.leases[row.lease].seqs[row.seq] == "doomed"]
        for row in rows:
            if self.limits.buries:
                self.dead.append((row.seq, row.doom, row.deliveries, row.failures))
            self._bury(row, "dead_lettered" if self.limits.buries else "dropped")
        return len(rows)

    def judge(
        self, what: str, lease_id: int, token: int, seqs: list[int], *, on_time: bool = False
    ) -> dict[int, str]:
        """done, or the error, of each message."""
        lease = self.leases.get(lease_id)
        if lease is None or lease.token != token:
            return dict.fromkeys(seqs, "Gone")
        again = {
            "settle": {"settled"},
            "release": {"freed", "doomed", "buried"},
            "discard": {"doomed", "buried"},
            "extend": set(),
        }[what]
        errors = {
            "doomed": "Stale",
            "buried": "Stale",
            "superseded": "Superseded",
            "overtaken": "Stale",
            "freed": "Stale",
            "settled": "Stale",
            "purged": "Gone",
            "expired": "Gone",
        }
        out: dict[int, str] = {}
        for seq in seqs:
            state = lease.seqs.get(seq, "purged")
            is_again = state in again and not (what == "release" and seq in lease.discarded)
            out[seq] = "done" if state == "open" or is_again else errors[state]
            if on_time and state == "open" and lease.deadlines[seq] <= self.now:
                out[seq] = "Late"
        return out

    def by_latest(
        self, lease_id: int, token: int, seqs: list[int], *, is_current: bool
    ) -> dict[tuple[int, int], list[int]]:
        """Group seqs by the lease on which a command for any delivery acts.

        `is_current`: the receipt is of the present history.
        """
        lease = self.leases.get(lease_id)
        found: dict[tuple[int, int], list[int]] = {}
        for seq in seqs:
            row = self.rows.get(seq)
            if lease is None:
                was_given = is_current
            else:
                was_given = lease.token == token and lease.seqs.get(seq) == "overtaken"
            if was_given and row is not None and row.lease > lease_id:
                place = row.lease, self.leases[row.lease].token
            else:
                place = lease_id, token
            found.setdefault(place, []).append(seq)
        return found

    def settle(
        self, lease_id: int, token: int, seqs: list[int], *, on_time: bool = False
    ) -> dict[int, str]:
        out = self.judge("settle", lease_id, token, seqs, on_time=on_time)
        for row in self._open(lease_id, out):
            self._leave(row, "settled")
            if not self.log:
                row.state = "kept" if row.seq > self.retain_floor() else "settled"
        return out

    def release(
        self,
        lease_id: int,
        token: int,
        seqs: list[int],
        *,
        failed: bool = False,
        delay: int = 0,
        unseen: bool = False,
        on_time: bool = False,
    ) -> dict[int, str]:
        out = self.judge("release", lease_id, token, seqs, on_time=on_time)
        for row in self._open(lease_id, out):
            row.failures += failed
            row.deliveries -= unseen
            wait = delay
            if failed:
                pause = self.limits.retry_min * row.failures
                wait = max(wait, min(pause, self.limits.retry_max or pause))
            lease = self.leases[lease_id]
            lease.seqs[row.seq] = "freed"
            lease.deadlines[row.seq] = self.now + wait
            if why := self._why_doomed(row):
                self._doom(row, why)
        return out

    def discard(self, lease_id: int, token: int, seqs: list[int]) -> dict[int, str]:
        out = self.judge("discard", lease_id, token, seqs)
        for row in self._open(lease_id, out):
            self.leases[lease_id].discarded.add(row.seq)
            self._doom(row, "discarded")
        return out

    def extend(
        self, lease_id: int, token: int, seqs: list[int], lease_ms: int, *, on_time: bool = False
    ) -> dict[int, str]:
        out = self.judge("extend", lease_id, token, seqs, on_time=on_time)
        for row in self._open(lease_id, out):
            self.leases[lease_id].deadlines[row.seq] = self.now + lease_ms
        return out

    def replace(
        self, lease_id: int, token: int, seq: int, message: NewMessage, lease_ms: int, new: int
    ) -> Answer:
        """Settle one, and publish and hold its successor; `new` is the token of its lease."""
        if self.log:
            return "Invalid"
        word = self.judge("extend", lease_id, token, [seq])[seq]
        if word != "done":
            return word
        self.has_replaced = True
        row = self.rows[seq]
        self._leave(row, "superseded")
        row.state = "kept" if row.seq > self.retain_floor() else "settled"
        self._append(message)
        after = self.rows[self.last]
        after.deliveries, after.failures, after.is_fresh = row.deliveries, row.failures, False
        self.lease_id += 1
        after.lease = self.lease_id
        until = {after.seq: self.now + lease_ms}
        self.leases[self.lease_id] = ModelLease(new, {after.seq: "open"}, until)
        return {after.seq: (after.deliveries, after.failures)}

    def _open(self, lease_id: int, judged: dict[int, str]) -> list[ModelRow]:
        done = [seq for seq, word in judged.items() if word == "done"]
        return [self.rows[seq] for seq in done if self.leases[lease_id].seqs[seq] == "open"]

    def purge(self, *, forgets_ids: bool = False) -> Answer:
        if forgets_ids:
            self.used.clear()
        for row in self.rows.values():
            if row.state in ("live", "kept"):
                self._end(row, "purged")
        self.floor = self.purged = self.last
        self.has_replaced = False
        return self.last

    def rewind(self, start: int) -> Answer:
        """Rewind to `start`, the first seq to deliver, -1 for the end."""
        if not self.log:
            return "Invalid"
        start = self.last + 1 if start < 0 else start
        if start > self.last + 1:
            return "Invalid"
        for row in self.rows.values():
            row.is_fresh = row.seq >= start
            row.deliveries = row.failures = 0
            if row.lease:
                self._leave(row, "purged")
        return start if self.keyed else max(start, self.purged + 1)

    # --- Time ---------------------------------------------------------------------------------

    def tick(self, remembered_ms: int) -> None:
        """Rows that are too many go; pins, remembered leases and deletes that are too old, too."""
        self._expire()
        for number, pin in list(self.pins.items()):
            if pin.rows is not None and pin.deadline <= self.now:
                self.unpin(number, by_age=True)
        for lease_id, lease in list(self.leases.items()):
            if lease.ended and lease.ended + remembered_ms <= self.now:
                del self.leases[lease_id]
        for row in self.rows.values():
            seen = row.seq <= self.retain_floor()
            due = (row.time // 1000 + 1) * 1000 + self.keep_deletes_ms <= self.now
            if row.body is None and row.state == "live" and due and seen:
                self._end(row, "expired")
                self.floor = max(self.floor, row.seq)

    def _expire(self) -> None:
        """End the oldest rows, but no dead letter on its way, nor what a cursor retains."""
        upto = self.last - self.limits.keep_messages
        if not self.limits.keep_messages or not self.log or self.keyed:
            return
        doomed = [
            seq for c in self.leases.values() for seq, how in c.seqs.items() if how == "doomed"
        ]
        upto = min([upto, self.retain_floor(), *(seq - 1 for seq in doomed)])
        if upto <= self.purged:
            return
        for row in self.rows.values():
            if row.seq <= upto and row.state in ("live", "kept"):
                self._end(row, "expired")
        self.floor, self.purged = max(self.floor, upto), upto


def _turn(row: ModelRow) -> tuple[bool, int]:
    """Return the sort key of delivery: delivered before first, each by seq."""
    return (not row.lease, row.seq)
