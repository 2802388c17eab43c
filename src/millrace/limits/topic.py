"""Topics, subscriptions, and what is forwarded."""

from __future__ import annotations

TOPIC_NAME_CHARS_MAX = 256
"""Characters of a topic's name; SNS has the same limit. With its space, and with what the server
notes of who has made it, it is a key."""

SUBSCRIPTIONS_MAX = 1_000
"""Subscriptions of one topic: each has a cell that is written whenever it forwards."""

FILTER_BYTES_MAX = 8 * 1024
"""The filter of a subscription, as it is stored: it is in that cell."""

FILTER_TESTS_MAX = 256
"""Tests of one filter, those within `anything-but` too: a policy of SNS has 150 combinations of
values, which may be some more tests."""

FILTER_DEPTH_MAX = 32
"""How deep the fields of a body and the choices of one filter are nested: reading them recurs."""

FILTER_PATH_NAMES_MAX = 32
"""Names of a path into a body, separated by dots or mappings: each two of them may be one field's
name, and all of these are looked for. Where there are more, a dot is a part of a name."""

FILTER_PATH_CHARS_MAX = 1024
"""Characters of such a path: its names are joined for each object that is looked into, which takes
some 30 µs where it is as long as this. In a longer one, too, a dot is a part of a name."""

FILTER_STARS_MAX = 10
"""Stars of one wildcard: each is a search through the value."""

FILTER_BODY_BYTES_MAX = 1024 * 1024
"""A body that is published to a topic with filters on bodies: to read so many bytes of JSON takes
some 10 ms, for each filter."""

FILTER_BODY_VALUES_MAX = 100_000
"""Commas and brackets of such a body, which are at least as many as its values: those are looked
through for each field that a filter names. SNS has bodies of 256 KiB, with far fewer."""

FILTER_WORK_MAX = 50_000
"""Tests of short values that a message may take of one filter, some 10 ms: 250 tests for each of
200 values of an array. One that takes more is let through."""

FILTER_STEP_WORK = 20_000
"""After so much of it others have their turn."""

SUBSCRIPTION_NOTES_BYTES_MAX = 16 * 1024
"""The notes of a subscription: they are in that cell, too."""

TOPIC_LAG = 1_000_000
"""Rows of a topic that wait for its slowest subscription, unless it is made otherwise; then it
refuses publishes, for nothing that was accepted may be dropped."""

TOPIC_LAG_MAX = 1_000_000_000
"""What a topic may be told to let wait."""

FORWARD_BYTES_MAX = 1024 * 1024
"""Bytes that are forwarded to one queue at once; a larger block goes alone."""

FORWARD_ROUND_BYTES_MAX = 16 * 1024 * 1024
"""Bytes that a topic forwards at once to all of its queues; the others come next."""

FORWARD_PARCELS_MAX = 32
"""Subscriptions that a topic serves at once: each has a queue, which may have to be loaded; some
30 ms in all."""

FORWARD_MEMORY_BYTES_MAX = 16 * 1024 * 1024
"""New rows of a topic that are at hand for its subscriptions; older ones are read again."""

FORWARD_RESULTS_MAX = 256
"""The newest parcels of a topic of which is known where their rows are in the queues."""

ARRIVAL_SECONDS_MAX = 20
"""How long a publish through Dynamiq's routes waits for its ids in all queues: that takes some
milliseconds, unless a queue is full; and clients wait for half a minute or a minute."""
