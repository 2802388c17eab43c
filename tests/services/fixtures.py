"""Services as fixtures: started once in a run, and started again if a test has left them dead."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.services.postgres import Postgres
from tests.services.redis import Redis
from tests.services.search import Search
from tests.services.spark_cluster import Cluster
from tests.services.spark_connect import Connect


@pytest.fixture(scope="session")
def postgres_of_run(starts_processes: None) -> Iterator[Postgres]:
    with Postgres() as service:
        yield service


@pytest.fixture
def postgres(postgres_of_run: Postgres) -> Postgres:
    """PostgreSQL; `new_database()` gives a test what no other one has."""
    postgres_of_run.revive()
    return postgres_of_run


@pytest.fixture(scope="session")
def redis_of_run(starts_processes: None) -> Iterator[Redis]:
    with Redis() as service:
        yield service


@pytest.fixture
def redis(redis_of_run: Redis) -> Redis:
    """Redis, with what other tests have left in it."""
    redis_of_run.revive()
    return redis_of_run


@pytest.fixture(scope="session")
def search_of_run(starts_processes: None) -> Iterator[Search]:
    with Search() as service:
        yield service


@pytest.fixture
def search(search_of_run: Search) -> Search:
    """OpenSearch, with the indexes of other tests in it."""
    search_of_run.revive()
    return search_of_run


@pytest.fixture(scope="session")
def cluster_of_run(starts_processes: None) -> Iterator[Cluster]:
    with Cluster() as cluster:
        yield cluster


@pytest.fixture
def cluster(cluster_of_run: Cluster) -> Cluster:
    """A standalone Spark with two workers; its drivers are programs of their own."""
    cluster_of_run.revive()
    return cluster_of_run


@pytest.fixture(scope="session")
def connect_of_run(starts_processes: None) -> Iterator[Connect]:
    with Connect() as service:
        yield service


@pytest.fixture
def connect(connect_of_run: Connect) -> Connect:
    """A server of Spark Connect; its clients are programs of their own."""
    connect_of_run.revive()
    return connect_of_run
