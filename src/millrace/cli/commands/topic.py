"""`millrace topic`: list, make, show, change or end topics and their subscriptions, and publish."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

import click

from millrace import limits
from millrace.cli.asking import confirm
from millrace.cli.ending import Ended
from millrace.cli.kinds import DURATION, HEADER, exact
from millrace.cli.printing import Column
from millrace.cli.shell import DEFAULT_SPACE, Shell, find_queue, split_name, suggest
from millrace.cli.verb import epilog, verb
from millrace.cli.verbs import Verbs
from millrace.errors import NotFound

if TYPE_CHECKING:
    from millrace import Millrace, Subscription, Topic


@click.group(
    cls=Verbs,
    epilog=epilog("""
        millrace topic make news
        millrace topic subscribe news mail
        millrace topic publish news 'we have moved'
        millrace topic show news
    """),
)
def topic() -> None:
    """List, make, show, change or end topics, and publish to them.

    What is published to a topic reaches every queue that is subscribed. A topic is named NAME, or
    SPACE/NAME outside the default space.
    """


def _shown(found: Topic) -> str:
    return found.name if found.space == DEFAULT_SPACE else f"{found.space}/{found.name}"


async def _find(m: Millrace, name: str) -> Topic:
    space, rest = split_name(name)
    try:
        return await m.find_topic(rest, space=space)
    except NotFound:
        known = await m.topics(space=space)
    make = f"`millrace topic make {name}` makes it"
    if rest in await m.queues(space=space):
        known, make = [], f"{name} is a queue: publish to it with `millrace publish`"
    raise Ended(f"there is no topic {name!r}", suggest(rest, known, make), code="not_found")


@verb("list", examples="millrace topic list")
@click.option("--space", default=DEFAULT_SPACE, metavar="NAME", help="The topics of this space.")
async def list_topics(shell: Shell, space: str) -> None:
    """List the topics, with what waits in them."""
    rows: list[tuple[Mapping[str, object], list[str]]] = []
    async with shell.open() as m:
        for name in await m.topics(space=space):
            found = await m.find_topic(name, space=space)
            state = await found.describe()
            counts = [state.published, state.lag, len(state.subscriptions)]
            names = ("published", "lag", "subscriptions")
            fields = {"topic": _shown(found), **dict(zip(names, counts, strict=True))}
            rows.append((fields, [_shown(found), *(f"{count:,}" for count in counts)]))
    columns = [
        Column("TOPIC", is_long=True),
        Column("PUBLISHED", is_number=True),
        Column("LAG", is_number=True),
        Column("SUBSCRIPTIONS", is_number=True),
    ]
    shell.out.table("topic", columns, rows, empty="no topics; `millrace topic make NAME` makes one")


@verb(
    "make",
    examples="""
        millrace topic make prices
        millrace topic make shop/baskets --max-lag 10000
    """,
)
@click.argument("name")
@click.option(
    "--max-lag",
    type=int,
    metavar="N",
    help="So many messages wait for the slowest subscription; then more are refused. [1000000]",
)
async def make(shell: Shell, name: str, *, max_lag: int | None) -> None:
    """Make the topic NAME, and the folder if it is missing.

    It is no error if the topic is there with these settings.
    """
    space, rest = split_name(name)
    async with shell.open(make=True) as m:
        is_new = rest not in await m.topics(space=space)
        made = await m.topic(rest, space=space, max_lag=max_lag)
        fields = {"topic": _shown(made), "made": is_new}
    what = "made" if is_new else "there already:"
    shell.out.line("topic", fields, f"{what} {name} in {shell.target}")


@verb("configure", examples="millrace topic configure news --max-lag 5000")
@click.argument("name")
@click.option("--max-lag", type=int, metavar="N", required=True, help="See `topic make`.")
async def configure(shell: Shell, name: str, *, max_lag: int) -> None:
    """Change the settings of the topic NAME."""
    async with shell.open() as m:
        found = await _find(m, name)
        await found.configure(max_lag=max_lag)
    fields = {"topic": _shown(found), "max_lag": max_lag}
    shell.out.line("topic", fields, f"{name} lets up to {max_lag:,} messages wait")


@verb(
    "show",
    examples="""
        millrace topic show news
        millrace topic show news --json
    """,
)
@click.argument("name")
async def show(shell: Shell, name: str) -> None:
    """Show the subscriptions of the topic NAME, and how far each has come."""
    async with shell.open() as m:
        found = await _find(m, name)
        state = await found.describe()
    rows = [_subscription(found, one) for one in state.subscriptions]
    columns = [
        Column("SUBSCRIPTION", is_long=True),
        Column("QUEUE", is_long=True),
        Column("FORWARDED", is_number=True),
        Column("FILTERED", is_number=True),
        Column("LAG", is_number=True),
        Column("SECONDS", is_number=True),
        Column("FILTER", is_long=True),
        Column("TROUBLE", is_long=True),
    ]
    shell.out.note(
        f"{_shown(found)}: {state.published:,} published, {state.lag:,} of at most "
        f"{state.max_lag:,} wait"
    )
    how = f"no subscriptions; `millrace topic subscribe {name} QUEUE` makes one"
    shell.out.table("subscription", columns, rows, empty=how)


def _subscription(found: Topic, one: Subscription) -> tuple[Mapping[str, object], list[str]]:
    fields = {
        "topic": _shown(found),
        "subscription": one.name,
        "queue": one.queue,
        "filter": one.filter,
        "forwarded": one.forwarded,
        "filtered": one.filtered,
        "lag": one.lag,
        "lag_seconds": one.lag_seconds,
        "trouble": one.trouble,
        "notes": one.notes,
        "dead_lettered": one.dead_lettered,
        "dropped": one.dropped,
    }
    texts = [
        one.name,
        one.queue.removeprefix(f"{DEFAULT_SPACE}/"),
        f"{one.forwarded:,}",
        f"{one.filtered:,}",
        f"{one.lag:,}",
        f"{one.lag_seconds:,.1f}" if one.lag else "",
        json.dumps(one.filter) if one.filter else "",
        one.trouble,
    ]
    return fields, texts


@verb(
    "subscribe",
    examples="""
        millrace topic subscribe news orders
        millrace topic subscribe news mail --name hot --filter '{"kind": {"prefix": "x"}}'
    """,
)
@click.argument("name")
@click.argument("queue")
@click.option("--name", "called", metavar="NAME", help="What to call it. [as its queue]")
@click.option("--filter", "wanted", metavar="JSON", help="Which headers a message must have.")
async def subscribe(
    shell: Shell, name: str, queue: str, *, called: str | None, wanted: str | None
) -> None:
    """Have what is published to the topic NAME from now on forwarded to QUEUE."""
    filter_ = None
    if wanted is not None:
        try:
            filter_ = json.loads(wanted)
        except ValueError as error:
            raise click.UsageError(f"--filter is no JSON: {error}") from error
    async with shell.open() as m:
        found, target = await _find(m, name), await find_queue(m, queue)
        is_new = await found.subscribe(target, name=called, filter=filter_)
    fields = {"topic": _shown(found), "queue": queue, "made": is_new}
    what = "subscribed" if is_new else "there already:"
    shell.out.line("subscription", fields, f"{what} {queue} to {name}")


@verb("unsubscribe", examples="millrace topic unsubscribe news mail")
@click.argument("name")
@click.argument("subscription")
async def unsubscribe(shell: Shell, name: str, subscription: str) -> None:
    """End SUBSCRIPTION of the topic NAME; what was not forwarded yet is not forwarded any more."""
    async with shell.open() as m:
        found = await _find(m, name)
        if not await found.unsubscribe(subscription):
            known = [one.name for one in await found.subscriptions()]
            hint = suggest(subscription, known, f"`millrace topic show {name}` lists them")
            raise Ended(f"there is no subscription {subscription!r}", hint, code="not_found")
    fields = {"topic": _shown(found), "subscription": subscription}
    shell.out.line("unsubscribed", fields, f"ended {subscription} of {name}")


@verb(
    "publish",
    examples="""
        millrace topic publish news 'we have moved'
        millrace topic publish news 'all hammers' --header kind=sale --priority 7
        echo 'from a pipe' | millrace topic publish news
    """,
)
@click.argument("name")
@click.argument("body", required=False)
@click.option("--key", help="The key of the message.")
@click.option(
    "--header", "headers", type=HEADER, multiple=True, help="A header; may be given repeatedly."
)
@click.option("--priority", type=int, metavar="N", help="From 0 to 9, in every queue. [4]")
@click.option("--delay", type=DURATION, metavar="TIME", help="So long nobody gets it.")
@click.option(
    "--ttl", type=DURATION, metavar="TIME", help="It expires unless it is settled within this."
)
@click.option("--group", help="Whom it waits for, where a queue's order asks. [its key]")
@click.option("--dedup", metavar="ID", help="Its id: another one with it is a repeat of it.")
@click.option(
    "--wait",
    type=DURATION,
    default=10,
    metavar="TIME",
    help="Wait so long until every queue has it. [10s]",
)
async def publish(
    shell: Shell,
    name: str,
    *,
    body: str | None,
    key: str | None,
    headers: tuple[tuple[str, bytes], ...],
    priority: int | None,
    delay: float | None,
    ttl: float | None,
    group: str | None,
    dedup: str | None,
    wait: float,
) -> None:
    """Publish BODY, or what is piped in, to every queue that is subscribed to the topic NAME.

    Prints where it is in each queue. What is not there when the time to wait is over is forwarded
    when the folder is opened again.
    """
    if body is None and sys.stdin.isatty():
        raise click.UsageError("there is no body; give BODY, or pipe it in")
    content = exact(body) if body is not None else sys.stdin.buffer.read(limits.BODY_BYTES_MAX + 1)
    if not content and body is None:
        raise click.UsageError("nothing was piped in; give '' as BODY to publish no bytes")
    async with shell.open() as m:
        found = await _find(m, name)
        sent = asyncio.ensure_future(
            found.publish(
                content,
                key=None if key is None else exact(key),
                headers=headers,
                priority=priority,
                delay=delay,
                ttl=ttl,
                group=None if group is None else exact(group),
                dedup=dedup,
                until_arrived=True,
            )
        )
        await asyncio.wait([sent], timeout=wait)
        queues: dict[str, int | str] = {}
        if sent.done():
            queues = dict(sent.result().queues)
        else:
            sent.cancel()
            shell.out.note(
                f"it is not in every queue after {wait:g} s; `millrace topic show {name}`"
            )
    places = ", ".join(f"{queue} {place}" for queue, place in queues.items())
    shell.out.line("published", {"topic": _shown(found), "queues": queues}, places or "published")


@verb("delete", examples="millrace topic delete news --yes")
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do not ask.")
async def delete(shell: Shell, name: str, *, yes: bool) -> None:
    """End the topic NAME and its subscriptions, with what was not forwarded yet."""
    async with shell.open() as m:
        found = await _find(m, name)
        lag = (await found.describe()).lag
        confirm(f"Delete {name} with {lag:,} messages that wait?", yes=yes)
        await found.delete()
    fields = {"topic": _shown(found), "ended": lag}
    shell.out.line("deleted", fields, f"deleted {name} and the {lag:,} messages that waited")


for _verb in (list_topics, make, show, configure, subscribe, unsubscribe, publish, delete):
    topic.add_command(_verb)
