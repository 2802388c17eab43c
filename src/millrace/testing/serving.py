"""A server for tests: in a thread of the test's process, on a port that is free, and gone after.

Whoever asks from this machine may do everything, with a token or key or without.
"""

from __future__ import annotations

from pathlib import Path

from millrace.client.portal import Portal
from millrace.server.config import Loaded, ServerSettings
from millrace.server.frontend import Orders
from millrace.server.server import Server
from millrace.settings import Settings

SERVED = Settings(segment_bytes=8 * 1024 * 1024, log_segments_free=1)
"""A log whose segments are made in a moment, and hold the largest messages that SQS takes."""


class TestServer:
    """A server of a folder, until it is closed."""

    __test__ = False

    def __init__(self, folder: Path, *, settings: Settings = SERVED) -> None:
        """It serves when this returns."""
        found = ServerSettings(
            data=folder,
            listen=("127.0.0.1:0",),
            socket=False,
            anonymous=True,
            anonymous_rules=("allow * */*",),
            log_level="error",
            engine=settings,
        )
        self._portal = Portal()
        self._server = Server(Loaded(found, {}), Orders())
        try:
            self._portal.run(self._server.start)
        except BaseException:
            self._portal.end(self._server.stop)
            raise
        self.url = self._server.addresses[0]
        """Where it is."""
        self.token_file = found.admin_token_path
        """With the token of one who may do everything, for clients that want to show one."""

    @property
    def aws(self) -> dict[str, str]:
        """What clients of AWS are made with: `boto3.client("sqs", **server.aws)`."""
        return {
            "endpoint_url": self.url,
            "region_name": "us-east-1",
            "aws_access_key_id": "test",
            "aws_secret_access_key": "test",
        }

    def close(self) -> None:
        """End it; those who are being answered come to their end."""
        self._portal.end(self._server.stop)
