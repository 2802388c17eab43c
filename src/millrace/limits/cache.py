"""What the store keeps in memory, and does in one step."""

from __future__ import annotations

PLACES_STEP = 256
"""Places of rows that are read from the index at once: enough for a scan not to notice."""

OUTLIVED_CHUNKS_MAX = 64
"""Chunks of rows that are looked through at once for messages that are too old: a few ms, where
most of them have ended."""

SCAN_STEP_BYTES = 64 * 1024 * 1024
"""Rows that another thread reads before it asks the event loop where the next ones lie."""

READ_STEP_BYTES = 1024 * 1024
"""Cold rows that are read for a coroutine at once: others wait for the same thread."""

LOOK_AGAIN_MAX = 100
"""How often rows are looked up again that were moved meanwhile; more is damage, not chance."""

KNOWN_CHUNKS_MAX = 32_768
"""Chunks whose marks are kept in memory, over all shards: at most 1 KiB each, and per mark."""

DECODED_BLOCKS_MAX = 4_096
"""Blocks that are kept ready for single rows, who come by turns and jump among them; they lie over
maps and take 1 KiB each."""

FRESH_BLOCK_BYTES_MAX = 16 * 1024
"""A block up to this size is kept ready as it was written, without reading it from the log."""

FRESH_BLOCKS_MAX = 256
"""And so many of them: 4 MiB."""

WARM_BYTES_MAX = 256 * 1024 * 1024
"""Bytes that are taken to be in the page cache after they were read for a lease."""

WARM_PLACES_MAX = 65_536
"""Places of which that is known, some 300 bytes each: blocks may be small."""

READ_AHEAD_BYTES = 8 * 1024 * 1024
"""What is read ahead of workers: some 20 ms of the fastest ones."""

READ_AHEAD_PLACES_MAX = 64
"""Places that are looked up to read ahead; blocks may be small."""

PLACES_KNOWN_MAX = 1_024
"""Shards whose last place is remembered for the next lease call."""

PLACES_NEAR_MAX = 4_096
"""Places of one shard that are remembered: who gets rows by turns jumps among them."""

PLACES_NEAR_STEP = 32
"""Places that are looked for at once by who wants as many rows, or more."""

OPEN_FILES_MAX = 256
"""Sealed files that are kept mapped; opening one again costs a checksum per batch."""

SHARD_COLUMNS_MAX = 64
"""Constant columns that are kept, one per shard, 128 KiB each."""

RECLAIM_STEP = 16_384
"""Entries of the index that one checkpoint removes or moves beside its own writes: some 20 ms."""

FILE_SPANS_MAX = 32
"""Shards of a sealed file whose seqs are known without asking the index; files with more are
shared by small shards."""

FRONTS_STEP = 64
"""Shards of which one checkpoint learns how far their oldest rows are gone: 0.1 ms each, or more
where much has just gone."""

FRONT_PAGES_MAX = 8
"""Pages of places that are looked at for it; the next checkpoint goes on there."""

SMALL_FILE_BYTES = 16 * 1024 * 1024
"""Sealed files below this size are made into one, when there are too many of them."""

SMALL_FILES_MAX = 16
"""Small sealed files that are let be: each stuck message would otherwise get a file of its own."""
