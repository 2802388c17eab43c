"""What strangers may send before anybody knows who they are, and how long they may take."""

from __future__ import annotations

HTTP_HEAD_BYTES_MAX = 64 * 1024
"""Bytes of a request before its body; one read more may be held before it is noticed."""

HTTP_URL_BYTES_MAX = 8 * 1024
"""Bytes of an address."""

HTTP_HEADERS_MAX = 100
"""Headers of a request."""

HTTP_URLS_KNOWN_MAX = 1024
"""Addresses whose path and query are cached: clients ask for the same few again and again."""

HTTP_URL_KNOWN_BYTES = 100
"""Longer addresses are not cached, so that strangers fill 400 KB at most."""

HTTP_NAMES_KNOWN_MAX = 256
"""Names of headers that are remembered in lower case: clients send the same few again and again."""

HTTP_BODY_BYTES_MAX = 64 * 1024 * 1024
"""Bytes of a body."""

JSON_BYTES_MAX = 1024 * 1024
"""Bytes of a body in JSON, and of a line of NDJSON. A decoder of JSON stops everything else until
it is done, and looks at the length of a list only when the whole is made: this takes some
milliseconds. More goes as NDJSON or Arrow, which are decoded in steps, and one large message as it
is. The receipts of the largest lease call have 0.8 MB."""

LINES_STEP_BYTES = 256 * 1024
"""Bytes of messages in JSON that are decoded before other requests are served: some 30 ms where
each is as short as can be."""

ANSWER_STEP_BYTES = 256 * 1024
"""Bytes of bodies in an answer that are encoded as JSON at once: some 10 ms where each becomes six
(`\\u0001`). A larger answer is made while it is sent."""

ROWS_STEP = 4_096
"""Messages that are checked and laid side by side at once; more of them in a thread."""

HEADERS_STEP = 32_768
"""Headers of messages that are checked, or made into objects, at once: some 15 ms. A message may
have 64, so that a bound of messages alone does not bound a step."""

HTTP_LARGE_BYTES_MIN = 64 * 1024
"""A body of this size or more is read into its own place; for a smaller one that costs more than
it saves."""

HTTP_LARGE_STEP_BYTES = 4 * 1024 * 1024
"""What is kept ready for such a body before more of it has come."""

HTTP_SPARE_BYTES_MAX = 32 * 1024 * 1024
"""Memory of such bodies that is kept for the next ones."""

HTTP_DISCARD_BYTES_MAX = 256 * 1024
"""Bytes of a refused request's body that are read and dropped so that the connection can stay."""

HTTP_PIECE_BYTES_MIN = 4 * 1024
"""Pieces of a body below this are put together when they come: a piece has some 60 bytes of its
own, and one of a single byte would take sixty times its size."""

HTTP_AHEAD_MAX = 32
"""Requests that a client may have sent ahead before nothing more of it is read or parsed."""

HTTP_STEP_BYTES = 1024
"""Bytes that are parsed at once where a request may end anywhere in them: the smallest has 26, so
that no more than 39 come beyond the bound above."""

HTTP_JOIN_BYTES_MAX = 16 * 1024
"""A body below this goes out in one piece with its head."""

HTTP_HEAD_SECONDS_MAX = 10
"""A head is sent within this time, and a body begun."""

HTTP_BODY_BYTES_PER_SECOND_MIN = 1024
"""A body comes at least so fast, beyond the time that a head may take; what came faster buys no
more than that time of silence."""

HTTP_IDLE_SECONDS_MAX = 75
"""A connection is kept for so long after a request; whoever has sent none has as long as for a
head."""

HTTP_STRANGER_IDLE_SECONDS_MAX = 5
"""A connection whose last request nobody was known to have sent is kept for so long."""

HTTP_STRANGERS_SHARE = 2
"""One address may have one part in so many of all connections on which nobody is known yet: the
others are left for other addresses. A proxy is one address; its connections stop counting with the
first request of a user."""

HTTP_WRITE_SECONDS_MAX = 30
"""Whoever takes in nothing for so long is cut off."""

HTTP_WRITE_BYTES_PER_SECOND_MIN = 1024
"""An answer is taken in at least so fast, beyond that time: what waits to be sent is held in
memory, and what is read of a queue meanwhile is pinned."""

HTTP_STALL_SECONDS = 0.5
"""The event loop may be so late, once a second, before that is taken for a stall, which does not
count against the time that clients have."""

HTTP_FORGIVEN_SECONDS_MAX = 30
"""Time of stalls in a row that does not count against clients. An overload that lasts longer is the
usual state: slow clients, which may be its cause, must not be kept for ever."""

HTTP_LINGER_SECONDS = 2
"""For so long what still comes is dropped after an answer that ends a connection: closed with
something unread, it would take the answer with it."""

TLS_HANDSHAKE_SECONDS_MAX = 10
"""Whoever connects with TLS is done with its beginning within this time."""

HTTP_QUERY_FIELDS_MAX = 32
"""Names behind the question mark of an address."""

DESK_QUEUES_MAX = 4096
"""Queues, and topics, whose places a server remembers."""

HTTP_TURNS_MAX = 16
"""Requests that are begun although more may have come: the engine works on them meanwhile, as with
`WIRE_TOGETHER_MAX`."""

RECEIPTS_WRITTEN_MAX = 4096
"""Receipts that are known again without a look at their proofs, some 400 bytes each."""

ADDRESSES_KNOWN_MAX = 1024
"""Addresses whose routes a server remembers."""

ADDRESS_KNOWN_CHARS_MAX = 512
"""A longer one is looked up each time: whoever sends such may be anybody."""

DESK_CURSORS_MAX = 65_536
"""Cursors whose ids a server remembers, some 200 bytes each."""

JOBS_RUNNING_MAX = 64
"""Redrives and move tasks that go on at a time; each holds a batch of messages."""

BACKUPS_RUNNING_MAX = 4
"""Backups that go on or wait at a time: apart from jobs, so that no user's keep one out."""

JOBS_REMEMBERED_MAX = 256
"""Those and what ended lately, of which can be asked how it went."""

REDRIVE_PATTERN_CHARS_MAX = 1024
"""Characters of a pattern that a redrive compares keys and headers with."""

HTTP_SESSIONS_MAX = 10_000
"""Sessions that are held for clients of REST, each with a task of its own."""

HTTP_STREAMS_MAX = 1_000
"""Streams of events at a time; each has a task, and those that follow a queue a cursor."""

EVENT_SECONDS = 15
"""A stream of events says something at least so often, so that a lost client is noticed."""

EVENT_PIN_SECONDS = 3600
"""What a stream of events is sending is pinned for no longer than this."""

STATS_SECONDS_MIN = 0.2
"""How often counters may be asked for by one stream."""

STATS_SECONDS_MAX = 60
"""How rarely; whoever wants it less often asks when it is wanted."""

STATS_QUEUES_MAX = 1_000
"""Queues whose counters one stream tells of."""

ARROW_JOIN_BYTES = 256 * 1024
"""Batches of rows below this are joined before they are sent as Arrow."""

ARROW_PIN_SECONDS = 3600
"""A range that is read is pinned until it was sent, and no longer than this."""

HTTP_BODIES_BYTES_MAX = 256 * 1024 * 1024
"""Bytes of all bodies that are being read, wait or are handled; beyond them requests are refused.
What is made of a body, messages and then commands, takes several times as much meanwhile."""

HTTP_UNPROVED_BYTES_MAX = 64 * 1024 * 1024
"""Bytes of bodies that are signed and not read whole yet, so that nobody knows whether by who is
named: they are held for the address that they come from, beside those above, until they were
proved. One address may hold one part in two of what others leave."""

HTTP_UNSENT_BYTES_MAX = 256 * 1024 * 1024
"""Bytes of answers that wait to be taken in, over all connections of a process; whoever holds more
than their share is answered nothing more meanwhile."""

HTTP_TLS_STEP_BYTES = 256 * 1024
"""A larger answer over TLS is handed over in such steps: what was handed over whole would be held
without anybody's knowing how much of it was taken in."""

HTTP_SHARE = 2
"""One user may hold one part in so many of what the others leave of these bytes, of those of
bodies, and of places for jobs, streams and sessions: however many users hold all that they may,
there is room for one more."""

HTTP_STOP_SECONDS = 10
"""Requests that are being handled have so long to end when a server stops."""

HTTP_BACKLOG = 1024
"""Connections that wait to be taken in."""

METRICS_QUEUES_MAX = 1_000
"""Queues of which a page of metrics tells one by one."""

HANDED_QUEUES_MAX = 4_096
"""Queues of which a process counts what it hands out, some 300 bytes each; queues come and go."""

STATSD_SECONDS = 10
"""How often a statsd is told."""

STATSD_PACKET_BYTES = 1_400
"""Of a packet: what fits into one frame of most networks."""

FRONTEND_START_SECONDS = 60
"""A front end listens within this time."""

FRONTEND_REST_SECONDS = 1
"""Before a front end that has ended is started again."""

EXPORT_STOP_SECONDS = 3
"""So long the end of a server waits for a collector to take what it has not sent yet."""

FRONTEND_TELL_SECONDS = 5
"""So long a front end is waited for that is asked what it has counted."""

FRONTEND_TOLD_BYTES_MAX = 16 * 1024 * 1024
"""Of what it says: the samples of all routes, and of the queues of which it counts."""

READY_SECONDS = 2
"""So long an engine has to answer that is asked whether it is ready; its prober waits no longer."""
