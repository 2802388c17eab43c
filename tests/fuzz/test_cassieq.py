"""Spoiled requests in CassieQ's way: no answer is a mistake of the server, and the account is there
after, for nobody has asked for its end."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from random import Random

import pytest

from tests.client.harness import run
from tests.fuzz.mutate import SEED, mutated, rounds
from tests.fuzz.test_server import send
from tests.server.cassieq.harness import Site, at, receipt, signature, site


async def good(server: Site) -> list[bytes]:
    """Requests of every kind."""
    await server.put("x")
    held = receipt(await server.get(600))
    time = server.time()
    key = f"authorization: Key {server.primary}"
    sig = signature(server.primary, "acme", "GET", at("jobs"), time)
    signed = f"authorization: Signed {sig}\r\nx-cassieq-request-time: {time}"
    rights = f"auth=rpg&q=jobs&et={server.time(60)}"
    address = signature(server.primary, "acme", "rpg", f"endTime:{server.time(60)}", "q:jobs")
    token = f"authorization: Bearer {server.token}"
    permission = '{"accountName":"acme","keyName":"primary","levels":["r"],"queueName":"jobs"}'
    update = '{"message":"y","newInvisibilitySeconds":3}'
    queue = '{"queueName":"jobs","maxDeliveryCount":3,"dlqName":"jobs","strictFifo":false}'
    made = [
        ("GET", "jobs", key, ""),
        ("GET", "jobs/statistics", key, ""),
        ("POST", "?errorIfExists=true", key, queue),
        ("POST", "jobs/messages?initialInvisibilitySeconds=5", key, "hello"),
        ("GET", "jobs/messages/next?invisibilityTimeSeconds=0", key, ""),
        ("PUT", f"jobs/messages?popReceipt={held}", key, update),
        ("GET", "jobs", signed, ""),
        ("GET", f"jobs?{rights}&sig={address}", "x-none: 1", ""),
        ("POST", f"jobs/messages?{rights}&sig={address}", "x-none: 1", "hello"),
        ("POST", "/api/v1/accounts", token, '"acme"'),
        ("POST", "/api/v1/accounts/acme/keys", token, '{"keyName":"primary"}'),
        ("GET", "/api/v1/accounts/acme", token, ""),
        ("POST", "/api/v1/permissions", token, permission),
    ]
    return [
        f"{method} {at(path)} HTTP/1.1\r\nhost: h\r\n{head}\r\n"
        f"content-length: {len(body)}\r\n\r\n{body}".encode()
        for method, path, head, body in made
    ]


def test_no_request_makes_a_mistake_of_the_server(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        random = Random(f"{SEED}/cassieq")
        async with site(tmp_path) as server:
            samples = await good(server)
            for data in samples:
                assert (await send(server.served.port, data))[9:10] in (b"2", b"4")
            for _ in range(0, rounds(96), 16):
                sent = [mutated(random.choice(samples), samples, random) for _ in range(16)]
                answers = await asyncio.gather(*(send(server.served.port, one) for one in sent))
                for data, answer in zip(sent, answers, strict=True):
                    is_fine = answer[9:12] != b"500" and answer[:9] in (b"HTTP/1.1 ", b"")
                    assert is_fine, (SEED, data[:3000], answer)
                assert not caplog.records, (SEED, caplog.text, sent)
                server.clock.forward(seconds=1)
            assert (await server.admin("GET", "/api/v1/accounts/acme")).status == 200
            assert (await server.key("GET", "jobs")).status == 200

    caplog.set_level(logging.ERROR)
    run(main())
