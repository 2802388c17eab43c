"""`millrace serve`: the queues of a folder over HTTP."""

from __future__ import annotations

import time

import click

import millrace
from millrace.cli.ending import Ended
from millrace.cli.shell import Shell
from millrace.cli.stopping import Stop
from millrace.cli.verb import verb

HOST = "127.0.0.1"
PORT = 7070


@verb(
    "serve",
    examples="""
        millrace serve
        millrace serve --port 8080 --data ./queues
    """,
    is_fast=True,
)
@click.option("--host", default=HOST, show_default=True, help="The address to listen at.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=PORT,
    show_default=True,
    help="The port; 0: one that is free.",
)
async def serve(shell: Shell, *, host: str, port: int) -> None:
    """Serve the queues of the folder over HTTP, until Ctrl-C.

    The folder is made if it is missing. Whoever asks must be known by a token; the first start
    makes the user `admin`, and prints a token of theirs once. What was acknowledged before the end
    is there after the next start, and what was leased can still be settled then.
    """
    try:
        from millrace.server.book import Book
        from millrace.server.guard import Guard, is_loopback
        from millrace.server.server import Server
    except ModuleNotFoundError as error:
        hint = "`pip install 'millrace[server]'` brings it"
        raise Ended(f"{error.name} is missing", hint, code="missing") from error
    if not is_loopback(host) and host != "localhost":
        raise Ended(
            f"{host} can be reached from other machines, and nothing would be encrypted",
            f"listen at {HOST}, and put a proxy with TLS in front of it",
            code="insecure",
        )
    async with Stop() as stop, shell.open(make=True, settings=millrace.Settings()) as m:
        book = await Book.open(m)
        server = Server(m, book, Guard(lambda: book.roll, _now_ms))
        try:
            token = await server.first_token()
            address = await server.listen(host, port)
            _greet(shell, str(address), token)
            await stop.asked.wait()
        finally:
            shell.out.note("stopping: what is being answered is finished first")
            await server.stop()


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _greet(shell: Shell, address: str, token: str | None) -> None:
    fields: dict[str, object] = {"address": address, "data": str(shell.path)}
    if token is not None:
        fields["token"] = token
    known = "$TOKEN" if token is None else token
    lines = [
        f"serving {shell.path} at {address}, this machine only; a token is needed",
        *([f"token of admin, shown this once: {token}"] if token is not None else []),
        "a first message:",
        f"  curl -X PUT -H 'Authorization: Bearer {known}' "
        f"{address}/v1/spaces/default/queues/orders",
        f"  curl -H 'Authorization: Bearer {known}' -H 'Content-Type: application/json' "
        f'-d \'{{"body": "hello"}}\' {address}/v1/spaces/default/queues/orders/messages',
        "Ctrl-C stops",
    ]
    shell.out.line("serving", fields, "\n".join(lines))
