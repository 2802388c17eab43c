"""Services as fixtures: started once in a run, and started again if a test has left them dead."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.services.postgres import Postgres
from tests.services.redis import Redis
from tests.services.search import Search


@pytest.fixture(scope="session")
def postgres_of_run() -> Iterator[Postgres]:
    with Postgres() as service:
        yield service


@pytest.fixture
def postgres(postgres_of_run: Postgres) -> Postgres:
    """PostgreSQL; `new_database()` gives a test what no other one has."""
    postgres_of_run.revive()
    return postgres_of_run


@pytest.fixture(scope="session")
def redis_of_run() -> Iterator[Redis]:
    with Redis() as service:
        yield service


@pytest.fixture
def redis(redis_of_run: Redis) -> Redis:
    """Redis, with what other tests have left in it."""
    redis_of_run.revive()
    return redis_of_run


@pytest.fixture(scope="session")
def search_of_run() -> Iterator[Search]:
    with Search() as service:
        yield service


@pytest.fixture
def search(search_of_run: Search) -> Search:
    """OpenSearch, with the indexes of other tests in it."""
    search_of_run.revive()
    return search_of_run
