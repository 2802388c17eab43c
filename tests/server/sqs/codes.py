"""What an error of a client says."""

from __future__ import annotations

import pytest
from botocore.exceptions import ClientError


def code_of(error: pytest.ExceptionInfo[ClientError]) -> tuple[str, int]:
    """Its code and the status of the answer."""
    response = error.value.response
    return response["Error"]["Code"], response["ResponseMetadata"]["HTTPStatusCode"]
