"""Groups, turns and rates in words."""

from __future__ import annotations

from millrace.core.cells import GroupCell, Kind, RingCell, TurnCell
from millrace.core.format.frozen_hash import hash_one
from millrace.core.spec import QueueSpec
from millrace.core.state.view import number
from tests.support.models.commit_group import START_MS
from tests.support.transcript.wording_partitions import say_delivery


def group_name(number: int) -> str:
    """A group by its number, which nobody would recognise: if it has a short name, by that."""
    return _NAMES.get(number, f"{number:016x}")


_NAMES: dict[int, str] = {
    hash_one(name.encode()): name for name in ("", *"abcdefghijklmnopqrstuvwxyz")
}


def say_group_key(kind: Kind, key: bytes) -> str:
    """The name of a cell of groups."""
    if kind is Kind.ID:
        return f"[id {number(key[8:]) >> 47:04x}]"
    if kind is Kind.RING:
        return f"[turn {number(key[8:])}]"
    if kind is Kind.TURN:
        return f"[group {group_name(number(key[8:]))}]"
    if kind is Kind.GROUP:
        return f"[group {group_name(number(key[8:16]))} part {number(key[16:])}]"
    return f"[bucket {_seconds(1000 * number(key[8:16]))} {group_name(number(key[16:]))}]"


def say_group_cell(cell: TurnCell | GroupCell | RingCell) -> str:
    """What a cell of groups holds."""
    if isinstance(cell, RingCell):
        return "of " + " ".join("-" if one is None else group_name(one) for one in cell.groups)
    if isinstance(cell, GroupCell):
        return " ".join(map(str, cell.seqs))
    out = " ".join(map(str, cell.seqs)) or "none"
    out += f" then parts {cell.head}-{cell.tail - 1}" if cell.head < cell.tail else ""
    out += f", paid {_seconds(cell.paid_us)}" if cell.paid_us else ""
    return out + (f", due {_seconds(1000 * cell.due_ms)}" if cell.due_ms else "")


def _seconds(time_us: int) -> str:
    return f"{time_us / 1_000_000 - START_MS / 1000:g}s"


def say_order(spec: QueueSpec) -> str:
    """Order, groups and rates, where they are not as usual."""
    out = f", order {spec.order}" if spec.order != "none" else ""
    out += ", blocked by message" if spec.blocking == "message" else ""
    out += f", {spec.group_in_flight} of a group" if spec.group_in_flight else ""
    for whose, rate_us, burst in (
        ("", spec.rate_us, spec.rate_burst),
        (" of a group", spec.group_rate_us, spec.group_burst),
    ):
        out += f", one{whose} in {rate_us / 1_000_000:g}s, {burst} at once" if rate_us else ""
    return out + say_delivery(spec)
