"""`millrace queue`: list, create, show, configure, purge and delete queues."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click
import msgspec

from millrace.cli.command_group import CommandGroup
from millrace.cli.formatting import Fields, Value, size_text
from millrace.cli.parameter_types import DURATION, SIZE
from millrace.cli.printing import TableColumn
from millrace.cli.shell import (
    DEFAULT_SPACE,
    Shell,
    display_name,
    find_queue,
    split_name,
)
from millrace.cli.verb import confirm, epilog, verb

F = TypeVar("F", bound=Callable[..., object])

_RETENTION = click.Choice(["work", "log"])


def _setting_options(body: F) -> F:
    """Add the options for settings that can be changed later."""
    options = [
        click.option(
            "--retention",
            type=_RETENTION,
            help="Settled messages are deleted (work) or kept (log). [work]",
        ),
        click.option(
            "--keep-deletes",
            type=DURATION,
            metavar="TIME",
            help="Keep the delete of a key readable for this time. [1d]",
        ),
        click.option(
            "--retry-min",
            type=DURATION,
            metavar="TIME",
            help="Retry backoff: after n failures, delay the message by n times this. [0]",
        ),
        click.option("--retry-max", type=DURATION, metavar="TIME", help="Maximum retry backoff."),
        click.option(
            "--max-failures",
            type=int,
            metavar="N",
            help="Dead-letter a message after N failures; 0: never. [0]",
        ),
        click.option(
            "--max-deliveries",
            type=int,
            metavar="N",
            help="Dead-letter a message after N deliveries; 0: never. [0]",
        ),
        click.option(
            "--dead-letter",
            metavar="QUEUE",
            help="Queue for dead letters; '': drop them.",
        ),
        click.option(
            "--delay",
            type=DURATION,
            metavar="TIME",
            help="Default delivery delay of messages. [0]",
        ),
        click.option(
            "--group-in-flight",
            type=int,
            metavar="N",
            help="Maximum messages of a group in flight; 0: no limit. [0]",
        ),
        click.option(
            "--group-blocking",
            type=click.Choice(["lease", "message"]),
            help="In order group, a message in flight blocks its whole group until the lease call "
            "ends (lease), or only later messages (message). [lease]",
        ),
        click.option(
            "--rate",
            type=float,
            metavar="N",
            help="Deliver up to N messages per second; 0: no limit. [0]",
        ),
        click.option("--rate-burst", type=int, metavar="N", help="Burst size of --rate."),
        click.option(
            "--partitions-min", type=int, metavar="N", help="Minimum number of partitions. [1]"
        ),
        click.option(
            "--partitions-max", type=int, metavar="N", help="Maximum number of partitions. [10]"
        ),
        click.option(
            "--partition-age",
            type=DURATION,
            metavar="TIME",
            help="Remove partitions unused for this time. [5d]",
        ),
        click.option(
            "--group-rate", type=float, metavar="N", help="Rate limit per group, like --rate. [0]"
        ),
        click.option("--group-burst", type=int, metavar="N", help="Burst size of --group-rate."),
        click.option(
            "--dedup",
            type=DURATION,
            metavar="TIME",
            help="Remember de-duplication ids for this time; 0: refuse them. [5m]",
        ),
        click.option(
            "--dedup-by-body/--no-dedup-by-body",
            default=None,
            help="Use the hash of the body as id of messages without one.",
        ),
        click.option(
            "--ttl",
            type=DURATION,
            metavar="TIME",
            help="Expire messages not settled within this time; 0: never. [0]",
        ),
        click.option(
            "--dead-letter-expired/--no-dead-letter-expired",
            default=None,
            help="Dead-letter expired messages.",
        ),
        click.option(
            "--max-messages",
            type=int,
            metavar="N",
            help="Maximum number of messages; 0: no limit. [0]",
        ),
        click.option(
            "--max-in-flight",
            type=int,
            metavar="N",
            help="Maximum messages in flight; 0: no limit. [0]",
        ),
        click.option(
            "--max-bytes",
            type=SIZE,
            metavar="SIZE",
            help="Maximum size of all messages, by their mean size; 0: no limit. [0]",
        ),
        click.option(
            "--message-bytes-max",
            type=SIZE,
            metavar="SIZE",
            help="Maximum size of a message forwarded by SNS subscriptions; 0: no limit. [0]",
        ),
        click.option(
            "--overflow",
            type=click.Choice(["refuse", "drop"]),
            help="At the maximum, refuse new messages, or drop the oldest waiting ones. [refuse]",
        ),
        click.option(
            "--keep",
            type=DURATION,
            metavar="TIME",
            help="With retention log: expire messages older than this; 0: never. [0]",
        ),
        click.option(
            "--keep-bytes",
            type=SIZE,
            metavar="SIZE",
            help="With retention log: expire the oldest beyond this size; 0: never. [0]",
        ),
        click.option(
            "--keep-messages",
            type=int,
            metavar="N",
            help="With retention log: expire the oldest beyond N messages; 0: never. [0]",
        ),
        click.option(
            "--retain-max",
            type=DURATION,
            metavar="TIME",
            help="Drop a retaining cursor that lags and does not move for this time. [7d]",
        ),
        click.option(
            "--retain-max-bytes",
            type=SIZE,
            metavar="SIZE",
            help="Drop a retaining cursor that retains more than this. [256GB]",
        ),
        click.option(
            "--pin-max-bytes",
            type=SIZE,
            metavar="SIZE",
            help="Drop a snapshot that keeps more ended messages than this. [256GB]",
        ),
        click.option(
            "--compressed",
            type=click.Choice(["zstd", "lz4", "none"]),
            help="Compression, from now on, of messages that stay and of large publishes. [none]",
        ),
    ]
    for option in reversed(options):
        body = option(body)
    return body


def _spec_texts(spec: dict[str, Any]) -> dict[str, str]:
    """Return settings as texts, without those that have no effect."""
    texts = {"keyed": "yes" if spec["keyed"] else "no"}
    is_sliced = spec["delivery"] == "partitions"
    for name, value in spec.items():
        if name.startswith(("partition", "delivery")) and not is_sliced:
            continue
        if name == "group_blocking" and spec["order"] != "group":
            continue
        if name == "notes":
            texts |= {f"note {called}": text for called, text in value}
        elif name != "keyed" and value and value not in ("none", "refuse"):
            is_time, is_size = name.endswith("_ms"), name.endswith("_bytes")
            shown = f"{value / 1000:g} s" if is_time else str(value)
            shown = size_text(value) if is_size else shown
            if name.endswith("_us"):
                shown = f"{1_000_000 / value:g} a second"
            texts[name.removesuffix("_ms").removesuffix("_us").replace("_", " ")] = shown
    return texts


def _shard_texts(shards: list[dict[str, int]], route: str) -> dict[str, str]:
    """Return the counters of each shard as texts."""
    texts = {"shards": f"{len(shards)}, by {route}"}
    for at, counts in enumerate(shards):
        texts[f"shard {at}"] = f"{counts['live']:,} live of {counts['published']:,}"
    return texts


@click.group(
    cls=CommandGroup,
    epilog=epilog("""
        millrace queue list
        millrace queue make invoices --keyed
        millrace queue show orders
    """),
)
def queue() -> None:
    """List, create, show, configure, purge or delete queues.

    Queues are named NAME, or SPACE/NAME outside the default space.
    """


@verb(
    "list",
    examples="""
        millrace queue list
        millrace queue list --json
    """,
)
@click.option(
    "--space", default=DEFAULT_SPACE, metavar="NAME", help="List the queues of this space."
)
async def list_queues(shell: Shell, space: str) -> None:
    """List the queues with their counters."""
    rows: list[tuple[Fields, list[str]]] = []
    async with shell.open() as m:
        for name in await m.queues(space=space):
            found = await m.find(name, space=space)
            spec, stats = await found.spec(), await found.stats()
            fields: dict[str, Value] = {
                "queue": display_name(found),
                "keyed": spec.keyed,
                "retention": spec.retention,
                **stats,
            }
            texts = [
                display_name(found),
                "yes" if spec.keyed else "no",
                spec.retention,
                f"{stats['live']:,}",
                f"{stats['settled']:,}",
                f"{stats['published']:,}",
            ]
            rows.append((fields, texts))
    columns = [
        TableColumn("QUEUE", is_long=True),
        TableColumn("KEYED"),
        TableColumn("RETENTION"),
        TableColumn("LIVE", is_number=True),
        TableColumn("SETTLED", is_number=True),
        TableColumn("PUBLISHED", is_number=True),
    ]
    shell.out.table(
        "queue", columns, rows, empty="no queues; `millrace queue make NAME` creates one"
    )


@verb(
    "make",
    examples="""
        millrace queue make invoices
        millrace queue make prices --keyed --retention log --keep-deletes 7d
        millrace queue make shop/baskets
        millrace queue make accounts --order group
        millrace queue make bills --max-failures 5 --dead-letter mail
        millrace queue make events --shards 8 --route spread
        millrace queue make shipped --beside orders
        millrace queue make jobs --delivery partitions --partitions-max 20
    """,
)
@click.argument("name")
@click.option("--keyed", is_flag=True, help="A message replaces the older one with the same key.")
@click.option("--shards", type=int, metavar="N", help="Number of shards; cannot be changed. [1]")
@click.option(
    "--route",
    type=click.Choice(["key", "group", "spread"]),
    help="Assign messages to shards by key, by group, or round-robin (spread). [key]",
)
@click.option(
    "--beside",
    metavar="QUEUE",
    help="Join the commit group of QUEUE in the same space, for transactions; cannot be changed.",
)
@click.option(
    "--order",
    type=click.Choice(["none", "strict", "group", "fair"]),
    help="Delivery order: strict (FIFO), group (FIFO per group), fair (groups in turns). [none]",
)
@click.option(
    "--delivery",
    type=click.Choice(["messages", "partitions"]),
    help="Lease single messages, or messages of a partition, which is locked. [messages]",
)
@_setting_options
async def make(
    shell: Shell,
    name: str,
    *,
    keyed: bool,
    shards: int | None,
    route: str | None,
    beside: str | None,
    **settings: Any,
) -> None:
    """Create the queue NAME, and the folder if it is missing.

    An existing queue with the same settings is not an error.
    """
    space, rest = split_name(name)
    async with shell.open(make=True) as m:
        is_new = rest not in await m.queues(space=space)
        made = await m.queue(
            rest,
            space=space,
            shards=shards,
            route=route,
            beside=beside,
            keyed=keyed or None,
            **settings,
        )
        fields = {"queue": display_name(made), "made": is_new}
    what = "created" if is_new else "exists already:"
    shell.out.line("queue", fields, f"{what} {name} in {shell.target}")


@verb(
    "show",
    examples="""
        millrace queue show orders
        millrace queue show orders --json
    """,
)
@click.argument("name")
async def show(shell: Shell, name: str) -> None:
    """Show the settings of the queue NAME, its counters, cursors and stages.

    Messages are "held back" if a snapshot, a retaining cursor or a pending move of dead letters
    still prevents their removal.
    """
    async with shell.open() as m:
        found = await find_queue(m, name)
        spec, stats = msgspec.structs.asdict(await found.spec()), await found.stats()
        cursors, stages = await found.cursors(), await found.stages()
        holders = await found.holders()
        held = [msgspec.structs.asdict(holder) for holder in holders.held]
        shards = await found.shard_stats()
    fields: dict[str, object] = {
        "queue": display_name(found),
        **spec,
        **stats,
        "cursors": cursors,
        "stages": stages,
        "first": holders.first,
        "held": held,
        "shards": shards,
        "route": found.shards.route,
        "placed_by": found.shards.placed_by,
    }
    ended = {way: f"{count:,}" for way, count in stats.items() if count}
    texts = {
        "queue": display_name(found),
        **_spec_texts(spec),
        "published": "0",
        "live": "0",
        **{way.replace("_", " "): count for way, count in ended.items()},
        **(_shard_texts(shards, found.shards.route) if len(shards) > 1 else {}),
        **({"commit group of": found.shards.placed_by} if found.shards.placed_by else {}),
        "cursors": ", ".join(f"{each} at {seq}" for each, seq in cursors.items()) or "none",
        "stages": ", ".join(f"{each} ({rows} rows)" for each, rows in stages.items()) or "none",
        "held back": "; ".join(map(_holder_text, held)) or "nothing",
    }
    shell.out.listing("queue", fields, texts)


def _holder_text(holder: dict[str, Any]) -> str:
    name = holder["name"]
    if holder["dropped"]:
        return f"nothing any more by cursor {name}, which held too much and was dropped"
    whose = f"{holder['kind']} {holder['pin'] or name}".rstrip()
    whose += f" of cursor {name}" if holder["pin"] and name else ""
    return (
        f"{holder['rows']:,} messages ({size_text(holder['bytes'])}) by {whose}, "
        f"which stands at {holder['seq']} since {holder['age_ms'] / 1000:g} s"
    )


@verb(
    "configure",
    examples="""
        millrace queue configure orders --keep-deletes 2h
        millrace queue configure mail --retry-min 10s --retry-max 10m
        millrace queue configure mail --max-failures 5 --dead-letter orders
    """,
)
@click.argument("name")
@_setting_options
async def configure(shell: Shell, name: str, **settings: Any) -> None:
    """Change settings of the queue NAME; settings not given stay unchanged.

    Keyed, order, delivery, shards and route are fixed when the queue is created.
    """
    if all(value is None for value in settings.values()):
        raise click.UsageError(
            "nothing to change; `millrace queue configure --help` lists settings"
        )
    async with shell.open() as m:
        found = await find_queue(m, name)
        spec = msgspec.structs.asdict(await found.configure(**settings))
    fields = {"queue": display_name(found), **spec}
    shell.out.listing("queue", fields, {"queue": display_name(found), **_spec_texts(spec)})


@verb("purge", examples="millrace queue purge mail --yes")
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
async def purge(shell: Shell, name: str, *, yes: bool) -> None:
    """Delete all messages now in the queue NAME, including leased ones."""
    async with shell.open() as m:
        found = await find_queue(m, name)
        live = (await found.stats())["live"]
        confirm(f"Delete the {live:,} messages of {name}?", yes=yes)
        last = await found.purge()
    fields = {"queue": display_name(found), "ended": live, "up_to_seq": last}
    shell.out.line("purged", fields, f"deleted the {live:,} messages of {name}")


@verb("delete", examples="millrace queue delete mail --yes")
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
async def delete(shell: Shell, name: str, *, yes: bool) -> None:
    """Delete the queue NAME with its messages and cursors."""
    async with shell.open() as m:
        found = await find_queue(m, name)
        live = (await found.stats())["live"]
        confirm(f"Delete {name} with its {live:,} messages?", yes=yes)
        await m.delete_queue(found.name, space=found.space)
    fields = {"queue": display_name(found), "ended": live}
    shell.out.line("deleted", fields, f"deleted {name} and its {live:,} messages")


for _verb in (list_queues, make, show, configure, purge, delete):
    queue.add_command(_verb)
