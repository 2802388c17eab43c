"""A soak in short: every client does its part, and what grows is told."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.server.load.soak import Course, soak

SECONDS = 4.0


@pytest.mark.process
def test_clients_of_every_kind_are_served_for_some_time(tmp_path: Path) -> None:
    course, mixed = soak(tmp_path, SECONDS, 1)
    # How often depends on the machine; whether memory grows shows only in minutes.
    assert len(mixed.done) >= 10, mixed.done
    assert {"publish", "work", "session", "transact", "disturb", "connect"} <= set(mixed.done)
    lines, _ = course.judge()
    assert any(line.startswith("engine memory") for line in lines)
    assert any(line.startswith("front end 1 descriptors") for line in lines)
    said = (tmp_path / "stderr").read_text()
    assert "Traceback" not in said, said


def test_what_grows_after_the_warm_up_is_told() -> None:
    course = Course()
    for look in range(100):
        course.note("engine memory", 100e6 + (look * 1e6 if look < 30 else 30e6))
        course.note("engine descriptors", 20 + look)
        course.note("engine threads", 5 + look % 3)
        course.note("disk", 50e6 + look * 2e6)
    lines, grown = course.judge()
    assert len(lines) == 4
    assert [line.partition(":")[0] for line in grown] == ["disk", "engine descriptors"]
