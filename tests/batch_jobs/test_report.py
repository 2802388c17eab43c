"""The page about a queue's traffic."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

from millrace import Message
from millrace.batch_jobs.job_context import JobContext
from millrace.batch_jobs.report import (
    ChartBar,
    HotKey,
    TrafficStep,
    bar_chart,
    filled,
    report,
    round_axis,
    short_number,
    step_of,
    to_html,
)


@pytest.mark.spark
def test_a_page_about_a_queue(site: JobContext) -> None:
    queue = site.m.queue("traffic")
    hot = Message(b"x" * 100, key="<b>hot</b>")
    queue.publish_many([hot] * 30)
    queue.publish_many([Message(b"", key=f"k{at}") for at in range(10)])
    queue.publish(b"y" * 1000, group="team")
    queue.publish(b"z", headers={"made": "2020-01-01T00:00:00Z"})
    queue.publish(b"z", headers={"made": "1577836800000"})
    queue.publish(b"z", headers={"made": "no time"})
    found = report(site, queue, sent="made")
    assert (found.messages, found.deletes, found.largest) == (44, 0, 1000)
    assert found.bytes == 30 * 100 + 1000 + 3
    assert found.keys[0] == HotKey("<b>hot</b>", 30, 3000)
    assert HotKey("team", 1, 1000) in found.groups
    assert dict(found.sizes) == {1: 10, 2: 3, 128: 30, 1024: 1}
    assert sum(step.messages for step in found.steps) == 44
    made = 1577836800
    assert all(found.first - made - 2 < seconds for _, seconds in found.latencies)
    text = to_html(found)
    assert "&lt;b&gt;hot&lt;/b&gt;" in text
    assert "<b>hot" not in text
    assert "<script" not in text
    assert not re.findall(r"(?:src|href)=", text)
    for drawn in re.findall(r"<svg.*?</svg>", text):
        ElementTree.fromstring(drawn)
    empty = report(site, site.m.queue("silent"))
    assert "no message is in the queue" in to_html(empty)


def test_steps_fit_and_have_no_holes() -> None:
    assert [step_of(seconds) for seconds in (1, 100, 3600, 86400)] == [1, 1, 30, 900]
    assert step_of(10 * 365 * 86400) == 31 * 86400
    steps = filled([TrafficStep(10, 1, 5), TrafficStep(25, 2, 7)], 5)
    assert [(step.begin, step.messages) for step in steps] == [(10, 1), (15, 0), (20, 0), (25, 2)]
    assert filled([], 5) == []


def test_axes_and_numbers() -> None:
    assert [round_axis(most) for most in (0, 0.03, 1, 3, 7, 12, 100)] == [
        1,
        0.05,
        1,
        5,
        10,
        20,
        100,
    ]
    assert [short_number(number) for number in (0, 0.5, 999, 12_345, 2e9)] == [
        "0",
        "0.5",
        "999",
        "12.3 k",
        "2 G",
    ]
    drawn = bar_chart("A & B", [ChartBar("<", 3, "three"), ChartBar("b", 0, "none")], "things")
    [svg] = re.findall(r"<svg.*</svg>", drawn)
    heights = [rect.get("height") for rect in ElementTree.fromstring(svg).iter("rect")]
    assert heights == ["109.20", "0.00"]
