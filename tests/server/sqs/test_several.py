"""Where several front ends serve, what one of them has done holds for all."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
from botocore.exceptions import ClientError

from millrace import limits
from tests.server.aws.site import AwsSite

if TYPE_CHECKING:
    from types_boto3_sqs import SQSClient

CLIENTS = 8
"""Each has a connection of its own: one front end alone is met by all of them once in 128 times."""


@pytest.fixture(scope="module")
def several(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AwsSite]:
    with AwsSite(tmp_path_factory.mktemp("several"), "--frontends", "2") as found:
        yield found


@pytest.fixture(scope="module")
def clients(several: AwsSite) -> list[SQSClient]:
    return [several.aws().sqs for _ in range(CLIENTS)]


def at_once(clients: list[SQSClient], ask: Callable[[int, SQSClient], object]) -> list[str]:
    """What became of each call: nothing, or the code of its error."""

    def one(at: int) -> str:
        try:
            ask(at, clients[at])
        except ClientError as error:
            return error.response["Error"]["Code"]
        return ""

    with ThreadPoolExecutor(len(clients)) as pool:
        return list(pool.map(one, range(len(clients))))


def test_no_queue_has_too_many_tags_whoever_gives_them(clients: list[SQSClient], name: str) -> None:
    url = clients[0].create_queue(QueueName=name)["QueueUrl"]

    def tag(at: int, sqs: SQSClient) -> None:
        sqs.tag_queue(QueueUrl=url, Tags={f"{at}-{number}": "x" for number in range(10)})

    codes = at_once(clients, tag)
    assert sorted(codes) == [""] * 5 + ["OverLimit"] * 3
    assert len(clients[0].list_queue_tags(QueueUrl=url)["Tags"]) == limits.SQS_TAGS_MAX
