"""One server for the tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import TYPE_CHECKING

import pytest

from tests.server.aws.site import AwsSite

if TYPE_CHECKING:
    from types_boto3_sqs import SQSClient

_numbers = count(1)


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AwsSite]:
    with AwsSite(tmp_path_factory.mktemp("sqs")) as found:
        yield found


@pytest.fixture(scope="session")
def sqs(site: AwsSite) -> SQSClient:
    return site.aws().sqs


@pytest.fixture
def name() -> str:
    """One that no other test uses."""
    return f"queue-{next(_numbers)}"


@pytest.fixture
def url(sqs: SQSClient, name: str) -> str:
    """The address of a standard queue."""
    return sqs.create_queue(QueueName=name)["QueueUrl"]


@pytest.fixture
def fifo(sqs: SQSClient, name: str) -> str:
    """The address of a FIFO queue."""
    made = sqs.create_queue(QueueName=f"{name}.fifo", Attributes={"FifoQueue": "true"})
    return made["QueueUrl"]
