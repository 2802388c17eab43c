"""Metrics: what they say is what happened, in the form that Prometheus reads."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
from pathlib import Path

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

import millrace
from millrace import limits
from millrace.client.millrace import engine_of
from millrace.instruments import Gauges, Histogram
from millrace.rpc import calls
from millrace.server.auth.access import Principal, parse_rule
from millrace.server.counters import (
    LeaseCounters,
    ProcessCounters,
    RequestCounters,
    among,
    decode,
    encode,
)
from millrace.server.rpc.call_permissions import OWNER, Caller
from millrace.server.rpc.queries import answer_to
from millrace.server.web.metrics import MetricsPage, tell_counted
from tests.client.harness import eventually as client_eventually
from tests.server.process.test_frontend_processes import eventually
from tests.server.rest.harness import SMALL, Answer, Served, served
from tests.server.server_process import Process, children
from tests.support.timeouts import scaled

ORDERS = "/v1/spaces/default/queues/orders"
ROOT = Path(__file__).resolve().parents[3]
LINE = re.compile(r'([a-z_]+)(?:\{((?:[a-z]+="(?:[^"\\\n]|\\["\\n])*",?)*)\})? (\S+)')


def test_a_histogram_counts_up_to_each_bound() -> None:
    found = Histogram((1, 10))
    for value in (0.5, 1, 1.5, 10, 11):
        found.add(value)
    page = MetricsPage()
    page.histogram("some_seconds", "Text.", found.spread(), {"a": 'b"\\\n'})
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


def test_5_7_what_was_given_back_or_ran_out_is_not_in_flight(tmp_path: Path) -> None:
    async def main() -> None:
        async with served(tmp_path) as server:
            queue = await server.millrace.find("orders")
            await queue.publish_many([b"%d" % n for n in range(6)])
            await queue.lease(2, seconds=600)
            given_back = await queue.lease(2, seconds=600)
            await queue.lease(1, seconds=0.001)
            await queue.release(given_back[:1])
            await queue.release(given_back[1:], delay=600)

            async def has_run_out() -> bool:
                return (await queue.explain(5)).state == "returned"

            await client_eventually(has_run_out)
            states = [(await queue.explain(seq)).state for seq in range(1, 7)]
            assert states == ["leased", "leased", "returned", "delayed", "returned", "ready"]
            found = await read(server)
            assert found['millrace_in_flight{space="default",queue="orders"}'] == 2
            described = await server.ask("GET", ORDERS)
            assert isinstance(described.json["holders"], dict)
            holders = described.json["holders"]
            assert (holders["in_flight"], holders["delayed"]) == (2, 1)
            assert (await queue.holders()).in_flight == 2

    asyncio.run(main())


def test_5_7_alerts_can_tell_logs_from_queues_that_someone_waits_for(tmp_path: Path) -> None:
    async def main() -> None:
        async with served(tmp_path) as server:
            await server.millrace.queue("journal", retention="log")
            answer = await server.ask("GET", "/metrics")
            _, samples = parsed(answer.body.decode())
            labels = [labels for labels, _ in samples["millrace_oldest_seconds"]]
            assert {"space": "default", "queue": "journal", "retention": "log"} in labels
            assert {"space": "default", "queue": "orders"} in labels

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


# --- As Prometheus reads it ----------------------------------------------------------------------

Page_ = dict[str, list[tuple[dict[str, str], float]]]

PROMISED = {
    "millrace_depth": "gauge",
    "millrace_oldest_seconds": "gauge",
    "millrace_in_flight": "gauge",
    "millrace_published": "counter",
    "millrace_ended": "counter",
    "millrace_leased": "counter",
    "millrace_http_requests": "counter",
    "millrace_http_request_seconds": "histogram",
    "millrace_commit_seconds": "histogram",
    "millrace_commit_bytes": "histogram",
    "millrace_commit_entries": "histogram",
    "millrace_sync_seconds": "histogram",
    "millrace_pins": "gauge",
    "millrace_pinned_bytes": "gauge",
    "millrace_cursor_lag_rows": "gauge",
    "millrace_cursor_lag_bytes": "gauge",
    "millrace_cursor_lag_seconds": "gauge",
    "millrace_topic_lag_rows": "gauge",
    "millrace_topic_lag_seconds": "gauge",
    "millrace_topic_dead_lettered": "counter",
    "millrace_topic_dropped": "counter",
    "millrace_sealed_bytes": "gauge",
    "millrace_log_bytes": "gauge",
    "millrace_disk_free_bytes": "gauge",
    "millrace_refusing": "gauge",
    "millrace_damaged_files": "gauge",
    "millrace_quarantined": "gauge",
    "millrace_http_connections": "gauge",
    "millrace_info": "gauge",
}
"""What a page tells of, by the parser's names, in which a counter has no `_total`."""


def parsed(text: str) -> tuple[dict[str, str], Page_]:
    """Families and their kinds, and samples by name, as Prometheus' own parser has them."""
    kinds: dict[str, str] = {}
    samples: Page_ = {}
    for family in text_string_to_metric_families(text):
        assert family.name not in kinds, family.name
        assert family.documentation, family.name
        kinds[family.name] = family.type
        for sample in family.samples:
            told = samples.setdefault(sample.name, [])
            assert dict(sample.labels) not in [labels for labels, _ in told], sample
            told.append((dict(sample.labels), sample.value))
        if family.type == "histogram":
            check_histogram(family.name, samples)
    return kinds, samples


def check_histogram(name: str, samples: Page_) -> None:
    """Its buckets rise, and the last one counts all."""
    for labels, count in samples[f"{name}_count"]:
        own = [
            value
            for told, value in samples[f"{name}_bucket"]
            if {at: word for at, word in told.items() if at != "le"} == labels
        ]
        assert own == sorted(own)
        assert own[-1] == count


@pytest.mark.parametrize("is_front", [False, True])
def test_the_page_has_all_that_is_promised_in_both_modes(tmp_path: Path, *, is_front: bool) -> None:
    async def main() -> None:
        async with served(tmp_path, is_front=is_front) as server:
            queue = await server.millrace.find("orders")
            await (await server.millrace.topic("news")).subscribe(queue)
            await queue.publish_many([b"x" * 100] * 10)
            await queue.cursor("audit", retain=True)
            await server.ask("POST", f"{ORDERS}/leases", {"count": 3})
            url = f"http://127.0.0.1:{server.port}"
            async with millrace.connect(url, token="root") as other:
                # By a call, which is counted as well.
                await (await other.find("orders")).lease(2)
            async with queue.snapshot():
                answer = await server.ask("GET", "/metrics")
            kinds, samples = parsed(answer.body.decode())
            assert kinds == PROMISED
            own = {"space": "default", "queue": "orders"}
            assert samples["millrace_depth"] == [(own, 10)]
            assert samples["millrace_in_flight"] == [(own, 5)]
            assert samples["millrace_pins"] == [(own, 1)]
            assert samples["millrace_leased_total"] == [(own, 5)]
            [(lag, rows)] = samples["millrace_cursor_lag_rows"]
            assert (lag, rows) == ({**own, "cursor": "audit", "retain": "true"}, 10)
            for name in ("commit_seconds", "commit_bytes", "commit_entries", "sync_seconds"):
                [(_, count)] = samples[f"millrace_{name}_count"]
                assert count > 0, name
            assert samples["millrace_refusing"] == [({}, 0)]
            [(_, log)] = samples["millrace_log_bytes"]
            assert log > 1000

    asyncio.run(main())


@pytest.mark.parametrize("is_front", [False, True])
def test_queues_that_are_gone_are_told_of_no_more(tmp_path: Path, *, is_front: bool) -> None:
    async def main() -> None:
        async with served(tmp_path, is_front=is_front) as server:
            for name in ("a", "b"):
                queue = await server.millrace.queue(name)
                await queue.publish(b"x")
                await server.ask("POST", f"/v1/spaces/default/queues/{name}/leases", {})
            assert leased(await server.ask("GET", "/metrics")) == {"a": 1, "b": 1}
            assert await server.millrace.delete_queue("a")
            assert leased(await server.ask("GET", "/metrics")) == {"b": 1}
            await (await server.millrace.queue("a")).publish(b"x")
            assert leased(await server.ask("GET", "/metrics")) == {"b": 1}, "it was forgotten"

    def leased(answer: Answer) -> dict[str, float]:
        _, samples = parsed(answer.body.decode())
        return {labels["queue"]: value for labels, value in samples["millrace_leased_total"]}

    asyncio.run(main())


def test_of_many_queues_the_quiet_ones_are_forgotten_first() -> None:
    handed = LeaseCounters(queues_max=2)
    handed.note("default", "a", 2, 1)
    handed.note("default", "b", 2, 2)
    handed.note("default", "a", 2, 2)
    handed.note("default", "c", 9, 0)
    assert handed.counts() == (("default", "a", 4, 3), ("default", "c", 9, 0))
    handed.keep({("default", "c"), ("default", "d")})
    assert handed.counts() == (("default", "c", 9, 0),)


def test_names_that_are_gone_displace_none_that_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "METRICS_QUEUES_MAX", 2)
    handed = LeaseCounters()
    for name in "abcde":
        handed.note("default", name, 1, 1)
    counted = RequestCounters().counted(handed, 0)
    there = {("default", name) for name in "cde"}
    assert [queue for _, queue, _, _ in among(counted, there).handed] == ["c", "d"]


def test_what_is_deployed_uses_names_that_are_told() -> None:
    known = {f"{name}_total" if kind == "counter" else name for name, kind in PROMISED.items()}
    known |= {
        f"{name}_{part}"
        for name, kind in PROMISED.items()
        if kind == "histogram"
        for part in ("bucket", "sum", "count")
    }
    known.add("millrace_frontend_up")
    for file in ("alerts.yaml", "dashboard.json"):
        text = (ROOT / "deploy" / file).read_text().replace('"millrace"', "")
        found = set(re.findall(r"\bmillrace_[a-z_]+\b", text))
        assert found
        assert found <= known, found - known


def test_refused_requests_are_counted_too(tmp_path: Path) -> None:
    async def main() -> None:
        async with served(tmp_path) as server:
            await server.ask("GET", "/v1/spaces", role=None)
            await server.ask("GET", "/nowhere")
            await server.ask("DELETE", ORDERS, role="worker")
            await asyncio.to_thread(send_nonsense, server.port)
            _, samples = parsed((await server.ask("GET", "/metrics")).body.decode())
            told = {
                (labels["method"], labels["route"], labels["status"]): count
                for labels, count in samples["millrace_http_requests_total"]
            }
            assert told == {
                ("GET", "/v1/spaces", "401"): 1,
                ("GET", "-", "404"): 1,
                ("DELETE", "/v1/spaces/{space}/queues/{queue}", "403"): 1,
                ("-", "-", "400"): 1,
            }

    asyncio.run(main())


def send_nonsense(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=scaled(60)) as line:
        line.sendall(b"nonsense\r\n\r\n")
        assert b" 400 " in line.recv(65536)


@pytest.mark.process
def test_one_scrape_tells_of_all_front_ends_whichever_answers(tmp_path: Path) -> None:
    def scrape(server: Process) -> Page_:
        answer = server.ask("GET", "/metrics")
        assert answer.status == 200
        return parsed(answer.body.decode())[1]

    def puts(samples: Page_) -> float:
        return sum(
            count
            for labels, count in samples["millrace_http_requests_total"]
            if labels["method"] == "PUT"
        )

    with Process(tmp_path / "data", "--frontends", 2) as server:
        for _ in range(30):
            server.ask("PUT", ORDERS, {})
        answered: set[str] = set()
        for _ in range(100):
            before = scrape(server)
            # Each page tells of all of them.
            assert puts(before) == 30
            assert dict(told(before, "millrace_frontend_up")) == {"0": 1, "1": 1}
            assert [count > 0 for _, count in before["millrace_commit_seconds_count"]] == [True]
            answered |= {
                labels["frontend"]
                for labels, _ in before["millrace_http_requests_total"]
                if labels["route"] == "/metrics"
            }
            if len(answered) == 2:
                break
        assert answered == {"0", "1"}
        gone = children(server.pid)[0]
        os.kill(gone, signal.SIGKILL)
        eventually(lambda: gone not in children(server.pid))
        eventually(lambda: sum(value for _, value in told(scrape(server), FRONTEND)) == 2)
        # What the killed one had counted begins anew.
        assert puts(scrape(server)) < 30
        assert server.stop() == 0


FRONTEND = "millrace_frontend_up"


def told(samples: Page_, name: str) -> list[tuple[str, float]]:
    return [(labels["frontend"], value) for labels, value in samples[name]]


async def ask(folder: Path) -> list[ProcessCounters]:
    async with millrace.open(folder, settings=SMALL) as m:
        gauges = await engine_of(m).maintenance.gauges()
        return [decode(text) for text in gauges.beside]


@pytest.mark.process
def test_a_front_end_that_says_nothing_is_told_of_as_such(tmp_path: Path) -> None:
    with Process(tmp_path / "data", "--frontends", 1) as server:
        [stopped] = children(server.pid)
        os.kill(stopped, signal.SIGSTOP)
        try:
            assert asyncio.run(ask(tmp_path / "data")) == [ProcessCounters(0, is_there=False)]
        finally:
            os.kill(stopped, signal.SIGCONT)
        eventually(lambda: asyncio.run(ask(tmp_path / "data"))[0].is_there)
        [there] = asyncio.run(ask(tmp_path / "data"))
        page = MetricsPage()
        tell_counted(page, [there, ProcessCounters(1, is_there=False)])
        found = parsed(page.text().decode())[1]
        assert told(found, FRONTEND) == [("0", 1), ("1", 0)]
        assert told(found, "millrace_http_connections") == [("0", 0)]
        assert server.stop() == 0


@pytest.mark.process
def test_front_ends_are_told_of_with_the_queues_that_are_there(tmp_path: Path) -> None:
    queues = "/v1/spaces/default/queues"
    with Process(tmp_path / "data", "--frontends", 1) as server:
        for name in ("a", "b"):
            assert server.ask("PUT", f"{queues}/{name}", {}).status == 201
            assert server.ask("POST", f"{queues}/{name}/leases", {"count": 3}).status == 200
        assert server.ask("DELETE", f"{queues}/a").status in (200, 204)
        [counted] = asyncio.run(ask(tmp_path / "data"))
        assert counted.handed == (("default", "b", 3, 0),)
        assert server.stop() == 0


def test_sec_14_the_page_leaves_out_what_may_not_be_watched(tmp_path: Path) -> None:
    async def main() -> None:
        async with served(tmp_path) as server:
            for space in ("ta", "tb", "system"):
                queue = await server.millrace.queue("secret", space=space)
                topic = await server.millrace.topic("news", space=space)
                await topic.subscribe(queue)
                await queue.publish(b"x")
                await server.ask("POST", f"/v1/spaces/{space}/queues/secret/leases", {})
            server.door.know("scraper", ("allow watch */*", "deny * tb/*"))
            page = (await server.ask("GET", "/metrics", role="scraper")).body.decode()
            assert 'space="ta",queue="secret"' in page
            assert 'space="ta",topic="news"' in page
            assert "millrace_leased_total" in page
            assert 'space="tb"' not in page
            assert 'space="system"' not in page
            whole = (await server.ask("GET", "/metrics")).body.decode()
            assert 'space="tb",queue="secret"' in whole
            assert 'space="system",topic="news"' in whole

    asyncio.run(main())


def test_sec_14_the_counts_of_front_ends_leave_out_what_may_not_be_watched(tmp_path: Path) -> None:
    handed = (("ta", "orders", 1, 1), ("tb", "secret", 1, 1))

    async def main() -> None:
        async with millrace.open(tmp_path, settings=SMALL) as m:
            engine = engine_of(m)
            found = msgspec.structs.replace(
                await engine.maintenance.gauges(),
                beside=(encode(ProcessCounters(0, handed=handed)),),
            )

            async def gauged() -> Gauges:
                return found

            engine.maintenance.gauges = gauged  # type: ignore[method-assign]
            who = Caller(Principal("p", (parse_rule("allow watch */*"), parse_rule("deny * tb/*"))))
            told = await answer_to(engine, who, calls.ReadGauges())
            assert isinstance(told, Gauges)
            assert decode(told.beside[0]).handed == handed[:1]
            assert await answer_to(engine, Caller(OWNER), calls.ReadGauges()) == found

    asyncio.run(main())
