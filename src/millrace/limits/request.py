"""Sizes of messages, requests and transactions."""

from __future__ import annotations

KEY_BYTES_MAX = 400
"""Bytes of a key: LMDB takes keys of 511 bytes; the rest is the prefix of shard and table."""

NAME_CHARS_MAX = 80
"""Characters of queue, space, cursor, producer and stage names, as in SQS."""

HEADERS_MAX = 64
"""Headers of one message."""

HEADER_BYTES_MAX = 1088 * 1024
"""Names and values of all headers of one message. Attributes of SQS are headers and may be all of
its 1 MiB; notes about them and about dead letters are headers, too."""

BODY_BYTES_MAX = 16 * 1024 * 1024
"""Bytes of a body: it lies in one record with others, and a record in one segment."""

PUBLISH_MESSAGES_MAX = 65_536
"""Messages of one publish; the client splits or stages larger ones."""

PUBLISH_OWN_VALUES_MAX = 16_384
"""Groups, de-duplication ids, delays, priorities and TTLs of one publish over a network, if they
differ from row to row: each is a cell that takes 1.5 to 3 us, and all are written in one step of
the event loop. A program that opens the folder itself has no such limit."""

ARROW_BATCHES_MAX = 1_024
"""Record batches of one Arrow stream: each takes about 20 us, however few rows it has."""

ARROW_METADATA_BYTES_MAX = 256 * 1024
"""Metadata of one message of an Arrow stream: a schema of seven columns with the notes of pandas
has a few KB, and a record batch some hundred bytes."""

LEASE_MESSAGES_MAX = 10_000
"""Messages of one lease call."""

NOTES_MAX = 256
"""Notes of a queue, a topic or a subscription: SQS and SNS allow 50 tags, besides about twenty
attributes."""

NOTE_NAME_BYTES_MAX = 1_024
"""Name of a note: that of a tag has up to 128 characters of up to four bytes, and a prefix."""

NOTES_BYTES_MAX = 128 * 1024
"""Names and texts of all notes: 50 tags of 128 and 256 characters, of up to four bytes each, have
75 KiB, and a policy 20 KiB. They are in memory with the settings."""

DELAY_MS_MAX = 366 * 24 * 3600 * 1000
"""Longest delay of a message, at its publish or release."""

PRIORITY_MAX = 9
"""Highest priority; higher ones are delivered first, and 0 last."""

PRIORITY_DEFAULT = 4
"""Default priority: messages with it and without a delay are delivered in the order of seqs."""

ATTEMPTS_MAX = 1_000_000
"""Highest number of failures or deliveries after which a message becomes a dead letter."""

ROWS_READ_STEP = 1_024
"""Messages that are decoded in one step for a lease call or a peek: each may have 64 headers, so
that this takes up to 20 ms."""

LEASE_BYTES_MAX = 64 * 1024 * 1024
"""Bytes of one lease call, unless its first message is larger: bodies are copied into memory."""

LEASE_MS_MAX = 12 * 3600 * 1000
"""Longest lease, as in SQS."""

TRANSACTION_PARTS_MAX = 1_000
"""Commands of one transaction."""

PEEK_MESSAGES_MAX = 10_000
"""Messages that one peek reads."""

PEEK_BYTES_MAX = 64 * 1024 * 1024
"""Bytes of one peek, unless its first message is larger: bodies are copied into memory."""
