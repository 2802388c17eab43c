"""`millrace health`, for people and for scripts."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from millrace import Health
from millrace.cli.commands.health import exit_code_of
from tests.cli.desk import Desk

WELL = Health(
    refuses=None,
    disk_free_bytes=1 << 30,
    scrubbed=None,
    damaged=(),
    archive=None,
    archive_behind_bytes=0,
    archive_gap=False,
    archive_error=None,
)


def test_a_folder_tells_how_it_is(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    desk.text("demo")
    said = desk.one("health")
    assert (said["type"], said["refuses"], said["damaged"], said["archive"]) == (
        "health",
        None,
        [],
        None,
    )
    assert "archive gap" not in desk.text("health")
    desk.text("backup", desk.data, tmp_path / "vault", "--follow")
    assert desk.one("health")["archive"] == str(tmp_path / "vault")
    text = desk.text("health")
    assert f"archive          {tmp_path / 'vault'}" in text
    assert "archive gap      none" in text


def test_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    result = Desk(tmp_path).call("health", "--json")
    assert (result.exit_code, json.loads(result.output)["code"]) == (1, "not_found")


@pytest.mark.parametrize(
    ("found", "code"),
    [
        (WELL, 0),
        (replace(WELL, archive_gap=True), 1),
        (replace(WELL, archive_error="no room"), 1),
        (replace(WELL, refuses="the disk is short", archive_gap=True), 3),
        (replace(WELL, refuses="the disk is short", damaged=("log",)), 4),
    ],
)
def test_a_script_needs_the_exit_code_alone(found: Health, code: int) -> None:
    assert exit_code_of(found) == code
