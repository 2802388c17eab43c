"""`millrace dump` shows what the engine wrote, and changes nothing."""

from __future__ import annotations

import asyncio
import os
import re
from pathlib import Path

import pytest

import millrace
from tests.cli.conftest import SETTINGS
from tests.cli.program import call, contents, findings, flip, objects, start
from tests.client.harness import copy_live

EVERYTHING = (
    [],
    ["log"],
    ["log", "--bytes", "--limit", "1000"],
    ["cells"],
    ["rows", "work"],
    ["blocks", "work"],
    ["sealed"],
    ["sealed", "1"],
    *(["cells", "--table", table] for table in ("node", "meta", "cells", "keys")),
    *(["cells", "--table", table] for table in ("blocks", "deaths", "files")),
)


def shown(*arguments: object) -> str:
    """What the verb prints, with times, checksums, sizes and ids made equal."""
    result = call("dump", *arguments)
    assert result.exit_code == 0, result.output
    text = re.sub(r"\d{4}-\d\d-\d\dT[\d:.]+Z", "TIME", result.stdout)
    text = re.sub(r"checksum [0-9a-f]{8}", "checksum CRC", text)
    text = re.sub(r"\d+ bytes  checksum", "N bytes  checksum", text)
    text = re.sub(r" in \d+ B, ", " in N B, ", text)
    text = re.sub(r"deletes \d+:", "deletes SECOND:", text)
    return re.sub(r"\b[0-9a-f]{8}…", "HISTORY", text)


def test_overview(folder: Path) -> None:
    text = shown(folder)
    assert re.search(r"^identity +[0-9a-f]{32}, a copy$", text, re.M)
    assert re.search(r"^in use +no$", text, re.M)
    assert re.search(
        r"^checkpoint +before record \d+ \(generation \d, offset \d+\); 0 ", text, re.M
    )
    assert re.search(
        r"^log/0000000\d\.seg +\d+ +needed +\d+-\d+ +\d +[\d.]+ KiB$", text, re.MULTILINE
    )
    assert re.search(r"^ +0 +\d+ +1 +[0-9a-f]{32}$", text, re.M), "group, index, epoch"
    assert re.search(r"^ +1 +orders +keyed +3 +4 +4 +2 +2 superseded +3$", text, re.M)
    assert re.search(r"^ +2 +work +work +\d+ +2000 +2000 +1970 +30 settled +5$", text, re.M)
    assert re.search(r"^ +3 +post/mail +work +2 +1 +1 +1 +- +1$", text, re.M)
    assert re.search(r"^sealed/000000000001\.arrow +[\d.]+ KiB +\d+ +\d+ +in use$", text, re.M)


def test_overview_as_json(folder: Path, original: Path) -> None:
    lines = objects("dump", folder)
    assert {line["type"] for line in lines} == {"folder", "segment", "group", "shard", "file"}
    assert lines[0]["is_copy"] is True
    assert objects("dump", original)[0]["is_copy"] is False
    [work] = [line for line in lines if line.get("queue") == "work"]
    assert work["published"] == 2000
    assert work["died"] == {"settled": 30}


def test_log(folder: Path) -> None:
    text = shown(folder, "log", "--from", 4, "--limit", 3)
    assert text == (
        "record 4  log/00000001.seg  generation 1  offset 16384  N bytes  checksum CRC\n"
        "  entry  group 0  data  index 2  epoch 1  history HISTORY\n"
        "    batch  shard 0  index 2  TIME\n"
        "      cell catalog: shard 1  secret_bytes 32\n"
        "      cell queue default/orders: shards [1]\n"
        "    batch  shard 1  index 1  TIME\n"
        "      the shard begins, keyed\n"
        "      cell spec: keyed yes  retention work  keep_deletes 86400000 ms  dedup 300000 ms\n"
        "record 5  log/00000001.seg  generation 1  offset 20480  N bytes  checksum CRC\n"
        "  entry  group 0  data  index 3  epoch 1  history HISTORY\n"
        "    batch  shard 1  index 2  TIME\n"
        '      rows 1-1: 1 in N B, the first one key "k1"  from="test"  "one"\n'
        "      cell producer p: mode dense  last 1  time TIME  recent [[1, 1, 1]]\n"
        "record 6  log/00000001.seg  generation 1  offset 24576  N bytes  checksum CRC\n"
        "  entry  group 0  data  index 4  epoch 1  history HISTORY\n"
        "    batch  shard 1  index 3  TIME\n"
        '      rows 2-4: 3 in N B, the first one key "k2"  "two"\n'
        "      died, superseded: 1-2\n"
        "      cell deletes SECOND: seqs 4\n"
    )


def test_log_as_json(folder: Path) -> None:
    records = objects("dump", folder, "log", "--limit", 1000)
    serials = [record["serial"] for record in records]
    assert serials == list(range(1, len(records) + 1))
    assert records[-1]["kind"] == "end"
    assert all(record["problem"] is None for record in records)
    [record] = objects("dump", folder, "log", "--from", 6, "--limit", 1)
    assert record["entries"][0]["batches"][0]["died"] == {"superseded": [[1, 2]]}  # type: ignore[index]


def test_log_of_one_generation(folder: Path) -> None:
    records = objects("dump", folder, "log", "--generation", 2, "--limit", 1000)
    assert {record["generation"] for record in records} == {2}
    result = call("dump", folder, "log", "--generation", 99)
    assert result.exit_code == 2
    assert "no generation 99\nHint: it has 1, 2" in result.stderr


def test_log_as_bytes(folder: Path) -> None:
    text = shown(folder, "log", "--from", 5, "--limit", 1, "--bytes")
    assert re.search(r"^  00000000  00 00 00 00 01 00 00 00 .{24} +\.{16}$", text, re.M)


def test_log_shows_what_is_left_behind_damage(folder: Path) -> None:
    flip(folder / "log" / "00000001.seg", 20480 + 100)
    result = call("dump", folder, "log", "--limit", 1000)
    assert result.exit_code == 1
    assert "damage  log/00000001.seg  offset 20480  no whole record up to offset 24576" in (
        result.stdout
    )
    assert "record 4 " in result.stdout
    assert "record 6 " in result.stdout
    assert "Hint: " in result.stderr


def test_log_does_not_need_the_index(folder: Path) -> None:
    (folder / "index" / "data.mdb").write_bytes(b"no index at all" * 1000)
    assert "record 1 " in shown(folder, "log")
    result = call("dump", folder)
    assert result.exit_code == 1
    assert "Hint: `dump PATH log` and `dump PATH sealed` show what can be read" in result.stderr


def test_cells(folder: Path) -> None:
    text = shown(folder, "cells", "--shard", 2)
    lines = [re.sub(" +", " ", line).strip() for line in text.splitlines()]
    assert lines == [
        "shard kind key value",
        "2 spec retention work keep_deletes 86400000 ms dedup 300000 ms",
        "2 pointers next 51 lease 1 cursor 1",
        "2 lease 1 index 22 deadline TIME open 36-50 freed 31-35 settled 1-30",
        "2 cursor report id 1 retain yes history HISTORY moved TIME",
        "2 stage later rows 2 bytes 72 time TIME",
    ]
    [lease] = objects("dump", folder, "cells", "--kind", "lease")
    assert lease["value"]["open"] == [[36, 50]]  # type: ignore[index]


def test_secrets_are_not_shown(folder: Path) -> None:
    """Whoever knows the catalog's secret can forge receipts."""
    [catalog] = objects("dump", folder, "cells", "--kind", "catalog")
    assert catalog["value"] == {"shard": 3, "secret_bytes": 32}


def test_rows(folder: Path) -> None:
    assert shown(folder, "rows", "orders") == (
        "seq  time  state   message\n"
        '  3  TIME  ready   key "k1"  "three"\n'
        '  4  TIME  delete  key "k2"  delete\n'
    ).replace("time  ", "time" + " " * 22)
    states = [row["state"] for row in objects("dump", folder, "rows", "work", "--limit", 25)]
    assert states == ["returned"] * 5 + ["leased"] * 15 + ["ready"] * 5
    rows = objects("dump", folder, "rows", "work", "--after", 1998)
    assert [row["seq"] for row in rows] == [1999, 2000]


def test_bodies_are_escaped_and_shortened(folder: Path) -> None:
    text = shown(folder, "rows", "work", "--limit", 1)
    assert r'"\x1b[31mred\x00' in text
    assert "… (509 bytes)" in text
    assert max(map(len, text.splitlines())) < 160
    for arguments in EVERYTHING:
        output = call("dump", folder, *arguments).output
        assert all(character.isprintable() or character == "\n" for character in output)


def test_queues_have_several_names(folder: Path) -> None:
    for name in ("post/mail", "shard:3"):
        [row] = objects("dump", folder, "rows", name)
        assert row["body"] == {"bytes": 6, "text": "letter"}
    assert len(objects("dump", folder, "rows", "default/orders")) == 2


def test_blocks(folder: Path) -> None:
    blocks = objects("dump", folder, "blocks", "work")
    visible = [block for block in blocks if "first" in block]
    assert visible[0]["first"] == 1
    assert visible[0]["file"] == "sealed/000000000001.arrow"
    assert str(visible[-1]["file"]).startswith("log/")
    assert sum(int(str(block["rows"])) for block in visible) == 2000
    [staged] = [block for block in blocks if "stage" in block]
    assert (staged["stage"], staged["rows"]) == ("later", 2)


def test_sealed(folder: Path) -> None:
    files = objects("dump", folder, "sealed")
    batches = objects("dump", folder, "sealed", "sealed/000000000001.arrow")
    assert batches == objects("dump", folder, "sealed", 1)
    assert sum(int(str(batch["rows"])) for batch in batches) == files[0]["rows"]
    assert batches[0]["flags"] == ["keys", "deletes"]
    result = call("dump", folder, "sealed", 77)
    assert result.exit_code == 2
    assert "there is no sealed file '77'\nHint: there are the numbers 1" in result.stderr


def test_tables_of_the_index(folder: Path) -> None:
    keys = objects("dump", folder, "cells", "--table", "keys")
    assert [(entry["key"], entry["value"]) for entry in keys] == [
        ({"shard": 1, "key": "k1"}, {"seq": 3}),
        ({"shard": 1, "key": "k2"}, {"seq": 4}),
    ]
    deaths = objects("dump", folder, "cells", "--table", "deaths")
    assert {"seqs": [[1, 30]]} in [entry["value"] for entry in deaths]


def test_nothing_is_changed(folder: Path) -> None:
    before = contents(folder)
    for arguments in EVERYTHING:
        assert call("dump", folder, *arguments).exit_code == 0
    assert contents(folder) == before


def test_what_is_not_in_the_index_yet_is_shown(tmp_path: Path) -> None:
    """As after a kill before the first checkpoint: everything is in the log alone."""

    async def leave() -> None:
        async with millrace.open(tmp_path / "used", settings=SETTINGS) as engine:
            queue = await engine.queue("orders", keyed=True)
            await queue.publish(b"first", key="k")
            await queue.publish(b"newest", key="k")
            await asyncio.to_thread(copy_live, tmp_path / "used/log", tmp_path / "left/log")

    asyncio.run(leave())
    [row] = objects("dump", tmp_path / "left", "rows", "orders")
    assert row["body"] == {"bytes": 6, "text": "newest"}
    assert findings(tmp_path / "left") == []


@pytest.mark.process
def test_a_running_engine_is_not_disturbed(tmp_path: Path) -> None:
    async def beside() -> None:
        async with millrace.open(tmp_path, settings=SETTINGS) as engine:
            queue = await engine.queue("orders")
            await queue.publish_many([b"x"] * 10)
            looks = [
                asyncio.create_task(asyncio.to_thread(start, *arguments))
                for arguments in (
                    ["dump", tmp_path],
                    ["dump", tmp_path, "rows", "orders"],
                    ["check", tmp_path],
                )
            ]
            while not all(look.done() for look in looks):
                await queue.publish(b"meanwhile")
                await asyncio.wait(looks, timeout=0.01)
            *dumps, check = [await look for look in looks]
            for dump in dumps:
                assert dump.returncode == 0, dump.stderr
                assert "has the folder in use: this is its state a moment ago" in dump.stderr
                assert " orders " in dump.stdout or '"x"' in dump.stdout
            assert check.returncode == 2
            assert f"is in use by process {os.getpid()}" in check.stderr
            assert "Hint: close it there first" in check.stderr
            [lease] = await queue.lease(1)
            await lease.settle()

    asyncio.run(beside())
    assert findings(tmp_path) == []


@pytest.mark.parametrize("verb", ["dump", "check"])
def test_folders_that_are_none(verb: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "empty").mkdir()
    for name, message in (
        ("missing", "does not exist"),
        ("file", "is not a folder"),
        ("empty", "holds no queues: it has neither a log nor an index"),
    ):
        result = call(verb, tmp_path / name)
        assert result.exit_code == 2
        assert result.stderr.startswith(f"Error: {tmp_path / name} {message}\nHint: ")
        assert not result.stdout


def test_names_that_are_none(folder: Path) -> None:
    result = call("dump", folder, "rows", "ordres")
    assert result.exit_code == 2
    assert result.stderr == "Error: there is no queue 'ordres'\nHint: did you mean 'orders'?\n"
    result = call("dump", folder, "rows", "shard:9")
    assert result.stderr == "Error: there is no shard '9'\nHint: there are the shards 0, 1, 2, 3\n"
    result = call("dump", folder, "cells", "--table", "keys", "--shard", 1)
    assert result.exit_code == 2
    assert "--table cannot be combined" in result.stderr
