"""`millrace serve`: the queues of a folder over HTTP."""

from __future__ import annotations

import asyncio
import logging
import os
import shlex
import signal
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from millrace.cli.ending import Ended
from millrace.cli.shell import Shell, not_files
from millrace.cli.stopping import Stop
from millrace.cli.target import DATA_VARIABLE, is_address
from millrace.cli.verb import verb
from millrace.errors import MillraceError
from millrace.loop import rest_collector

if TYPE_CHECKING:
    from millrace.server.config import Loaded
    from millrace.server.server import Server


@verb(
    "serve",
    examples="""
        millrace serve
        millrace serve --listen 127.0.0.1:8080 --data ./queues
        millrace serve --set stop_seconds=30 --set anonymous=true
    """,
    has_data=False,
    is_fast=True,
)
@click.option(
    "--config",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Settings in TOML. [MILLRACE_CONFIG]",
)
@click.option(
    "--data",
    "folder",
    metavar="PATH",
    help="The folder with the queues; made if it is missing. [MILLRACE_DATA, or ./millrace-data]",
)
@click.option(
    "--listen", metavar="HOST:PORT", multiple=True, help="Where. [127.0.0.1:7070; port 0: any]"
)
@click.option("--tls-certificate", metavar="FILE", help="Speak HTTPS with this chain, as PEM.")
@click.option("--tls-key", metavar="FILE", help="The key of the certificate, as PEM.")
@click.option("--frontends", metavar="N", help="Processes that speak HTTP for the engine. [0]")
@click.option(
    "--set",
    "others",
    metavar="NAME=VALUE",
    multiple=True,
    help="Any setting of the table in the guide; may be repeated.",
)
async def serve(
    shell: Shell,
    *,
    config: Path | None,
    folder: str | None,
    listen: tuple[str, ...],
    tls_certificate: str | None,
    tls_key: str | None,
    frontends: str | None,
    others: tuple[str, ...],
) -> None:
    """Serve the queues of a folder over HTTP, until Ctrl-C.

    Whoever asks must be known by a token. The first start makes the user `admin`, whose token lies
    in the file `admin.token` of the folder. Settings come from flags, the environment and a file,
    in this order; SIGHUP reads them again. What was acknowledged before the end is there after the
    next start, and what was leased can still be settled then.
    """
    context = click.get_current_context()
    flags: dict[str, str | None] = {
        "data": folder or context.find_root().obj.data,
        "listen": ";".join(listen) or None,
        "tls_certificate": tls_certificate,
        "tls_key": tls_key,
        "frontends": frontends,
        **dict(map(_split, others)),
    }
    if context.get_parameter_source("segment_bytes") is ParameterSource.COMMANDLINE:
        flags["engine_segment_bytes"] = str(context.params["segment_bytes"])
    told = {name: value for name, value in flags.items() if value is not None}
    given = told.get("data") or os.environ.get(DATA_VARIABLE, "")
    if is_address(given):
        raise not_files(given, "what is served is a folder")
    try:
        from millrace.server import logs
        from millrace.server.frontend import Orders
        from millrace.server.server import Server
    except ModuleNotFoundError as error:
        hint = "`pip install 'millrace[server]'` brings it"
        raise Ended(f"{error.name} is missing", hint, code="missing") from error

    orders = Orders(None if config is None else str(config), told)
    loaded = orders.load()
    logs.set_up(loaded.settings.log_level, loaded.settings.log_format)
    server = Server(loaded, orders)
    async with Stop() as stop:
        await stop.unless(server.start(patience=shell.patience))
        if not server.addresses:
            # The end was asked for while it waited for the folder.
            return
        rest_collector()
        try:
            # Before it is told that the server is there: the signal would end it otherwise.
            hangup = asyncio.Event()
            asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, hangup.set)
            for warning in loaded.warnings:
                shell.out.note(f"warning: {warning}")
            _greet(shell, server)
            while not stop.is_set:
                await stop.unless(hangup.wait())
                if hangup.is_set():
                    hangup.clear()
                    await _reload(shell, server, orders.load)
        finally:
            shell.out.note("stopping: what is being answered is finished first")
            await server.stop()


def _split(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise click.UsageError(f"--set {text!r} is no NAME=VALUE")
    return name.strip().replace("-", "_"), value


async def _reload(shell: Shell, server: Server, read: Callable[[], Loaded]) -> None:
    """Take up what was changed; what is wrong leaves everything as it is."""
    try:
        found = await server.reload(read().settings)
    except MillraceError as error:
        text = f"not reloaded: {error.message}"
        logging.getLogger("millrace.server").error("%s", text)
        shell.out.line("not_reloaded", {"message": error.message, "field": error.field}, text)
        return
    shell.out.line(
        "reloaded",
        {"now": list(found.now), "restart": list(found.restart)},
        f"reloaded: {', '.join(found.now) or 'nothing has changed'}"
        + (f"; only a restart changes {', '.join(found.restart)}" if found.restart else ""),
    )


def _greet(shell: Shell, server: Server) -> None:
    settings = server.settings
    token, address = settings.admin_token_path, server.addresses[0]
    security = "TLS, tokens" if settings.is_tls else "no TLS, tokens"
    if settings.anonymous:
        security += "; programs of this machine need none"
    fields = {
        "address": address,
        "addresses": server.addresses,
        "data": str(settings.data),
        "token_file": str(token) if server.knows_admin_token else None,
        "first": server.is_first,
    }
    lines = [
        f"serving {settings.data} at {', '.join(server.addresses)} ({security})",
        *([f"the token of admin is in {token}"] if server.is_first else []),
        *_first_message(server),
        "Ctrl-C stops",
    ]
    shell.out.line("serving", fields, "\n".join(lines))


def _first_message(server: Server) -> list[str]:
    """Commands that publish one, as far as they would be answered."""
    settings = server.settings
    if not server.knows_admin_token or settings.tls_client_ca is not None:
        return []
    token = shlex.quote(str(settings.admin_token_path))
    queue = f"{server.addresses[0]}/v1/spaces/default/queues/orders"
    curl = f'curl -H "Authorization: Bearer $(cat {token})"'
    if settings.tls_certificate is not None:
        curl += f" --cacert {shlex.quote(str(settings.tls_certificate))}"
    json = "-H 'Content-Type: application/json'"
    return [
        "a first message:",
        f"  {curl} -X PUT {queue}",
        f'  {curl} -d \'{{"body": "hello"}}\' {json} {queue}/messages',
    ]
