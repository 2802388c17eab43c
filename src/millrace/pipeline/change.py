"""Detects changes of a pipeline's declaration between runs, and decides how its sinks continue.

Rule 1: a sink is compared by everything that determines its rows: the source, the steps its view
depends on, its conditions, and its own settings. Other steps and sinks do not matter.

Rule 2: nothing is done without a request. A sink whose plan was changed stops the run until the
caller chooses: resume at its boundary, backfill the same place, or fill another place (a shadow).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

import msgspec

from millrace.errors import Invalid, Refused
from millrace.pipeline.dead import is_dead, keyless_rows, view_of
from millrace.pipeline.declaration import SOURCE, DeclaredSink, Pipeline, Step
from millrace.pipeline.record import Record, SinkRecord

OnChange = Literal["resume", "backfill", "shadow"]

_PLACES = ("table", "index", "queue", "prefix", "path")
"""Settings that name the place that is filled, the most specific first."""


def views_under(pipeline: Pipeline, view: str) -> tuple[str, ...]:
    """Return the view and all views it depends on, in the order of the declaration."""
    steps = {step.name: step for step in pipeline.steps}
    found: set[str] = set()
    wanted = [view_of(pipeline, view)]
    while wanted:
        name = wanted.pop()
        if name not in found:
            found.add(name)
            wanted += _read_by(pipeline, steps[name]) if name in steps else []
    return tuple(name for name in (SOURCE, *pipeline.sources, *steps) if name in found)


def _read_by(pipeline: Pipeline, step: Step) -> list[str]:
    known = [SOURCE, *pipeline.sources, *(one.name for one in pipeline.steps)]
    text = step.sql or _text(pipeline, step)
    # Spark resolves view names without regard to case.
    words = set(re.findall(r"[a-z_][a-z0-9_]*", text.lower()))
    return [name for name in known if name.lower() in words and name != step.name]


def _text(pipeline: Pipeline, step: Step) -> str:
    file, _, _ = step.python.rpartition(":")
    return pipeline.at(file).read_text(encoding="utf-8")


def plan_hash(pipeline: Pipeline, declared: DeclaredSink) -> str:
    """Return a hash of everything that determines the rows of a sink."""
    under = views_under(pipeline, declared.rows)
    sources = {SOURCE: pipeline.source, **pipeline.sources}
    parts: list[object] = [
        [name, one.space, one.queue, one.view, one.schema, one.format]
        for name, one in sources.items()
        if name in (SOURCE, *under)
    ]
    for step in pipeline.steps:
        if step.name in under:
            text = _text(pipeline, step) if step.python else step.sql
            parts.append([step.name, text, step.python, dict(step.expect), step.on_fail])
    # The location of the token file does not change the rows.
    settings = {name: one for name, one in declared.settings.items() if name != "token_file"}
    if is_dead(declared.rows):
        # Dead letters go to the source's server or folder, however its address is spelled today.
        settings = {"queue": settings["queue"]}
        # The key columns of the sink decide which rows have no key.
        settings |= {
            f"key of {sink.name}": sink.settings.get("key", ())
            for sink in pipeline.sinks
            if declared.rows == keyless_rows(sink.name)
        }
    parts.append([declared.rows, declared.kind, settings])
    encoded = msgspec.json.encode(parts, order="deterministic")
    return hashlib.sha256(encoded).hexdigest()[:16]


class Judged(msgspec.Struct, frozen=True):
    """A sink with its record, as this run uses it."""

    declared: DeclaredSink
    """The declaration, with the settings of the place that is filled."""
    record: SinkRecord


def judge_sinks(
    pipeline: Pipeline,
    sinks: Sequence[DeclaredSink],
    record: Record | None,
    on_change: OnChange | None,
    is_keyed: Callable[[DeclaredSink], bool],
) -> list[Judged]:
    """Return each sink with its stored record, restarted where `on_change` says so.

    `is_keyed` returns True for a sink in which rows replace each other by key.

    Raises:
        Refused: the plan of a sink was changed, and `on_change` is None.
    """
    judged: list[Judged] = []
    changed: list[str] = []
    for declared in sinks:
        old = None if record is None else record.sink(declared.name)
        found = same_sink(pipeline, declared, old)
        if found is None and on_change is None:
            changed.append(declared.name)
        elif found is None:
            assert old is not None
            if on_change == "backfill" and not is_keyed(declared):
                raise Refused(
                    f"sink {declared.name!r} only adds rows: filled again it would have them "
                    "twice; take --on-change shadow, or give it a key",
                    field="on_change",
                )
            found = _begun_anew(pipeline, declared, old, on_change)
        if found is not None:
            method = "upsert" if is_keyed(declared) else "append"
            known = msgspec.structs.replace(found.record, method=method)
            judged.append(Judged(found.declared, known))
    if changed:
        raise Refused(
            f"what is declared for {', '.join(changed)} was changed since the pipeline last ran; "
            "say --on-change resume (go on with new rows), backfill (write all rows again, by "
            "key), or shadow (fill another place beside it)",
            field="on_change",
        )
    return judged


def same_sink(pipeline: Pipeline, declared: DeclaredSink, old: SinkRecord | None) -> Judged | None:
    """Return the sink with its stored record, or None if its plan was changed."""
    plain = plan_hash(pipeline, declared)
    if old is None or (old.boundary is None and not old.generation):
        # The sink has no rows yet that another plan could have produced.
        return Judged(declared, _made(declared, plain, old or _new(declared)))
    if plain == old.hash:
        return Judged(declared, _made(declared, plain, old, suffix=""))
    if old.suffix:
        beside = shadowed(declared, old.suffix)
        hash = plan_hash(pipeline, beside)
        if hash == old.hash:
            return Judged(beside, _made(declared, hash, old))
    return None


def _begun_anew(
    pipeline: Pipeline, declared: DeclaredSink, old: SinkRecord, on_change: OnChange | None
) -> Judged:
    plain = plan_hash(pipeline, declared)
    if on_change == "resume":
        return Judged(declared, _made(declared, plain, old, suffix=""))
    anew = msgspec.structs.replace(old, generation=old.generation + 1, start=None, boundary=None)
    if on_change == "backfill":
        return Judged(declared, _made(declared, plain, anew, suffix=""))
    suffix = f"_{anew.generation}"
    beside = shadowed(declared, suffix)
    return Judged(beside, _made(declared, plan_hash(pipeline, beside), anew, suffix=suffix))


def shadowed(declared: DeclaredSink, suffix: str) -> DeclaredSink:
    """Return the sink with another place, named by appending `suffix`.

    Raises:
        Invalid: the sink has no setting that names a place.
    """
    for name in _PLACES:
        place = declared.settings.get(name)
        if isinstance(place, str) and place:
            settings: Mapping[str, object] = {**declared.settings, name: place + suffix}
            return msgspec.structs.replace(declared, settings=settings)
    raise Invalid(
        f"sink {declared.name!r} has no place beside which another could be filled",
        field="on_change",
    )


def _new(declared: DeclaredSink) -> SinkRecord:
    return SinkRecord(name=declared.name, kind=declared.kind)


def _made(
    declared: DeclaredSink, hash: str, old: SinkRecord, suffix: str | None = None
) -> SinkRecord:
    return msgspec.structs.replace(
        old,
        kind=declared.kind,
        rows=declared.rows,
        hash=hash,
        suffix=old.suffix if suffix is None else suffix,
        brought=0,
    )
