"""Messages that a job holds until it ends."""

from __future__ import annotations

from pathlib import Path
from time import monotonic

from millrace import sync
from millrace.batch_jobs.redrive import HeldLeases


def test_what_is_held_is_extended_and_given_back_unseen(tmp_path: Path) -> None:
    with sync.open(tmp_path) as m:
        queue = m.queue("dead")
        queue.publish_many([b"a", b"b", b"c"])
        leases = queue.lease(3, seconds=100)
        before = [lease.deadline_ms for lease in leases]
        held = HeldLeases(queue)
        held.add(leases)
        held.renew(monotonic() + 40)
        assert [lease.deadline_ms for lease in leases] == before
        queue.settle(leases[:1])
        held.drop(leases[:1])
        held.renew(monotonic() + 60)
        after = [lease.deadline_ms for lease in leases]
        assert after[0] == before[0]
        assert all(new >= old for new, old in zip(after, before, strict=True))
        assert len(held) == 2
        # What was extended is fresh.
        held.renew(monotonic() + 70)
        assert [lease.deadline_ms for lease in leases] == after
        held.give_back()
        again = queue.lease(3)
        assert [(lease.body, lease.deliveries) for lease in again] == [(b"b", 1), (b"c", 1)]
