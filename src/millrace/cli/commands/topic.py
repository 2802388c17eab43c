"""`millrace topic`: topics and their subscriptions, and publishing to them."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

import click

from millrace import limits
from millrace.cli.command_group import CommandGroup
from millrace.cli.exit_errors import ExitError
from millrace.cli.parameter_types import DURATION, HEADER, argument_bytes
from millrace.cli.printing import TableColumn
from millrace.cli.shell import DEFAULT_SPACE, Shell, find_queue, split_name, suggest
from millrace.cli.verb import confirm, epilog, verb
from millrace.errors import NotFound

if TYPE_CHECKING:
    from millrace import Millrace, Subscription, Topic


@click.group(
    cls=CommandGroup,
    epilog=epilog("""
        millrace topic make news
        millrace topic subscribe news mail
        millrace topic publish news 'we have moved'
        millrace topic show news
    """),
)
def topic() -> None:
    """List, create, show, configure or delete topics, and publish to them.

    Messages published to a topic are forwarded to every subscribed queue. Topics are named NAME, or
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
    make = f"`millrace topic make {name}` creates it"
    if rest in await m.queues(space=space):
        known, make = [], f"{name} is a queue: publish to it with `millrace publish`"
    raise ExitError(f"there is no topic {name!r}", suggest(rest, known, make), code="not_found")


@verb("list", examples="millrace topic list")
@click.option(
    "--space", default=DEFAULT_SPACE, metavar="NAME", help="List the topics of this space."
)
async def list_topics(shell: Shell, space: str) -> None:
    """List the topics with their counters."""
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
        TableColumn("TOPIC", is_long=True),
        TableColumn("PUBLISHED", is_number=True),
        TableColumn("LAG", is_number=True),
        TableColumn("SUBSCRIPTIONS", is_number=True),
    ]
    shell.out.table(
        "topic", columns, rows, empty="no topics; `millrace topic make NAME` creates one"
    )


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
    help="Maximum lag of the slowest subscription; beyond it, publishing is refused. [1000000]",
)
async def make(shell: Shell, name: str, *, max_lag: int | None) -> None:
    """Create the topic NAME, and the folder if it is missing.

    An existing topic with the same settings is not an error.
    """
    space, rest = split_name(name)
    async with shell.open(make=True) as m:
        is_new = rest not in await m.topics(space=space)
        made = await m.topic(rest, space=space, max_lag=max_lag)
        fields = {"topic": _shown(made), "made": is_new}
    what = "created" if is_new else "exists already:"
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
    shell.out.line("topic", fields, f"{name} has a maximum lag of {max_lag:,} messages")


@verb(
    "show",
    examples="""
        millrace topic show news
        millrace topic show news --json
    """,
)
@click.argument("name")
async def show(shell: Shell, name: str) -> None:
    """Show the subscriptions of the topic NAME with their progress and lag."""
    async with shell.open() as m:
        found = await _find(m, name)
        state = await found.describe()
    rows = [_subscription(found, one) for one in state.subscriptions]
    columns = [
        TableColumn("SUBSCRIPTION", is_long=True),
        TableColumn("QUEUE", is_long=True),
        TableColumn("FORWARDED", is_number=True),
        TableColumn("FILTERED", is_number=True),
        TableColumn("LAG", is_number=True),
        TableColumn("SECONDS", is_number=True),
        TableColumn("FILTER", is_long=True),
        TableColumn("TROUBLE", is_long=True),
    ]
    shell.out.note(
        f"{_shown(found)}: {state.published:,} published, {state.lag:,} of at most "
        f"{state.max_lag:,} waiting"
    )
    how = f"no subscriptions; `millrace topic subscribe {name} QUEUE` adds one"
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
@click.option(
    "--name", "called", metavar="NAME", help="Name of the subscription. [name of the queue]"
)
@click.option(
    "--filter", "wanted", metavar="JSON", help="Filter policy: headers that a message must have."
)
async def subscribe(
    shell: Shell, name: str, queue: str, *, called: str | None, wanted: str | None
) -> None:
    """Forward messages published to the topic NAME from now on to QUEUE."""
    filter_ = None
    if wanted is not None:
        try:
            filter_ = json.loads(wanted)
        except ValueError as error:
            raise click.UsageError(f"--filter is not JSON: {error}") from error
    async with shell.open() as m:
        found, target = await _find(m, name), await find_queue(m, queue)
        is_new = await found.subscribe(target, name=called, filter=filter_)
    fields = {"topic": _shown(found), "queue": queue, "made": is_new}
    what = "subscribed" if is_new else "exists already:"
    shell.out.line("subscription", fields, f"{what} {queue} to {name}")


@verb("unsubscribe", examples="millrace topic unsubscribe news mail")
@click.argument("name")
@click.argument("subscription")
async def unsubscribe(shell: Shell, name: str, subscription: str) -> None:
    """End SUBSCRIPTION of the topic NAME; messages not yet forwarded are skipped."""
    async with shell.open() as m:
        found = await _find(m, name)
        if not await found.unsubscribe(subscription):
            known = [one.name for one in await found.subscriptions()]
            hint = suggest(subscription, known, f"`millrace topic show {name}` lists them")
            raise ExitError(f"there is no subscription {subscription!r}", hint, code="not_found")
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
@click.option("--key", help="Key of the message.")
@click.option(
    "--header", "headers", type=HEADER, multiple=True, help="Header as NAME=VALUE; repeatable."
)
@click.option("--priority", type=int, metavar="N", help="Priority from 0 to 9, in every queue. [4]")
@click.option("--delay", type=DURATION, metavar="TIME", help="Deliver it after this time.")
@click.option(
    "--ttl", type=DURATION, metavar="TIME", help="Expire if not settled within this time."
)
@click.option("--group", help="Message group, for queues of order group or fair. [its key]")
@click.option("--dedup", metavar="ID", help="De-duplication id: repeats with it are dropped.")
@click.option(
    "--wait",
    type=DURATION,
    default=10,
    metavar="TIME",
    help="Wait up to this time until every queue has it. [10s]",
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
    """Publish BODY, or standard input, to every queue subscribed to the topic NAME.

    Prints its seq in each queue. If forwarding is not complete after --wait, it continues at the
    next open of the folder.
    """
    if body is None and sys.stdin.isatty():
        raise click.UsageError("no body; give BODY, or pipe it in")
    content = (
        argument_bytes(body)
        if body is not None
        else sys.stdin.buffer.read(limits.BODY_BYTES_MAX + 1)
    )
    if not content and body is None:
        raise click.UsageError("standard input is empty; give '' as BODY to publish an empty body")
    async with shell.open() as m:
        found = await _find(m, name)
        sent = asyncio.ensure_future(
            found.publish(
                content,
                key=None if key is None else argument_bytes(key),
                headers=headers,
                priority=priority,
                delay=delay,
                ttl=ttl,
                group=None if group is None else argument_bytes(group),
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
                f"not yet in every queue after {wait:g} s; see `millrace topic show {name}`"
            )
    places = ", ".join(f"{queue} {place}" for queue, place in queues.items())
    shell.out.line("published", {"topic": _shown(found), "queues": queues}, places or "published")


@verb("delete", examples="millrace topic delete news --yes")
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
async def delete(shell: Shell, name: str, *, yes: bool) -> None:
    """Delete the topic NAME with its subscriptions and messages not yet forwarded."""
    async with shell.open() as m:
        found = await _find(m, name)
        lag = (await found.describe()).lag
        confirm(f"Delete {name} with {lag:,} waiting messages?", yes=yes)
        await found.delete()
    fields = {"topic": _shown(found), "ended": lag}
    shell.out.line("deleted", fields, f"deleted {name} and {lag:,} waiting messages")


for _verb in (list_topics, make, show, configure, subscribe, unsubscribe, publish, delete):
    topic.add_command(_verb)
