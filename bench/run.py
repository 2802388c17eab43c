"""`make bench`: every group, or those of `ONLY=`; prints a table and writes build/bench.json."""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
import traceback
from collections.abc import Awaitable, Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench import (
    bulk,
    care,
    disk,
    follow,
    frontends,
    groups,
    lake,
    large,
    publish,
    queues,
    read,
    server,
    sessions,
    snapshot_http,
    spark,
    sqs,
    topics,
    work,
)
from bench.report import Result, print_table, write_json

Measurement = Callable[[], Awaitable[list[Result]]]

NOTHING_FITS = 2
"""The exit code when `--only` names nothing that there is."""

GROUPS: dict[str, dict[str, Measurement]] = {
    "engine": {
        "publish_1k": lambda: publish.publish_batches(1024, 320, "publish_1k", 0.6),
        "publish_100": lambda: publish.publish_batches(100, 1600, "publish_100", 0.35),
        "publish_1k_sealed": publish.publish_sealed,
        "publish_single_64": publish.publish_single,
        "publish_to_lease": publish.publish_to_lease,
        "lease_settle_100": work.lease_settle,
        "idle_cursors": work.idle_cursors,
        "keyed": large.keyed,
        "snapshot": read.snapshots,
        "backlog": large.backlog,
    },
    "queues": {
        "group_100k": groups.group_100k,
        "blocked_group": groups.blocked_group,
        "priority_delay": queues.priority_delay,
        "delayed_lateness": queues.delayed_lateness,
        "topic_10": topics.topic_10,
        "session_100": sessions.session_100,
        "stuck_disk": disk.stuck_disk,
        "backup_publish": care.backup_publish,
    },
    "server": {
        "rest_single": server.rest_single,
        "rest_bulk_arrow": bulk.rest_bulk_arrow,
        "arrow_snapshot": snapshot_http.arrow_snapshot,
        "long_poll_latency": server.long_poll_latency,
        "frontend_engine_cpu": frontends.frontend_engine_cpu,
        "idle_polls": server.idle_polls,
    },
    "sqs": {
        "single": sqs.single,
        "batch": sqs.batch,
        "idle_polls": sqs.idle_polls,
        "backlog_rss": sqs.backlog_rss,
    },
    "spark": {
        "read_100": lambda: spark.read_rows(100, 8_000_000, "read_100"),
        "read_1k": lambda: spark.read_rows(1024, 4_000_000, "read_1k"),
        "latest_4m": spark.latest,
        "write_1k": spark.write_rows,
        "stream_delta": lake.stream_delta,
        "sink_latency": lake.sink_latency,
        "follow_redis_p50_ms": follow.follow_redis,
    },
}

MEASURED_WITH = {
    "publish_1k_written": "publish_1k_sealed",
    "snapshot_100": "snapshot",
    "snapshot_1k": "snapshot",
    "keyed_500k": "keyed",
    "keyed_flat": "keyed",
    "open_10m_s": "backlog",
    "open_10m_rss_mb": "backlog",
    "lease_backlog": "backlog",
    "publish_after_drain": "backlog",
    "delayed_lateness_p99_ms": "delayed_lateness",
    "idle_polls_core_s": "idle_polls",
    "idle_polls_kb": "idle_polls",
    "single_vs_elasticmq": "single",
    "single_vs_elasticmq_h2": "single",
    "single_vs_moto": "single",
    "batch_vs_elasticmq": "batch",
    "batch_vs_rest": "batch",
    "backlog_rss_mb": "backlog_rss",
    "stream_noop": "read_1k",
    "sink_latency_p50_ms": "sink_latency",
    "sink_latency_p99_ms": "sink_latency",
}
"""Figures that are called otherwise than the measurement that they come from."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", help="groups, measurements, or ids of figures, by commas")
    parser.add_argument("--out", default="build/bench.json", type=Path)
    arguments = parser.parse_args()
    chosen = choose(arguments.only)
    if not chosen:
        list_measurements(arguments.only)
        sys.exit(NOTHING_FITS)
    results: list[Result] = []
    failed: list[str] = []
    for group, name in chosen:
        print(f"{group}/{name} ...", flush=True)
        began = time.perf_counter()
        try:
            found = asyncio.run(_run(GROUPS[group][name]))
        except Exception:  # noqa: BLE001 the others are measured all the same
            traceback.print_exc()
            failed.append(name)
            continue
        told = ", ".join(
            f"{one.id} {one.value if one.ratio is None else one.ratio:.2f}" for one in found
        )
        print(f"{group}/{name}: {told}, {time.perf_counter() - began:.0f} s", flush=True)
        results.extend(found)
    print_table(results)
    write_json(results, arguments.out)
    missed = [result.id for result in results if result.ok is False]
    print(f"\n{len(results)} figures, {len(missed)} out of reach: {', '.join(missed) or 'none'}")
    if failed:
        sys.exit(f"not measured, for what is told above: {', '.join(failed)}")


def choose(only: str | None) -> list[tuple[str, str]]:
    """Return the measurements that `only` names, each once, with their groups; all without it.

    `only` is a list of groups, measurements and ids of figures, separated by commas. The result is
    empty if any of them does not exist, so that a misspelled name is not silently left out.
    """
    every = [(group, name) for group, measurements in GROUPS.items() for name in measurements]
    if only is None:
        return every
    wanted = [MEASURED_WITH.get(name, name) for name in only.split(",")]
    if any(not any(name in entry for entry in every) for name in wanted):
        return []
    return [entry for entry in every if any(name in entry for name in wanted)]


def list_measurements(only: str | None) -> None:
    """Print on stderr that `only` names something unknown, and the names that exist."""
    print(f"not all of {only!r} exists; there is:", file=sys.stderr)
    for group, measurements in GROUPS.items():
        print(f"  {group}: {', '.join(measurements)}", file=sys.stderr)


async def _run(measure: Measurement) -> list[Result]:
    return await measure()


if __name__ == "__main__":
    main()
