"""The naive model of a shard, as its followers see it: rows, cursors and pins."""

from __future__ import annotations

from dataclasses import dataclass, field

from tests.support.models.parts import ModelCursor, ModelPin, ModelRow

Answer = object
"""The plain form in which answers are compared, as `check` makes it of the core's answer."""


@dataclass
class ModelFollowers:
    """The rows of one shard, and who reads them without working on them."""

    keyed: bool
    log: bool
    keep_deletes_ms: int
    now: int = 0
    rows: dict[int, ModelRow] = field(default_factory=dict)
    cursors: dict[str, ModelCursor] = field(default_factory=dict)
    pins: dict[int, ModelPin] = field(default_factory=dict)
    pin_id: int = 0
    cursor_id: int = 0
    floor: int = 0
    purged: int = 0

    @property
    def last(self) -> int:
        return len(self.rows)

    def visible(self, *, retain: bool) -> dict[int, bytes | None]:
        """The rows that a reader sees as of now."""
        shown = ("live", "kept") if retain else ("live",)
        return {row.seq: row.body for row in self.rows.values() if row.state in shown}

    def retain_floor(self) -> int:
        return min((c.seq for c in self.cursors.values() if c.retain), default=self.last)

    def _pass(self) -> None:
        for row in self.rows.values():
            if row.state == "kept" and row.seq <= self.retain_floor():
                row.state = "settled"

    def open_cursor(self, name: str, start: int, *, retain: bool) -> Answer:
        """`start` is the seq after which it begins, -1 for the end."""
        if name not in self.cursors:
            self._put_cursor(name, start, retain=retain)
        elif self.cursors[name].retain != retain:
            return "Exists"
        return self.cursors[name].seq

    def _put_cursor(self, name: str, start: int, *, retain: bool) -> None:
        self.cursor_id += 1
        seq = self.last if start < 0 else start
        self.cursors[name] = ModelCursor(self.cursor_id, retain, seq, seq, seq)

    def next(self, name: str, after: int, pin_ms: int, read: int = 0, shared: int = 0) -> Answer:
        """`read` is what the reader has read under an earlier history, all of it shared.

        `shared` is the pin that the core has answered: where that is one of another cursor, it must
        show what a new one would.
        """
        cursor = self.cursors.get(name)
        if cursor is None:
            return "NotFound"
        boundary = cursor.start if cursor.seq < cursor.end else cursor.seq
        pin = self.pins.get(cursor.pin)
        place = max(cursor.seq, after if after <= self.last else 0)
        read = max(place, read)
        if pin and pin.rows is not None and pin.boundary == after > cursor.seq:
            boundary = after
        goes_on = pin and pin.rows is not None and place < pin.boundary >= read
        floor = pin.floor if pin and goes_on else self.floor
        if 0 < read < floor:
            return "CursorExpired"
        if self.last <= place:
            return None
        if pin and goes_on:
            pin.deadline = max(pin.deadline, self.now + pin_ms)
        elif not pin or pin.rows is not None:
            other = self.pins.get(shared)
            if other is not None and shared != cursor.pin and self._shows_all(other, cursor):
                other.deadline = max(other.deadline, self.now + pin_ms)
                self._leave_pin(cursor)
                cursor.pin = shared
            else:
                self._leave_pin(cursor)
                cursor.pin = self.pin(pin_ms, name, retain=cursor.retain)
        return (cursor.pin, place, boundary)

    def _shows_all(self, pin: ModelPin, cursor: ModelCursor) -> bool:
        """Return True if a pin of another cursor shows the same as a new one would."""
        if not pin.cursor or pin.retain != cursor.retain:
            return False
        if pin.rows is None:
            return True
        rows = self.visible(retain=cursor.retain)
        # Kept rows that all retaining cursors have passed make no difference to them.
        gone = pin.rows.keys() - rows.keys()
        passed = all(self.rows[seq].state == "settled" for seq in gone)
        is_whole = rows.items() <= pin.rows.items() and passed and (cursor.retain or not gone)
        return is_whole and (pin.boundary, pin.floor) == (self.last, self.floor)

    def _leave_pin(self, cursor: ModelCursor) -> None:
        """The last of its readers takes the pin along."""
        if self.readers(cursor.pin) <= 1:
            self.pins.pop(cursor.pin, None)
        cursor.pin = 0

    def readers(self, pin: int) -> int:
        """Return the number of cursors that read it."""
        return sum(cursor.pin == pin for cursor in self.cursors.values()) if pin else 0

    def commit(self, name: str, cursor_id: int, seq: int, start: int, end: int) -> Answer:
        cursor = self.cursors.get(name)
        if cursor is None or cursor.id != cursor_id:
            return "NotFound"
        if not start <= seq <= end <= self.last:
            return "Invalid"
        if seq < cursor.seq:
            return "Stale"
        pin = self.pins.get(cursor.pin)
        if seq < end and (pin is None or pin.boundary != end):
            return "SnapshotExpired"
        if seq == end:
            start = seq
            if pin is not None and pin.rows is not None and pin.boundary <= seq:
                self._leave_pin(cursor)
        elif cursor.seq < cursor.end and start < cursor.end:
            start = min(start, cursor.start)
        cursor.seq, cursor.start, cursor.end = seq, start, end
        if cursor.retain:
            self._pass()
        return seq

    def reset(self, name: str, start: int) -> Answer:
        cursor = self.cursors.get(name)
        if cursor is None:
            return "NotFound"
        self._leave_pin(cursor)
        self._put_cursor(name, start, retain=cursor.retain)
        self._pass()
        return self.cursors[name].seq

    def delete_cursor(self, name: str) -> Answer:
        cursor = self.cursors.get(name)
        if cursor is not None:
            self._leave_pin(cursor)
            del self.cursors[name]
            self._pass()
        return cursor is not None

    def pin(self, pin_ms: int, cursor: str = "", *, retain: bool = False) -> int:
        self.pin_id += 1
        self.pins[self.pin_id] = ModelPin(0, 0, self.now + pin_ms, cursor, retain)
        return self.pin_id

    def unpin(self, pin: int, *, by_age: bool = False) -> Answer:
        if not by_age and self.readers(pin) > 1:
            return False
        found = self.pins.pop(pin, None)
        if found is not None and found.cursor in self.cursors:
            cursor = self.cursors[found.cursor]
            cursor.pin = 0 if cursor.pin == pin else cursor.pin
        return found is not None
