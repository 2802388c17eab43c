"""Entries, batches and changes in words: as fields and as text, like `describe`."""

from __future__ import annotations

from collections.abc import Iterator

from pyroaring import BitMap64

from millrace.cli.describe import (
    cell_fields,
    cell_key,
    cell_text,
    kind_name,
    row_text,
    short_history,
)
from millrace.cli.show import (
    Fields,
    Value,
    escaped,
    ranges,
    ranges_text,
    size_text,
    time_text,
)
from millrace.core.block import Block
from millrace.core.changes import Batch, Entry, EntryKind
from millrace.core.model import Death
from millrace.core.seqs import unpack_seqs


def entry_fields(entry: Entry) -> Fields:
    """An entry with its batches."""
    fields: dict[str, Value] = {
        "group": entry.group,
        "kind": entry.kind.name.lower(),
        "index": entry.index,
        "epoch": entry.epoch,
        "history": entry.history.hex(),
    }
    if entry.kind is EntryKind.FACT:
        fields["fact"] = entry.fact.hex()
    else:
        fields["batches"] = [_batch_fields(batch) for batch in entry.batches]
    return fields


def _batch_fields(batch: Batch) -> Fields:
    changes = batch.changes
    fields: dict[str, Value] = {
        "shard": batch.shard,
        "index": batch.index,
        "time_ms": batch.time_ms,
        "made": changes.made,
        "blocks": [
            {"first": first, "rows": block.count, "offset": place[0], "length": place[1]}
            for first, block, place in _blocks(batch)
        ],
        "staged": [list(stage) for stage in changes.staged],
        "published": [list(stage) for stage in changes.published],
        "unstaged": list(changes.unstaged),
        "died": {death_name(why): ranges(unpack_seqs(seqs)) for why, seqs in changes.died.items()},
        "passed": changes.passed,
        "kept": ranges(unpack_seqs(changes.settled)),
        "expired": changes.expired,
        "purged": changes.purged,
        "unpinned": list(changes.unpinned),
        "pinned": list(changes.pinned),
        "cells": [
            {
                "kind": kind_name(kind),
                "key": cell_key(kind, key),
                "value": None if value is None else cell_fields(kind, key, value),
            }
            for kind, key, value in changes.cells
        ],
        "dropped": changes.dropped,
        "aside": ranges(unpack_seqs(changes.aside)),
        "weight": changes.weight,
    }
    always = ("shard", "index", "time_ms")
    return {name: value for name, value in fields.items() if value or name in always}


def _blocks(batch: Batch) -> Iterator[tuple[int | None, Block, tuple[int, int]]]:
    """Each block's first seq, if it has one yet, and its place in the payload."""
    firsts: list[int | None] = [*batch.changes.firsts]
    firsts += [None] * (len(batch.blocks) - len(firsts))
    return zip(firsts, batch.blocks, batch.places, strict=True)


def death_name(why: int) -> str:
    """Why rows died."""
    return Death(why).name.lower() if why in Death.__members__.values() else f"death-{why}"


def entry_lines(entry: Entry) -> Iterator[str]:
    """An entry as text, indented below its record."""
    yield (
        f"  entry  group {entry.group}  {entry.kind.name.lower()}  index {entry.index}  "
        f"epoch {entry.epoch}  history {short_history(entry.history)}"
    )
    if entry.fact:
        yield f"    fact {entry.fact.hex()}"
    for batch in entry.batches:
        yield (f"    batch  shard {batch.shard}  index {batch.index}  {time_text(batch.time_ms)}")
        for line in _change_lines(batch):
            yield f"      {line}"


def _change_lines(batch: Batch) -> Iterator[str]:
    changes = batch.changes
    if changes.made:
        yield f"the shard begins{', keyed' if changes.made == 3 else ''}"
    for first, block, (_, length) in _blocks(batch):
        seqs = f"{first}-{first + block.count - 1}" if first is not None else "staged"
        yield f"rows {seqs}: {block.count} in {size_text(length)}, {_first_row(block)}"
    for stage, count in changes.staged:
        yield f'stage "{escaped(stage)}" gets {count} blocks'
    for stage, first, rows in changes.published:
        yield f'stage "{escaped(stage)}" is published as {first}-{first + rows - 1}'
    for stage in changes.unstaged:
        yield f'stage "{escaped(stage)}" is dropped'
    for why, packed in changes.died.items():
        yield f"died, {death_name(why)}: {_seqs(packed)}"
    if changes.passed:
        yield f"retaining cursors have passed {changes.passed}"
    if changes.settled:
        yield f"settled, kept for cursors: {_seqs(changes.settled)}"
    if changes.expired:
        yield f"expired up to {changes.expired}"
    if changes.purged:
        yield f"purged up to {changes.purged}"
    for pin in changes.unpinned:
        yield f"pin {pin} is dropped"
    for pin in changes.pinned:
        yield f"pin {pin} is set"
    for kind, key, value in changes.cells:
        name = f"cell {kind_name(kind)} {cell_key(kind, key)}".rstrip()
        yield f"{name}: {'deleted' if value is None else cell_text(cell_fields(kind, key, value))}"
    if changes.aside:
        yield f"wait apart: {_seqs(changes.aside)}"
    if changes.dropped:
        yield "the shard ends"


def _first_row(block: Block) -> str:
    if not block.count:
        return "none"
    return f"the first one {row_text(block.rows(0, 1, 0, 0)[0])}"


def _seqs(packed: bytes) -> str:
    found: BitMap64 = unpack_seqs(packed)
    return ranges_text(ranges(found))
