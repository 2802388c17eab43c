"""Backends of a cluster: registry values, loglets, blobs and retries."""

from __future__ import annotations

BACKEND_RETRY_SECONDS_MIN = 0.05
"""First pause before a request with an unknown outcome is sent again; it doubles each time."""

BACKEND_RETRY_SECONDS_MAX = 2.0
"""Longest such pause: a backend that is back is noticed within this time."""

OBJECT_NAME_CHARS_MAX = 512
"""Characters of an object's name; object stores allow 1,024 bytes, with the prefix of a cluster."""

REGISTRY_VALUE_BYTES_MAX = 64 * 1024
"""Bytes of one registry value: etcd and conditional writes of Cassandra stay quick with that."""

LOGLET_RECORD_BYTES_MAX = 8 * 1024 * 1024
"""Bytes of one loglet record, without its header."""

LOGLET_RECORDS_IN_FLIGHT_MAX = 16
"""Records of one loglet that are appended at once."""

LOGLET_BYTES_IN_FLIGHT_MAX = 64 * 1024 * 1024
"""Bytes of these records: they are kept in memory until they are durable."""

LOGLET_BARRIER_RECORDS = 1024
"""Distance at which a sealer puts its barrier: a writer cannot get further while the gap is
searched, and does not reach it within the time of one request."""

LOGLET_READ_RECORDS = 16
"""Records of a loglet that are read at once."""

LOGLET_TRIM_RECORDS = 256
"""Records of a loglet that are deleted between two looks at the event loop."""

BLOB_BLOCK_BYTES = 256 * 1024
"""Bytes of a blob that share a checksum: a range is read in whole blocks."""
