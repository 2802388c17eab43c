"""Bounds of what runs on Spark."""

from __future__ import annotations

JAVA_VERSION_MIN = 17
"""What Spark 4 asks for."""

JAVA_TRIED_MAX = 32
"""Installations of Java that are asked for their version; each takes a quarter of a second."""

JAVA_ANSWER_SECONDS_MAX = 30
"""A Java that has not said its version by then is not one, however busy the machine."""

SPARK_COMPILE_SECONDS_MAX = 120
"""What is compiled for Spark takes a second; whoever is not done by then is not waited for."""

SPARK_PIN_SECONDS = 24 * 3600
"""What a stream reads is pinned for so long after it was last asked for: a job that stood still for
a day has its open batch again, unchanged."""

SPARK_BATCH_PIN_SECONDS = 3600
"""What a batch job reads is pinned for so long: nobody says when it has ended."""

SPARK_WAIT_SECONDS = 0.1
"""A stream that has nothing new waits for so long before it says so; else Spark would ask a hundred
times a second."""

SPARK_PARTITION_BYTES = 128 * 1024 * 1024
"""What one task reads, unless it is told otherwise: a second or less."""

SPARK_PARTITIONS_MAX = 10_000
"""Tasks of one read; Spark plans each of them on the driver."""

SPARK_BATCH_ROWS = 16_384
"""Rows that are handed to Spark at once: more gained nothing, and each batch is copied whole."""

SPARK_BATCH_BYTES = 1024 * 1024
"""And bytes: smaller batches are joined up to this."""

SPARK_WEIGHED_ROWS = 1_000
"""Rows of each shard by whose size a limit in bytes is judged: the first ones that wait."""

SPARK_KEYS_MAX = 10_000
"""Keys of one read; for more, join."""

OWNER_STARTS_MAX = 3
"""How often somebody is started to share a folder, before the next one gives up."""

OWNER_IDLE_SECONDS = 10.0
"""Whoever was started to share a folder ends when nobody was connected for so long."""
