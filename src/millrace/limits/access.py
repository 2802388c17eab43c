"""Users, tokens, quotas and the audit log."""

from __future__ import annotations

USERS_MAX = 10_000
"""Users of a server; all of them are in memory."""

TOKENS_MAX = 100_000
"""Tokens and keys of all users together; all of them are in memory."""

USER_SECRETS_MAX = 100
"""Tokens and keys of one user, so that none is overlooked among many."""

TOKEN_MS_MAX = 10 * 365 * 86_400_000
"""Longest lifetime of a token that expires: ten years."""

RULES_MAX = 100
"""Access rules of one user: a request may have to evaluate all of them."""

RULINGS_KEPT_MAX = 1_024
"""Cached authorization decisions of one user."""

SHARDS_KNOWN_MAX = 200_000
"""Cached names of shards, and calls of one client that were authorized by the name of their shard.
"""

SECRET_FILE_BYTES_MAX = 4_096
"""Size of a file with a secret; a larger one cannot be one."""

CREDENTIAL_CHARS_MAX = 4_096
"""Characters of the `Authorization` header; our own have below a hundred."""

FAILURES_BURST = 20
"""Failed authentications of one address that are answered without a delay."""

FAILURES_PER_SECOND = 1
"""Failed authentications of one address per second, beyond the burst."""

FAILURE_ADDRESSES_MAX = 4_096
"""Addresses whose failures are counted; the least recently active one is evicted."""

BOOK_PAUSE_MS_MAX = 1_000
"""Longest pause between two attempts to follow changes of users by other processes."""

BOOK_KEEP_DELETES_SECONDS = 7 * 86_400
"""Time for which the deletion of a user or token stays in the log; a follower that lags more reads
everything again."""

USER_QUEUES_MAX = 10_000
"""Queues of one user, unless a quota says otherwise: a tenth of the server's limit."""

USER_TOPICS_MAX = 1_000
"""Topics of one user, unless a quota says otherwise."""

USER_SUBSCRIPTIONS_MAX = 10_000
"""Subscriptions made by one user, unless a quota says otherwise."""

USER_SESSIONS_MAX = 1_000
"""Concurrent sessions of one user, unless a quota says otherwise."""

USER_STREAMS_MAX = 100
"""Concurrent event streams of one user, unless a quota says otherwise."""

USER_JOBS_MAX = 4
"""Concurrent redrives and move tasks of one user, unless a quota says otherwise."""

BOOK_FORGET_MANY = 1_000
"""Counted objects that no longer exist and are removed in one transaction."""

QUOTA_PRINCIPALS_MAX = 10_000
"""Principals whose usage is counted; the least recently active one starts from zero again."""

QUOTA_HELD_MAX = 100_000
"""Lease calls and pins of one principal that are counted; beyond it the oldest is dropped."""

QUOTA_RECOUNT_MAX = 256
"""Counted messages in flight that are checked for still being so, before a request is refused."""

CASSIEQ_SKEW_MS_MAX = 5_000
"""Clock skew of requests that are signed in CassieQ's way, as CassieQ allows it: for this time an
eavesdropper can replay such a request."""

AUDIT_TEXT_CHARS_MAX = 500
"""Characters of each text in an audit record."""

AUDIT_KEEP_SECONDS = 90 * 86_400
"""Retention of audit records, unless the settings say otherwise."""

AUDIT_KEEP_BYTES = 256 * 1024 * 1024
"""Retention of audit records in bytes."""

AUDIT_USER_DENIED_BURST = 10
"""Denied acts of one user that are recorded without a rate limit: a user's mistakes."""

AUDIT_USER_DENIED_PER_MINUTE = 1
"""Denied acts of one user recorded per minute beyond the burst; the next record has the number of
those omitted."""

AUDIT_DENIED_BURST = 100
"""Denied acts of all users together that are recorded without a rate limit."""

AUDIT_DENIED_PER_MINUTE = 6
"""Denied acts of all users recorded per minute beyond the burst: about 3 MB a day, so that weeks of
an attack by an unauthorized user do not push out the older records."""

AUDIT_DENIED_USERS_MAX = 4_096
"""Users whose denied acts are counted; the least recently active one is evicted."""

AUDIT_WRITING_MAX = 100
"""Audit records in flight whose completion is not awaited."""

CONFIG_BYTES_MAX = 4 * 1024 * 1024
"""Size of a settings file; thousands of queues fit into it."""

FRONTENDS_MAX = 64
"""Front-end processes of one server."""

CONNECTIONS_MAX = 10_000
"""Connections of a server, unless the settings say otherwise."""

DESCRIPTORS_KEPT = 512
"""File descriptors reserved for the engine: the log, sealed files and the index."""
