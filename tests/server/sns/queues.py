"""Queues that tests subscribe, and what they get."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest
from botocore.exceptions import ClientError

from tests.server.aws.site import ACCOUNT, REGION

if TYPE_CHECKING:
    from types_boto3_sqs import SQSClient
    from types_boto3_sqs.type_defs import MessageTypeDef


@dataclass(frozen=True, slots=True)
class Taker:
    """A queue, and what comes to it."""

    sqs: SQSClient
    url: str
    arn: str

    def take(self, count: int) -> list[MessageTypeDef]:
        """The next messages, which are deleted; so many have to come."""
        found: list[MessageTypeDef] = []
        while len(found) < count:
            got = self.sqs.receive_message(
                QueueUrl=self.url,
                MaxNumberOfMessages=min(10, count - len(found)),
                WaitTimeSeconds=20,
                MessageAttributeNames=["All"],
                MessageSystemAttributeNames=["All"],
            ).get("Messages", [])
            assert got, f"{len(found)} came, not {count}"
            for one in got:
                self.sqs.delete_message(QueueUrl=self.url, ReceiptHandle=one["ReceiptHandle"])
            found += got
        return found

    def bodies(self, count: int) -> list[str]:
        """The messages within what SNS has put around the next ones."""
        return [json.loads(one["Body"])["Message"] for one in self.take(count)]


def taker(sqs: SQSClient, name: str, **attributes: str) -> Taker:
    """A new queue."""
    url = sqs.create_queue(QueueName=name, Attributes=attributes)["QueueUrl"]  # type: ignore[arg-type]
    return Taker(sqs, url, f"arn:aws:sqs:{REGION}:{ACCOUNT}:{name}")


def refused(error: pytest.ExceptionInfo[ClientError]) -> tuple[str, int, str]:
    """Code, status and text of what was refused."""
    found = error.value.response
    status = found["ResponseMetadata"]["HTTPStatusCode"]
    return found["Error"]["Code"], status, found["Error"]["Message"]
