"""Contract of journals: run it over your own implementation of `millrace.journal.base`.

A rig is a journal with the world around it, under the suite's control: when its entries commit,
how much room there is, whether the disk fails. `CHECKS` are coroutines that take a new rig each;
`check_journal` runs them all. They wait for nothing but the rig, and take no real time.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from millrace import errors
from millrace.core.changes import Batch, Changes, Entry
from millrace.core.format.block import Block
from millrace.core.format.codec import decode_entries, encode_entry
from millrace.core.model import (
    Index,
    Millis,
    NewMessage,
    ShardId,
)
from millrace.journal.base import Journal
from millrace.wal.record import LogPosition


class Rig(Protocol):
    """A journal to be checked, and what the suite does to it."""

    journal: Journal
    """New: nobody listens, and nothing was appended by it."""

    def hold(self) -> None:
        """Let nothing be committed from now on, until `commit`."""
        ...

    async def commit(self) -> None:
        """Let all accepted entries be committed; return when all callbacks have run."""
        ...

    def survives(self, entry: Entry) -> bool:
        """Return True if the entry would survive a loss of power now, as committed as promised."""
        ...

    def payload(self, position: LogPosition) -> bytes:
        """Return the bytes at a position that `committed` was called with."""
        ...

    def fill(self) -> None:
        """Leave no room in the log but the reserve."""
        ...

    def break_disk(self) -> None:
        """Let the next write fail."""
        ...

    def hand_over(self) -> Journal:
        """The journal of the group's next decider, over the same log; the rig's from now on."""
        ...

    async def restart(self) -> list[Entry]:
        """Cut the power and open again; return the entries that were found to be committed.

        The rig's journal is then that of the next decider.
        """
        ...

    async def close(self) -> None:
        """End."""
        ...


async def check_journal(make: Callable[[], Awaitable[Rig]]) -> None:
    """Raise AssertionError where the journal breaks its promises; `make` gives new rigs."""
    for check in CHECKS:
        rig = await make()
        await check(rig)
        await rig.close()


class Listener:
    """Records its callbacks, and checks that none runs too early."""

    def __init__(self, rig: Rig) -> None:
        self._rig = rig
        self._journal = rig.journal
        self.committed: list[Entry] = []
        self.dropped: list[tuple[int, errors.MillraceError]] = []
        self.failed: list[errors.Fatal] = []
        self.after: Callable[[Entry], None] | None = None
        rig.journal.listen(self._committed, self._dropped, self._failed)

    def _committed(self, entry: Entry, position: LogPosition) -> None:
        assert not self.failed, "nothing is committed after the end"
        assert self._rig.survives(entry), "told before it can no longer be lost"
        told = self.committed[-1].index if self.committed else None
        assert told in (None, entry.index - 1), "in the order of the indexes, each once"
        left = self._journal.next_index() - 1 - entry.index
        assert self._journal.waiting() == left, "what is told of does not wait any more"
        self._check_place(entry, position)
        self.committed.append(entry)
        if self.after is not None:
            self.after(entry)

    def _check_place(self, entry: Entry, position: LogPosition) -> None:
        """Check that the entry is at the position, and its blocks at their locations."""
        payload = self._rig.payload(position)
        found = [
            other
            for other in decode_entries(memoryview(payload))
            if (other.group, other.index, other.epoch) == (entry.group, entry.index, entry.epoch)
        ]
        assert len(found) == 1, "the entry lies where it is said to lie"
        for batch, other in zip(entry.batches, found[0].batches, strict=True):
            assert batch.places == other.places, "blocks lie where they are said to lie"

    def _dropped(self, first: Index, error: errors.MillraceError) -> None:
        assert not isinstance(error, errors.Fatal), "what is dropped was not written"
        assert self._journal.next_index() == first, "the next entry has its index"
        self.dropped.append((first, error))

    def _failed(self, error: errors.Fatal) -> None:
        self.failed.append(error)

    def bodies(self) -> list[bytes]:
        return [body_of(entry) for entry in self.committed]


def entry_of(journal: Journal, body: bytes, index: int | None = None) -> Entry:
    """The journal's next entry, with one message in it."""
    at = journal.next_index() if index is None else Index(index)
    block = Block.of_messages([NewMessage(body)])
    batch = Batch(ShardId(1), at, Millis(0), Changes(firsts=[at]), [block])
    return Entry(journal.group, journal.epoch, at, journal.history, [batch])


def body_of(entry: Entry) -> bytes:
    """The message in an entry that `entry_of` made."""
    [row] = entry.batches[0].blocks[0].rows(0, 1, 0, 0)
    assert row.body is not None
    return row.body


def append(journal: Journal, body: bytes, *, alone: bool = False, reserve: bool = False) -> Entry:
    """Append the journal's next entry."""
    entry = entry_of(journal, body)
    journal.append(entry, alone=alone, reserve=reserve)
    return entry


# --- The checks -----------------------------------------------------------------------------------


async def check_order(rig: Rig) -> None:
    """Entries are committed in the order of their appends."""
    listener, journal = Listener(rig), rig.journal
    assert (journal.next_index(), journal.waiting()) == (1, 0)
    bodies = [b"%d" % number for number in range(10)]
    for number, body in enumerate(bodies):
        append(journal, body, alone=number % 3 == 0)
        if number % 4 == 3:
            await rig.commit()
    await rig.commit()
    assert listener.bodies() == bodies
    assert (journal.next_index(), journal.waiting()) == (11, 0)
    assert listener.dropped == []
    assert listener.failed == []


async def check_patience(rig: Rig) -> None:
    """No callback runs before the entry is committed, however long that takes."""
    listener, journal = Listener(rig), rig.journal
    rig.hold()
    append(journal, b"1")
    append(journal, b"2")
    assert (listener.committed, journal.waiting(), journal.next_index()) == ([], 2, 3)
    await rig.commit()
    assert (listener.bodies(), journal.waiting()) == ([b"1", b"2"], 0)


async def check_next(rig: Rig) -> None:
    """An entry that is not the next one is a defect of the decider, and changes nothing."""
    listener, journal = Listener(rig), rig.journal
    append(journal, b"1")
    for index in (1, 3):
        _caught(errors.Fatal, journal, entry_of(journal, b"wrong", index))
        assert journal.next_index() == 2
    append(journal, b"2")
    await rig.commit()
    assert listener.bodies() == [b"1", b"2"]


async def check_appending_when_told(rig: Rig) -> None:
    """A callback may append; the callbacks of these entries run later, in order."""
    listener, journal = Listener(rig), rig.journal

    def go_on(entry: Entry) -> None:
        if journal.next_index() <= 6:
            append(journal, b"%d" % journal.next_index(), alone=True)

    listener.after = go_on
    append(journal, b"1")
    append(journal, b"2")
    for _ in range(6):
        await rig.commit()
    assert listener.bodies() == [b"%d" % number for number in range(1, 7)]


async def check_sizes(rig: Rig) -> None:
    """Entries up to `record_bytes_max` are written; a larger one is refused alone."""
    listener, journal = Listener(rig), rig.journal
    append(journal, bytes(journal.record_bytes_max - 64))
    await rig.commit()
    body = bytes(journal.record_bytes_max + (1 << 20))
    error = _caught(errors.TooLarge, journal, entry_of(journal, body))
    assert error.limit is not None
    assert journal.next_index() == 2
    append(journal, b"2")
    await rig.commit()
    assert [len(body) for body in listener.bodies()] == [journal.record_bytes_max - 64, 1]


async def check_room(rig: Rig) -> None:
    """Without room an entry is not accepted, and its index is free again; the reserve serves."""
    listener, journal = Listener(rig), rig.journal
    append(journal, b"1")
    await rig.commit()
    assert 0 < journal.room(reserve=False) <= journal.room(reserve=True)
    rig.fill()
    assert journal.room(reserve=False) < journal.room(reserve=True)
    body = bytes(journal.room(reserve=False) + 1)
    try:
        append(journal, body)
    except errors.Retry:
        assert journal.next_index() == 2
    else:
        await rig.commit()
        [(first, error)] = listener.dropped
        assert first == 2
        assert isinstance(error, errors.Retry)
    assert (journal.next_index(), journal.waiting(), listener.failed) == (2, 0, [])
    append(journal, b"2", reserve=True)
    await rig.commit()
    assert listener.bodies() == [b"1", b"2"]


async def check_drops(rig: Rig) -> None:
    """Entries before a dropped one stay, entries after it are dropped as well."""
    listener, journal = Listener(rig), rig.journal
    rig.fill()
    rig.hold()
    append(journal, b"1", reserve=True)
    body = bytes(journal.room(reserve=False) + 1)
    refused = 0
    for step in (body, b"3"):
        try:
            append(journal, step, reserve=step != body)
        except errors.Retry:
            refused += 1
    await rig.commit()
    if refused:
        # It was refused at once, so that the one after it took its index.
        assert listener.bodies() == [b"1", b"3"]
    else:
        assert [first for first, _ in listener.dropped] == [2]
        assert listener.bodies() == [b"1"]
    assert journal.waiting() == 0
    append(journal, b"4", reserve=True)
    await rig.commit()
    assert listener.bodies()[-1] == b"4"


async def check_failure(rig: Rig) -> None:
    """After a failed write, `failed` is called once, and nothing is accepted any more."""
    listener, journal = Listener(rig), rig.journal
    append(journal, b"1")
    await rig.commit()
    rig.hold()
    rig.break_disk()
    append(journal, b"2")
    append(journal, b"3")
    await rig.commit()
    assert listener.bodies() == [b"1"]
    assert len(listener.failed) == 1
    for _ in range(2):
        _caught(errors.Fatal, journal, entry_of(journal, b"4"))
    await rig.commit()
    assert len(listener.failed) == 1
    assert listener.dropped == []


async def check_handover(rig: Rig) -> None:
    """The next decider goes on with the next index; the last one may not write any more."""
    listener, old = Listener(rig), rig.journal
    append(old, b"1")
    await rig.commit()
    new = rig.hand_over()
    assert new.epoch > old.epoch
    assert new.group == old.group
    assert (new.next_index(), new.waiting()) == (2, 0)
    _caught(errors.Retry, old, entry_of(old, b"too late"))
    after = Listener(rig)
    append(new, b"2")
    await rig.commit()
    assert (listener.bodies(), after.bodies()) == ([b"1"], [b"2"])
    assert after.committed[0].epoch == new.epoch


async def check_restart(rig: Rig) -> None:
    """Committed entries survive a loss of power, and the next decider continues after them."""
    listener = Listener(rig)
    for number in range(5):
        append(rig.journal, b"%d" % number)
    await rig.commit()
    rig.hold()
    append(rig.journal, b"never told of")
    found = await rig.restart()
    bodies = [body_of(entry) for entry in found]
    assert bodies[:5] == listener.bodies() == [b"%d" % number for number in range(5)]
    assert bodies[5:] in ([], [b"never told of"])
    journal = rig.journal
    assert journal.next_index() == len(found) + 1 + journal.waiting()
    left = journal.waiting()
    after = Listener(rig)
    append(journal, b"after")
    await rig.commit()
    assert after.bodies()[left:] == [b"after"]


async def check_contents(rig: Rig) -> None:
    """A committed entry equals the appended one, byte for byte, with its epoch and its history."""
    listener, journal = Listener(rig), rig.journal
    appended: list[bytes] = []
    for number in range(1, 6):
        entry = entry_of(journal, bytes([number]) * number * 97)
        appended.append(b"".join(encode_entry(entry, 0)))
        journal.append(entry, alone=False, reserve=False)
    await rig.commit()
    assert [b"".join(encode_entry(entry, 0)) for entry in listener.committed] == appended
    for entry in listener.committed:
        assert (entry.epoch, entry.history) == (journal.epoch, journal.history)


def _caught(
    wanted: type[errors.MillraceError], journal: Journal, entry: Entry
) -> errors.MillraceError:
    try:
        journal.append(entry, alone=False, reserve=False)
    except wanted as error:
        return error
    raise AssertionError(f"expected {wanted.__name__}")


CHECKS: Sequence[Callable[[Rig], Awaitable[None]]] = (
    check_order,
    check_patience,
    check_next,
    check_appending_when_told,
    check_sizes,
    check_room,
    check_drops,
    check_failure,
    check_handover,
    check_restart,
    check_contents,
)
"""Each takes a new rig."""
