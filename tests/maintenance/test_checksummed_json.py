"""Checksummed state files: every damage is detected."""

from __future__ import annotations

import random

import msgspec
import pytest

from millrace import errors
from millrace.maintenance import checksummed_json
from millrace.maintenance.file_copy import replace_file
from tests.support.simulator.disk import SimDisk


class _State(msgspec.Struct, frozen=True):
    began_ms: int
    names: tuple[str, ...]


STATE = _State(1_790_000_000_000, ("sealed/000000000001.arrow",))


def test_what_is_written_is_read() -> None:
    disk = SimDisk(random.Random(1))
    replace_file(disk, "state", checksummed_json.encode(STATE))
    assert checksummed_json.read(disk, "state", _State, hint="begin anew") == STATE


def test_no_flipped_bit_and_no_cut_is_believed() -> None:
    disk = SimDisk(random.Random(1))
    data = checksummed_json.encode(STATE)
    bad = [data[:size] for size in range(len(data))]
    for at in range(len(data) * 8):
        flipped = bytearray(data)
        flipped[at // 8] ^= 1 << at % 8
        bad.append(bytes(flipped))
    for one in bad:
        replace_file(disk, "state", one)
        with pytest.raises(errors.Corrupt, match="begin anew") as caught:
            checksummed_json.read(disk, "state", _State, hint="begin anew")
        assert caught.value.field == "state"
