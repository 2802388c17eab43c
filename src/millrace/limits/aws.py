"""What SQS and SNS allow, where this server has no bound of its own that is nearer."""

from __future__ import annotations

AWS_SKEW_SECONDS_MAX = 900
"""How far the clock of whoever signs a request may be off; as AWS has it."""

AWS_PRESIGNED_SECONDS_MAX = 7 * 86_400
"""How long an address that was signed beforehand may be used; as AWS has it."""

AWS_SIGNING_KEYS_MAX = 4096
"""Keys of a day, region and service that are remembered: to make one takes four digests."""

AWS_STATED_MAX = 1024
"""Beginnings of `Authorization` headers whose parts are remembered; each has up to 2.5 KB."""

AWS_ADDRESSES_MAX = 4096
"""Addresses of queues whose parts are remembered."""

SQS_SENDERS_KNOWN_MAX = 1024
"""Senders whose headers are made once."""

SQS_DIGESTS_BYTES_MAX = 4 * 1024 * 1024
"""Bodies that were sent lately are kept up to this size: whoever receives them soon is told their
digests without another look at each byte."""

AWS_FORM_FIELDS_MAX = 5000
"""Fields of a form: a batch of ten messages with ten attributes each has some 500."""

AWS_FORM_SHORT_CHARS = 4096
"""A form up to this length is decoded by the standard library, which makes an object of each escape
in it; a longer one as a whole."""

AWS_FORM_STEP_BYTES = 64 * 1024
"""Of a long form, so many bytes are decoded at once: they stay in the cache of a processor."""

AWS_FORM_DEPTH_MAX = 8
"""Dots in the name of a field: the deepest that any action has is six."""

SQS_BATCH_MAX = 10
"""Entries of a batch, and messages of a receive; as SQS has it."""

SQS_BATCH_SETTING_MAX = 1000
"""The most that an operator may allow of them: each entry costs time before the first is published,
and an answer of so many fits into memory many times over."""

SQS_COOLDOWN_SECONDS_MAX = 60
"""Between two PurgeQueue of a queue, and from DeleteQueue to CreateQueue; as SQS has it."""

SQS_TRACE_CHARS_MAX = 1024
"""Characters of the header X-Amzn-Trace-Id that become AWSTraceHeader: X-Ray's has some 100, and a
longer one is ignored, because a header that a proxy adds must not fail a message."""

SQS_UPGRADED_TOGETHER = 256
"""Queues whose settings a start changes in one batch, where an earlier version made them."""

SQS_MESSAGE_BYTES_MAX = 1024 * 1024
"""Bytes of a message with its attributes, and of all messages of a batch; as SQS has it."""

SQS_RECEIVE_BYTES_MAX = 16 * 1024 * 1024
"""Bytes of the messages of one receive, unless its first one has more; the others are left for the
next one. Ten messages of SQS fit, and other APIs publish larger ones, whose characters may take six
bytes each in an answer."""

AWS_ESCAPES_MAX = 6
"""Bytes that one byte of a message may take in JSON: some clients write `<` as `\\u003c`."""

AWS_BESIDE_BYTES = 512 * 1024
"""Bytes of a call beside messages: names, receipts, attributes of queues, tags."""

SQS_MESSAGE_BYTES_MIN = 1024
"""The least that a queue can have as its maximum; as SQS has it."""

SQS_ATTRIBUTES_MAX = 10
"""Attributes of a message; as SQS has it."""

SQS_ATTRIBUTE_NAME_CHARS_MAX = 256
"""Characters of an attribute's name, or of its type; as SQS has it."""

SQS_VISIBILITY_SECONDS_MAX = 43_200
"""How long nobody else gets a message; as SQS has it."""

SQS_WAIT_SECONDS_MAX = 20
"""How long a receive waits; as SQS has it."""

SQS_DELAY_SECONDS_MAX = 900
"""How long a message may be delayed; as SQS has it."""

SQS_RETENTION_SECONDS_MIN = 60
"""The shortest time that messages are kept for; as SQS has it."""

SQS_RETENTION_SECONDS_MAX = 1_209_600
"""The longest; as SQS has it."""

SQS_RECEIVES_MAX = 1000
"""How often a message may be received before it is a dead letter; as SQS has it."""

SQS_SOURCES_MAX = 10
"""Queues that a redrive allow policy names; as SQS has it."""

SQS_IN_FLIGHT_MAX = 120_000
"""Messages of a queue that were received and not deleted; as SQS has it."""

SQS_NAME_CHARS_MAX = 80
"""Characters of a queue's name; as SQS has it."""

SQS_ID_CHARS_MAX = 128
"""Characters of a group, a de-duplication id or an attempt id; as SQS has it."""

SQS_ENTRY_ID_CHARS_MAX = 80
"""Characters of the id of an entry of a batch; as SQS has it."""

SQS_DEDUP_SECONDS = 300
"""How long a de-duplication id is remembered; as SQS has it."""

SQS_TAGS_MAX = 50
"""Tags of a queue; as SQS has it."""

SQS_TAG_KEY_CHARS_MAX = 128
"""Characters of the key of a tag; as SQS has it."""

SQS_TAG_VALUE_CHARS_MAX = 256
"""Characters of the value of a tag; as SQS has it."""

SQS_LIST_MAX = 1000
"""Queues that are listed at once; as SQS has it."""

SQS_MOVES_LISTED_MAX = 10
"""Tasks that move messages, of which a queue tells; as SQS has it."""

SQS_MOVE_PER_SECOND_MAX = 500
"""Messages that a task moves in a second; as SQS has it."""

SQS_MOVE_TOLD_SECONDS = 1.0
"""How often a task that moves messages tells how far it has come, and hears that it was called off:
it is a small write of its queue."""

SQS_MOVE_LOST_SECONDS = 15.0
"""A task that has not told for so long is told as failed: whatever holds a process up for a moment
is over by then."""

AWS_KNOWN_SECONDS = 60.0
"""For how long a queue's settings are taken as they were last seen. AWS says that a change may take
a minute to be seen everywhere; here it takes so long at most, and in the process that made it no
time."""

AWS_KNOWN_AGAIN_SECONDS = 50.0
"""After so long whoever asks next looks anew, and others use what was seen until that is there: a
look takes no ten seconds, unless nothing else is answered either."""

AWS_KNOWN_MAX = 10_000
"""Queues, and topics, whose settings are remembered."""

SQS_POLICY_CHARS_MAX = 20_000
"""Characters of a queue's policy: as many as SQS takes, and less than a queue's notes have room
for."""

SQS_PEEK_MAX = 100
"""Messages that are shown without being received."""

SQS_PEEK_LOOKED_MAX = 10_000
"""Messages that are looked at for them: each is explained, which takes a fraction of a millisecond.
"""

SQS_PEEK_READ_BYTES_MAX = 256 * 1024 * 1024
"""Bytes that are read for them: a hundred messages of the largest size, twice."""

SQS_PERMISSION_ACTIONS_MAX = 7
"""Actions of one statement that AddPermission writes; SQS has the same limit."""

SQS_FAIR_AGAIN_SECONDS = 10.0
"""How often it is tried to make a queue fair to which messages with groups come: what waits in it
may be too much for now."""
