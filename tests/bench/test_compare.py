"""Two revisions are compared by pairs of runs, and in the right direction."""

from __future__ import annotations

import pytest

from bench.compare import Figure
from bench.run import GROUPS, choose


def test_a_rate_that_falls_and_a_cost_that_rises_are_regressions() -> None:
    rate = Figure("messages/s", base=[100.0, 200.0, 100.0], head=[90.0, 180.0, 90.0])
    cost = Figure("us/message", base=[90.0, 180.0, 90.0], head=[100.0, 200.0, 100.0])
    for figure in (rate, cost):
        assert figure.ratios() == pytest.approx([0.9, 0.9, 0.9])
        assert not figure.is_kept(0.95)
        assert figure.is_kept(0.9)


def test_a_machine_that_slows_down_does_not_count() -> None:
    """Both revisions are equally fast, on a machine that is half as fast in the second turn."""
    figure = Figure("messages/s", base=[100.0, 50.0], head=[100.0, 50.0])
    assert figure.is_kept(1.0)


def test_one_turn_out_of_line_does_not_decide() -> None:
    figure = Figure("messages/s", base=[100.0] * 5, head=[100.0, 101.0, 30.0, 99.0, 100.0])
    assert figure.is_kept(0.95)


def test_several_measurements_are_chosen_by_group_name_and_figure() -> None:
    chosen = choose("queues,publish_1k,open_10m_s,single_vs_moto")
    names = [name for _, name in chosen]
    assert names == ["publish_1k", "backlog", *GROUPS["queues"], "single"]
    assert len(choose(None)) == sum(map(len, GROUPS.values()))


def test_a_misspelled_measurement_is_not_left_out_silently() -> None:
    assert choose("publish_1k,publish_1m") == []
