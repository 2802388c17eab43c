"""Runs of those alone who use partitions, maxima and logs that end: more of it than others leave.

A run of everybody has a few such calls. Here they are all there is, under the same faults.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from millrace.core.state import row_sizes
from tests.support.checkers.history import (
    History,
    Lease,
    Other,
    Publish,
)
from tests.support.checkers.length import HOLDS
from tests.support.simulator.run import (
    Run,
    make_aging_clients,
    make_bounded_clients,
    make_sliced_clients,
    make_tide_clients,
    make_weir_clients,
)
from tests.support.simulator.workload import Client, World

SEEDS = range(1, 5)
STEPS = 300


def play(clients: Callable[[World], list[Client]]) -> list[History]:
    """Play the seeds, and have nothing to complain of."""
    found: list[History] = []
    for seed in SEEDS:
        run = Run(seed, STEPS, clients)
        report = run.play()
        assert report.violations == [], "\n".join([*report.lines[-40:], *report.violations])
        found.append(run.history)
    return found


def count(histories: list[History], name: str) -> int:
    """How many messages ended so, in all shards of all runs."""
    return sum(
        shard.counts.get(name, 0) for history in histories for shard in history.shards.values()
    )


@pytest.mark.slow
def test_d2_d3_partitions_are_locked_and_take_turns() -> None:
    histories = play(make_sliced_clients)
    served = [
        lease
        for history in histories
        for lease in history.of(Lease)
        if lease.rows and history.shards[lease.shard].partitions[1]
    ]
    assert len(served) > 100


@pytest.mark.slow
def test_queues_hold_what_they_may() -> None:
    histories = play(make_bounded_clients)
    refused = [
        call
        for history in histories
        for call in history.of(Publish)
        if call.error.startswith(HOLDS)
    ]
    assert len(refused) > 20
    assert count(histories, "dropped") > 5
    assert count(histories, "dead_lettered") > 5


@pytest.mark.slow
def test_workers_have_no_more_than_they_may() -> None:
    histories = play(make_weir_clients)
    served = [
        lease
        for history in histories
        for lease in history.of(Lease)
        if len(lease.rows) == history.shards[lease.shard].max_in_flight < lease.count
    ]
    assert len(served) > 10


@pytest.mark.slow
def test_a_queue_becomes_fair_while_it_is_worked_on() -> None:
    histories = play(make_tide_clients)
    changes = [
        call for history in histories for call in history.of(Other) if call.what == "configure"
    ]
    assert sum(call.is_ok for call in changes) >= len(SEEDS)


@pytest.mark.slow
def test_logs_end_their_oldest_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_sizes, "WEIGHT_BYTES", 50_000)
    histories = play(make_aging_clients)
    assert count(histories, "expired") > 50
    kept = [shard for history in histories for shard in history.shards.values() if shard.keep_bytes]
    assert all(shard.counts["live"] and shard.counts["expired"] for shard in kept)
