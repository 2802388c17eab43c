"""Detects stateful steps: views that depend on more than the rows of one span.

Spark's analyzed plan is examined as text for the names of its nodes, which are the same in Spark
Connect and in a local session.

Rule: a view that is known to need more rows than one span is not run span by span.
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
"""Plan nodes whose result for all rows differs from the combined results of the parts."""

_NARROW = ("Project", "Filter", "SubqueryAlias", "View", "LocalRelation", "LogicalRDD")
"""Plan nodes that make at most one row of each row."""

_NODE = re.compile(r"^([ :+|-]*)'?([A-Za-z]+)(.*)$")


class PlanNode(NamedTuple):
    """A line of a plan."""

    depth: int
    name: str
    rest: str


def state_in(text: str) -> str:
    """Return the first node of an analyzed plan that needs state, or an empty text."""
    nodes = _nodes(text)
    for at, node in enumerate(nodes):
        if node.name.startswith(_STATEFUL):
            return node.name
        if node.name.endswith("Join") and _sides(nodes, at) > 1:
            return f"{node.name} of {SOURCE} with itself"
    return ""


def _sides(nodes: list[PlanNode], at: int) -> int:
    """Return the number of sides of a join that read the source."""
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
    """Return True if a view of this plan may have more rows than its input."""
    return any(node.name not in _NARROW for node in _nodes(text))


def _nodes(text: str) -> list[PlanNode]:
    return [
        PlanNode(len(match[1]), match[2], match[3])
        for match in map(_NODE.match, text.splitlines())
        if match is not None
    ]


def analyzed(frame: DataFrame) -> str:
    """Return Spark's analyzed plan of a view.

    `explain` would print it to the process's standard output, which other pipelines of the process
    use at the same time.
    """
    if not is_connect(frame.sparkSession):
        return str(frame._jdf.queryExecution().analyzed().toString())
    text = cast("Far", frame)._explain_string(extended=True)
    _, _, after = text.partition("== Analyzed Logical Plan ==\n")
    # The first line of the section lists the columns.
    _, _, plan = after.partition("\n")
    return plan.partition("\n== ")[0]
