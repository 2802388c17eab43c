"""Fetches what the services need, and says what it does: `python -m tests.services`."""

from __future__ import annotations

import sys
from collections.abc import Callable

from millrace.errors import NotFound
from millrace.spark.java import find_java
from tests.integration.environments import have_java, have_node, have_pythons
from tests.services.missing import Missing
from tests.services.postgres import have_postgres
from tests.services.redis import have_redis
from tests.services.search import have_search

NEEDED: tuple[tuple[str, Callable[[], object]], ...] = (
    ("Java", find_java),
    ("PostgreSQL", have_postgres),
    ("Redis", have_redis),
    ("OpenSearch (45 MB)", have_search),
    ("clients of AWS in Python (40 MB)", have_pythons),
    ("clients of AWS in JavaScript (10 MB)", have_node),
    ("clients of AWS in Java (15 MB)", have_java),
)


def main() -> int:
    """Fetch all; what cannot be had is told at the end, and does not keep the rest away."""
    missing: list[str] = []
    for name, have in NEEDED:
        print(f"services: {name} … ", end="", file=sys.stderr, flush=True)
        try:
            have()
        except (Missing, NotFound) as error:
            missing.append(f"services: {name}: {error}")
            print("missing", file=sys.stderr)
        else:
            print("here", file=sys.stderr)
    for line in missing:
        print(line, file=sys.stderr)
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
