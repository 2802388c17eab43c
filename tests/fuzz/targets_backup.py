"""Fuzz target of backups: one that was changed is restored whole, or refused.

Manifests are changed in their fields, with sums that fit, and in their bytes; other files in their
bytes. Whoever can write sums that fit into all files of a backup can write a folder, too; that is
not tried.
"""

from __future__ import annotations

import asyncio
import atexit
import random
import shutil
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
from crc32c import crc32c

import millrace
from millrace import limits
from millrace.errors import MillraceError
from millrace.maintenance import checksummed_json
from millrace.maintenance.manifest import MANIFEST, Manifest
from millrace.maintenance.restore import RestoreTarget, plan_restore, write_folder
from tests.fuzz.mutate import mutated

_SETTINGS = millrace.Settings(segment_bytes=limits.SEGMENT_BYTES_MIN)
_BODIES = [b"%d" % number * 200 for number in range(1_000)]
_NUMBERS = (0, 1, 2, -1, 2**31, 2**32, 2**53, 2**63 - 1, 2**63, -(2**63), 2**64 - 1, 10**30)
_OPENED_SHARE = 0.1
"""Of what can be laid out, so much is restored whole and opened, which takes longer."""


@cache
def _vault() -> Path:
    """A vault with two backups and an archive, made once."""
    folder = Path(tempfile.mkdtemp(prefix="fuzz-backup-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    asyncio.run(_fill(folder))
    return folder / "vault"


async def _fill(folder: Path) -> None:
    async with millrace.open(folder / "data", settings=_SETTINGS) as m:
        queue = await m.queue("orders")
        for at in range(0, len(_BODIES), 100):
            await queue.publish_many(_BODIES[at : at + 100])
        await m.backup(folder / "vault", follow=True)
        await m._engine._node.checkpointer.seal_all()  # type: ignore[attr-defined]
        await queue.publish(b"last")
        await m.backup(folder / "vault", follow=True)


def fuzz_backup(rng: random.Random) -> None:
    """Restore a backup in which something was changed: all of it comes, or an error."""
    source = _vault()
    scratch = Path(tempfile.mkdtemp(prefix="case-", dir=source.parent))
    try:
        vault = scratch / "vault"
        shutil.copytree(source, vault)
        for _ in range(rng.choice((0, 1, 1, 1, 2))):
            _change(vault, rng)
        path = rng.choice([vault, vault, vault / "000001", vault / "000002", vault / "archive"])
        target = RestoreTarget(
            index=rng.choice([None, None, *_NUMBERS, rng.randint(0, 30)]),
            time_ms=rng.choice([None, None, None, *_NUMBERS]),
        )
        into = scratch / "into"
        try:
            write_folder(plan_restore(path, target), into)
            if rng.random() < _OPENED_SHARE:
                shutil.rmtree(into)
                asyncio.run(_restore(path, into))
        except MillraceError as error:
            if not error.message:
                raise AssertionError("an error without a word") from error
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


async def _restore(path: Path, into: Path) -> None:
    await millrace.restore(path, into)
    async with millrace.open(into, settings=_SETTINGS) as m:
        rows = await (await m.find("orders")).peek(2_000)
    bodies = [row.body for row in rows]
    # The end of one backup or the other; nothing is lost between its first row and its last.
    assert bodies in ([*_BODIES], [*_BODIES, b"last"]), len(bodies)


def _change(vault: Path, rng: random.Random) -> None:
    manifests = sorted(vault.rglob(MANIFEST))
    if manifests and rng.random() < 0.6:
        file = rng.choice(manifests)
        data = file.read_bytes()
        if rng.random() < 0.8:
            file.write_bytes(_summed(data, rng))
        else:
            file.write_bytes(mutated(data, [data], rng))
        return
    files = sorted(path for path in vault.rglob("*") if path.is_file())
    if not files:
        return
    file = rng.choice(files)
    match rng.randrange(5):
        case 0:
            file.unlink()
        case 1:
            file.write_bytes(b"")
        case 2:
            file.unlink()
            file.mkdir()
        case 3:
            data = file.read_bytes()
            file.write_bytes(data[: rng.randint(0, len(data))])
        case _:
            data = file.read_bytes()
            at = rng.randint(0, max(len(data) - 1, 0))
            file.write_bytes(mutated(data[at : at + 400], [data[:400]], rng).join((data[:at], b"")))


def _summed(data: bytes, rng: random.Random) -> bytes:
    """A manifest with other fields, whose sum is right."""
    try:
        tree: Any = msgspec.json.decode(data)["value"]
    except (msgspec.MsgspecError, UnicodeDecodeError, KeyError, TypeError):
        return data
    for _ in range(rng.choice((1, 1, 2))):
        _set(tree, rng)
    try:
        return checksummed_json.encode(msgspec.convert(tree, Manifest))
    except (msgspec.MsgspecError, OverflowError):
        raw = msgspec.json.encode(tree)
        return msgspec.json.encode({"value": msgspec.Raw(raw), "crc": crc32c(raw)})


def _set(tree: Any, rng: random.Random) -> None:
    """Change one value somewhere below."""
    keys = list(tree) if isinstance(tree, dict) else range(len(tree))
    if not keys:
        return
    key = rng.choice(list(keys))
    if isinstance(tree[key], dict | list) and tree[key] and rng.random() < 0.8:
        _set(tree[key], rng)
        return
    if isinstance(tree, list) and rng.random() < 0.3:
        tree.insert(key, tree[key])
        return
    old = tree[key]
    near = [old + 1, old - 1] if isinstance(old, int) else []
    tree[key] = rng.choice([*_NUMBERS, *near, None, "", "../../x", "x" * 5_000, [], {}])
