"""Calls between processes: sizes, flow control, timeouts, reconnects and heartbeats."""

from __future__ import annotations

WIRE_HEAD_BYTES_MAX = 4 * 1024 * 1024
"""Head of a frame: its calls or answers without blobs, whose objects take up to 64 times as many
bytes."""

WIRE_BLOB_BYTES_MAX = 96 * 1024 * 1024
"""Blobs of one frame: the rows of the largest lease call and of a default segment fit."""

WIRE_CALLS_MAX = 4_096
"""Calls of one frame."""

WIRE_HEAD_STEP_BYTES = 64 * 1024
"""A longer head is decoded call by call, so that the objects of one are freed before the next."""

WIRE_CALL_LISTS_MAX = 512 * 1024
"""Lists and maps of one call: an empty one is a byte that becomes 72 in memory. A publish with a
delay and a TTL for each message has 131,072; seqs of a transaction that settles about 400,000
messages may look like lists."""

WIRE_BODY_HEADS_BYTES_MAX = 32 * 1024 * 1024
"""Heads of all frames of one HTTP request: a client sends up to 1,024 calls at once, each with up
to 16 KiB of messages in the head."""

WIRE_STEP_BYTES = 256 * 1024
"""Bytes of calls that are decoded before other tasks of the event loop run."""

WIRE_REQUEST_CALLS_MAX = 1_024
"""Calls in one HTTP request: the response begins only with the last answer."""

WIRE_BURST_BYTES = 256 * 1024
"""A frame takes no further call beyond this size."""

WIRE_TOGETHER_MAX = 16
"""Calls or answers after which a frame is flushed before the end of the event loop's turn, so that
the other process can begin. With fewer each call costs more; with more the processes wait for each
other."""

WIRE_INLINE_BYTES_MAX = 16 * 1024
"""Messages up to this size are inlined in the head, as long as the burst has room; larger ones are
blobs."""

WIRE_WORKING_MAX = 4_096
"""Calls of one connection in progress; beyond it nothing more is read from it."""

WIRE_WAITING_MAX = 100_000
"""Long polls of one connection; beyond it `Full`."""

WIRE_STREAMS_MAX = 64
"""Snapshots that one connection reads concurrently; beyond it `Full`."""

WIRE_AHEAD_MAX = 4
"""Batches of a snapshot that are sent ahead of the reader's acknowledgements."""

WIRE_ROWS_AHEAD_MAX = 1_024
"""Lease calls whose messages were sent with the answer and not read yet."""

WIRE_CONNECTIONS_MAX = 1_024
"""Connections to the socket of one folder."""

WIRE_UNSENT_BYTES_MAX = 16 * 1024 * 1024
"""Unsent bytes of answers to a slow reader, beyond which no more calls are read from it. Beyond it
messages are no longer sent with the answers of lease calls, too, but on request."""

WIRE_UNHEARD_BYTES_MAX = 1024 * 1024
"""Unsent bytes of calls to a busy engine; beyond it callers wait. The limit is several bursts: a
request that cannot be sent at once is restarted by a task, which takes twice the time."""

WIRE_CONNECT_SECONDS_MAX = 5.0
"""Timeout of one attempt to connect."""

WIRE_CONNECT_MS_MAX = 3600 * 1000
"""Longest time that a program may choose to wait for a server when it connects."""

WIRE_PATIENCE_SECONDS = 30.0
"""Time for which a call is retried without a server: an engine restarts within it."""

WIRE_SPEAK_SECONDS = 1.0
"""Heartbeat interval of sessions of clients without a persistent connection, all in one request:
four consecutive heartbeats may be lost within `SESSION_SILENCE_SECONDS`."""

WIRE_SPOKEN_SECONDS_MAX = 2.0
"""Timeout of a heartbeat; after it the next one is sent."""

WIRE_LOOK_SECONDS = 10.0
"""Interval at which an idle session checks that the engine is still the same."""

SESSION_SILENCE_SECONDS = 5.0
"""Time without a heartbeat after which a session without a persistent connection ends, unless the
server's settings say otherwise."""

SESSION_SILENCE_SECONDS_MIN = 3
"""With a shorter time, one lost heartbeat would end the sessions of live clients."""

SESSION_LAST_SHARE = 0.2
"""Last part of this time, in which requests that arrived during a stall are read and processed."""

WIRE_SPEAKERS_MAX = 100_000
"""Sessions that are kept alive by heartbeats; each has a timer."""

WIRE_PAUSE_SECONDS_MIN = 0.02
"""First backoff between attempts to connect; it doubles each time."""

WIRE_PAUSE_SECONDS_MAX = 1.0
"""Longest backoff, and so the longest delay until a client notices a restarted server."""

WIRE_POOL_MAX = 16
"""HTTP connections for calls that do not wait; each long poll has one of its own."""

WIRE_POOL_WAITING_MAX = 1_000
"""HTTP connections for long polls."""

WIRE_ANSWER_SECONDS_MAX = 120.0
"""Timeout of an HTTP response, in addition to the wait of the call itself."""

WIRE_IDLE_SECONDS_MAX = 30.0
"""Idle timeout of an HTTP connection, shorter than the server's."""

SOCKET_PATH_BYTES_MAX = 100
"""Path length of a Unix socket that all systems accept (Linux: 107)."""

BACKUP_TOLD_SECONDS = 0.5
"""Interval of progress reports of a backup by an engine in another process."""
