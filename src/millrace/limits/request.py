"""What a request may hold."""

from __future__ import annotations

KEY_BYTES_MAX = 400
"""LMDB takes keys of 511 bytes; the rest is the shard's and the table's prefix."""

NAME_CHARS_MAX = 80
"""Queue, space, cursor, producer and stage names; SQS has the same limit."""

HEADERS_MAX = 64
"""Headers of one message."""

HEADER_BYTES_MAX = 1088 * 1024
"""Names and values of all headers of one message: attributes of SQS are headers and may be all of
its 1 MiB, and what is noted of them and of a dead letter is a header, too."""

BODY_BYTES_MAX = 16 * 1024 * 1024
"""A body lies in one record, and a record in one segment, beside others."""

PUBLISH_MESSAGES_MAX = 65_536
"""Messages of one publish; a larger one is cut by the client, or staged."""

PUBLISH_OWN_VALUES_MAX = 16_384
"""Groups, de-duplication ids, delays, priorities and times to live in one publish over a network,
where they differ from row to row: each is a cell of its own, of 1.5 to 3 us, and all are written in
one step of the event loop. A program that has its folder open itself is not bounded."""

ARROW_BATCHES_MAX = 1_024
"""Record batches of one Arrow stream: each takes some 20 us, however few rows it has."""

ARROW_METADATA_BYTES_MAX = 256 * 1024
"""The metadata of one message of an Arrow stream: a schema of seven columns with what pandas notes
of them has a few KB, and a record batch some hundred bytes."""

LEASE_MESSAGES_MAX = 10_000
"""Messages of one lease call."""

NOTES_MAX = 256
"""Notes of a queue, a topic or a subscription: SQS and SNS allow 50 tags, beside some twenty
attributes."""

NOTE_NAME_BYTES_MAX = 1_024
"""The name of a note: that of a tag has up to 128 characters of up to four bytes, and a prefix."""

NOTES_BYTES_MAX = 128 * 1024
"""Names and texts of all notes: 50 tags of 128 and 256 characters, of up to four bytes each, have
75 KiB, and a policy 20 KiB. They are in memory with the settings."""

DELAY_MS_MAX = 366 * 24 * 3600 * 1000
"""How long a message may be left alone before it is handed out again."""

PRIORITY_MAX = 9
"""The highest priority; higher ones go first, and 0 is the last."""

PRIORITY_DEFAULT = 4
"""What has this priority, and no delay, waits in the order of seqs alone."""

ATTEMPTS_MAX = 1_000_000
"""Failures or deliveries after which a queue may take a message for a dead letter."""

ROWS_READ_STEP = 1_024
"""Messages that are made into objects at once for a lease call or a look: each may have 64 headers,
so that this is up to 20 ms. More of them are read in several steps."""

LEASE_BYTES_MAX = 64 * 1024 * 1024
"""Bytes of one lease call, unless its first message has more: bodies are copied into memory."""

LEASE_MS_MAX = 12 * 3600 * 1000
"""The longest lease; SQS has the same limit."""

TRANSACTION_PARTS_MAX = 1_000
"""Commands of one transaction."""

PEEK_MESSAGES_MAX = 10_000
"""Messages that one peek reads."""

PEEK_BYTES_MAX = 64 * 1024 * 1024
"""Bytes that one peek reads, unless its first message has more: bodies are copied into memory."""
