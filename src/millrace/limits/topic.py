"""Topics, subscriptions, filters and forwarding."""

from __future__ import annotations

TOPIC_NAME_CHARS_MAX = 256
"""Characters of a topic's name, as in SNS. With its space, and with the server's note of its owner,
it is a key."""

SUBSCRIPTIONS_MAX = 1_000
"""Subscriptions of one topic: each has a cell that is rewritten with each forwarding."""

FILTER_BYTES_MAX = 8 * 1024
"""Bytes of a stored filter, which is part of that cell."""

FILTER_TESTS_MAX = 256
"""Tests of one filter, including those within `anything-but`: an SNS policy has 150 combinations of
values, which may be a few more tests."""

FILTER_DEPTH_MAX = 32
"""Nesting depth of the fields of a body, and of the alternatives of a filter: they are read
recursively."""

FILTER_PATH_NAMES_MAX = 32
"""Names of a path into a body, separated by dots or mappings: each two of them may be the name of
one field, and all such names are looked up. Beyond it, a dot is part of a name."""

FILTER_PATH_CHARS_MAX = 1024
"""Characters of such a path: its names are joined for each object searched, which takes about 30 µs
at this length. Beyond it, too, a dot is part of a name."""

FILTER_STARS_MAX = 10
"""Wildcard characters of one pattern: each is a search through the value."""

FILTER_BODY_BYTES_MAX = 1024 * 1024
"""Bytes of a body in a topic with filters on bodies: parsing so much JSON takes about 10 ms per
filter."""

FILTER_BODY_VALUES_MAX = 100_000
"""Commas and brackets of such a body, an upper bound of its values, which are searched for each
field of a filter. SNS has bodies of 256 KiB, with far fewer."""

FILTER_WORK_MAX = 50_000
"""Tests of short values per message and filter, about 10 ms: 250 tests for each of 200 values of an
array. A message that needs more passes."""

FILTER_STEP_WORK = 20_000
"""Tests after which other tasks of the event loop run."""

SUBSCRIPTION_NOTES_BYTES_MAX = 16 * 1024
"""Bytes of a subscription's notes, which are part of its cell."""

TOPIC_LAG = 1_000_000
"""Default number of rows that wait for a topic's slowest subscription. Beyond it the topic refuses
publishes, because accepted rows must not be dropped."""

TOPIC_LAG_MAX = 1_000_000_000
"""Highest value of this setting."""

FORWARD_BYTES_MAX = 1024 * 1024
"""Bytes that are forwarded to one queue at once; a larger block goes alone."""

FORWARD_ROUND_BYTES_MAX = 16 * 1024 * 1024
"""Bytes that a topic forwards to all its queues in one round; the others are in the next one."""

FORWARD_PARCELS_MAX = 32
"""Subscriptions that a topic serves in one round: the queue of each may have to be loaded; about 30
ms in all."""

FORWARD_MEMORY_BYTES_MAX = 16 * 1024 * 1024
"""Cached new rows of a topic for its subscriptions; older ones are read from the store."""

FORWARD_RESULTS_MAX = 256
"""Latest parcels of a topic whose seqs in the queues are remembered."""

ARRIVAL_SECONDS_MAX = 20
"""Timeout of a publish through Dynamiq's routes that waits for its ids in all queues. That takes
some milliseconds unless a queue is full, and clients wait for half a minute or a minute."""
