"""Limits of SQS and SNS that are stricter than those of this server, and caches of the AWS APIs."""

from __future__ import annotations

AWS_SKEW_SECONDS_MAX = 900
"""Clock skew of a signed request, as in AWS."""

AWS_PRESIGNED_SECONDS_MAX = 7 * 86_400
"""Lifetime of a presigned URL, as in AWS."""

AWS_SIGNING_KEYS_MAX = 4096
"""Cached signing keys, one per day, region and service; deriving one takes four digests."""

AWS_STATED_MAX = 1024
"""Cached prefixes of `Authorization` headers, with their parsed parts; each has up to 2.5 KB."""

AWS_ADDRESSES_MAX = 4096
"""Cached queue URLs with their parsed parts."""

SQS_SENDERS_KNOWN_MAX = 1024
"""Senders whose headers are cached."""

SQS_DIGESTS_BYTES_MAX = 4 * 1024 * 1024
"""Total size of recently sent bodies that are cached with their digests, for receives soon after.
"""

AWS_FORM_FIELDS_MAX = 5000
"""Fields of a form: a batch of ten messages with ten attributes each has about 500."""

AWS_FORM_SHORT_CHARS = 4096
"""A form up to this length is decoded by the standard library, which allocates an object per
escape; a longer one is decoded as a whole."""

AWS_FORM_STEP_BYTES = 64 * 1024
"""Bytes of a long form that are decoded in one step, to fit into a processor's cache."""

AWS_FORM_DEPTH_MAX = 8
"""Dots in the name of a field; the deepest that any action has is six."""

SQS_BATCH_MAX = 10
"""Entries of a batch, and messages of a receive, as in SQS."""

SQS_BATCH_SETTING_MAX = 1000
"""Highest value that an operator may set for them: each entry costs time before the first is
published, and a response of this size fits into memory many times."""

SQS_COOLDOWN_SECONDS_MAX = 60
"""Pause between two PurgeQueue of a queue, and between DeleteQueue and CreateQueue, as in SQS."""

SQS_TRACE_CHARS_MAX = 1024
"""Characters of the header X-Amzn-Trace-Id that become AWSTraceHeader. X-Ray's has about 100; a
longer one is ignored, because a header that a proxy adds must not fail a message."""

SQS_UPGRADED_TOGETHER = 256
"""Queues of an earlier version whose settings are upgraded in one batch at the start."""

SQS_MESSAGE_BYTES_MAX = 1024 * 1024
"""Bytes of a message with its attributes, and of all messages of a batch, as in SQS."""

SQS_RECEIVE_BYTES_MAX = 16 * 1024 * 1024
"""Bytes of the messages of one receive, unless the first one is larger; the rest is left for the
next receive. Ten messages of SQS fit. Other APIs publish larger ones, whose characters may take six
bytes each in the response."""

AWS_ESCAPES_MAX = 6
"""Bytes that one byte of a message may take in JSON: some clients encode `<` as `\\u003c`."""

AWS_BESIDE_BYTES = 512 * 1024
"""Bytes of a call besides its messages: names, receipts, attributes of queues, tags."""

SQS_MESSAGE_BYTES_MIN = 1024
"""Smallest value of a queue's maximal message size, as in SQS."""

SQS_ATTRIBUTES_MAX = 10
"""Attributes of a message, as in SQS."""

SQS_ATTRIBUTE_NAME_CHARS_MAX = 256
"""Characters of an attribute's name or type, as in SQS."""

SQS_VISIBILITY_SECONDS_MAX = 43_200
"""Longest visibility timeout, as in SQS."""

SQS_WAIT_SECONDS_MAX = 20
"""Longest wait of a receive, as in SQS."""

SQS_DELAY_SECONDS_MAX = 900
"""Longest delay of a message, as in SQS."""

SQS_RETENTION_SECONDS_MIN = 60
"""Shortest retention of messages, as in SQS."""

SQS_RETENTION_SECONDS_MAX = 1_209_600
"""Longest retention of messages, as in SQS."""

SQS_RECEIVES_MAX = 1000
"""Highest `maxReceiveCount` before a message becomes a dead letter, as in SQS."""

SQS_SOURCES_MAX = 10
"""Queues in a redrive allow policy, as in SQS."""

SQS_IN_FLIGHT_MAX = 120_000
"""Messages of a queue that were received and not deleted, as in SQS."""

SQS_NAME_CHARS_MAX = 80
"""Characters of a queue's name, as in SQS."""

SQS_ID_CHARS_MAX = 128
"""Characters of a group, a de-duplication id or an attempt id, as in SQS."""

SQS_ENTRY_ID_CHARS_MAX = 80
"""Characters of the id of an entry of a batch, as in SQS."""

SQS_DEDUP_SECONDS = 300
"""De-duplication interval, as in SQS."""

SQS_TAGS_MAX = 50
"""Tags of a queue, as in SQS."""

SQS_TAG_KEY_CHARS_MAX = 128
"""Characters of a tag's key, as in SQS."""

SQS_TAG_VALUE_CHARS_MAX = 256
"""Characters of a tag's value, as in SQS."""

SQS_LIST_MAX = 1000
"""Queues in one page of a listing, as in SQS."""

SQS_MOVES_LISTED_MAX = 10
"""Message move tasks in a listing of a queue, as in SQS."""

SQS_MOVE_PER_SECOND_MAX = 500
"""Highest rate of a message move task per second, as in SQS."""

SQS_MOVE_TOLD_SECONDS = 1.0
"""Interval at which a message move task saves its progress and checks for its cancellation: one
small write to its queue."""

SQS_MOVE_LOST_SECONDS = 15.0
"""A message move task without progress for this time is reported as failed; short stalls of a
process are over by then."""

AWS_KNOWN_SECONDS = 60.0
"""TTL of cached queue and topic settings. AWS allows a change a minute to propagate; here it takes
at most this time, and none in the process that made it."""

AWS_KNOWN_AGAIN_SECONDS = 50.0
"""Age at which one caller refreshes a cached entry, while others still get the old one: a read
takes less than the remaining ten seconds unless nothing else is answered either."""

AWS_KNOWN_MAX = 10_000
"""Queues, and topics, whose settings are cached."""

SQS_POLICY_CHARS_MAX = 20_000
"""Characters of a queue's policy: as many as in SQS, and less than the room for a queue's notes."""

SQS_PEEK_MAX = 100
"""Messages that a peek shows without receiving them."""

SQS_PEEK_LOOKED_MAX = 10_000
"""Messages that a peek examines; each is explained, which takes a fraction of a millisecond."""

SQS_PEEK_READ_BYTES_MAX = 256 * 1024 * 1024
"""Bytes that a peek reads: twice a hundred messages of the largest size."""

SQS_PERMISSION_ACTIONS_MAX = 7
"""Actions of one statement that AddPermission writes, as in SQS."""

SQS_FAIR_AGAIN_SECONDS = 10.0
"""Interval of attempts to make a queue fair that gets messages with groups; its backlog may be too
large for the moment."""


# --- SNS ---

SNS_NAME_CHARS_MAX = 256
"""Characters of a topic's name, as in SNS."""

SNS_MESSAGE_BYTES = 256 * 1024
"""Bytes of a message with its attributes, and of all messages of a batch, unless the topic says
otherwise, as in SNS."""

SNS_MESSAGE_BYTES_MIN = 1024
"""Smallest value of a topic's maximal message size, as in SNS."""

SNS_MESSAGE_BYTES_MAX = 1024 * 1024
"""Highest value of a topic's maximal message size, as in SNS."""

SNS_LARGE_SUBSCRIPTIONS_MAX = 100
"""Subscriptions of a topic with a raised message size, as in SNS."""

SNS_BATCH_MAX = 10
"""Messages of a batch, as in SNS."""

SNS_ENTRY_ID_CHARS_MAX = 80
"""Characters of the id of an entry of a batch, as in SNS."""

SNS_ID_CHARS_MAX = 128
"""Characters of a group or a de-duplication id, as in SNS."""

SNS_ATTRIBUTES_MAX = 40
"""Values of a message's attributes, with each array element counted: each is a header, of which a
message has 64, and the subscribed queue adds some of its own."""

SNS_ATTRIBUTE_NAME_CHARS_MAX = 256
"""Characters of an attribute's name, as in SNS."""

SNS_SUBJECT_CHARS_MAX = 100
"""Characters of a subject, as in SNS."""

SNS_TAGS_MAX = 50
"""Tags of a topic, as in SNS."""

SNS_TAG_KEY_CHARS_MAX = 128
"""Characters of a tag's key, as in SNS."""

SNS_TAG_VALUE_CHARS_MAX = 256
"""Characters of a tag's value, as in SNS."""

SNS_LIST_MAX = 100
"""Topics or subscriptions in one page of a listing, as in SNS."""

SNS_POLICY_KEYS_MAX = 5
"""Keys of a filter policy, as in SNS."""

SNS_POLICY_COMBINATIONS_MAX = 150
"""Combinations of the values of a filter policy, as in SNS."""

SNS_ATTRIBUTE_BYTES_MAX = 30 * 1024
"""Bytes of one attribute of a topic: an SNS policy has up to 30 KiB."""

SNS_KEY_BITS = 2048
"""Size of the key that signs notifications, as in SNS."""

SNS_KEY_DAYS = 3650
"""Validity of its certificate, which is never renewed."""

SNS_POST_SECONDS_MAX = 15
"""Response timeout of an endpoint, as in SNS."""

SNS_PENDING_SECONDS_MAX = 2 * 86_400
"""Time for an endpoint to confirm its subscription, as in SNS."""

SNS_LOOK_UP_SECONDS_MAX = 5
"""Timeout of the DNS lookup that checks a new subscription's endpoint; a slow name is checked again
at delivery."""

SNS_POST_LEASE_SECONDS = 60
"""Lease of a message while it is sent to its endpoint: longer than the response timeout."""

SNS_POST_AT_ONCE_MAX = 10
"""Concurrent deliveries to one endpoint."""

SNS_POST_WAIT_SECONDS = 20
"""Long-poll wait of an endpoint's delivery queue."""

SNS_RETRIES_MAX = 100
"""Highest number of retries in a delivery policy, as in SNS."""

SNS_RETRY_SECONDS_MAX = 3600
"""Longest delay between retries in a delivery policy, as in SNS."""

SNS_RETRY_SECONDS = 20
"""Default delay between retries, as in SNS."""

SNS_RETRIES = 3
"""Default number of retries, as in SNS."""

SNS_PER_SECOND_MAX = 100_000
"""Highest delivery rate in a policy, in messages per second; a higher one has no effect."""

SNS_TROUBLE_SECONDS = 1.0
"""Pause of the deliverer when a queue cannot be read."""

SNS_GUEST_SUBSCRIPTIONS_MAX = 64
"""Subscriptions of a queue made by users who may publish to it but not manage it: each takes a note
or two of the queue, and its owner needs most of these."""
