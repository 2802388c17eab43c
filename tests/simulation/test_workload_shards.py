"""The simulated users of several shards notice what is torn."""

from __future__ import annotations

from tests.support.simulator.workload_shards import torn

WHOLE = ["b0.1.0.0.2", "b0.1.0.1.2", "b0.2.0.0.1", "b1.1.0.0.3", "b1.1.0.1.3", "b1.1.0.2.3"]


def test_whole_batches_are_well() -> None:
    assert torn(WHOLE) == []
    assert torn([]) == []


def test_a_part_of_a_batch_is_noticed() -> None:
    [found] = torn([tag for tag in WHOLE if tag != "b1.1.0.1.3"])
    assert found == "S1: 2 rows of batch b1.1.0.3 are there, and the others are not"
