"""aiobotocore as a client of `every_action`: `python aio_client.py URL REGION`."""

from __future__ import annotations

import asyncio
import json
import re
import sys

from aiobotocore.session import get_session  # type: ignore[import-not-found]
from botocore.exceptions import ClientError


async def main(url: str, region: str) -> None:
    """Answer calls until there are no more."""
    session = get_session()
    options = {"endpoint_url": url, "region_name": region}
    async with (
        session.create_client("sqs", **options) as sqs,
        session.create_client("sns", **options) as sns,
    ):
        for line in sys.stdin:
            asked = json.loads(line)
            client = {"sqs": sqs, "sns": sns}[asked["service"]]
            name = re.sub(r"(?<!^)(?=[A-Z])", "_", asked["action"]).lower()
            try:
                told = await getattr(client, name)(**asked["input"])
            except ClientError as error:
                answer: dict[str, object] = {"refused": error.response["Error"]["Code"]}
            else:
                answer = {"told": {key: one for key, one in told.items() if key[:8] != "Response"}}
            print(json.dumps(answer, default=str), flush=True)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
