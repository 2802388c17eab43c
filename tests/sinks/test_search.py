"""Rows in OpenSearch: the contract, tombstones, what mappings refuse, a node that is killed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from urllib.request import Request, urlopen

import pyarrow as pa
import pytest

from millrace import Message, Settings, sync
from millrace.errors import Invalid, Retry, Stale
from millrace.pipeline import (
    DeclaredSink,
    Pipeline,
    Setting,
    Source,
    pipeline_status,
    run_pipeline,
    verify_pipeline,
)
from millrace.sinks.base import DELETE, Task
from millrace.sinks.boundary import Boundary, Span
from millrace.sinks.search import Search as SearchSink
from millrace.testing.check_sink import (
    SCHEMA,
    SinkChange,
    SinkRun,
    at,
    batch_of,
    puts,
    span,
)
from tests.services.search import Search
from tests.sinks.carrier import carry_with_kills, expected, left
from tests.sinks.rigs import Check, ReadRig, every_check

_NUMBERS = count(1)


def make(search: Search, **settings: object) -> ReadRig:
    """A rig on an index that nobody has used."""
    name = settings.pop("index", None) or f"prices{next(_NUMBERS)}"
    sink = SearchSink(url=search.url, index=str(name), **settings)  # type: ignore[arg-type]
    return ReadRig(sink, sink, is_early=True)


def ask(search: Search, path: str, body: object = None) -> dict[str, object]:
    data = None if body is None else json.dumps(body).encode()
    request = Request(search.url + path, data, {"Content-Type": "application/json"})
    with urlopen(request) as answer:
        found: dict[str, object] = json.load(answer)
        return found


def index_of(rig: ReadRig) -> str:
    assert isinstance(rig.sink, SearchSink)
    return rig.sink.index


# The first: a node with many indexes is slow to start again.
@pytest.mark.process
def test_a_node_that_is_killed_loses_and_doubles_nothing(search: Search) -> None:
    rig = make(search)

    def strike(_: int) -> None:
        search.kill()
        search.start()

    address = f"search+{search.url}?index={index_of(rig)}"
    carry_with_kills(address, kills=1, spans=12, seed=2, strike=strike)
    assert left(rig) == expected(12)


@every_check
def test_contract(check: Check, search: Search) -> None:
    rig = make(search)
    check(rig)
    rig.close()


@pytest.mark.process
def test_a_writer_that_is_killed_loses_and_doubles_nothing(search: Search) -> None:
    rig = make(search)
    address = f"search+{search.url}?index={index_of(rig)}"
    carry_with_kills(address, kills=2, spans=12, seed=1)
    assert left(rig) == expected(12)


def test_deletes_are_tombstones_until_they_are_old(search: Search) -> None:
    rig = make(search)
    run, path = SinkRun(rig), f"/{index_of(rig)}/_doc/a"
    run.carry(span(0, 5), puts("a", "b"))
    run.carry(span(5, 6), [SinkChange("a", None, DELETE, 6)])
    assert "millrace_deleted" in str(ask(search, path))
    run.sink.clean(run.held)
    assert "millrace_deleted" in str(ask(search, path))
    # As a day later.
    old = {"millrace_deleted": 1, "millrace_writer": "x"}
    ask(search, f"{path}?version={2**62}&version_type=external_gte&refresh=true", old)
    run.sink.clean(run.held)
    with pytest.raises(OSError, match="404"):
        ask(search, path)
    run.sees(puts("b"))


def test_a_zombie_between_its_look_and_its_write_does_no_harm(search: Search) -> None:
    rig = make(search)
    zombie, first = SinkRun(rig), puts("a", "b")
    second = [SinkChange("a", "new", seq=6), SinkChange("b", None, DELETE, 7)]

    def late() -> Iterator[pa.RecordBatch]:
        """The batches come after the zombie has looked at the fence, and is overtaken."""
        run = SinkRun(rig)
        run.carry(span(0, 5), first)
        run.carry(span(5, 9), second)
        yield batch_of(first)

    with pytest.raises(Stale):
        zombie.commit(span(0, 5), [zombie.stage(span(0, 5), late())])
    assert {row.key: row.value for row in rig.rows()} == {"a": "new"}


def test_a_zombie_whose_span_ended_elsewhere_does_no_harm(search: Search) -> None:
    """Cut at other places of two shards, both spans end at the same number."""
    rig = make(search)
    begin = Boundary((at(0, 0),))
    early, later = Span(begin, Boundary((at(5, 2),))), Span(begin, Boundary((at(7, 0),)))
    zombie = SinkRun(rig)

    def late() -> Iterator[pa.RecordBatch]:
        SinkRun(rig).carry(later, [SinkChange("a", None, DELETE, 6)])
        yield batch_of([SinkChange("a", "dead", seq=5)])

    with pytest.raises(Stale):
        zombie.commit(early, [zombie.stage(early, late())])
    assert list(rig.rows()) == []


def test_documents_of_others_are_not_taken_for_ones_own(search: Search) -> None:
    rig = make(search)
    one, two = SinkRun(rig, "one/sink"), SinkRun(rig, "two/sink")
    one.carry(span(0, 500), puts("a"))
    with pytest.raises(Invalid, match="written by somebody else"):
        two.carry(span(0, 5), puts("a", value="2"))
    one.sees(puts("a"))


def test_a_flow_that_comes_later_writes_over_those_before_it(search: Search) -> None:
    rig = make(search)
    SinkRun(rig, "prices/search").carry(span(0, 500), puts("a", "b"))
    # As a pipeline goes on that was rewound, with other steps.
    again = SinkRun(rig, "prices/search@2")
    again.carry(span(0, 5), puts("a", value="mended"))
    again.sees(puts("a", value="mended"), puts("b"))


def test_a_value_that_does_not_fit_is_named(search: Search) -> None:
    rig = make(search)
    properties = {"properties": {"value": {"type": "long"}}}
    request = Request(
        f"{search.url}/{index_of(rig)}",
        json.dumps({"mappings": properties}).encode(),
        {"Content-Type": "application/json"},
        method="PUT",
    )
    urlopen(request).close()
    run = SinkRun(rig)
    with pytest.raises(Invalid, match="row 'b', column 'value'") as caught:
        run.carry(span(0, 5), [SinkChange("a", "1", seq=1), SinkChange("b", "x", seq=2)])
    assert caught.value.field == "value"
    assert SinkRun(rig).at is None


def test_a_document_in_a_column(search: Search) -> None:
    run = SinkRun(make(search, document="value"))
    run.carry(span(0, 5), [SinkChange("a", '{"key": "a", "value": "in it"}', seq=1)])
    assert [row.value for row in run.rig.rows()] == ["in it"]
    with pytest.raises(Invalid, match="row 'b', column 'value' is 'b1', which is no JSON"):
        run.carry(span(5, 6), puts("b", after=5))


def test_a_node_that_is_down_is_asked_again(search: Search) -> None:
    sink = SearchSink(url="http://127.0.0.1:1", index="prices")
    with pytest.raises(Retry, match="is it running there"):
        sink.open("a/b", SCHEMA)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"key": ()}, "has an id"),
        ({"key": ("missing",)}, "'missing'"),
        ({"document": "missing"}, "'missing'"),
    ],
)
def test_settings_that_cannot_be(settings: dict[str, object], said: str) -> None:
    with pytest.raises(Invalid, match=said):
        SearchSink(index="a", **settings).check(SCHEMA)  # type: ignore[arg-type]


def test_an_address_that_cannot_be(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Invalid, match="not http://host:9200"):
        SearchSink(url="ftp://somewhere", index="a").open("a/b", SCHEMA)
    monkeypatch.delenv("SEARCH_URL", raising=False)
    with pytest.raises(Invalid, match="none in SEARCH_URL"):
        SearchSink(index="a").open("a/b", SCHEMA)


def test_documents_are_compared_with_their_queue(search: Search, tmp_path: Path) -> None:
    settings: dict[str, object] = {"url": search.url, "index": f"verified{next(_NUMBERS)}"}
    pipeline = Pipeline(
        name="orders",
        source=Source(queue="orders"),
        sinks=(DeclaredSink(name="one", kind="search", settings=settings),),
    )
    with sync.open(tmp_path / "data", settings=Settings(segment_bytes=4 * 1024 * 1024)) as m:
        queue = m.queue("orders", keyed=True, retention="log")
        queue.publish_many([Message(b"\xff", key=b"a", headers=[("h", b"\x00")])])
        queue.publish_many([Message(b"1", key=b"b"), Message(None, key=b"b")])
        run_pipeline(pipeline, Setting(millrace=m), once=True)
        [found] = verify_pipeline(pipeline, Setting(millrace=m))
        assert (found.method, found.is_right, found.found) == ("rows", True, 1)
        [status] = pipeline_status(pipeline, Setting(millrace=m)).sinks
        assert (status.is_asked, status.lag is not None and status.lag.rows) == (True, 0)


def test_a_row_that_names_no_document_is_refused(search: Search) -> None:
    sink = make(search).sink
    schema = pa.schema([("key", pa.string()), ("value", pa.string())])
    held = sink.open("a/b", schema)
    batch = pa.RecordBatch.from_pylist([{"key": None, "value": "x"}], schema=schema)
    with pytest.raises(Invalid, match="'key' of the key is null"):
        sink.stage(Task(held, span(0, 1), "part"), [batch])
