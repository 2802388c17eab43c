"""What `dump` says of partitions, maxima and notes."""

from __future__ import annotations

from millrace.cli.show import Fields
from millrace.core.model import QueueSpec
from millrace.core.partition_cells import IdCell, PartitionCell, SlicesCell


def spec_fields(spec: QueueSpec) -> Fields:
    """Maxima and notes, and the settings of partitions where a queue has some."""
    bounds: Fields = {
        "max_messages": spec.max_messages,
        "max_bytes": spec.max_bytes,
        "overflow": spec.overflow if spec.is_bounded else "",
        "notes": dict(spec.notes),
        "max_in_flight": spec.max_in_flight,
        "group_blocking": spec.group_blocking if spec.order == "group" else "",
        "message_bytes_max": spec.message_bytes_max,
    }
    if not spec.is_partitioned:
        return bounds
    return {
        **bounds,
        "delivery": spec.delivery,
        "partitions_min": spec.partitions_min,
        "partitions_max": spec.partitions_max,
        "partition_age_ms": spec.partition_age_ms,
    }


def partition_fields(cell: PartitionCell | SlicesCell | IdCell) -> Fields:
    """What a cell of partitions says."""
    if isinstance(cell, IdCell):
        return {"seq": cell.seq}
    slices = [[one.served, *one.leases] for one in cell.slices]
    if isinstance(cell, SlicesCell):
        return {"slices": slices}
    return {
        "key": f"{cell.key:016x}",
        "slices": slices,
        "waiting": cell.waiting,
        "turn": cell.turn,
        "resized": cell.resized,
        "peak": cell.peak,
        "since_ms": cell.since_ms,
        "count": cell.count,
        "base": cell.base,
        "first": cell.first,
    }
