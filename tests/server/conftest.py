"""One server for all that are clients of AWS."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.server.aws.site import AwsSite

if TYPE_CHECKING:
    from types_boto3_sns import SNSClient
    from types_boto3_sqs import SQSClient


@pytest.fixture(scope="session")
def site(starts_processes: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[AwsSite]:
    with AwsSite(tmp_path_factory.mktemp("aws")) as found:
        yield found


@pytest.fixture(scope="session")
def sns(site: AwsSite) -> SNSClient:
    return site.aws().sns


@pytest.fixture(scope="session")
def sqs(site: AwsSite) -> SQSClient:
    return site.aws().sqs
