"""One server for the tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import TYPE_CHECKING

import pytest

from tests.server.aws.site import AwsSite

if TYPE_CHECKING:
    from types_boto3_sns import SNSClient
    from types_boto3_sqs import SQSClient

_numbers = count(1)


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AwsSite]:
    with AwsSite(tmp_path_factory.mktemp("sns")) as found:
        yield found


@pytest.fixture(scope="session")
def sns(site: AwsSite) -> SNSClient:
    return site.aws().sns


@pytest.fixture(scope="session")
def sqs(site: AwsSite) -> SQSClient:
    return site.aws().sqs


@pytest.fixture
def name() -> str:
    """One that no other test uses."""
    return f"topic-{next(_numbers)}"


@pytest.fixture
def topic(sns: SNSClient, name: str) -> str:
    """The ARN of a standard topic."""
    return sns.create_topic(Name=name)["TopicArn"]
