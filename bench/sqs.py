"""Group `sqs`: SQS beside ElasticMQ, moto's server and our own API, by the same client.

Ours answers after the sync and checks every signature; the others do neither. ElasticMQ takes every
core for one queue; for ours there are front ends for that, one for each core but the engine's,
where the rate is measured. Where one of them cannot be had, that is said, and the rest is measured.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import time
from collections.abc import Iterator

from bench.report import Result, at_least, at_most, median
from bench.scratch import scratch
from bench.served import CONNECTIONS, TURNS, served
from bench.server import anonymous_kb
from bench.sqs_client import SIZE, Target, Told
from millrace.errors import NotFound
from tests.server.aws.site import Key, make_key
from tests.services.elasticmq import ElasticMq
from tests.services.missing import Missing
from tests.services.moto import Moto

ANYONE = Key("test", "test")
"""The others ask for no key; the client signs all the same."""

WIDE = ("--frontends", str(max((os.cpu_count() or 1) - 1, 1)))
"""A server that uses every core."""

Told3 = dict[str, list[Told]]


async def single() -> list[Result]:
    """One message at a time, against ElasticMQ, in memory and with H2, and moto."""
    return await asyncio.to_thread(_single)


def _single() -> list[Result]:
    with (
        _ours(*WIDE) as own,
        _elasticmq() as memory,
        _elasticmq(keeps=True) as kept,
        _moto() as moto,
    ):
        told = _in_turns("single", own, memory, kept, moto)
    what = f"send, receive and delete of {SIZE} bytes, {CONNECTIONS} connections"
    bounds = (("elasticmq", memory, 0.7), ("elasticmq_h2", kept, 1.0), ("moto", moto, 15.0))
    return [
        _compared(f"single_vs_{name}", what, told, own, other, bound)
        for name, other, bound in bounds
        if other is not None
    ]


async def batch() -> list[Result]:
    """The same in batches of 10, against ElasticMQ in memory and our own API."""
    return await asyncio.to_thread(_batch)


def _batch() -> list[Result]:
    with _ours(*WIDE) as own, _elasticmq() as memory:
        rest = Target("our own API", own.port, own.pid, own.key, own.token, own.queue)
        told = _in_turns("batch", own, memory, rest=rest)
    what = f"send, receive and delete of {SIZE} bytes in tens, {CONNECTIONS} connections"
    found = [_compared("batch_vs_rest", what, told, own, rest, 0.5)]
    if memory is not None:
        found.insert(0, _compared("batch_vs_elasticmq", what, told, own, memory, 1.0))
    return found


async def idle_polls(queues: int = 1_000, each: int = 10, seconds: float = 60.0) -> list[Result]:
    """What queues take to be made, and long polls of 20 seconds cost that wait for nothing, and are
    asked anew."""
    polls = queues * each
    made_ms, told = await asyncio.to_thread(_idle, queues, polls, seconds)
    spent = told.server_cpu / told.seconds * 60
    reach, judge = at_most(5)
    return [
        Result(
            "idle_polls_core_s",
            f"{queues:,} queues x {each} long polls of 20 s, asked anew",
            spent,
            "core-s/min",
            "",
            spent,
            reach,
            judge(spent),
            f"{told.empty / told.seconds:.0f} requests/s, {told.costs()}; each queue was made in "
            f"{made_ms:.1f} ms by boto3, one after the other",
        )
    ]


def _idle(queues: int, polls: int, seconds: float) -> tuple[float, Told]:
    with _ours("--set", f"connections_max={2 * polls}") as own:
        began = time.perf_counter()
        addresses = own.make_queues(queues)
        made_ms = (time.perf_counter() - began) / queues * 1000
        job = own.job("idle", addresses, connections=polls, seconds=seconds, warm=25)
        return made_ms, own.run(job)


async def backlog_rss(messages: int = 1_000_000) -> list[Result]:
    """The memory of a server in which messages wait."""
    return await asyncio.to_thread(_backlog, messages)


def _backlog(messages: int) -> list[Result]:
    with _ours() as own:
        size = _filled(own, messages)
    other = "ElasticMQ was not measured"
    with _elasticmq() as memory:
        if memory is not None:
            other = f"ElasticMQ: {_filled(memory, messages):,.0f} MB"
    reach, judge = at_most(300)
    return [
        Result(
            "backlog_rss_mb",
            f"RssAnon with {messages:,} x {SIZE} bytes waiting",
            size,
            "MB",
            other,
            size,
            reach,
            judge(size),
        )
    ]


def _filled(target: Target, messages: int) -> float:
    target.queue = target.make_queue()
    told = target.run(target.job("fill", [target.queue], messages=messages))
    assert told.messages == messages, told
    return anonymous_kb(target.pid) / 1024


# --- Servers -------------------------------------------------------------------------------------


@contextlib.contextmanager
def _ours(*options: str) -> Iterator[Target]:
    with scratch() as folder, served(folder / "data", *options) as server:
        key = make_key(folder / "data", "ada", "allow * */*")
        yield Target("ours", server.port, server.process.pid, key, server.token)


@contextlib.contextmanager
def _elasticmq(*, keeps: bool = False) -> Iterator[Target | None]:
    name = "ElasticMQ with H2" if keeps else "ElasticMQ in memory"
    try:
        service = ElasticMq(keeps=keeps)
    except (Missing, NotFound) as error:
        _miss(name, error)
        yield None
        return
    with service:
        yield Target(name, service.port, service.pid, ANYONE)


@contextlib.contextmanager
def _moto() -> Iterator[Target | None]:
    try:
        service = Moto()
    except Missing as error:
        _miss("moto", error)
        yield None
        return
    with service:
        yield Target("moto", service.port, service.pid, ANYONE)


def _miss(name: str, error: Exception) -> None:
    print(f"{name} is not measured: {error}", file=sys.stderr, flush=True)


# --- Comparing -----------------------------------------------------------------------------------


def _in_turns(kind: str, *targets: Target | None, rest: Target | None = None) -> Told3:
    """What each comes to, one after the other, several times; all are warm before."""
    there = [(kind, one) for one in targets if one is not None]
    if rest is not None:
        there.append(("rest", rest))
    for its, one in there:
        one.warm_up(its)
    found: Told3 = {one.name: [] for _, one in there}
    for _ in range(TURNS):
        for its, one in there:
            found[one.name].append(one.load(its))
    return found


def _compared(id: str, what: str, told: Told3, own: Target, other: Target, bound: float) -> Result:
    ours, theirs = told[own.name], told[other.name]
    ratio = median([a.rate / b.rate for a, b in zip(ours, theirs, strict=True)])
    reach, judge = at_least(bound)
    return Result(
        id,
        what,
        median([one.rate for one in ours]),
        "messages/s",
        f"{other.name}: {median([one.rate for one in theirs]):,.0f}/s",
        ratio,
        reach,
        judge(ratio),
        f"ours: {ours[-1].costs()}; {other.name}: {theirs[-1].costs()}",
    )
