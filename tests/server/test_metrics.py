"""Metrics: what they say is what happened, in the form that Prometheus reads."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

from millrace.meter import Histogram
from millrace.server.metrics import Page
from tests.server.rest.harness import Served, served

ORDERS = "/v1/spaces/default/queues/orders"
LINE = re.compile(r'([a-z_]+)(?:\{((?:[a-z]+="(?:[^"\\\n]|\\["\\n])*",?)*)\})? (\S+)')


def test_a_histogram_counts_up_to_each_bound() -> None:
    found = Histogram((1, 10))
    for value in (0.5, 1, 1.5, 10, 11):
        found.add(value)
    page = Page()
    page.histogram("some_seconds", "Text.", found, {"a": 'b"\\\n'})
    label = r'a="b\"\\\n"'
    assert page.text().decode().splitlines() == [
        "# HELP some_seconds Text.",
        "# TYPE some_seconds histogram",
        f'some_seconds_bucket{{{label},le="1"}} 2',
        f'some_seconds_bucket{{{label},le="10"}} 4',
        f'some_seconds_bucket{{{label},le="+Inf"}} 5',
        f"some_seconds_sum{{{label}}} 24",
        f"some_seconds_count{{{label}}} 5",
    ]


async def read(server: Served) -> dict[str, float]:
    """Every sample of the page, which is checked on the way."""
    answer = await server.ask("GET", "/metrics")
    assert answer.status == 200
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    found: dict[str, float] = {}
    family = ""
    for line in answer.body.decode().splitlines():
        if line.startswith("# TYPE "):
            family = line.split()[2]
        if line.startswith("#"):
            continue
        match = LINE.fullmatch(line)
        assert match is not None, line
        assert match[1].startswith(family), line
        assert line.rpartition(" ")[0] not in found, line
        found[line.rpartition(" ")[0]] = float(match[3])
    return found


def test_the_page_tells_what_became_of_messages(tmp_path: Path) -> None:
    async def main() -> None:
        async with served(tmp_path) as server:
            queue = await server.millrace.find("orders")
            await queue.publish_many([b"one", b"two", b"three"])
            first, _ = await queue.lease(2)
            await first.settle()
            await queue.cursor("audit", retain=True)
            await server.ask("POST", f"{ORDERS}/messages", {"body": "four"})
            found = await read(server)
            at = '{space="default",queue="orders"'
            assert found[f"millrace_published_total{at}}}"] == 4
            assert found[f"millrace_depth{at}}}"] == 3
            assert found[f"millrace_in_flight{at}}}"] == 1
            assert found[f'millrace_ended_total{at},how="settled"}}'] == 1
            assert found[f'millrace_cursor_lag_rows{at},cursor="audit",retain="true"}}'] == 4
            assert found[f'millrace_cursor_lag_bytes{at},cursor="audit",retain="true"}}'] > 0
            route = "/v1/spaces/{space}/queues/{queue}/messages"
            labels = f'{{method="POST",route="{route}",status="201"}}'
            assert found[f"millrace_http_requests_total{labels}"] == 1
            assert found["millrace_commit_seconds_count"] >= 4
            assert found["millrace_commit_bytes_sum"] > 0
            assert found["millrace_http_connections"] == 1

    asyncio.run(main())


def test_a_server_that_lives_says_so_to_anybody_and_metrics_only_to_those_who_may(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        async with served(tmp_path) as server:
            for path, body in (("/healthz", {"status": "alive"}), ("/readyz", {"ready": True})):
                answer = await server.ask("GET", path, role=None)
                assert (answer.status, answer.json) == (200, body)
            assert (await server.ask("GET", "/metrics", role=None)).status == 401
            assert (await server.ask("GET", "/metrics", role="worker")).status == 403
            await server.millrace.close()
            broken = await server.ask("GET", "/readyz", role=None)
            assert (broken.status, broken.json) == (503, {"ready": False, "why": "closed"})
            assert (await server.ask("GET", "/healthz", role=None)).status == 200

    asyncio.run(main())
