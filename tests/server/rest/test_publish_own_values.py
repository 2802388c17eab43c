"""Values that messages of one publish have of their own: bounded where others share the loop."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import millrace
from millrace import Message, limits
from millrace.errors import TooLarge
from tests.server.rest.harness import Answer, Served, served
from tests.support.stall import ATTEMPTS, STEP_CPU_SECONDS_MAX, StallMonitor

LIMIT = limits.PUBLISH_OWN_VALUES_MAX
SPACE = "/v1/spaces/default"
NDJSON = {"content-type": "application/x-ndjson"}

CASES: dict[str, tuple[str, dict[str, object], str]] = {
    "groups": ("group", {"order": "group"}, '{"body":"","group":"%d"}'),
    "fair groups": ("group", {"order": "fair"}, '{"body":"","group":"%d"}'),
    "keys": ("group", {"order": "group"}, '{"body":"","key":"%d"}'),
    "shards": ("group", {"order": "group", "shards": 4, "route": "group"}, '{"group":"%d"}'),
    "ids": ("dedup", {"dedup": 300}, '{"body":"","dedup":"%d"}'),
    "bodies": ("dedup", {"dedup": 300, "dedup_by_body": True}, '{"body":"%d"}'),
    "delays": ("delay", {}, '{"body":"","delay":1%05d}'),
    "ttls": ("ttl", {}, '{"body":"","ttl":1%05d}'),
}
"""The field that is refused, the settings of a queue, and a message."""


def _lines(line: str, count: int) -> bytes:
    made = line if '"body"' in line else line.replace("{", '{"body":"",', 1)
    return "\n".join(made % number for number in range(count)).encode()


async def _longest(server: Served, path: str, body: bytes) -> tuple[Answer, float]:
    async with StallMonitor() as monitor:
        answer = await server.ask("POST", path, body, headers=NDJSON)
    return answer, monitor.longest_cpu_seconds


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_sec_08_values_of_rows_of_their_own_are_bounded(tmp_path: Path, case: str) -> None:
    field, spec, line = CASES[case]

    async def main() -> None:
        # Segments as servers have them: a record of smaller ones does not hold so many.
        async with served(tmp_path, settings=millrace.Settings()) as server:
            too_many = _lines(line, limits.PUBLISH_MESSAGES_MAX)
            allowed = _lines(line, LIMIT)
            steps: list[float] = []
            while len(steps) < ATTEMPTS and (not steps or steps[-1] > STEP_CPU_SECONDS_MAX):
                path = f"{SPACE}/queues/q{len(steps)}"
                assert (await server.ask("PUT", path, spec)).status == 201
                refused, first = await _longest(server, f"{path}/messages", too_many)
                assert refused.status == 413
                assert refused.json["field"] == field
                assert refused.json["limit"] == LIMIT
                assert "smaller batches" in refused.text("detail")
                answer, second = await _longest(server, f"{path}/messages", allowed)
                assert answer.status == 201
                assert answer.json["count"] == LIMIT
                # The store knows the queue now, and is asked for each of them.
                again, third = await _longest(server, f"{path}/messages", allowed)
                assert again.status == 201
                steps.append(max(first, second, third))
            assert min(steps) < STEP_CPU_SECONDS_MAX, steps

    asyncio.run(main())


def test_values_of_all_kinds_and_all_parts_of_a_transaction_count_together(tmp_path: Path) -> None:
    async def main() -> None:
        async with served(tmp_path, settings=millrace.Settings()) as server:
            path = f"{SPACE}/queues/q"
            assert (await server.ask("PUT", path, {"dedup": 300})).status == 201
            half = LIMIT // 2 + 1
            both = _lines('{"body":"","dedup":"%d"}', half).replace(b'""', b'"","ttl":7')
            # One time to live for all is one value.
            sent = await server.ask("POST", f"{path}/messages", both, headers=NDJSON)
            assert sent.status == 201
            mixed = "\n".join(
                f'{{"body":"","delay":{100 + at},"ttl":{100 + at}}}' for at in range(half)
            )
            refused = await server.ask("POST", f"{path}/messages", mixed.encode(), headers=NDJSON)
            assert (refused.status, refused.json["limit"]) == (413, LIMIT)
            queue = await server.millrace.find("q")
            rows = [Message(b"", ttl=100 + at) for at in range(half)]

            async def publish_both() -> None:
                async with server.millrace.transaction() as transaction:
                    transaction.publish_many(queue, rows)
                    transaction.publish_many(queue, rows)

            with pytest.raises(TooLarge) as caught:
                await publish_both()
            assert (caught.value.field, caught.value.limit) == ("ttl", LIMIT)

    asyncio.run(main())


def test_a_program_with_a_folder_of_its_own_is_not_bounded(tmp_path: Path) -> None:
    async def main() -> None:
        async with millrace.open(tmp_path) as m:
            queue = await m.queue("q", dedup=300, order="group")
            rows = [
                Message(b"", group=str(at), dedup=str(at), ttl=100 + at) for at in range(LIMIT + 1)
            ]
            assert len(await queue.publish_many(rows)) == LIMIT + 1

    asyncio.run(main())


def test_repeats_among_many_rows_with_headers_are_left_out_by_arrow(tmp_path: Path) -> None:
    """Rows of which some are repeats were made into objects, with all of their headers."""

    async def main() -> None:
        async with millrace.open(tmp_path) as m:
            queue = await m.queue("q", dedup=300)
            rows = [
                Message(str(at).encode(), dedup=str(at % 3), headers={"n": str(at)}, ttl=60 + at)
                for at in range(5)
            ]
            seqs = list(await queue.publish_many(rows))
            assert seqs == [1, 2, 3, 1, 2]
            leases = await queue.lease(10)
            assert [(one.body, dict(one.headers)) for one in leases] == [
                (str(at).encode(), {"n": str(at).encode()}) for at in range(3)
            ]

    asyncio.run(main())
