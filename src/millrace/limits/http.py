"""HTTP servers: sizes and timeouts of requests, above all of unauthenticated clients; caches."""

from __future__ import annotations

HTTP_HEAD_BYTES_MAX = 64 * 1024
"""Bytes of a request before its body; one more read may be buffered before the excess is noticed.
"""

HTTP_URL_BYTES_MAX = 8 * 1024
"""Bytes of a URL."""

HTTP_HEADERS_MAX = 100
"""Headers of a request."""

HTTP_URLS_KNOWN_MAX = 1024
"""Cached URLs with their parsed path and query: clients repeat the same few."""

HTTP_URL_KNOWN_BYTES = 100
"""Longer URLs are not cached, so that unauthenticated clients fill 400 KB at most."""

HTTP_NAMES_KNOWN_MAX = 256
"""Cached header names in lower case: clients send the same few."""

HTTP_BODY_BYTES_MAX = 64 * 1024 * 1024
"""Bytes of a body."""

JSON_BYTES_MAX = 1024 * 1024
"""Bytes of a JSON body, and of a line of NDJSON. A JSON decoder blocks everything else, and checks
the length of a list only when all of it is decoded: this takes some milliseconds. Larger data is
sent as NDJSON or Arrow, which are decoded in steps, and one large message as it is. The receipts of
the largest lease call have 0.8 MB."""

LINES_STEP_BYTES = 256 * 1024
"""Bytes of JSON messages that are decoded before other requests are served: about 30 ms if each is
as short as possible."""

ANSWER_STEP_BYTES = 256 * 1024
"""Bytes of bodies that are encoded as JSON in one step: about 10 ms if each byte becomes six
(`\\u0001`). A larger response is encoded while it is sent."""

ROWS_STEP = 4_096
"""Messages that are validated and collected in one step; more are processed on a thread."""

HEADERS_STEP = 32_768
"""Headers of messages that are validated or converted in one step: about 15 ms. A message may have
64, so that a limit of messages alone does not bound a step."""

HTTP_LARGE_BYTES_MIN = 64 * 1024
"""A body of this size or more is read into a buffer of its own; for a smaller one that costs more
than it saves."""

HTTP_LARGE_STEP_BYTES = 4 * 1024 * 1024
"""Initial size of this buffer."""

HTTP_SPARE_BYTES_MAX = 32 * 1024 * 1024
"""Total size of such buffers that are kept for reuse."""

HTTP_DISCARD_BYTES_MAX = 256 * 1024
"""Bytes of a refused request's body that are read and dropped to keep the connection open."""

HTTP_PIECE_BYTES_MIN = 4 * 1024
"""Smaller pieces of a body are joined on arrival: a piece has an overhead of about 60 bytes, so
that single bytes would take sixty times their size."""

HTTP_AHEAD_MAX = 32
"""Pipelined requests of a client, beyond which nothing more is read or parsed."""

HTTP_STEP_BYTES = 1024
"""Bytes that are parsed in one step: the smallest request has 26, so that at most 39 arrive beyond
the limit of pipelined requests."""

HTTP_JOIN_BYTES_MAX = 16 * 1024
"""A smaller body is sent together with its head."""

HTTP_HEAD_SECONDS_MAX = 10
"""Timeout of a request's head, and of the first byte of its body."""

HTTP_BODY_BYTES_PER_SECOND_MIN = 1024
"""Minimal rate of a body, beyond the time that a head may take; bytes that arrived faster allow no
longer silence."""

HTTP_IDLE_SECONDS_MAX = 75
"""Idle timeout of a connection after a request; before the first request it is that of a head."""

HTTP_STRANGER_IDLE_SECONDS_MAX = 5
"""Idle timeout of a connection whose last request was not authenticated."""

HTTP_STRANGERS_SHARE = 2
"""One address may have one part in this number of all connections that are not authenticated yet;
the others are left for other addresses. A proxy is one address; its connections stop counting with
the first authenticated request."""

HTTP_WRITE_SECONDS_MAX = 30
"""Timeout of a client that reads nothing."""

HTTP_WRITE_BYTES_PER_SECOND_MIN = 1024
"""Minimal rate at which a client reads a response, beyond that time: unsent data is in memory, and
the rows of a queue being read are pinned."""

HTTP_STALL_SECONDS = 0.5
"""Lag of the event loop, measured once a second, above which it counts as a stall. Stalls do not
count against the timeouts of clients."""

HTTP_FORGIVEN_SECONDS_MAX = 30
"""Longest consecutive stall that does not count against clients. A longer overload is the normal
state: slow clients, which may be its cause, must not be kept for ever."""

HTTP_LINGER_SECONDS = 2
"""Time for which input is dropped after a response that ends a connection: closing it with unread
input would discard the response."""

TLS_HANDSHAKE_SECONDS_MAX = 10
"""Timeout of a TLS handshake."""

HTTP_QUERY_FIELDS_MAX = 32
"""Fields of a URL's query."""

DESK_QUEUES_MAX = 4096
"""Queues, and topics, whose shards a server caches."""

HTTP_TURNS_MAX = 16
"""Requests that are started before further input is read: the engine works on them in the meantime,
as with `WIRE_TOGETHER_MAX`."""

RECEIPTS_WRITTEN_MAX = 4096
"""Cached receipts whose proofs were verified, about 400 bytes each."""

ADDRESSES_KNOWN_MAX = 1024
"""URLs whose routes a server caches."""

ADDRESS_KNOWN_CHARS_MAX = 512
"""Longer URLs are not cached: any client can send them."""

DESK_CURSORS_MAX = 65_536
"""Cached ids of cursors, about 200 bytes each."""

JOBS_RUNNING_MAX = 64
"""Concurrent redrives and move tasks; each holds a batch of messages."""

BACKUPS_RUNNING_MAX = 4
"""Running and waiting backups. They do not count as jobs, so that no user's jobs prevent one."""

JOBS_REMEMBERED_MAX = 256
"""Running and recently ended jobs whose status can be queried."""

REDRIVE_PATTERN_CHARS_MAX = 1024
"""Characters of a pattern with which a redrive selects keys and headers."""

HTTP_SESSIONS_MAX = 10_000
"""Sessions of REST clients, each with a task of its own."""

HTTP_STREAMS_MAX = 1_000
"""Concurrent event streams: each has a task, and a cursor if it follows a queue."""

EVENT_SECONDS = 15
"""Heartbeat interval of an event stream, so that a lost client is noticed."""

EVENT_PIN_SECONDS = 3600
"""Longest pin of the rows that an event stream is sending."""

STATS_SECONDS_MIN = 0.2
"""Shortest interval at which a stream may report counters."""

STATS_SECONDS_MAX = 60
"""Longest interval; clients that need counters less often query them."""

STATS_QUEUES_MAX = 1_000
"""Queues whose counters one stream reports."""

ARROW_JOIN_BYTES = 256 * 1024
"""Smaller batches of rows are joined before they are sent as Arrow."""

ARROW_PIN_SECONDS = 3600
"""Longest pin of a range that is being sent."""

HTTP_BODIES_BYTES_MAX = 256 * 1024 * 1024
"""Bytes of all bodies that are being read, wait or are processed; beyond it requests are refused.
The messages and commands made from a body take several times as much."""

HTTP_UNPROVED_BYTES_MAX = 64 * 1024 * 1024
"""Bytes of signed bodies that are not fully read, so that their signature is not verified yet. They
count for the client's address, besides the limit above, until they are verified. One address may
hold half of what the others leave."""

HTTP_UNSENT_BYTES_MAX = 256 * 1024 * 1024
"""Unsent bytes of responses, over all connections of a process; a client beyond its share gets no
further response until it reads."""

HTTP_TLS_STEP_BYTES = 256 * 1024
"""A larger response over TLS is written in such steps: how much of one large write the client has
read would be unknown."""

HTTP_SHARE = 2
"""One user may hold one part in this number of what the others leave of these bytes, of those of
bodies, and of places for jobs, streams and sessions: whatever the number of users, there is room
for another one."""

HTTP_STOP_SECONDS = 10
"""Time for requests in flight to complete when a server stops."""

HTTP_BACKLOG = 1024
"""Length of the queue of connections that are not accepted yet."""

METRICS_QUEUES_MAX = 1_000
"""Queues with metrics of their own in one report."""

HANDED_QUEUES_MAX = 4_096
"""Queues whose deliveries a process counts, about 300 bytes each; the least recently used is
evicted."""

STATSD_SECONDS = 10
"""Interval of reports to a StatsD server."""

STATSD_PACKET_BYTES = 1_400
"""Size of a StatsD packet: it fits into one frame of most networks."""

FRONTEND_START_SECONDS = 60
"""Timeout of the start of a front-end process."""

FRONTEND_REST_SECONDS = 1
"""Delay before a front-end process that has ended is restarted."""

EXPORT_STOP_SECONDS = 3
"""Time for which a stopping server waits for a collector to receive the last telemetry."""

FRONTEND_TELL_SECONDS = 5
"""Timeout of a request for the metrics of a front-end process."""

FRONTEND_TOLD_BYTES_MAX = 16 * 1024 * 1024
"""Size of its response: samples of all routes, and of the queues that it counts."""

READY_SECONDS = 2
"""Timeout of the readiness check; its prober waits no longer."""
