"""Row lineage: traces each row to the message it was made of, through steps that do not name it.

The key, body, headers, shard and seq of the message are appended to the plan of a step as hidden
columns: Spark's analysis gives the expression ids of the source's columns, and every projection
between the source and the step's view is extended by the columns that it omits. The step's view
itself stays unchanged; only the rows that become dead letters are read through the extended plan.

Rule 1: a row has a message if each operator between it and the source makes at most one row of each
row, or joins it to rows of other views. Aggregates, windows, unions and functions over whole
partitions lose it.

Rule 2: a step that keeps the columns themselves, under their names and with their types, has
lineage with any plan. Through Spark Connect, where the server holds the plans, this is the only
way.

Rule 3: a step that loses the message is refused when the views are made, before any row is read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, cast

from py4j.java_gateway import JavaObject  # type: ignore[import-untyped]
from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.sql import DataFrame

from millrace.errors import Invalid
from millrace.spark.columns import TYPES
from millrace.spark.session import is_connect

BODY = "millrace_body"
"""The hidden column with the raw body, of a source with parsed bodies."""

COLUMNS = ("key", "value", "headers", "shard", "seq")
"""The columns that identify and restore a message."""

HIDDEN = tuple(f"millrace_of_{name}" for name in COLUMNS)
"""The names of these columns in a traced frame."""

_THROUGH = (
    "Filter",
    "SubqueryAlias",
    "View",
    "Repartition",
    "RepartitionByExpression",
    "RebalancePartitions",
    "ResolvedHint",
    "UnresolvedHint",
    "EventTimeWatermark",
    "CollectMetrics",
    "PipeOperator",
)
"""Plan nodes with one child whose output is exactly the child's."""

_LEFT = ("INNER", "CROSS", "LEFT OUTER", "LEFT SEMI", "LEFT ANTI")
_RIGHT = ("INNER", "CROSS", "RIGHT OUTER")
"""Join types in which each result row contains a row of that side."""


class _Plan(Protocol):
    """A logical plan of Spark, in the JVM."""

    def nodeName(self) -> str: ...  # noqa: N802
    def equals(self, other: object) -> bool: ...
    def child(self) -> _Plan: ...
    def left(self) -> _Plan: ...
    def right(self) -> _Plan: ...
    def joinType(self) -> JavaObject: ...  # noqa: N802
    def projectList(self) -> JavaObject: ...  # noqa: N802
    def output(self) -> JavaObject: ...
    def withNewChildren(self, children: JavaObject) -> _Plan: ...  # noqa: N802


class _Lost(Exception):
    """Raised at a plan node that loses the message of a row."""


class Lineage:
    """The source's rows in one execution of the steps, and the lineage of views back to them."""

    def __init__(self, loaded: DataFrame, *, is_far: bool) -> None:
        """`is_far`: the plans of the pipeline are made in a Spark Connect server."""
        self._loaded = loaded
        self._is_far = is_far or is_connect(loaded.sparkSession)
        self.view = loaded.drop(BODY) if BODY in loaded.columns else loaded
        """The source as steps see it."""
        self._body = BODY if BODY in loaded.columns else "value"

    def traced(self, frame: DataFrame, who: str) -> DataFrame:
        """Return the frame with the hidden columns (`HIDDEN`) behind its own.

        Raises:
            Invalid: the lineage of its rows is lost; `who` names the rows in the message.
        """
        lost = "Spark Connect"
        if not self._is_far:
            try:
                return self._through_the_plan(frame)
            except _Lost as error:
                lost = str(error)
        if not self._keeps_all(frame):
            raise Invalid(
                f"{who} has dead letters, and it is not known which messages its rows were made "
                f"of (lost in {lost}). Put the condition on an earlier step that only selects, "
                f"filters or joins, or keep the columns {', '.join(COLUMNS)} as they are",
                field="on_fail",
            )
        return frame.select("*", *(frame[n].alias(h) for n, h in zip(COLUMNS, HIDDEN, strict=True)))

    def _keeps_all(self, frame: DataFrame) -> bool:
        """Return True if the frame itself has the columns of a message."""
        kinds = {field.name: field.dataType.simpleString() for field in frame.schema.fields}
        return all(kinds.get(name) == TYPES[name].partition(" not null")[0] for name in COLUMNS)

    def _through_the_plan(self, frame: DataFrame) -> DataFrame:
        """Append the columns to the frame's plan.

        Raises:
            _Lost: a node makes rows whose message cannot be determined.
        """
        walk = _Walk(self._loaded, self._body)
        try:
            top = walk.inlined(_analyzed(frame))
            made = walk.frame(top, walk.carried(top))
        except Py4JError as error:
            raise _Lost(f"a plan that Spark does not take: {str(error).splitlines()[0]}") from error
        return made.toDF(*frame.columns, *HIDDEN)


class _Walk:
    """Rewrites one logical plan."""

    def __init__(self, loaded: DataFrame, body: str) -> None:
        self._spark = loaded.sparkSession
        jvm = self._spark.sparkContext._jvm
        assert jvm is not None
        self._jvm = jvm
        self._source = _analyzed(loaded)
        attributes = dict(zip(loaded.columns, _listed(self._source.output()), strict=True))
        names = [body if name == "value" else name for name in COLUMNS]
        self._wanted = self._sequence([attributes[name] for name in names])

    def inlined(self, plan: _Plan) -> _Plan:
        """Return the plan with common table expressions inlined where they are read."""
        kind = self._jvm.org.apache.spark.sql.catalyst.optimizer.InlineCTE
        for more in (2, 1, 0):
            # The number of flags differs by Spark version; the first one means: always inline.
            try:
                rule = kind(True, *[False] * more)
            except Py4JError:
                continue
            return cast("_Plan", rule.apply(plan))
        return plan

    def carried(self, plan: _Plan) -> _Plan:
        """Return the plan with the columns of the message in its output.

        Raises:
            _Lost: it does not lead to the source.
        """
        if plan.equals(self._source):
            return plan
        name = plan.nodeName()
        if name == "Project":
            child = self.carried(plan.child())
            # Columns that the projection already has appear twice, which Spark permits.
            return self._project(plan.projectList(), child)
        if name in _THROUGH:
            return self._with(plan, [self.carried(plan.child())])
        if name == "Join":
            return self._joined(plan)
        raise _Lost(name)

    def _joined(self, plan: _Plan) -> _Plan:
        how = plan.joinType().sql()
        left, right = plan.left(), plan.right()
        lost = _Lost(f"a {how.lower()} join")
        if how in _LEFT:
            try:
                return self._with(plan, [self.carried(left), right])
            except _Lost as error:
                lost = error
        if how in _RIGHT:
            return self._with(plan, [left, self.carried(right)])
        raise lost

    def _project(self, columns: JavaObject, child: _Plan) -> _Plan:
        return cast("_Plan", self._logical.Project(columns.appendedAll(self._wanted), child))

    def _with(self, plan: _Plan, children: Sequence[_Plan]) -> _Plan:
        return plan.withNewChildren(self._sequence(children).toIndexedSeq())

    def frame(self, top: _Plan, carried: _Plan) -> DataFrame:
        """Return the columns of the view, followed by those of the message."""
        plan = self._project(top.output(), carried)
        dataset = getattr(self._jvm.org.apache.spark.sql.classic, "Dataset$")
        made = getattr(dataset, "MODULE$").ofRows(self._spark._jsparkSession, plan)
        return DataFrame(made, self._spark)

    @property
    def _logical(self) -> JavaObject:
        return self._jvm.org.apache.spark.sql.catalyst.plans.logical

    def _sequence(self, values: Sequence[object]) -> JavaObject:
        return self._jvm.org.apache.spark.api.python.PythonUtils.toSeq(list(values))


def _analyzed(frame: DataFrame) -> _Plan:
    return cast("_Plan", frame._jdf.queryExecution().analyzed())


def _listed(values: JavaObject) -> list[JavaObject]:
    """Convert a Scala sequence to a list."""
    found: list[JavaObject] = []
    each = values.iterator()
    while each.hasNext():
        found.append(each.next())
    return found
