"""The metrics page in the Prometheus text format.

Rule 1: a scrape costs the engine little: counters are read where they are kept, and at most
`METRICS_QUEUES_MAX` queues have their own samples.
Rule 2: labels contain names of queues, topics and routes, never text from unauthenticated requests.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from millrace import limits
from millrace.client.engine import Engine
from millrace.client.millrace import Millrace, engine_of
from millrace.client.queue import Queue
from millrace.core.cells import CursorCell, Kind
from millrace.core.model import Row, ShardId
from millrace.errors import MillraceError, Quarantined
from millrace.instruments import Gauges, HistogramSnapshot
from millrace.server.counters import (
    Name,
    ProcessCounters,
    decode,
    watched,
)
from millrace.server.web.queue_cache import QueueCache
from millrace.version import __version__

TYPE = "text/plain; version=0.0.4; charset=utf-8"


class MetricsPage:
    """Families of samples, in the order of their first sample."""

    def __init__(self) -> None:
        self._families: dict[str, list[str]] = {}

    def gauge(
        self, name: str, help: str, value: float, labels: Mapping[str, str] | None = None
    ) -> None:
        """Add a gauge: a present value."""
        self._add(name, "gauge", help, f"{name}{_labels(labels)} {_number(value)}")

    def counter(
        self, name: str, help: str, value: float, labels: Mapping[str, str] | None = None
    ) -> None:
        """Add a counter: a value that only rises."""
        self._add(name, "counter", help, f"{name}{_labels(labels)} {_number(value)}")

    def histogram(
        self,
        name: str,
        help: str,
        found: HistogramSnapshot,
        labels: Mapping[str, str] | None = None,
    ) -> None:
        """Add a histogram: the distribution of values."""
        total = 0
        for bound, count in zip((*found.bounds, None), found.counts, strict=True):
            total += count
            place = {**(labels or {}), "le": "+Inf" if bound is None else _number(bound)}
            self._add(name, "histogram", help, f"{name}_bucket{_labels(place)} {total}")
        self._add(name, "histogram", help, f"{name}_sum{_labels(labels)} {_number(found.sum)}")
        self._add(name, "histogram", help, f"{name}_count{_labels(labels)} {total}")

    def _add(self, name: str, kind: str, help: str, line: str) -> None:
        family = self._families.get(name)
        if family is None:
            family = self._families[name] = [f"# HELP {name} {help}", f"# TYPE {name} {kind}"]
        family.append(line)

    def text(self) -> bytes:
        """Return the whole page."""
        return "".join(f"{line}\n" for lines in self._families.values() for line in lines).encode()


_QUARANTINED = "1: rows of the queue or topic cannot be read, and it is closed until repaired."


def _labels(labels: Mapping[str, str] | None) -> str:
    if not labels:
        return ""
    told = (f'{name}="{_escaped(value)}"' for name, value in labels.items())
    return "{" + ",".join(told) + "}"


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(float(value))


def tell_counted(page: MetricsPage, parts: Sequence[ProcessCounters]) -> None:
    """Add the counters of all processes that serve HTTP."""
    for part in parts:
        if part.frontend is not None:
            text = "Whether a front end answers."
            page.gauge("millrace_frontend_up", text, int(part.is_there), part.labels)
    parts = [part for part in parts if part.is_there]
    for part in parts:
        text = "Connections that are open."
        page.gauge("millrace_http_connections", text, part.connections, part.labels)
    for part in parts:
        for method, route, status, count in part.requests:
            labels = {"method": method, "route": route, "status": str(status), **part.labels}
            page.counter("millrace_http_requests_total", "Requests answered.", count, labels)
    for part in parts:
        for route, found in part.seconds:
            name = "millrace_http_request_seconds"
            text = "From the last byte of a request to its answer, long polls left out."
            page.histogram(name, text, found, {"route": route, **part.labels})
    for part in parts:
        for space, queue, _, given in part.handed:
            labels = {"space": space, "queue": queue, **part.labels}
            page.counter("millrace_leased_total", "Messages handed out over HTTP.", given, labels)


def tell_gauges(page: MetricsPage, gauges: Gauges) -> None:
    """Add the engine's gauges."""
    text = "From the write of a record to the end of its sync."
    page.histogram("millrace_commit_seconds", text, gauges.commit_seconds)
    page.histogram("millrace_sync_seconds", "Syncs of the log alone.", gauges.sync_seconds)
    page.histogram("millrace_commit_bytes", "Bytes of a record.", gauges.commit_bytes)
    page.histogram("millrace_commit_entries", "Batches written together.", gauges.commit_entries)
    name, text = "millrace_sealed_bytes", "Bytes of sealed files, about."
    page.gauge(name, text, gauges.sealed_live_bytes, {"state": "live"})
    page.gauge(name, text, gauges.sealed_dead_bytes, {"state": "dead"})
    page.gauge("millrace_log_bytes", "Bytes of the log that are kept.", gauges.log_bytes)
    page.gauge("millrace_disk_free_bytes", "Bytes that fit on the disk.", gauges.disk_free_bytes)
    text = "Whether publishing is refused, for want of disk or memory."
    page.gauge("millrace_refusing", text, int(gauges.is_refusing))
    page.gauge("millrace_damaged_files", "Files that were found damaged.", gauges.damaged)


async def tell_queue(page: MetricsPage, engine: Engine, queue: Queue) -> None:
    """Add the counters of a queue, and the holders that keep its messages."""
    labels = {"space": queue.space, "queue": queue.name}
    counts = await queue.stats()
    page.counter("millrace_published_total", "Messages published.", counts.pop("published"), labels)
    page.gauge("millrace_depth", "Messages that are there.", counts.pop("live"), labels)
    for how, count in counts.items():
        page.counter("millrace_ended_total", "Messages ended.", count, {**labels, "how": how})
    rows: list[Row] = []
    is_quarantined = False
    try:
        rows = await queue.peek(1)
    except Quarantined:
        is_quarantined = True
    page.gauge("millrace_quarantined", _QUARANTINED, int(is_quarantined), labels)
    age = max(0, engine.now_ms() - rows[0].time_ms) / 1000 if rows else 0.0
    # A log keeps its messages on purpose: alerts on age can exclude it by this label.
    is_log = (await queue.spec()).retention == "log"
    aged = {**labels, "retention": "log"} if is_log else labels
    page.gauge("millrace_oldest_seconds", "Age of the oldest message.", age, aged)
    holders = await queue.holders()
    text = "Messages that workers hold; not those that were given back or whose lease is over."
    page.gauge("millrace_in_flight", text, holders.in_flight, labels)
    pins = [holder for holder in holders.held if holder.kind == "pin"]
    page.gauge("millrace_pins", "Snapshots that are pinned.", len(pins), labels)
    kept = sum(pin.bytes for pin in pins)
    page.gauge("millrace_pinned_bytes", "Bytes that only snapshots keep.", kept, labels)
    await _tell_cursors(page, engine, queue, labels)


async def _tell_cursors(
    page: MetricsPage, engine: Engine, queue: Queue, labels: Mapping[str, str]
) -> None:
    lags: dict[tuple[str, bool], list[tuple[int, float, float]]] = {}
    for shard in queue.shards.ids:
        meta = await engine.meta(shard)
        for name, cell in (await engine.cells(shard, Kind.CURSOR)).items():
            if isinstance(cell, CursorCell):
                seq = cell.position.seq
                rows = meta.last_seq - seq
                size = rows * meta.weight / max(meta.published, 1)
                oldest = await _peek(engine, shard, seq) if rows else []
                age = max(0, engine.now_ms() - oldest[0].time_ms) / 1000 if oldest else 0.0
                lags.setdefault((name, cell.retain), []).append((rows, size, age))
    for (name, retain), found in lags.items():
        own = {**labels, "cursor": name, "retain": str(retain).lower()}
        rows, size, age = (
            sum(one[0] for one in found),
            sum(one[1] for one in found),
            max(one[2] for one in found),
        )
        page.gauge("millrace_cursor_lag_rows", "Rows published since its place.", rows, own)
        page.gauge("millrace_cursor_lag_bytes", "Their bytes, by the mean.", int(size), own)
        page.gauge("millrace_cursor_lag_seconds", "Age of the oldest of them.", age, own)


async def _peek(engine: Engine, shard: ShardId, after: int) -> list[Row]:
    """Return the first message after a seq; empty if it cannot be read."""
    try:
        return await engine.peek(shard, after, None, 1)
    except Quarantined:
        return []


async def names_of(millrace: Millrace) -> set[Name]:
    """Return space and name of all queues."""
    return {
        (space, name)
        for space in await millrace.spaces()
        for name in await millrace.queues(space=space)
    }


async def _is_quarantined(engine: Engine, space: str, topic: str) -> bool:
    shard = await engine.find_topic(space, topic)
    try:
        if shard is not None:
            # No row is requested: the check for quarantine comes first.
            await engine.peek(shard, 0, 0, 1)
    except Quarantined:
        return True
    return False


async def gather(
    desk: QueueCache, counted: ProcessCounters, may: Callable[[str, str], bool]
) -> bytes:
    """Return the whole metrics page; it is the same from every process.

    It contains the queues and topics for which `may` returns True, given space and name.
    """
    page = MetricsPage()
    engine = engine_of(desk.millrace)
    gauges = await engine.maintenance.gauges()
    page.gauge("millrace_info", "Always 1.", 1, {"version": __version__})
    parts = [decode(text) for text in gauges.beside] or [counted]
    tell_counted(page, [watched(part, may) for part in parts])
    tell_gauges(page, gauges)
    left = limits.METRICS_QUEUES_MAX
    for space in await desk.millrace.spaces():
        queues = [name for name in await desk.millrace.queues(space=space) if may(space, name)]
        for name in queues[:left]:
            left -= 1
            try:
                await tell_queue(page, engine, await desk.millrace.find(name, space=space))
            except MillraceError:
                # The queue was deleted during the scrape, or is damaged, which its users are told.
                continue
        for name in await desk.millrace.topics(space=space):
            if not may(space, name):
                continue
            topic = await desk.millrace.find_topic(name, space=space)
            is_quarantined = await _is_quarantined(engine, space, name)
            own = {"space": space, "topic": name}
            page.gauge("millrace_quarantined", _QUARANTINED, int(is_quarantined), own)
            for one in (await topic.describe()).subscriptions:
                own = {"space": space, "topic": name, "subscription": one.name}
                page.gauge("millrace_topic_lag_rows", "Messages not forwarded.", one.lag, own)
                page.gauge("millrace_topic_lag_seconds", "Age of the oldest.", one.lag_seconds, own)
                letters, name = one.dead_lettered, "millrace_topic_dead_lettered_total"
                page.counter(name, "Messages without a queue: dead letters.", letters, own)
                name = "millrace_topic_dropped_total"
                page.counter(name, "Messages without a queue: dropped.", one.dropped, own)
    return page.text()
