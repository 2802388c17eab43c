"""Pipelines: what they hold at once, and for how long they ask again."""

from __future__ import annotations

PIPELINE_SMALL_ROWS = 10_000
"""Rows of a span that are read, changed and staged in the driver; more go through executors."""

PIPELINE_SMALL_BYTES = 64 * 1024 * 1024
"""Bytes of such a span: its rows are in memory twice, as Arrow and in the JVM."""

PIPELINE_PATIENCE_SECONDS = 60.0
"""For so long a sink that does not answer is asked again, unless the declaration says otherwise."""

PIPELINE_BACKOFF_SECONDS = 0.1
"""The first wait before a sink is asked again; each next one is twice as long."""

PIPELINE_BACKOFF_SECONDS_MAX = 5.0
"""The longest such wait: who comes back is heard soon."""

PIPELINE_SILENT_SECONDS = 2.0
"""Whoever does not answer for so long is named to those who wait; most are back before."""

PIPELINE_WAIT_SECONDS = 0.5
"""How long the queue is asked to wait for rows at once; a stop is noticed in between."""

PIPELINE_PIN_SECONDS = 3600.0
"""For so long the rows of a span stay as they are without being asked for again."""

LOOKUP_PINS = 500
"""Pins of a table that a pipeline with a state leaves at a time: one for each batch. A queue has
room for 900."""

LOOKUP_PIN_SECONDS_MIN = 60.0
"""For so long each of them stands at least: a batch reads its tables first, and ten of them in a
second are more than Spark makes."""

PIPELINE_TELL_SECONDS = 2.0
"""How often a run writes down how far it is, for those who look on."""

PIPELINE_DIFFERENCES_MAX = 100
"""Rows that differ which `verify` names; the others are counted."""

PIPELINE_VERIFY_KIB = 64 * 1024
"""Of the digests that `verify` compares, so much is held in memory; the rest lies on the disk."""

PIPELINE_VERIFY_PIN_SECONDS = 24 * 3600.0
"""For so long the queue stays as it was while `verify` compares: no pin may stand longer."""

PIPELINE_CLEAN_SECONDS = 3600.0
"""How often a run has its sinks drop what was left behind, and join what is small."""

PIPELINE_LOST_MAX = 100
"""So often a run finds its cursor moved by others before it ends: two runs would fight for ever."""

PIPELINE_WATCH_SECONDS = 1
"""How long a query of Spark's is waited for at once; it takes whole seconds."""

PIPELINE_VERIFY_TRIES = 10
"""So often `verify` looks whether nothing came since the sinks were brought to the end."""
