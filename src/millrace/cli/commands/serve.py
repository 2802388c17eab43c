"""`millrace serve`: serves the queues of a folder over HTTP."""

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

from millrace.cli.exit_errors import ExitError
from millrace.cli.shell import Shell, folder_required
from millrace.cli.shutdown import ShutdownSignal
from millrace.cli.target import DATA_VARIABLE, is_address
from millrace.cli.verb import verb
from millrace.errors import MillraceError
from millrace.event_loop import rest_collector

if TYPE_CHECKING:
    from millrace.server.process.server import Server
    from millrace.server.process.server_settings import LoadedSettings


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
    help="Settings file in TOML. [MILLRACE_CONFIG]",
)
@click.option(
    "--data",
    "folder",
    metavar="PATH",
    help="Folder with the queues, created if missing. [MILLRACE_DATA, or ./millrace-data]",
)
@click.option(
    "--listen",
    metavar="HOST:PORT",
    multiple=True,
    help="Address to listen on; repeatable. [127.0.0.1:7070; port 0: any]",
)
@click.option("--tls-certificate", metavar="FILE", help="Certificate chain for HTTPS, as PEM.")
@click.option("--tls-key", metavar="FILE", help="Private key of the certificate, as PEM.")
@click.option("--frontends", metavar="N", help="Number of front-end processes for HTTP. [0]")
@click.option(
    "--set",
    "others",
    metavar="NAME=VALUE",
    multiple=True,
    help="Any setting listed in docs/guide/server.md; repeatable.",
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

    Clients authenticate with a token. The first start creates the user `admin`, whose token is in
    the file `admin.token` of the folder. Settings come from options, the environment and a file, in
    this order; SIGHUP reloads them. Acknowledged messages and current leases survive a restart.
    """
    context = click.get_current_context()
    flags: dict[str, str | None] = {
        "data": folder or context.find_root().obj["data"],
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
        raise folder_required(given, "only a folder can be served")
    try:
        from millrace.server.process import log_format
        from millrace.server.process.frontend import FrontendOrders
        from millrace.server.process.server import Server
    except ModuleNotFoundError as error:
        hint = "`pip install 'millrace[server]'` installs it"
        raise ExitError(f"{error.name} is missing", hint, code="missing") from error

    orders = FrontendOrders(None if config is None else str(config), told)
    loaded = orders.load()
    log_format.set_up(loaded.settings.log_level, loaded.settings.log_format)
    server = Server(loaded, orders)
    async with ShutdownSignal() as stop:
        await stop.unless(server.start(patience=shell.patience))
        if not server.addresses:
            # Shutdown was requested while it waited for the folder.
            return
        rest_collector()
        try:
            # Before the server announces itself: SIGHUP would kill it otherwise.
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
            shell.out.note("stopping: requests in progress are finished first")
            await server.stop()


def _split(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise click.UsageError(f"--set {text!r} is not NAME=VALUE")
    return name.strip().replace("-", "_"), value


async def _reload(shell: Shell, server: Server, read: Callable[[], LoadedSettings]) -> None:
    """Reload the settings; if they are invalid, keep the current ones."""
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
    """Return commands that publish a first message, if they would be authorized."""
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
