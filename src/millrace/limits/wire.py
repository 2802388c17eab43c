"""Calls between processes: what one may send, and how long the other is waited for."""

from __future__ import annotations

WIRE_HEAD_BYTES_MAX = 4 * 1024 * 1024
"""The calls or answers of one frame, without blobs: they become objects of up to 64 times as many
bytes."""

WIRE_BLOB_BYTES_MAX = 96 * 1024 * 1024
"""Blobs of one frame: the rows of the largest lease call and of a segment of the usual size fit."""

WIRE_CALLS_MAX = 4_096
"""Calls of one frame."""

WIRE_HEAD_STEP_BYTES = 64 * 1024
"""A longer head is decoded call by call, so that the objects of one are freed before the next."""

WIRE_CALL_LISTS_MAX = 512 * 1024
"""Lists and maps of one call: an empty one is a byte that becomes 72 in memory. A publish that
names turn and lifetime of each of its messages has 131,072; seqs of a transaction that settles
some 400,000 messages may look like lists."""

WIRE_BODY_HEADS_BYTES_MAX = 32 * 1024 * 1024
"""Heads of all frames of one request over HTTP: a client sends up to 1,024 calls at once, each with
up to 16 KiB of messages in the head."""

WIRE_STEP_BYTES = 256 * 1024
"""Bytes of calls that are decoded before other tasks of the event loop run."""

WIRE_REQUEST_CALLS_MAX = 1_024
"""Calls that a client sends in one request over HTTP: the first is answered with the last."""

WIRE_BURST_BYTES = 256 * 1024
"""A frame takes no further call beyond this size."""

WIRE_TOGETHER_MAX = 16
"""Calls or answers that go out although the turn is not over: whom they are for works on them
meanwhile. With fewer each costs more, with more the two processes wait for each other."""

WIRE_INLINE_BYTES_MAX = 16 * 1024
"""Messages up to this size stand among the calls, as long as the burst has room; larger ones are
blobs."""

WIRE_WORKING_MAX = 4_096
"""Calls of one connection that are being done; beyond it nothing more of it is read."""

WIRE_WAITING_MAX = 100_000
"""Calls of one connection that wait for messages; beyond it `Full`."""

WIRE_STREAMS_MAX = 64
"""Snapshots that one connection reads at a time; beyond it `Full`."""

WIRE_AHEAD_MAX = 4
"""Batches of a snapshot that are sent before the reader has taken the first of them."""

WIRE_ROWS_AHEAD_MAX = 1_024
"""Lease calls whose messages came with the answer and were not asked for yet."""

WIRE_CONNECTIONS_MAX = 1_024
"""Connections to the socket of one folder."""

WIRE_UNSENT_BYTES_MAX = 16 * 1024 * 1024
"""Bytes of answers that wait for a slow reader; beyond it nothing more is read of it. Beyond it,
too, messages do not go with the lease calls that gave them, and are asked for."""

WIRE_UNHEARD_BYTES_MAX = 1024 * 1024
"""Bytes of calls that wait for a busy engine; beyond it whoever calls waits. Some bursts: a request
that cannot be sent at once is begun anew by a task, which takes twice the time."""

WIRE_CONNECT_SECONDS_MAX = 5.0
"""How long one attempt to connect may take."""

WIRE_CONNECT_MS_MAX = 3600 * 1000
"""How long a program may choose to wait for a server when it connects."""

WIRE_PATIENCE_SECONDS = 30.0
"""How long a call is tried again where nobody answers: an engine is opened again within it."""

WIRE_SPEAK_SECONDS = 1.0
"""How often a client that has no connection that lasts speaks for its sessions, all of them in one
request: four words in a row may be lost before `SESSION_SILENCE_SECONDS` are over."""

WIRE_SPOKEN_SECONDS_MAX = 2.0
"""A word that was not answered for so long is taken to be lost, and the next one is sent."""

WIRE_LOOK_SECONDS = 10.0
"""How often a session that wants nothing asks whether the engine is still the same."""

SESSION_SILENCE_SECONDS = 5.0
"""After so long without a word the session of a client that has no connection that lasts ends,
where the server's setting does not say otherwise."""

SESSION_SILENCE_SECONDS_MIN = 3
"""Below it a single word that is lost would end the sessions of clients that are there."""

SESSION_LAST_SHARE = 0.2
"""Of that time, when nothing was heard before: what came meanwhile is read and done in it."""

WIRE_SPEAKERS_MAX = 100_000
"""Sessions that are spoken for in this way; each has a timer."""

WIRE_PAUSE_SECONDS_MIN = 0.02
"""The first pause between attempts to connect; each is twice as long as the one before."""

WIRE_PAUSE_SECONDS_MAX = 1.0
"""And the longest: so late a client notices that someone is there again."""

WIRE_POOL_MAX = 16
"""Connections over HTTP for calls that do not wait; each that waits has one of its own."""

WIRE_POOL_WAITING_MAX = 1_000
"""And so many of those."""

WIRE_ANSWER_SECONDS_MAX = 120.0
"""How long an answer over HTTP may take, besides the time that the call itself may wait."""

WIRE_IDLE_SECONDS_MAX = 30.0
"""A connection over HTTP that was not used for so long is closed, before the server does so."""

SOCKET_PATH_BYTES_MAX = 100
"""Longer paths of sockets are not taken by every system (Linux: 107)."""

BACKUP_TOLD_SECONDS = 0.5
"""So often an engine in another process is asked how far its backup is."""
