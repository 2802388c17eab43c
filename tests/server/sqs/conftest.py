"""Queues of a test's own."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from types_boto3_sqs import SQSClient

_numbers = count(1)


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
