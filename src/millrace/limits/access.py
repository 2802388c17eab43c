"""Users, tokens and keys; what strangers and tenants may ask for."""

from __future__ import annotations

USERS_MAX = 10_000
"""Users of a server: all of them are in memory."""

TOKENS_MAX = 100_000
"""Tokens and keys of all users together: all of them are in memory."""

USER_SECRETS_MAX = 100
"""Tokens and keys of one user; so that none is forgotten among many."""

TOKEN_MS_MAX = 10 * 365 * 86_400_000
"""A token that expires does so within ten years."""

RULES_MAX = 100
"""Rules of one user: each request may have to look at all of them."""

RULINGS_KEPT_MAX = 1_024
"""Answers to what one user may do that are remembered; then they are found anew."""

SHARDS_KNOWN_MAX = 200_000
"""Shards whose names a server remembers, and calls of one client that were allowed by the name of
their shard; then they are found anew."""

SECRET_FILE_BYTES_MAX = 4_096
"""A file that holds a secret is not larger; what is, is another file."""

CREDENTIAL_CHARS_MAX = 4_096
"""Of the header that says who asks; the longest of ours has below a hundred."""

FAILURES_BURST = 20
"""Wrong credentials of one address that are answered at once."""

FAILURES_PER_SECOND = 1
"""Wrong credentials of one address, beyond the first ones."""

FAILURE_ADDRESSES_MAX = 4_096
"""Addresses whose failures are counted; the one that was quiet for the longest is forgotten."""

BOOK_PAUSE_MS_MAX = 1_000
"""Between two attempts to follow what others change of users."""

BOOK_KEEP_DELETES_SECONDS = 7 * 86_400
"""For so long it is told that a user or token has gone; who comes later reads everything anew."""

USER_QUEUES_MAX = 10_000
"""Queues of one user, unless a quota says otherwise: a tenth of what a server may have."""

USER_TOPICS_MAX = 1_000
"""Topics of one user, unless a quota says otherwise."""

USER_SUBSCRIPTIONS_MAX = 10_000
"""Subscriptions that one user has made, unless a quota says otherwise."""

USER_SESSIONS_MAX = 1_000
"""Sessions of one user at a time, unless a quota says otherwise."""

USER_STREAMS_MAX = 100
"""Streams of events of one user at a time, unless a quota says otherwise."""

USER_JOBS_MAX = 4
"""Redrives and move tasks of one user at a time, unless a quota says otherwise."""

BOOK_FORGET_MANY = 1_000
"""Of what is counted and not there, so many are forgotten in one transaction."""

QUOTA_PRINCIPALS_MAX = 10_000
"""Principals whose use is counted; the one that was quiet for the longest begins anew."""

QUOTA_HELD_MAX = 100_000
"""Lease calls and pins of one principal that are counted; beyond it the oldest is not."""

QUOTA_RECOUNT_MAX = 256
"""Messages in flight of which is asked, before someone is refused, whether they still are."""

CASSIEQ_SKEW_MS_MAX = 5_000
"""How far the time of a request that was signed in CassieQ's way may be from the server's, as it is
there: for so long whoever overheard such a request can send it again."""

AUDIT_TEXT_CHARS_MAX = 500
"""Of each text in a note of the audit."""

AUDIT_KEEP_SECONDS = 90 * 86_400
"""For so long acts are kept, unless the settings say otherwise."""

AUDIT_KEEP_BYTES = 256 * 1024 * 1024
"""And no more than so many bytes of them."""

AUDIT_USER_DENIED_BURST = 10
"""Acts of one user that were denied, and are noted at once: what somebody tried by mistake."""

AUDIT_USER_DENIED_PER_MINUTE = 1
"""And beyond those; the next note says how many were not noted."""

AUDIT_DENIED_BURST = 100
"""Acts of all users together that were denied, and are noted at once."""

AUDIT_DENIED_PER_MINUTE = 6
"""And beyond those: some 3 MB a day, so that the notes of many weeks are still there when whoever
may do nothing has tried for as long."""

AUDIT_DENIED_USERS_MAX = 4_096
"""Users whose denied acts are counted; the one that was quiet for the longest begins anew."""

AUDIT_WRITING_MAX = 100
"""Notes that are being written and that nobody waits for."""

CONFIG_BYTES_MAX = 4 * 1024 * 1024
"""A file of settings; thousands of queues fit into it."""

FRONTENDS_MAX = 64
"""Front-end processes of one server."""

CONNECTIONS_MAX = 10_000
"""Connections of a server, unless the settings say otherwise."""

DESCRIPTORS_KEPT = 512
"""Descriptors that connections leave to the engine: the log, sealed files, the index."""
