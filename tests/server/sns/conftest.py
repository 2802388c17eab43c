"""Topics of a test's own."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from types_boto3_sns import SNSClient

_numbers = count(1)


@pytest.fixture
def name() -> str:
    """One that no other test uses."""
    return f"topic-{next(_numbers)}"


@pytest.fixture
def topic(sns: SNSClient, name: str) -> str:
    """The ARN of a standard topic."""
    return sns.create_topic(Name=name)["TopicArn"]
