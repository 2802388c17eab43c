"""Rows in another queue: the contract, and processes that are killed."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from itertools import count
from pathlib import Path

import msgspec
import pytest

from millrace import sync
from millrace.client.multi_shard_cursor import find_cursor
from millrace.errors import Invalid, Retry, Stale, Unauthenticated
from millrace.sinks.base import DELETE
from millrace.sinks.queue import QueueSink, _Flow
from millrace.testing.check_sink import (
    FLOW,
    SCHEMA,
    SinkChange,
    SinkRun,
    puts,
    span,
)
from tests.server.server_process import Process
from tests.sinks.carrier import carry_with_kills, expected, left
from tests.sinks.rigs import Check, ReadRig, every_check

_NUMBERS = count(1)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A folder, in which every test has a queue of its own."""
    path = str(tmp_path_factory.mktemp("queues") / "data")
    yield path
    QueueSink(path=path, queue="any").close()


def make(path: str, **settings: object) -> ReadRig:
    sink = QueueSink(path=path, queue=f"prices{next(_NUMBERS)}", **settings)  # type: ignore[arg-type]
    return ReadRig(sink, sink)


@every_check
@pytest.mark.parametrize("key", [(), ("key",)], ids=["added", "keyed"])
def test_contract(check: Check, key: tuple[str, ...], path: str) -> None:
    check(make(path, key=key))


@pytest.mark.process
def test_a_writer_that_is_killed_loses_and_doubles_nothing(tmp_path: Path) -> None:
    address = f"queue:{tmp_path}/data?queue=prices&key=key"
    carry_with_kills(address, kills=2, spans=12, seed=1)
    sink = QueueSink(path=str(tmp_path / "data"), queue="prices", key=("key",))
    assert left(ReadRig(sink, sink)) == expected(12)
    sink.close()


@pytest.mark.process
def test_a_server_that_is_killed_loses_and_doubles_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    with Process(folder, "--listen", "127.0.0.1:0") as server:
        sink = QueueSink(
            url=f"http://127.0.0.1:{server.port}",
            token_file=str(server.token_file),
            queue="prices",
            key=("key",),
        )
        run = SinkRun(ReadRig(sink, sink))
        run.carry(span(0, 5), puts("a", "b"))
        staged = run.stage_all(span(5, 9), puts("a", value="2", after=5))
        server.kill()
    with Process(folder, "--listen", f"127.0.0.1:{server.port}"):
        again = SinkRun(ReadRig(sink, sink))
        assert again.at == span(0, 5).upto
        with pytest.raises(Stale):
            run.commit(span(5, 9), staged)
        again.carry(span(5, 9), puts("a", value="2", after=5))
        again.sees(puts("a", "b"), puts("a", value="2", after=5))
        sink.close()


@pytest.mark.process
def test_a_sink_does_not_borrow_the_token_of_another_sink(tmp_path: Path) -> None:
    """Both write to one server in one process; the second one's token is of nobody."""
    forged = tmp_path / "forged.token"
    forged.write_text("mr_nobody_" + "0" * 43)
    with Process(tmp_path / "data", "--listen", "127.0.0.1:0") as server:
        url = f"http://127.0.0.1:{server.port}"
        sink = QueueSink(url=url, token_file=str(server.token_file), queue="prices")
        run = SinkRun(ReadRig(sink, sink))
        run.carry(span(0, 5), puts("a"))
        other = QueueSink(url=url, token_file=str(forged), queue="prices")
        with pytest.raises(Unauthenticated):
            SinkRun(ReadRig(other, other)).carry(span(0, 5), puts("b"))
        other.close()
        sink.close()


def test_all_columns_as_json(path: str) -> None:
    rig = make(path, value="*")
    run = SinkRun(rig)
    run.carry(span(0, 5), [SinkChange("a", "x", seq=1), SinkChange("b", None, DELETE, 2)])
    bodies = [json.loads(str(row.value)) for row in rig.rows() if row.value is not None]
    assert bodies == [{"seq": 1, "key": "a", "value": "x"}]


def test_what_was_staged_and_overtaken_is_dropped(path: str) -> None:
    rig = make(path)
    SinkRun(rig).stage_all(span(0, 5), puts("a"))
    run = SinkRun(rig)
    staged = run.stage_all(span(0, 5), puts("a"))
    run.sink.clean(run.held)
    run.commit(span(0, 5), staged)
    run.sees(puts("a"))


class Asleep(QueueSink, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Whoever has read how far the flow is sleeps, while another one takes it over."""

    def _flow(self, snapshot: sync.Snapshot, flow: str) -> _Flow | None:
        found = super()._flow(snapshot, flow)
        while _MEANWHILE:
            _MEANWHILE.pop()()
        return found


_MEANWHILE: list[Callable[[], None]] = []


def test_a_zombie_that_wakes_while_it_opens_changes_nothing(path: str) -> None:
    rig = make(path)
    SinkRun(rig).carry(span(0, 5), puts("a"))
    assert isinstance(rig.sink, QueueSink)
    _MEANWHILE.append(lambda: SinkRun(rig).carry(span(5, 9), puts("b", after=5)))
    with pytest.raises(Stale):
        Asleep(path=path, queue=rig.sink.queue).open(FLOW, SCHEMA)
    again = SinkRun(rig)
    assert again.at == span(5, 9).upto
    again.sees(puts("a"), puts("b", after=5))


def test_stages_that_are_gone_are_staged_again(path: str) -> None:
    run = SinkRun(make(path))
    with pytest.raises(Retry, match="stage them again"):
        run.commit(span(0, 5), [b"missing"])
    run.carry(span(0, 5), puts("a"))
    run.sees(puts("a"))


def test_a_queue_that_does_not_fit_is_refused(path: str) -> None:
    rig = make(path)
    SinkRun(rig)
    assert isinstance(rig.sink, QueueSink)
    keyed = msgspec.structs.replace(rig.sink, key=("key",))
    with pytest.raises(Invalid, match="give the setting key"):
        keyed.open("a/b", SCHEMA)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({}, "url of a server, or the path"),
        ({"path": "a", "url": "http://b"}, "url of a server, or the path"),
        ({"path": "a", "key": ("key", "seq")}, "one key"),
        ({"path": "a", "key": ("missing",)}, "'missing'"),
        ({"path": "a", "value": "missing"}, "'missing'"),
    ],
)
def test_settings_that_cannot_be(settings: dict[str, object], said: str) -> None:
    with pytest.raises(Invalid, match=said):
        QueueSink(queue="q", **settings).check(SCHEMA)  # type: ignore[arg-type]


@pytest.mark.parametrize("when", ["before", "between"])
def test_a_zombie_does_not_go_on_with_the_snapshot_of_its_successor(
    path: str, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    rig = make(path, key=("key",))
    zombie = SinkRun(rig)
    successors: list[SinkRun] = []
    real = sync.Cursor.next

    def overtaken(cursor: sync.Cursor, **given: object) -> sync.Snapshot | None:
        monkeypatch.undo()
        if when == "before":
            successors.append(SinkRun(rig))
        else:
            publish = sync.Transaction.publish

            def late(
                t: sync.Transaction, flows: sync.Queue, *told: object, **more: object
            ) -> object:
                # The successor has the cursor, and has not said so yet.
                monkeypatch.undo()
                snapshots.append(real(cursor_of(flows, cursor)))
                return publish(t, flows, *told, **more)  # type: ignore[arg-type]

            monkeypatch.setattr(sync.Transaction, "publish", late)
            successors.append(SinkRun(rig))
            return snapshots.pop()
        return real(cursor, **given)  # type: ignore[arg-type]

    snapshots: list[sync.Snapshot | None] = []
    monkeypatch.setattr(sync.Cursor, "next", overtaken)
    first, second = puts("a"), puts("b", after=5)
    with suppress(Stale):
        zombie.carry(span(0, 5), first)
    [successor] = successors
    assert successor.at == span(0, 5).upto
    with pytest.raises(Stale):
        zombie.carry(span(5, 9), puts("z", after=5))
    successor.carry(span(5, 9), second)
    successor.sees(first, second)


def cursor_of(queue: sync.Queue, cursor: sync.Cursor) -> sync.Cursor:
    found = queue._portal.run(partial(find_cursor, queue._twin, cursor.name))
    assert found is not None
    return sync.Cursor(queue._portal, found)


def test_a_put_without_a_value_is_no_delete(path: str) -> None:
    run = SinkRun(make(path, key=("key",)))
    rows = [
        SinkChange("a", "1", seq=1),
        SinkChange("b", None, seq=2),
        SinkChange("c", None, DELETE, 3),
    ]
    with pytest.raises(Invalid, match="'value' is null in a row that is put"):
        run.carry(span(0, 5), rows)
