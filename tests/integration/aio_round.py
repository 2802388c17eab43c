"""aiobotocore goes round: `python aio_round.py URL KEY SECRET`; prints what it found as JSON."""

from __future__ import annotations

import asyncio
import json
import sys

from aiobotocore.session import get_session  # type: ignore[import-not-found]


async def main(url: str, key: str, secret: str) -> None:
    """Many at a time, over one client."""
    session = get_session()
    async with session.create_client(
        "sqs",
        endpoint_url=url,
        region_name="us-east-1",
        aws_access_key_id=key,
        aws_secret_access_key=secret,
    ) as sqs:
        made = await sqs.create_queue(QueueName="aio", tags={"team": "é"})
        address = made["QueueUrl"]
        poll = asyncio.create_task(sqs.receive_message(QueueUrl=address, WaitTimeSeconds=20))
        attributes = {"n": {"DataType": "Binary", "BinaryValue": b"\x00\xff"}}
        await asyncio.gather(
            *(
                sqs.send_message(
                    QueueUrl=address, MessageBody=str(number), MessageAttributes=attributes
                )
                for number in range(50)
            )
        )
        found = list((await poll)["Messages"])
        while len(found) < 50:
            more = await sqs.receive_message(
                QueueUrl=address,
                MaxNumberOfMessages=10,
                WaitTimeSeconds=5,
                MessageAttributeNames=["All"],
                MessageSystemAttributeNames=["All"],
            )
            found += more["Messages"]
        await asyncio.gather(
            *(
                sqs.delete_message(QueueUrl=address, ReceiptHandle=one["ReceiptHandle"])
                for one in found
            )
        )
        left = await sqs.get_queue_attributes(QueueUrl=address, AttributeNames=["All"])
        pages = sqs.get_paginator("list_queues").paginate(QueueNamePrefix="aio")
        listed = [one async for page in pages for one in page.get("QueueUrls", [])]
        refused = ""
        try:
            await sqs.get_queue_url(QueueName="aio-none")
        except sqs.exceptions.QueueDoesNotExist as error:
            refused = error.response["Error"]["Code"]
        await sqs.delete_queue(QueueUrl=address)
    told = {
        "bodies": sorted(int(one["Body"]) for one in found),
        "bytes": found[-1]["MessageAttributes"]["n"]["BinaryValue"].hex(),
        "left": left["Attributes"]["ApproximateNumberOfMessages"],
        "listed": len(listed),
        "refused": refused,
    }
    print(json.dumps(told))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
