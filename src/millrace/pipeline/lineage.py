"""Which message a row was made of, carried through steps that do not name it.

The key, body, headers, shard and seq of the message are appended to the plan of a step as hidden
columns: Spark's own analysis says by which expression ids the source's columns are known, and every
projection between the source and the step's view is given those that it leaves out. The step's
view itself stays as it is; only the rows that become dead letters are read through the longer plan.

Rule 1: a row has a message if everything between it and the source makes at most one row of each
row, or joins it to rows of other views. Aggregates, windows, unions and functions over whole
partitions lose it.
Rule 2: a step that keeps the columns themselves, under their names and with their types, has them
whatever its plan is. Through Spark Connect, where plans are the server's, there is no other way.
Rule 3: what loses the message is refused when the views are made, before any row is read.
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
"""The hidden column of a source with parsed bodies that has the body as it came."""

COLUMNS = ("key", "value", "headers", "shard", "seq")
"""What is known of a message."""

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
"""Nodes with one child whose output is all that the child has."""

_LEFT = ("INNER", "CROSS", "LEFT OUTER", "LEFT SEMI", "LEFT ANTI")
_RIGHT = ("INNER", "CROSS", "RIGHT OUTER")
"""Joins in which every row has a row of that side."""


class _Plan(Protocol):
    """A logical plan of Spark's, in its Java."""

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
    """A node of a plan after which nobody knows which message a row was made of."""


class Origin:
    """The source's rows of one run of the steps, and how rows of views lead back to them."""

    def __init__(self, loaded: DataFrame, *, is_far: bool) -> None:
        """`is_far` says that the plans of the pipeline are made in a server of Spark Connect."""
        self._loaded = loaded
        self._is_far = is_far or is_connect(loaded.sparkSession)
        self.view = loaded.drop(BODY) if BODY in loaded.columns else loaded
        """The source as steps see it."""
        self._body = BODY if BODY in loaded.columns else "value"

    def traced(self, frame: DataFrame, who: str) -> DataFrame:
        """Return the frame with the hidden columns (`HIDDEN`) behind its own.

        Raises:
            Invalid: it is not known which message a row was made of; `who` says whose rows.
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
        """Whether the frame has the columns of a message itself."""
        kinds = {field.name: field.dataType.simpleString() for field in frame.schema.fields}
        return all(kinds.get(name) == TYPES[name].partition(" not null")[0] for name in COLUMNS)

    def _through_the_plan(self, frame: DataFrame) -> DataFrame:
        """Append the columns to the frame's plan.

        Raises:
            _Lost: a node makes rows of which it is not known what they were made of.
        """
        walk = _Walk(self._loaded, self._body)
        try:
            top = walk.inlined(_analyzed(frame))
            made = walk.frame(top, walk.carried(top))
        except Py4JError as error:
            raise _Lost(f"a plan that Spark does not take: {str(error).splitlines()[0]}") from error
        return made.toDF(*frame.columns, *HIDDEN)


class _Walk:
    """Rewrites one plan."""

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
        """The plan with common table expressions in the places where they are read."""
        kind = self._jvm.org.apache.spark.sql.catalyst.optimizer.InlineCTE
        for more in (2, 1, 0):
            # Versions of Spark differ by how many flags it has; the first says: always.
            try:
                rule = kind(True, *[False] * more)
            except Py4JError:
                continue
            return cast("_Plan", rule.apply(plan))
        return plan

    def carried(self, plan: _Plan) -> _Plan:
        """The plan with the columns of the message in its output.

        Raises:
            _Lost: it does not lead to the source.
        """
        if plan.equals(self._source):
            return plan
        name = plan.nodeName()
        if name == "Project":
            child = self.carried(plan.child())
            # What it has already is there twice then, which means nothing to Spark.
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
        """The columns of the view, and behind them those of the message."""
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
    """A sequence of Scala's."""
    found: list[JavaObject] = []
    each = values.iterator()
    while each.hasNext():
        found.append(each.next())
    return found
