"""What the description allows, and what it does not, sent to a server: it answers as described.

`make fuzz` sends more: N times as much, with other examples each time.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import (
    content_type_conformance,
    not_a_server_error,
    response_schema_conformance,
    status_code_conformance,
)

from millrace.server.rest.routes import ROUTES
from millrace.server.web.openapi import describe
from tests.server.rest.harness import served
from tests.support.timeouts import scaled

TIMES = int(os.environ.get("FUZZ", "0"))
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]
NAMES = {
    "space": "default",
    "queue": "orders",
    "topic": "news",
    "cursor": "c",
    "stage": "s",
    "producer": "p",
    "subscription": "orders",
    "seq": "1",
}
"""What is there, so that addresses lead somewhere."""

APART = {"show_metrics", "healthz", "readyz", "start_backup", "calls"}
"""What says nothing of the API itself, is no JSON, or would write anywhere on the disk."""

OPERATIONS = [
    route.name
    for route in ROUTES.all
    if route.name not in APART and not route.path.endswith("/events")
]
Case = schemathesis.Case[schemathesis.APIOperation]  # type: ignore[type-arg]
SCHEMA = schemathesis.openapi.from_dict(describe(ROUTES, "1"))


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """A server in a thread of its own."""
    folder: Path = tmp_path_factory.mktemp("fuzz")
    found: list[int] = []
    ready, end = threading.Event(), asyncio.Event()
    loops: list[asyncio.AbstractEventLoop] = []

    async def main() -> None:
        loops.append(asyncio.get_running_loop())
        async with served(folder) as server:
            found.append(server.port)
            ready.set()
            await end.wait()

    thread = threading.Thread(target=lambda: asyncio.run(main()))
    thread.start()
    try:
        assert ready.wait(scaled(60))
        yield found[0]
    finally:
        loops[0].call_soon_threadsafe(end.set)
        thread.join()


def ask(case: Case, port: int, *, there: bool) -> None:
    """Send it, and see that the answer is as described."""
    if there:
        case.path_parameters = {
            name: NAMES.get(name, value) for name, value in case.path_parameters.items()
        }
    wait = case.body.get("wait") if isinstance(case.body, dict) else None
    if isinstance(case.body, dict) and isinstance(wait, int | float):
        # Nothing comes that would be worth the wait.
        case.body["wait"] = min(wait, 0.01)
    case.call_and_validate(
        base_url=f"http://127.0.0.1:{port}",
        headers={"authorization": "Bearer root"},
        checks=CHECKS,
        timeout=scaled(60),
    )


@pytest.mark.parametrize("mode", list(GenerationMode), ids=lambda mode: mode.value)
@pytest.mark.parametrize("name", OPERATIONS)
def test_the_server_answers_as_described(port: int, name: str, mode: GenerationMode) -> None:
    operation = SCHEMA.find_operation_by_id(name)
    strategy = operation.as_strategy(generation_mode=mode)

    @settings(
        max_examples=3 * (TIMES or 1),
        derandomize=not TIMES,
        database=None,
        deadline=None,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=strategy)
    def send(case: Case) -> None:
        ask(case, port, there=False)
        ask(case, port, there=True)

    send()
