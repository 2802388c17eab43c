"""The pytest plugin: an engine for each test, and a clock that stands still."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.support.timeouts import scaled

ROOT = Path(__file__).resolve().parents[1]

pytest_plugins = ["pytester"]


@pytest.fixture
def inner(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A pytest in a process of its own, with the plugin and no other one."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "src"))
    pytester.makeini("[pytest]\naddopts = -p millrace.pytest_plugin -W error\n")
    return pytester


def passes(inner: pytest.Pytester, text: str, *, passed: int) -> None:
    inner.makepyfile(text)
    # pytester's own limit, so that a test that hangs says where.
    result = inner.runpytest_subprocess("-q", timeout=scaled(100))
    result.assert_outcomes(passed=passed)


def test_pytest_finds_it() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["entry-points"]["pytest11"] == {"millrace": "millrace.pytest_plugin"}


@pytest.mark.process
def test_a_run_that_does_not_use_it_pays_nothing(inner: pytest.Pytester) -> None:
    passes(
        inner,
        """
        import sys

        def test_imports(pytestconfig):
            assert pytestconfig.pluginmanager.has_plugin("millrace.pytest_plugin")
            heavy = {"pyarrow", "numpy", "lmdb", "millrace.node", "millrace.client.millrace"}
            assert not heavy & sys.modules.keys()
        """,
        passed=1,
    )


@pytest.mark.process
def test_each_test_has_a_server_of_its_own(inner: pytest.Pytester) -> None:
    passes(
        inner,
        """
        import json, urllib.request
        import pytest

        seen = []

        @pytest.mark.parametrize("number", [1, 2])
        def test_queue(millrace_server, number):
            address = f"{millrace_server.url}/v1/spaces/default/queues"
            with urllib.request.urlopen(address) as answer:
                assert json.load(answer)["names"] == []
            made = urllib.request.Request(f"{address}/orders", method="PUT")
            with urllib.request.urlopen(made) as answer:
                assert answer.status == 201
            assert millrace_server.url not in seen
            seen.append(millrace_server.url)
        """,
        passed=2,
    )


@pytest.mark.process
def test_each_test_has_an_engine_of_its_own(inner: pytest.Pytester) -> None:
    passes(
        inner,
        """
        import os, threading

        FOLDERS = []

        def test_first(millrace, tmp_path):
            orders = millrace.queue("orders")
            orders.publish(b"x")
            for lease in orders.lease():
                lease.settle()
            assert orders.stats()["settled"] == 1
            FOLDERS.append(repr(millrace).split()[2].rstrip(">"))
            assert os.path.exists(FOLDERS[0])
            assert list(tmp_path.iterdir()) == []

        def test_second(millrace):
            assert millrace.queues() == []
            assert not os.path.exists(FOLDERS[0])

        def test_third(millrace):
            millrace.close()

        def test_nothing_is_left(tmp_path_factory):
            assert not [t for t in threading.enumerate() if t.name.startswith("millrace")]
            assert not list(tmp_path_factory.getbasetemp().glob("millrace[0-9]*"))
        """,
        passed=4,
    )


@pytest.mark.process
def test_it_opens_in_a_moment(inner: pytest.Pytester) -> None:
    passes(
        inner,
        """
        import time
        import pytest

        TOOK = []

        @pytest.fixture
        def began():
            return time.process_time()

        @pytest.mark.parametrize("n", range(10))
        def test_open(began, millrace, n):
            TOOK.append(time.process_time() - began)

        def test_time():
            # The processor's time, to which others on the machine do not add; the first one
            # imports the engine.
            assert sorted(TOOK)[5] < 0.05, TOOK
        """,
        passed=11,
    )


@pytest.mark.process
def test_asynchronous_tests_open_it_on_their_own_loop(inner: pytest.Pytester) -> None:
    inner.makeconftest(
        """
        import asyncio, inspect
        import pytest

        @pytest.hookimpl(tryfirst=True)
        def pytest_pyfunc_call(pyfuncitem):
            # What plugins for asynchronous tests do.
            if inspect.iscoroutinefunction(pyfuncitem.obj):
                names = pyfuncitem._fixtureinfo.argnames
                arguments = {name: pyfuncitem.funcargs[name] for name in names}
                asyncio.run(pyfuncitem.obj(**arguments))
                return True
        """
    )
    passes(
        inner,
        """
        import asyncio

        async def test_asynchronous(millrace_open):
            async with millrace_open() as m:
                orders = await m.queue("orders")
                await orders.publish(b"x")
            # As after a restart.
            async with millrace_open() as m, millrace_open("other") as other:
                assert await m.queues() == ["orders"]
                assert await other.queues() == []

        def test_plain(millrace_open, millrace):
            async def main():
                async with millrace_open() as m:
                    return await m.queues()

            assert asyncio.run(main()) == millrace.queues() == []

        async def test_clock(millrace_open, millrace_clock):
            async with millrace_open() as m:
                prices = await m.queue("prices", keyed=True, keep_deletes=60)
                await prices.publish(b"1", key="a")
                waiting = asyncio.create_task(prices.lease(wait=50))
                (lease,) = await waiting
                again = asyncio.create_task(prices.lease(wait=50))
                none = asyncio.create_task((await m.queue("none")).lease(wait=20))
                await asyncio.sleep(0)
                millrace_clock.advance(31)
                await millrace_clock.caught_up()
                assert [lease.failures for lease in await again] == [1]
                assert await none == []
                await prices.publish(None, key="a")
                assert len(await prices.peek()) == 1
                millrace_clock.advance(61)
                await millrace_clock.caught_up()
                assert await prices.peek() == []
        """,
        passed=3,
    )


@pytest.mark.process
def test_the_clock_moves_when_it_is_told_to(inner: pytest.Pytester) -> None:
    passes(
        inner,
        """
        import threading
        from concurrent.futures import ThreadPoolExecutor
        from datetime import UTC, datetime, timedelta
        import pytest
        from millrace import errors

        def test_leases_run_out(millrace, millrace_clock):
            orders = millrace.queue("orders")
            orders.publish(b"x")
            (lease,) = orders.lease(seconds=3600)
            assert lease.time_ms == millrace_clock.now_ms()
            millrace_clock.advance(3599)
            assert orders.lease() == []
            millrace_clock.advance(1)
            (again,) = orders.lease()
            assert (again.deliveries, again.failures) == (2, 1)
            with pytest.raises(errors.Stale):
                lease.settle()

        def test_deletes_expire(millrace, millrace_clock):
            prices = millrace.queue("prices", keyed=True, keep_deletes=86400)
            prices.publish(b"1", key="a")
            prices.publish(None, key="a")
            millrace_clock.advance(86399)
            assert len(prices.peek()) == 1
            millrace_clock.advance(2)
            assert prices.peek() == []

        def test_pins_expire(millrace, millrace_clock):
            orders = millrace.queue("orders")
            orders.publish(b"x")
            snapshot = next(orders.cursor("report"))
            millrace_clock.advance(3601)
            with pytest.raises(errors.SnapshotExpired):
                list(snapshot.rows())

        def test_waits_end(millrace, millrace_clock):
            orders = millrace.queue("orders")
            with ThreadPoolExecutor(2) as pool:
                empty = pool.submit(orders.lease, wait=40)
                cursor = orders.cursor("report")
                nothing = pool.submit(cursor.next, wait=40)
                while not (empty.done() and nothing.done()):
                    # They may not have begun to wait when it is moved first.
                    millrace_clock.advance(41)
                assert empty.result() == []
                assert nothing.result() is None

        def test_it_may_be_set(millrace, millrace_clock):
            orders = millrace.queue("orders")
            noon = datetime(2031, 5, 1, 12, tzinfo=UTC)
            millrace_clock.set(noon)
            assert millrace_clock.now == noon
            orders.publish(b"x")
            (row,) = orders.peek()
            assert row.time_ms == noon.timestamp() * 1000
            millrace_clock.set(noon - timedelta(days=400))
            (lease,) = orders.lease()
            millrace_clock.set(noon + timedelta(days=400))
            assert len(orders.lease()) == 1
            for wrong in (lambda: millrace_clock.advance(-1),
                          lambda: millrace_clock.set(datetime(2031, 5, 1))):
                with pytest.raises(errors.Invalid):
                    wrong()

        def test_a_worker_keeps_what_it_works_on(millrace, millrace_clock):
            from millrace import sync
            orders = millrace.queue("orders")
            orders.publish(b"x")
            began, goes_on = threading.Event(), threading.Event()
            seen = []

            def handle(message):
                seen.append(message.deliveries)
                began.set()
                goes_on.wait(timeout=60)

            with sync.Worker(orders, handle) as worker:
                assert began.wait(timeout=60)
                for _ in range(20):
                    millrace_clock.advance(9)
                    assert orders.lease() == []
                goes_on.set()
            assert seen == [1]
            assert worker.stats.handled == 1

        def test_without_it_time_is_real(millrace):
            import time
            orders = millrace.queue("orders")
            before = time.time_ns() // 1_000_000
            orders.publish(b"x")
            (row,) = orders.peek()
            assert before <= row.time_ms <= time.time_ns() // 1_000_000
        """,
        passed=7,
    )


@pytest.mark.process
def test_timers_follow_on_a_loop_of_the_clock(inner: pytest.Pytester) -> None:
    passes(
        inner,
        """
        import asyncio

        def test_work_is_extended(millrace_open, millrace_clock):
            async def main():
                async with millrace_open() as m:
                    orders = await m.queue("orders")
                    await orders.publish(b"x")
                    async with (await orders.lease(seconds=30))[0] as lease:
                        for _ in range(5):
                            before = lease.deadline_ms
                            millrace_clock.advance(14)
                            millrace_clock.advance(6)
                            await millrace_clock.caught_up()
                            assert lease.deadline_ms > before
                            assert await orders.lease() == []
                    assert (await orders.stats())["settled"] == 1
                    await asyncio.sleep(0)

            with asyncio.Runner(loop_factory=millrace_clock.new_loop) as runner:
                runner.run(main())
                # Nobody listens any more.
                millrace_clock.advance(1)

        def test_sleeps_end(millrace_clock):
            async def main():
                asyncio.get_running_loop().call_soon(millrace_clock.advance, 86400)
                await asyncio.sleep(86400)

            with asyncio.Runner(loop_factory=millrace_clock.new_loop) as runner:
                runner.run(main())
        """,
        passed=2,
    )


@pytest.mark.process
def test_settings_may_be_chosen(inner: pytest.Pytester) -> None:
    passes(
        inner,
        """
        import pytest
        from millrace import Settings

        @pytest.fixture
        def millrace_settings():
            return Settings(segment_bytes=16 * 1024 * 1024, log_segments_free=1)

        def test_large(millrace):
            assert millrace.queue("orders").publish(bytes(8 * 1024 * 1024)) == 1
        """,
        passed=1,
    )


@pytest.mark.process
def test_a_failing_test_leaves_nothing_behind(inner: pytest.Pytester) -> None:
    inner.makepyfile(
        """
        def test_fails(millrace):
            millrace.queue("orders").lease()
            assert millrace is None

        def test_nothing_is_left(tmp_path_factory):
            assert not list(tmp_path_factory.getbasetemp().glob("millrace[0-9]*"))
        """
    )
    inner.runpytest_subprocess("-q", timeout=scaled(100)).assert_outcomes(passed=1, failed=1)


@pytest.mark.process
def test_the_page_of_the_guide_says_what_is_so(inner: pytest.Pytester) -> None:
    page = (ROOT / "docs" / "guide" / "testing.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    assert len(blocks) == 5
    inner.makepyfile(**{f"test_block_{at}": block for at, block in enumerate(blocks)})
    tests = page.count("\ndef test_")
    inner.runpytest_subprocess("-q", timeout=scaled(100)).assert_outcomes(passed=tests)


@pytest.mark.process
def test_the_module_is_light() -> None:
    program = "import sys, millrace.pytest_plugin; print('pyarrow' in sys.modules)"
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=scaled(60),
    )
    assert done.stdout == "False\n"
