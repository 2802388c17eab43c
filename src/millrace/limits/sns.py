"""What SNS allows, and what is done for its subscribers by HTTP."""

from __future__ import annotations

SNS_NAME_CHARS_MAX = 256
"""Characters of a topic's name; as SNS has it."""

SNS_MESSAGE_BYTES = 256 * 1024
"""Bytes of a message with its attributes, and of all messages of a batch, unless the topic says
otherwise; as SNS has it."""

SNS_MESSAGE_BYTES_MIN = 1024
"""The least that a topic may say; as SNS has it."""

SNS_MESSAGE_BYTES_MAX = 1024 * 1024
"""The most that a topic may say; as SNS has it."""

SNS_LARGE_SUBSCRIPTIONS_MAX = 100
"""Subscriptions of a topic that takes more than is usual; as SNS has it."""

SNS_BATCH_MAX = 10
"""Messages of a batch; as SNS has it."""

SNS_ENTRY_ID_CHARS_MAX = 80
"""Characters of the id of an entry of a batch; as SNS has it."""

SNS_ID_CHARS_MAX = 128
"""Characters of a group or a de-duplication id; as SNS has it."""

SNS_ATTRIBUTES_MAX = 40
"""Values of the attributes of a message, each element of an array counted: each is a header, of
which a message has 64, and the queue that it comes to has some of its own."""

SNS_ATTRIBUTE_NAME_CHARS_MAX = 256
"""Characters of an attribute's name; as SNS has it."""

SNS_SUBJECT_CHARS_MAX = 100
"""Characters of a subject; as SNS has it."""

SNS_TAGS_MAX = 50
"""Tags of a topic; as SNS has it."""

SNS_TAG_KEY_CHARS_MAX = 128
"""Characters of a tag's key; as SNS has it."""

SNS_TAG_VALUE_CHARS_MAX = 256
"""Characters of a tag's value; as SNS has it."""

SNS_LIST_MAX = 100
"""Topics or subscriptions that are listed at once; as SNS has it."""

SNS_POLICY_KEYS_MAX = 5
"""Keys of a filter policy; as SNS has it."""

SNS_POLICY_COMBINATIONS_MAX = 150
"""Combinations of the values of a filter policy; as SNS has it."""

SNS_ATTRIBUTE_BYTES_MAX = 30 * 1024
"""Bytes of one attribute of a topic: a policy of SNS has up to 30 KiB."""

SNS_KEY_BITS = 2048
"""Of the key that messages are signed with; as SNS has it."""

SNS_KEY_DAYS = 3650
"""For how long its certificate is good: nobody renews it."""

SNS_POST_SECONDS_MAX = 15
"""How long an endpoint may take to answer; as SNS has it."""

SNS_PENDING_SECONDS_MAX = 2 * 86_400
"""How long an endpoint has to confirm its subscription; as SNS has it."""

SNS_LOOK_UP_SECONDS_MAX = 5
"""How long a subscription waits for the address of its endpoint, to see whether it may be sent to:
what is slow is judged when it is asked."""

SNS_POST_LEASE_SECONDS = 60
"""For how long a message is out while it is sent to its endpoint: longer than that."""

SNS_POST_AT_ONCE_MAX = 10
"""Messages that are sent to one endpoint at the same time."""

SNS_POST_WAIT_SECONDS = 20
"""How long the queue of an endpoint is asked to wait for a message."""

SNS_RETRIES_MAX = 100
"""How often a message may be sent again, as the policy of a subscription says; as SNS has it."""

SNS_RETRY_SECONDS_MAX = 3600
"""How long the wait before it may be; as SNS has it."""

SNS_RETRY_SECONDS = 20
"""That wait, unless the policy says otherwise; as SNS has it."""

SNS_RETRIES = 3
"""How often, unless the policy says otherwise; as SNS has it."""

SNS_PER_SECOND_MAX = 100_000
"""Messages that a policy may let an endpoint be sent in a second; more is as good as any number."""

SNS_TROUBLE_SECONDS = 1.0
"""How long the deliverer rests where a queue cannot be read now."""

SNS_GUEST_SUBSCRIPTIONS_MAX = 64
"""Subscriptions of a queue that were made by users who may publish to it and not manage it: each is
a note or two of the queue, and its owner needs most of these."""
