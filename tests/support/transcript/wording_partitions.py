"""Partitions in words."""

from __future__ import annotations

from millrace.core.cells import IdCell, PartitionCell, SlicesCell
from millrace.core.spec import QueueSpec


def say_partition(cell: PartitionCell | SlicesCell | IdCell) -> str:
    """What a cell of partitions holds."""
    if isinstance(cell, IdCell):
        return str(cell.seq)
    slices = " ".join(
        f"{at}@{one.served}" + (f"({','.join(map(str, one.leases))})" if one.leases else "")
        for at, one in enumerate(cell.slices)
    )
    if isinstance(cell, SlicesCell):
        return slices
    size = f"{cell.count} from {cell.base}" if cell.count else slices
    counted = f"{cell.waiting} wait from {cell.first}, turn {cell.turn}, peak {cell.peak}"
    return f"{size}, {counted}"


def say_delivery(spec: QueueSpec) -> str:
    """Delivery and partitions, where they are not as usual."""
    if not spec.is_partitioned:
        return ""
    return f", partitions {spec.partitions_min}-{spec.partitions_max}"
