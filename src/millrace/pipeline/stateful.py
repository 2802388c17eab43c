"""Whether steps keep a state: whether a view depends on more than the rows of one span.

Spark says how it understands the steps; of that text the names of the nodes are read, which are the
same in its server and out of it.

Rule: what is known to need more rows than those of a span is not run span by span.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple, cast

from pyspark.sql import DataFrame

from millrace.pipeline.declaration import SOURCE
from millrace.spark.session import is_connect

if TYPE_CHECKING:
    from pyspark.sql.connect.dataframe import DataFrame as Far

_STATEFUL = (
    "Aggregate",
    "Window",
    "Deduplicate",
    "Distinct",
    "Sort",
    "GlobalLimit",
    "LocalLimit",
    "Offset",
    "Tail",
    "Sample",
    "FlatMapGroups",
    "FlatMapCoGroups",
    "CoGroup",
    "MapGroups",
    "ArrowWindow",
    "ArrowAggregate",
    "TransformWithState",
    "Except",
    "Intersect",
    "EventTimeWatermark",
    "Pivot",
)
"""Nodes whose result for all rows is not that of each part, put together."""

_NARROW = ("Project", "Filter", "SubqueryAlias", "View", "LocalRelation", "LogicalRDD")
"""Nodes that make at most one row of one."""

_NODE = re.compile(r"^([ :+|-]*)'?([A-Za-z]+)(.*)$")


class Node(NamedTuple):
    """A line of a plan."""

    depth: int
    name: str
    rest: str


def state_in(text: str) -> str:
    """The first node of an analyzed plan that keeps a state; empty: there is none."""
    nodes = _nodes(text)
    for at, node in enumerate(nodes):
        if node.name.startswith(_STATEFUL):
            return node.name
        if node.name.endswith("Join") and _sides(nodes, at) > 1:
            return f"{node.name} of {SOURCE} with itself"
    return ""


def _sides(nodes: list[Node], at: int) -> int:
    """On how many sides of a join the source is read."""
    found, side, has = 0, None, False
    for node in nodes[at + 1 :]:
        if node.depth <= nodes[at].depth:
            break
        if side is None or node.depth <= side:
            found += has
            side, has = node.depth, False
        has = has or (node.name == "SubqueryAlias" and node.rest.split()[:1] == [SOURCE])
    return found + has


def may_widen(text: str) -> bool:
    """Whether a view of this plan may have more rows than what it is made of."""
    return any(node.name not in _NARROW for node in _nodes(text))


def _nodes(text: str) -> list[Node]:
    return [
        Node(len(match[1]), match[2], match[3])
        for match in map(_NODE.match, text.splitlines())
        if match is not None
    ]


def analyzed(frame: DataFrame) -> str:
    """How Spark understands a view.

    `explain` would print it, and what is printed is not this thread's alone: other pipelines of
    the process ask at the same time.
    """
    if not is_connect(frame.sparkSession):
        return str(frame._jdf.queryExecution().analyzed().toString())
    text = cast("Far", frame)._explain_string(extended=True)
    _, _, after = text.partition("== Analyzed Logical Plan ==\n")
    # The columns stand in its first line.
    _, _, plan = after.partition("\n")
    return plan.partition("\n== ")[0]
