"""Requests to endpoints: whatever was published, each is one request."""

from __future__ import annotations

import pytest

from millrace.server.sns.endpoint_delivery import EndpointPost, _head

SMUGGLED = "x\r\n\r\nPOST /admin HTTP/1.1\r\nhost: internal\r\n\r\n"


@pytest.mark.parametrize("odd", [SMUGGLED, "x\nhost: internal", "x\0\x7f", "\u2028\u010a\u010d"])
def test_no_line_ends_within_what_others_have_published(odd: str) -> None:
    sending = EndpointPost(
        "http://127.0.0.1/hook", "12345", "Notification", odd, f"arn:{odd}", f"arn:{odd}", True, odd
    )
    lines = _head(sending, 5).decode("ascii").split("\r\n")
    assert lines[-2:] == ["", ""]
    assert [line.partition(":")[0] for line in lines[1:-2]] == [
        "host",
        "content-type",
        "content-length",
        "user-agent",
        "x-millrace-delivery",
        "x-amz-sns-message-type",
        "x-amz-sns-message-id",
        "x-amz-sns-topic-arn",
        "x-amz-sns-subscription-arn",
        "x-amz-sns-rawdelivery",
        "connection",
    ]
    assert "".join(lines).isprintable()
