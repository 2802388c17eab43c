"""Every journal keeps the promise of `millrace.journal.base`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from millrace import errors
from millrace.core.changes import Entry, EntryKind
from millrace.core.model import Epoch, Index
from millrace.journal.base import Journal
from millrace.journal.local import LocalJournal
from millrace.wal.record import LogPosition
from tests.journal.harness import HISTORY, LOCAL, A, World, new_world, run
from tests.support.contracts import check_journal
from tests.support.contracts.check_journal import Rig
from tests.support.contracts.late_journal import LateJournal


class LogRig:
    """What both journals share: the log, its disk and its lane."""

    journal: Journal

    def __init__(self) -> None:
        self.world: World = new_world()

    def payload(self, position: LogPosition) -> bytes:
        found = self.world.log.buffer(position)
        assert found is not None
        return bytes(found)

    def fill(self) -> None:
        self.world.fill()

    def break_disk(self) -> None:
        self.world.disk.fail_sync_in = 1

    def survives(self, entry: Entry) -> bool:
        key = (EntryKind.DATA, entry.group, entry.index, entry.epoch)
        return key in [
            (other.kind, other.group, other.index, other.epoch) for other in self.world.survivors()
        ]

    async def close(self) -> None:
        await self.world.settle()
        self.world.writer.close()


class LocalRig(LogRig):
    def __init__(self) -> None:
        super().__init__()
        self.journal: Journal = self.make(1, 0)

    def make(self, epoch: int, last: int) -> LocalJournal:
        return LocalJournal(LOCAL, Epoch(epoch), HISTORY, Index(last), self.world.writer)

    def hold(self) -> None:
        self.world.lane.is_held = True

    async def commit(self) -> None:
        await self.world.settle()

    def hand_over(self) -> Journal:
        self.journal = self.make(self.journal.epoch + 1, self.journal.next_index() - 1)
        return self.journal

    async def restart(self) -> list[Entry]:
        found: list[Entry] = []
        self.world.lane.is_held = True
        self.world = self.world.end(power=True)
        found = [entry for entry in self.world.survivors() if entry.group == LOCAL]
        self.journal = self.make(self.journal.epoch + 1, self.world.ledger.applied(LOCAL))
        return found


class LateRig(LogRig):
    def __init__(self) -> None:
        super().__init__()
        self.late = self.make(1)
        self.journal: Journal = self.late

    def make(self, epoch: int) -> LateJournal:
        self.late = LateJournal(
            A, Epoch(epoch), HISTORY, self.world.ledger.applied(A), self.world.writer
        )
        return self.late

    def hold(self) -> None:
        """Nothing is ever committed unless it is told so."""

    async def commit(self) -> None:
        await self.world.settle()
        if not self.world.writer.error:
            self.late.commit()
        await self.world.settle()

    def survives(self, entry: Entry) -> bool:
        return super().survives(entry) and entry.index <= self.late.commit_point

    def hand_over(self) -> Journal:
        self.journal = self.make(self.journal.epoch + 1)
        return self.journal

    async def restart(self) -> list[Entry]:
        await self.world.settle()
        self.world = self.world.end(power=True)
        applied = self.world.ledger.applied(A)
        self.journal = self.make(self.journal.epoch + 1)
        return [
            entry
            for entry in self.world.survivors()
            if (entry.group, entry.kind) == (A, EntryKind.DATA) and entry.index <= applied
        ]


async def make_local() -> Rig:
    return LocalRig()


async def make_late() -> Rig:
    return LateRig()


@pytest.mark.parametrize("make", [make_local, make_late])
@pytest.mark.parametrize("check", check_journal.CHECKS, ids=lambda check: check.__name__)
def test_journal(
    make: Callable[[], Awaitable[Rig]], check: Callable[[Rig], Awaitable[None]]
) -> None:
    async def main() -> None:
        rig = await make()
        await check(rig)
        await rig.close()

    run(main())


def test_the_suite_runs_as_one_call() -> None:
    run(check_journal.check_journal(make_local))


# --- The suite notices ----------------------------------------------------------------------------


class EagerJournal(LocalJournal):
    """Tells before the entry is synced: the oldest bug there is."""

    def append(self, entry: Entry, *, alone: bool, reserve: bool) -> None:
        assert self._committed is not None
        self._committed(entry, LogPosition(1, 0, 0))
        super().append(entry, alone=alone, reserve=reserve)


class ForgetfulJournal(LocalJournal):
    """Leaves out the index of what was refused: the next open would miss an entry."""

    def _lose(self, error: errors.MillraceError) -> None:
        last = self._accepted
        super()._lose(error)
        self._accepted = last


class SilentJournal(LocalJournal):
    """Does not say that it has ended."""

    def _lose(self, error: errors.MillraceError) -> None:
        if not isinstance(error, errors.Fatal):
            super()._lose(error)


class UnfencedJournal(LocalJournal):
    """Writes on although the group was handed over."""

    def append(self, entry: Entry, *, alone: bool, reserve: bool) -> None:
        self._writer.submit(entry, self._commit, self._lose, alone=alone, reserve=reserve)


@pytest.mark.parametrize(
    ("journal", "check"),
    [
        (EagerJournal, check_journal.check_order),
        (EagerJournal, check_journal.check_patience),
        (ForgetfulJournal, check_journal.check_room),
        (ForgetfulJournal, check_journal.check_drops),
        (SilentJournal, check_journal.check_failure),
        (UnfencedJournal, check_journal.check_handover),
        (UnfencedJournal, check_journal.check_next),
    ],
)
def test_the_suite_notices(
    journal: type[LocalJournal], check: Callable[[Rig], Awaitable[None]]
) -> None:
    class BadRig(LocalRig):
        def make(self, epoch: int, last: int) -> LocalJournal:
            return journal(LOCAL, Epoch(epoch), HISTORY, Index(last), self.world.writer)

    async def main() -> None:
        await check(BadRig())

    with pytest.raises((AssertionError, errors.Fatal)):
        run(main())
