"""`millrace backup`, `restore` and `verify`, as people and programs call them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.desk import Desk
from tests.cli.program import flip


@pytest.mark.process
def test_a_folder_is_backed_up_verified_and_restored(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    desk.text("demo")
    vault, again = tmp_path / "vault", tmp_path / "again"
    made = json.loads(desk.text("backup", desk.data, vault, "--follow", "--json"))
    assert (made["type"], made["follow"]) == ("backup", True)
    desk.text("publish", "mail", "one more")
    found = json.loads(desk.text("verify", vault, "--against", desk.data, "--json"))
    assert (found["type"], found["differences"]) == ("verified", 0)
    assert found["index"] > made["last_index"]
    assert "the same" in desk.text("verify", vault, "--against", desk.data)
    back = json.loads(desk.text("restore", vault, again, "--index", made["last_index"], "--json"))
    assert (back["type"], back["index"]) == ("restored", made["last_index"])
    desk.text("check", again)
    assert "one more" in desk.text("peek", "mail", "--data", desk.data)
    assert "one more" not in desk.text("peek", "mail", "--data", again)
    assert "stopped archiving its log" in desk.text("backup", desk.data, "--unfollow")
    assert "was not archived" in desk.text("backup", desk.data, "--unfollow")


def test_what_cannot_be_done_ends_with_a_hint(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    desk.text("demo")
    vault = tmp_path / "vault"
    desk.text("backup", desk.data, vault)
    for arguments, code, message, hint in (
        (("backup", desk.data), 2, "INTO", ""),
        (("backup", tmp_path / "nothing", vault), 1, "no folder", "queue make"),
        (("restore", vault, desk.data), 1, "not empty", "another folder"),
        (("restore", tmp_path / "nothing", tmp_path / "a"), 1, "no backup", "--help"),
        (("restore", vault, tmp_path / "a", "--index", 1), 1, "cannot be reached", "--help"),
        (("restore", vault, tmp_path / "a", "--time", "noon"), 2, "not a time", ""),
    ):
        result = desk.call(*arguments)
        assert result.exit_code == code, result.output
        assert message in result.output
        assert hint in result.output
    flip(vault / "000001" / "index" / "data.mdb", 9000)
    result = desk.call("verify", vault)
    assert result.exit_code == 4
    assert "index/data.mdb" in result.output
    assert "use another backup" in result.output
