"""`millrace job audit`: whether queues hold what their counters say."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from millrace.cli.ending import FATAL
from millrace.cli.printing import Column
from millrace.cli.shell import Shell, find_queue, split_name
from millrace.cli.sparked import CONF, Pairs, need_spark, on_spark
from millrace.cli.verb import verb

if TYPE_CHECKING:
    from millrace.batch_jobs.audit import QueueAudit, ShardAudit
    from millrace.batch_jobs.site import Site

_ENDS = ("settled", "superseded", "expired", "dead_lettered", "dropped", "purged")

_COLUMNS = (
    Column("queue", is_long=True),
    Column("shard", is_number=True),
    Column("published", is_number=True),
    Column("live", is_number=True),
    *(Column(name.replace("_", " "), is_number=True) for name in _ENDS),
    Column("rows", is_number=True),
    Column("gaps", is_number=True),
    Column("repeats", is_number=True),
    Column("verdict"),
)


@verb(
    "audit",
    examples="""
        millrace job audit orders
        millrace job audit --json
    """,
)
@click.argument("queues", nargs=-1, metavar="[QUEUE]...")
@CONF
async def audit(shell: Shell, *, queues: tuple[str, ...], conf: Pairs) -> int:
    """Count the rows of each QUEUE one by one, and compare them with its counters.

    Without a name it is all queues. For each shard published = live + settled + superseded +
    expired + dead lettered + dropped + purged must hold; as many rows must be there as are live,
    none twice; and every seq without a row must be one that a counter has ended. Ends with 0 if
    all is well, with 4 if anything is wrong.
    """
    need_spark()
    from millrace.batch_jobs.audit import audit as run

    async with shell.open() as m:
        for name in queues:
            await find_queue(m, name)
        names = [split_name(name) for name in queues] or [
            (space, name) for space in await m.spaces() for name in await m.queues(space=space)
        ]

    def work(site: Site) -> list[QueueAudit]:
        return [run(site, site.m.find(name, space=space)) for space, name in names]

    found = await on_spark(shell, "audit", conf, work)
    shell.out.table(
        "audited",
        _COLUMNS,
        [(_fields(one, shard), _texts(one, shard)) for one in found for shard in one.shards],
        empty="there are no queues",
    )
    faults = [f"{_shown(one)}, {fault}" for one in found for fault in one.faults]
    for fault in faults:
        shell.out.note(fault)
    return FATAL if faults else 0


def _shown(one: QueueAudit) -> str:
    return one.queue if one.space == "default" else f"{one.space}/{one.queue}"


def _fields(one: QueueAudit, shard: ShardAudit) -> dict[str, object]:
    rows = shard.rows
    return {
        "queue": _shown(one),
        "shard": shard.shard,
        "retention": one.retention,
        **shard.counts,
        "upto": shard.upto,
        "rows": rows.rows,
        "missing": rows.missing,
        "gaps": rows.gaps,
        "first_gaps": [list(pair) for pair in rows.examples],
        "repeats": rows.repeats,
        "faults": list(shard.faults),
    }


def _texts(one: QueueAudit, shard: ShardAudit) -> list[str]:
    numbers = [shard.counts[name] for name in ("published", "live", *_ENDS)]
    numbers += [shard.rows.rows, shard.rows.gaps, shard.rows.repeats]
    verdict = "wrong" if shard.faults else "balances"
    return [_shown(one), str(shard.shard), *(f"{number:,}" for number in numbers), verdict]
