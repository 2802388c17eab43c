"""The blocking facade: up to date, complete, and the same API without `await`."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType

import pyarrow as pa
import pyarrow.dataset as ds
import pytest

from millrace import errors, sync
from millrace.client import (
    cursor,
    lease,
    millrace,
    publisher,
    queue,
    redrive,
    session,
    transaction,
    work,
    worker,
)
from millrace.client.message import Message
from millrace.settings import Settings
from tests.support.timeouts import scaled

ROOT = Path(__file__).resolve().parents[1]
SMALL = Settings(segment_bytes=1024 * 1024)
NAMES = {"__aiter__": "__iter__", "__anext__": "__next__", "__aenter__": "__enter__"}


@pytest.fixture
def m(tmp_path: Path) -> Iterator[sync.Millrace]:
    with sync.open(tmp_path / "data", settings=SMALL) as opened:
        yield opened


def generator() -> ModuleType:
    path = ROOT / "tools" / "generate_sync.py"
    spec = importlib.util.spec_from_file_location("generate_sync", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# --- Generated -----------------------------------------------------------------------------------


@pytest.mark.process
def test_the_facade_is_up_to_date() -> None:
    assert generator().stale() == [], "run tools/generate_sync.py"


@pytest.mark.parametrize(
    ("asynchronous", "blocking"),
    [
        (millrace.Millrace, sync.Millrace),
        (queue.Queue, sync.Queue),
        (lease.Lease, sync.Lease),
        (session.Session, sync.Session),
        (publisher.Publisher, sync.Publisher),
        (publisher.Confirmation, sync.Confirmation),
        (work.Work, sync.Work),
        (cursor.Cursor, sync.Cursor),
        (cursor.Snapshot, sync.Snapshot),
        (transaction.Transaction, sync.Transaction),
        (redrive.Redrive, sync.Redrive),
        (worker.Worker, sync.Worker),
    ],
)
def test_nothing_is_missing(asynchronous: type, blocking: type) -> None:
    for name, member in inspect.getmembers(asynchronous):
        if name.startswith("_") and name not in NAMES:
            continue
        twin = inspect.getattr_static(blocking, NAMES.get(name, name))
        if isinstance(member, property):
            assert isinstance(twin, property), name
            assert twin.__doc__ == member.__doc__
        elif name not in NAMES:
            assert not inspect.iscoroutinefunction(twin), name
            assert inspect.getdoc(twin), name
            own = inspect.signature(member).parameters
            assert own == inspect.signature(twin).parameters, name


def test_no_docstring_speaks_of_waiting() -> None:
    for path in (ROOT / "src" / "millrace" / "sync").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef | ast.FunctionDef):
                doc = ast.get_docstring(node) or ""
                assert "await" not in doc, (path.name, node.name)
                assert "async " not in doc, (path.name, node.name)


def test_every_argument_is_handed_on() -> None:
    for path in (ROOT / "src" / "millrace" / "sync").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.FunctionDef) or node.name == "__exit__":
                continue
            given = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
            given += [each for each in (node.args.vararg, node.args.kwarg) if each is not None]
            used = {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}
            unused = {each.arg for each in given} - used - {"self"}
            assert not unused, (path.name, node.name, unused)


# --- The same API --------------------------------------------------------------------------------


def test_settings_of_a_queue_are_kept(m: sync.Millrace) -> None:
    m.queue("dead")
    orders = m.queue("orders", keyed=True, retention="log", max_failures=3, dead_letter="dead")
    spec = orders.spec()
    assert (spec.keyed, spec.retention, spec.max_failures) == (True, "log", 3)
    assert spec.dead_letter == "default/dead"
    assert orders.configure(max_failures=5, dead_letter="").max_failures == 5
    assert orders.spec().dead_letter == ""


def test_publish_lease_settle(m: sync.Millrace) -> None:
    orders = m.queue("orders", keyed=True)
    assert orders.publish(b"1", key="a", headers={"h": "v"}, producer="p", number=1) == 1
    assert orders.publish_many([Message(b"2", "b"), Message(b"3", "c")]) == range(2, 4)
    assert orders.publish_many(pa.record_batch({"value": [b"4"], "key": ["d"]})) == range(4, 5)
    first, *others = orders.lease(3, seconds=40)
    assert isinstance(first, sync.Lease)
    assert (first.body, first.key, first.headers) == (b"1", b"a", (("h", b"v"),))
    assert (first.seq, first.deliveries, first.failures, first.version) == (1, 1, 0, 1)
    assert first.deadline_ms > first.time_ms
    assert first.lost is None
    first.extend(60)
    first.settle()
    assert orders.settle(first.receipt) == {}
    others[0].release(failed=True)
    assert orders.extend(others[1:], 60) == {}
    assert orders.release(others[1]) == {}
    assert [row.body for row in orders.peek()] == [b"2", b"3", b"4"]
    row = orders.get(2)
    assert row is not None
    assert row.body == b"2"
    assert orders.explain(2).state == "returned"
    assert orders.producer("p") == 1
    assert orders.stats()["settled"] == 1
    assert orders.purge() == 4
    assert orders.configure(retention="log") == orders.spec()
    assert (orders.name, orders.space, repr(orders)) == (
        "orders",
        "default",
        "<Queue default/orders>",
    )
    assert m.queues() == ["orders"]
    assert m.find("orders").name == "orders"
    assert m.delete_queue("orders")


def test_errors_are_raised_as_they_are(m: sync.Millrace) -> None:
    with pytest.raises(errors.NotFound, match="orders"):
        m.find("orders")
    orders = m.queue("orders")
    with pytest.raises(errors.Invalid, match="body"):
        orders.publish("text")  # type: ignore[arg-type]
    with pytest.raises(errors.Invalid, match="leases"):
        orders.settle(5)  # type: ignore[arg-type]
    with pytest.raises(errors.Forged):
        orders.settle("receipt")
    with pytest.raises(errors.Invalid, match="queue"):
        m.transaction().publish(5, b"x")  # type: ignore[arg-type]


def test_work(m: sync.Millrace) -> None:
    orders = m.queue("orders")
    orders.publish_many([b"%d" % n for n in range(20)])
    bodies = []
    for leased in orders.work(batch=7, idle=0):
        with leased:
            bodies.append(leased.body)
        if len(bodies) == 10:
            break
    with orders.work(idle=0) as rest:
        for leased in rest:
            bodies.append(leased.body)
            leased.settle()
    with pytest.raises(errors.Closed):
        next(rest)
    assert sorted(bodies) == sorted(b"%d" % n for n in range(20))
    orders.publish(b"bad")
    failing = orders.lease()[0]
    with pytest.raises(ZeroDivisionError), failing:
        1 / len(failing.headers)
    assert orders.lease()[0].failures == 1


def test_a_worker(m: sync.Millrace) -> None:
    orders, shipped, bad = m.queue("orders"), m.queue("shipped"), m.queue("bad")
    orders.publish_many([b"1", b"2", b"3"])

    def ship(message: sync.Lease, transaction: sync.Transaction) -> None:
        assert isinstance(message, sync.Lease)
        assert orders.explain(message.seq).state == "leased"
        transaction.publish(shipped, message.body)
        if message.body == b"2":
            message.extend(60)
            raise ValueError("torn")

    def park(
        message: sync.Lease, error: BaseException, transaction: sync.Transaction
    ) -> worker.Verdict:
        transaction.publish("bad", message.body, headers={"error": str(error)})
        return worker.Verdict.SETTLE

    shipping = sync.Worker(orders, ship, idle=0, max_failures=2, on_poison=park)
    shipping.run()
    assert shipping.stats == worker.WorkerStats(handled=2, failed=2)
    assert sorted(row.body or b"" for row in shipped.peek()) == [b"1", b"3"]
    assert [row.headers for row in bad.peek()] == [(("error", b"torn"),)]
    assert repr(shipping).startswith("<Worker of <Queue default/orders>")
    with pytest.raises(errors.Closed):
        shipping.run(signals=True)


def test_a_worker_beside_the_program(m: sync.Millrace) -> None:
    orders = m.queue("orders")
    seen: list[bytes] = []
    three = threading.Event()

    def note(message: sync.Lease) -> None:
        seen.append(message.body)
        if len(seen) == 3:
            three.set()

    with sync.Worker(orders, note, concurrency=1) as noting:
        orders.publish_many([b"1", b"2", b"3"])
        assert three.wait(timeout=scaled(30))
    assert seen == [b"1", b"2", b"3"]
    assert noting.stats.handled == 3
    stopped = sync.Worker(orders, note)
    stopped.stop()
    stopped.run(signals=True)

    async def wait(message: sync.Lease) -> None: ...

    with pytest.raises(errors.Invalid, match="not a queue"):
        sync.Worker(orders._twin, note)  # type: ignore[arg-type]
    for wrong in (wait, 5, lambda: None):
        with pytest.raises(errors.Invalid) as refused:
            sync.Worker(orders, wrong)  # type: ignore[arg-type]
        assert refused.value.field == "handle"


def test_follow(m: sync.Millrace) -> None:
    prices = m.queue("prices", keyed=True)
    prices.publish_many([Message(b"1", "a"), Message(b"1", "b")])
    report = prices.cursor("report", retain=True)
    snapshot = next(report)
    assert isinstance(snapshot, sync.Snapshot)
    prices.publish(b"2", key="a")
    assert snapshot.arrow().read_all().column("value").to_pylist() == [b"1", b"1"]
    assert [row.body for row in snapshot.rows()] == [b"1", b"1"]
    assert sum(batch.num_rows for batch in snapshot.batches()) == 2
    snapshot.commit(1)
    assert (report.name, report.retain, report.position.seq) == ("report", True, 1)
    with snapshot:
        pass
    second = report.next()
    assert second is not None
    assert (second.after, second.boundary) == (2, 3)
    assert second.id > snapshot.id
    second.commit()
    assert report.next(wait=0.01) is None
    assert prices.cursors() == {"report": 3}
    report.reset("beginning")
    assert report.next() is not None
    assert report.delete()
    with prices.snapshot() as pinned:
        reader = pinned.arrow()
        assert pinned.unpin()
    with pytest.raises(errors.SnapshotExpired):
        reader.read_all()


def test_iterating_a_cursor(m: sync.Millrace) -> None:
    orders = m.queue("orders")
    found: list[bytes | None] = []

    def follow() -> None:
        for snapshot in orders.cursor("report"):
            with snapshot:
                found.extend(row.body for row in snapshot.rows())
            if len(found) == 5:
                return

    with ThreadPoolExecutor(1) as pool:
        following = pool.submit(follow)
        for n in range(5):
            orders.publish(b"%d" % n)
        following.result(timeout=scaled(30))
    assert found == [b"%d" % n for n in range(5)]


def test_stages_and_transactions(m: sync.Millrace) -> None:
    orders, shipped = m.queue("orders"), m.queue("shipped")
    orders.publish_many([b"1", b"2", b"3"])
    shipped.stage("s", [b"staged"])
    assert shipped.stages() == {"s": 1}
    report = orders.cursor("report")
    snapshot = report.next()
    assert snapshot is not None
    first, second, third = orders.lease(3)
    with orders.snapshot() as pinned, m.transaction() as t:
        t.settle([first, second.receipt])
        t.extend(third, 60)
        one = t.publish(shipped, b"a")
        many = t.publish_many("shipped", [b"b", b"c"])
        staged = t.publish_staged(shipped, ["s"])
        t.commit(snapshot)
        t.unpin(pinned)
    assert (one.value, many.value, staged.value) == (1, range(2, 4), range(4, 5))
    assert orders.stats()["settled"] == 2
    assert report.position.seq == 3
    with m.transaction(space="default") as t:
        t.release(third)
    assert [leased.seq for leased in orders.lease()] == [3]
    shipped.stage("s", [b"x"])
    assert shipped.drop_stage("s")
    shipped.stage("s", [b"x"])
    assert shipped.publish_staged(["s"]) == range(5, 6)


# --- Threads -------------------------------------------------------------------------------------


def test_many_threads_share_it(m: sync.Millrace) -> None:
    orders = m.queue("orders")

    def publish(n: int) -> None:
        for k in range(20):
            orders.publish(b"%d" % (n * 20 + k))

    def consume(_: int) -> list[bytes]:
        bodies = []
        for leased in orders.work(batch=3, idle=0):
            with leased:
                bodies.append(leased.body)
        return bodies

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(publish, range(8)))
        found = [body for bodies in pool.map(consume, range(8)) for body in bodies]
    assert sorted(found) == sorted(b"%d" % n for n in range(160))


def test_arrow_may_be_pulled_by_threads_of_its_own(m: sync.Millrace, tmp_path: Path) -> None:
    orders = m.queue("orders")
    for _ in range(5):
        orders.publish_many([bytes(100)] * 1000)
    with orders.snapshot() as snapshot:
        ds.write_dataset(snapshot.arrow(), tmp_path / "out", format="parquet")
    assert ds.dataset(tmp_path / "out").count_rows() == 5000


def test_a_close_ends_those_who_wait(tmp_path: Path) -> None:
    m = sync.open(tmp_path, settings=SMALL)
    orders = m.queue("orders")
    waiting: list[Callable[[], object]] = [
        lambda: orders.lease(wait=30),
        lambda: next(orders.work()),
        lambda: next(orders.cursor("report")),
    ]
    with ThreadPoolExecutor(3) as pool:
        calls = [pool.submit(call) for call in waiting]
        while not orders.cursors():
            pass
        m.close()
        for call in calls:
            assert isinstance(call.exception(timeout=scaled(30)), errors.Closed)
    m.close()
    with pytest.raises(errors.Closed):
        orders.publish(b"x")
    with pytest.raises(errors.Closed):
        m.queues()


def test_no_thread_stays(tmp_path: Path) -> None:
    before = threading.active_count()
    m = sync.open(tmp_path, settings=SMALL)
    assert threading.active_count() > before
    with pytest.raises(errors.InUse):
        sync.open(tmp_path, settings=SMALL)
    m.close()
    assert threading.active_count() == before
    with pytest.raises(errors.Invalid):
        sync.open("")
    assert threading.active_count() == before


def test_a_half_read_iterator_is_let_go(m: sync.Millrace) -> None:
    orders = m.queue("orders")
    for _ in range(5):
        orders.publish_many([bytes(1000)] * 500)
    with orders.snapshot() as snapshot:
        rows = snapshot.rows()
        assert next(rows).seq == 1
        reader = snapshot.arrow()
        reader.read_next_batch()
        del rows, reader
    assert orders.publish(b"after") == 2501


def run_program(path: Path, program: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", program, str(path)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


OPEN = """
import os, signal, sys
from millrace import errors, sync
from millrace.settings import Settings
m = sync.open(sys.argv[1], settings=Settings(segment_bytes=1024 * 1024))
orders = m.queue("orders")
"""


@pytest.mark.process
def test_a_program_that_forgets_to_close_ends(tmp_path: Path) -> None:
    with run_program(tmp_path, OPEN + "orders.publish(b'x')\n") as program:
        _, problems = program.communicate(timeout=scaled(60))
    assert (program.returncode, problems) == (0, "")
    with sync.open(tmp_path, settings=SMALL) as m:
        assert len(m.find("orders").peek()) == 1


@pytest.mark.process
def test_an_interrupt_ends_a_wait(tmp_path: Path) -> None:
    text = (
        OPEN
        + """
try:
    print("waiting", flush=True)
    orders.lease(wait=60)
except KeyboardInterrupt:
    orders.publish(b"x")
    print(len(orders.lease()), flush=True)
m.close()
"""
    )
    with run_program(tmp_path, text) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "waiting\n"
        program.send_signal(signal.SIGINT)
        found, problems = program.communicate(timeout=scaled(60))
    assert (found, problems) == ("1\n", "")


@pytest.mark.process
def test_a_signal_stops_a_worker(tmp_path: Path) -> None:
    text = (
        OPEN
        + """
import threading
began, goes_on = threading.Event(), threading.Event()
def handle(message):
    began.set()
    goes_on.wait(60)
def tell():
    began.wait(60)
    print("works", flush=True)
    while orders.explain(2).state != "returned":
        pass
    goes_on.set()
orders.publish_many([b"x", b"y"])
threading.Thread(target=tell).start()
worker = sync.Worker(orders, handle, concurrency=1)
worker.run(signals=True)
print(worker.stats.handled, len(orders.lease()), flush=True)
m.close()
"""
    )
    with run_program(tmp_path, text) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "works\n"
        program.send_signal(signal.SIGTERM)
        found, problems = program.communicate(timeout=scaled(60))
    assert (found, problems) == ("1 1\n", "")


def test_a_session_and_a_publisher(m: sync.Millrace) -> None:
    queue = m.queue("orders")
    with queue.publisher("web", window=2) as publisher:
        sent = [publisher.send(body) for body in (b"a", b"b", b"c")]
        assert [one.wait() for one in sent] == [1, 2, 3]
    with queue.session(credit=2) as session:
        found = []
        for message in session:
            found.append((message.number, message.body))
            message.settle()
            if message.number == 2:
                break
        assert found == [(0, b"a"), (1, b"b"), (2, b"c")]
        assert session.settle([9]) == {}
        session.cancel()
        assert list(session) == []
    assert queue.stats()["live"] == 0


def test_a_session_that_was_dropped_can_be_resumed(m: sync.Millrace) -> None:
    queue = m.queue("orders")
    queue.publish(b"a")
    lost = queue.session().open()
    assert next(lost).number == 0
    text = lost.id
    del lost
    with queue.session(resume=text) as session:
        assert next(session).body == b"a"


@pytest.mark.process
def test_a_forked_process_is_refused(tmp_path: Path) -> None:
    text = (
        OPEN
        + """
child = os.fork()
if child == 0:
    try:
        orders.publish(b"x")
    except errors.Closed as error:
        print(error, flush=True)
    m.close()
    sys.exit(0)
os.waitpid(child, 0)
print(orders.publish(b"x"), flush=True)
m.close()
"""
    )
    with run_program(tmp_path, text) as program:
        found, problems = program.communicate(timeout=scaled(60))
    assert problems == ""
    assert found.splitlines()[-1] == "1"
    assert "forked" in found


def test_backups_are_verified_and_restored_without_a_loop(m: sync.Millrace, tmp_path: Path) -> None:
    before = threading.enumerate()
    m.queue("orders").publish(b"nails")
    m.backup(tmp_path / "vault")
    assert sync.verify(tmp_path / "vault").rows == 1
    sync.restore(tmp_path / "vault", tmp_path / "again")
    with sync.open(tmp_path / "again", settings=SMALL) as again:
        assert [row.body for row in again.queue("orders").peek()] == [b"nails"]
    left = [one.name for one in threading.enumerate() if one not in before]
    assert "millrace" not in left
