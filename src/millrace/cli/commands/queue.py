"""`millrace queue`: list, make, show, configure, purge and delete queues."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click
import msgspec

from millrace.cli.asking import confirm
from millrace.cli.kinds import DURATION, SIZE
from millrace.cli.printing import Column
from millrace.cli.shell import DEFAULT_SPACE, Shell, find_queue, shown_name, split_name
from millrace.cli.show import Fields, Value, size_text
from millrace.cli.verb import epilog, verb
from millrace.cli.verbs import Verbs

F = TypeVar("F", bound=Callable[..., object])

_RETENTION = click.Choice(["work", "log"])


def _setting_options(body: F) -> F:
    """The settings of a queue that may be changed later."""
    options = [
        click.option(
            "--retention",
            type=_RETENTION,
            help="What settling does: work ends the message, log keeps it. [work]",
        ),
        click.option(
            "--keep-deletes",
            type=DURATION,
            metavar="TIME",
            help="How long a deleted key stays readable as a delete. [1d]",
        ),
        click.option(
            "--retry-min",
            type=DURATION,
            metavar="TIME",
            help="A message that failed n times is left alone for n times so long. [0]",
        ),
        click.option(
            "--retry-max", type=DURATION, metavar="TIME", help="But for no longer than this."
        ),
        click.option(
            "--max-failures",
            type=int,
            metavar="N",
            help="A message that failed so often is a dead letter; 0: never. [0]",
        ),
        click.option(
            "--max-deliveries",
            type=int,
            metavar="N",
            help="A message that was handed out so often is a dead letter; 0: never. [0]",
        ),
        click.option(
            "--dead-letter",
            metavar="QUEUE",
            help="Where dead letters go; '': nowhere, they are dropped.",
        ),
        click.option(
            "--delay",
            type=DURATION,
            metavar="TIME",
            help="So long nobody gets a message that names no other delay. [0]",
        ),
        click.option(
            "--group-in-flight",
            type=int,
            metavar="N",
            help="So many messages of a group are out at once, at most; 0: any number. [0]",
        ),
        click.option(
            "--group-blocking",
            type=click.Choice(["lease", "message"]),
            help="What a message in flight keeps back, in order group: all of its group, until the "
            "lease call has ended, or what comes after it. [lease]",
        ),
        click.option(
            "--rate", type=float, metavar="N", help="Hand out N messages a second; 0: no limit. [0]"
        ),
        click.option(
            "--rate-burst", type=int, metavar="N", help="And so many at once after a pause."
        ),
        click.option(
            "--partitions-min", type=int, metavar="N", help="Partitions there are at least. [1]"
        ),
        click.option(
            "--partitions-max", type=int, metavar="N", help="Partitions there are at most. [10]"
        ),
        click.option(
            "--partition-age",
            type=DURATION,
            metavar="TIME",
            help="Partitions that were not needed for so long go. [5d]",
        ),
        click.option("--group-rate", type=float, metavar="N", help="As --rate, of each group. [0]"),
        click.option(
            "--group-burst", type=int, metavar="N", help="As --rate-burst, of each group."
        ),
        click.option(
            "--dedup",
            type=DURATION,
            metavar="TIME",
            help="How long a de-duplication id is remembered; 0: none is taken. [5m]",
        ),
        click.option(
            "--dedup-by-body/--no-dedup-by-body",
            default=None,
            help="A message without an id has that of its body.",
        ),
        click.option(
            "--ttl",
            type=DURATION,
            metavar="TIME",
            help="A message that is not settled within this time expires; 0: never. [0]",
        ),
        click.option(
            "--dead-letter-expired/--no-dead-letter-expired",
            default=None,
            help="What expires is a dead letter.",
        ),
        click.option(
            "--max-messages",
            type=int,
            metavar="N",
            help="So many messages are there at most; 0: any number. [0]",
        ),
        click.option(
            "--max-in-flight",
            type=int,
            metavar="N",
            help="So many messages are with workers at most; 0: as many as can be. [0]",
        ),
        click.option(
            "--max-bytes",
            type=SIZE,
            metavar="SIZE",
            help="So much they have at most, by their mean size; 0: no limit. [0]",
        ),
        click.option(
            "--message-bytes-max",
            type=SIZE,
            metavar="SIZE",
            help="Subscriptions of SNS forward no larger message to the queue; 0: no limit. [0]",
        ),
        click.option(
            "--overflow",
            type=click.Choice(["refuse", "drop"]),
            help="Refuse what is beyond the maximum, or drop the oldest that wait. [refuse]",
        ),
        click.option(
            "--keep",
            type=DURATION,
            metavar="TIME",
            help="Under retention log: older messages expire; 0: never. [0]",
        ),
        click.option(
            "--keep-bytes",
            type=SIZE,
            metavar="SIZE",
            help="Under retention log: the oldest expire beyond so much; 0: never. [0]",
        ),
        click.option(
            "--keep-messages",
            type=int,
            metavar="N",
            help="Under retention log: the oldest expire beyond so many; 0: never. [0]",
        ),
        click.option(
            "--retain-max",
            type=DURATION,
            metavar="TIME",
            help="A retaining cursor that is behind and stands still so long is dropped. [7d]",
        ),
        click.option(
            "--retain-max-bytes",
            type=SIZE,
            metavar="SIZE",
            help="A retaining cursor that holds back more is dropped. [256GB]",
        ),
        click.option(
            "--pin-max-bytes",
            type=SIZE,
            metavar="SIZE",
            help="A snapshot that keeps more of what has ended is dropped. [256GB]",
        ),
        click.option(
            "--compressed",
            type=click.Choice(["zstd", "lz4", "none"]),
            help="How messages that stay are compressed, from now on. [none]",
        ),
    ]
    for option in reversed(options):
        body = option(body)
    return body


def _spec_texts(spec: dict[str, Any]) -> dict[str, str]:
    """Settings for people; those that ask for nothing are left out."""
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
    """What each shard holds, for people."""
    texts = {"shards": f"{len(shards)}, by {route}"}
    for at, counts in enumerate(shards):
        texts[f"shard {at}"] = f"{counts['live']:,} live of {counts['published']:,}"
    return texts


@click.group(
    cls=Verbs,
    epilog=epilog("""
        millrace queue list
        millrace queue make invoices --keyed
        millrace queue show orders
    """),
)
def queue() -> None:
    """List, make, show, change or end queues.

    A queue is named NAME, or SPACE/NAME outside the default space.
    """


@verb(
    "list",
    examples="""
        millrace queue list
        millrace queue list --json
    """,
)
@click.option("--space", default=DEFAULT_SPACE, metavar="NAME", help="The queues of this space.")
async def list_queues(shell: Shell, space: str) -> None:
    """List the queues, with what they hold."""
    rows: list[tuple[Fields, list[str]]] = []
    async with shell.open() as m:
        for name in await m.queues(space=space):
            found = await m.find(name, space=space)
            spec, stats = await found.spec(), await found.stats()
            fields: dict[str, Value] = {
                "queue": shown_name(found),
                "keyed": spec.keyed,
                "retention": spec.retention,
                **stats,
            }
            texts = [
                shown_name(found),
                "yes" if spec.keyed else "no",
                spec.retention,
                f"{stats['live']:,}",
                f"{stats['settled']:,}",
                f"{stats['published']:,}",
            ]
            rows.append((fields, texts))
    columns = [
        Column("QUEUE", is_long=True),
        Column("KEYED"),
        Column("RETENTION"),
        Column("LIVE", is_number=True),
        Column("SETTLED", is_number=True),
        Column("PUBLISHED", is_number=True),
    ]
    shell.out.table("queue", columns, rows, empty="no queues; `millrace queue make NAME` makes one")


@verb(
    "make",
    examples="""
        millrace queue make invoices
        millrace queue make prices --keyed --retention log --keep-deletes 7d
        millrace queue make shop/baskets
        millrace queue make accounts --order group
        millrace queue make bills --max-failures 5 --dead-letter mail
        millrace queue make events --shards 8 --route spread
        millrace queue make jobs --delivery partitions --partitions-max 20
    """,
)
@click.argument("name")
@click.option("--keyed", is_flag=True, help="A message replaces the older one of its key.")
@click.option("--shards", type=int, metavar="N", help="How many parts it has, for good. [1]")
@click.option(
    "--route",
    type=click.Choice(["key", "group", "spread"]),
    help="Which shard a message goes to: by its key, by its group, or in turns. [key]",
)
@click.option(
    "--order",
    type=click.Choice(["none", "strict", "group", "fair"]),
    help="Who waits for whom: nobody, all, or each for its group. [none]",
)
@click.option(
    "--delivery",
    type=click.Choice(["messages", "partitions"]),
    help="What a lease takes: messages, or some of a partition, which it locks. [messages]",
)
@_setting_options
async def make(
    shell: Shell,
    name: str,
    *,
    keyed: bool,
    shards: int | None,
    route: str | None,
    **settings: Any,
) -> None:
    """Make the queue NAME, and the folder if it is missing.

    It is no error if the queue is there with these settings.
    """
    space, rest = split_name(name)
    async with shell.open(make=True) as m:
        is_new = rest not in await m.queues(space=space)
        made = await m.queue(
            rest, space=space, shards=shards, route=route, keyed=keyed or None, **settings
        )
        fields = {"queue": shown_name(made), "made": is_new}
    what = "made" if is_new else "there already:"
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

    Held back is what would have gone but for a snapshot, a retaining cursor, or dead letters that
    are not yet where they go.
    """
    async with shell.open() as m:
        found = await find_queue(m, name)
        spec, stats = msgspec.structs.asdict(await found.spec()), await found.stats()
        cursors, stages = await found.cursors(), await found.stages()
        holders = await found.holders()
        held = [msgspec.structs.asdict(holder) for holder in holders.held]
        shards = await found.shard_stats()
    fields: dict[str, object] = {
        "queue": shown_name(found),
        **spec,
        **stats,
        "cursors": cursors,
        "stages": stages,
        "first": holders.first,
        "held": held,
        "shards": shards,
        "route": found.shards.route,
    }
    ended = {way: f"{count:,}" for way, count in stats.items() if count}
    texts = {
        "queue": shown_name(found),
        **_spec_texts(spec),
        "published": "0",
        "live": "0",
        **{way.replace("_", " "): count for way, count in ended.items()},
        **(_shard_texts(shards, found.shards.route) if len(shards) > 1 else {}),
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
    """Change settings of the queue NAME; those that are not named stay as they are.

    Whether it is keyed, its order, its shards and their route are fixed when it is made.
    """
    if all(value is None for value in settings.values()):
        raise click.UsageError(
            "nothing to change; `millrace queue configure --help` lists settings"
        )
    async with shell.open() as m:
        found = await find_queue(m, name)
        spec = msgspec.structs.asdict(await found.configure(**settings))
    fields = {"queue": shown_name(found), **spec}
    shell.out.listing("queue", fields, {"queue": shown_name(found), **_spec_texts(spec)})


@verb("purge", examples="millrace queue purge mail --yes")
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do not ask.")
async def purge(shell: Shell, name: str, *, yes: bool) -> None:
    """End every message that is in the queue NAME now, leased ones too."""
    async with shell.open() as m:
        found = await find_queue(m, name)
        live = (await found.stats())["live"]
        confirm(f"End the {live:,} messages of {name}?", yes=yes)
        last = await found.purge()
    fields = {"queue": shown_name(found), "ended": live, "up_to_seq": last}
    shell.out.line("purged", fields, f"ended the {live:,} messages of {name}")


@verb("delete", examples="millrace queue delete mail --yes")
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do not ask.")
async def delete(shell: Shell, name: str, *, yes: bool) -> None:
    """Delete the queue NAME with all that it holds, its cursors too."""
    async with shell.open() as m:
        found = await find_queue(m, name)
        live = (await found.stats())["live"]
        confirm(f"Delete {name} with its {live:,} messages?", yes=yes)
        await m.delete_queue(found.name, space=found.space)
    fields = {"queue": shown_name(found), "ended": live}
    shell.out.line("deleted", fields, f"deleted {name} and its {live:,} messages")


for _verb in (list_queues, make, show, configure, purge, delete):
    queue.add_command(_verb)
