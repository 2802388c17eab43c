"""Two revisions are compared by pairs of runs, and in the right direction."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.compare import Comparison, Figure, Measured, Unmeasured, by_id, compare
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


BASE, HEAD = Path("base"), Path("head")


def compared(*, rounds: int = 2, **measured: dict[Path, Measured]) -> tuple[Comparison, list[str]]:
    """Compare figures that are given, by measurement and tree; an empty one fails."""
    order: list[str] = []

    def run(tree: Path, name: str) -> Measured:
        order.append(f"{name} {tree}")
        if tree not in measured[name]:
            raise Unmeasured("no disk")
        return measured[name][tree]

    [result] = compare([BASE], HEAD, list(measured), rounds, run)
    return result, order


def test_turns_begin_with_the_other_revision() -> None:
    figure: Measured = {"x": (1.0, "messages/s")}
    told, order = compared(a={BASE: figure, HEAD: figure})
    assert order == ["a base", "a head", "a head", "a base"]
    assert told.figures["x"].ratios() == [1.0, 1.0]
    assert told.is_kept(0.95)


def test_several_bases_share_the_measurements_of_the_head() -> None:
    older, order = Path("older"), list[str]()
    rates = {older: 100.0, BASE: 50.0, HEAD: 100.0}

    def run(tree: Path, name: str) -> Measured:
        order.append(str(tree))
        return {name: (rates[tree], "messages/s")}

    results = compare([older, BASE], HEAD, ["x"], 2, run)
    assert [result.figures["x"].ratios() for result in results] == [[1.0, 1.0], [2.0, 2.0]]
    assert order == ["older", "base", "head", "head", "base", "older"]


def test_figures_of_one_revision_are_told_and_a_lost_one_fails() -> None:
    old: Measured = {"x": (1.0, "messages/s"), "old": (1.0, "s")}
    new: Measured = {"x": (1.0, "messages/s"), "new": (1.0, "s")}
    told, _ = compared(a={BASE: old, HEAD: new})
    assert told.alone == {"old": "base", "new": "head"}
    assert not told.is_kept(0.95)
    told, _ = compared(a={BASE: {"x": old["x"]}, HEAD: new})
    assert told.is_kept(0.95)
    told, _ = compared(a={BASE: {}, HEAD: new})
    assert not told.is_kept(0.95)


def test_a_measurement_that_fails_leaves_the_others_and_fails_the_whole() -> None:
    figure: Measured = {"x": (1.0, "messages/s")}
    told, order = compared(a={HEAD: figure}, b={BASE: figure, HEAD: figure})
    assert told.failed == {"a": "no disk"}
    assert order == ["a base", "b base", "b head", "b head", "b base"]
    assert len(told.figures["x"].base) == 2
    assert not told.is_kept(0.95)


def test_two_figures_of_one_id_are_both_compared() -> None:
    lines = [{"id": "idle", "value": 1.0, "unit": "s"}, {"id": "idle", "value": 2.0, "unit": "s"}]
    assert by_id(lines) == {"idle": (1.0, "s"), "idle (2)": (2.0, "s")}


def test_a_figure_that_is_zero_divides_nothing() -> None:
    assert Figure("s", base=[0.0], head=[0.0]).ratios() == [1.0]
    assert not Figure("s", base=[0.0], head=[1.0]).is_kept(0.95)
    assert Figure("s", base=[1.0], head=[0.0]).is_kept(0.95)
    assert "0%" in Figure("s", base=[0.0, 0.0], head=[0.0, 0.0]).row("x", 0.95)
