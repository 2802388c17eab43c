"""A server for tests, in a thread of the test's process, on a free port.

Local clients have all rights, with or without a token or key.
"""

from __future__ import annotations

from pathlib import Path

from millrace.client.portal import Portal
from millrace.server.process.frontend import FrontendOrders
from millrace.server.process.server import Server
from millrace.server.process.server_settings import LoadedSettings, ServerSettings
from millrace.settings import Settings

SERVED = Settings(segment_bytes=8 * 1024 * 1024, log_segments_free=1)
"""WAL segments that are quick to create, and hold the largest messages of SQS."""


class TestServer:
    """A server of a folder, which runs until it is closed."""

    __test__ = False

    def __init__(self, folder: Path, *, settings: Settings = SERVED) -> None:
        """Start the server; it accepts requests when this returns."""
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
        self._server = Server(LoadedSettings(found, {}), FrontendOrders())
        try:
            self._portal.run(self._server.start)
        except BaseException:
            self._portal.end(self._server.stop)
            raise
        self.url = self._server.addresses[0]
        """URL of the server."""
        self.token_file = found.admin_token_path
        """File with the administrator's token, for clients that need one."""

    @property
    def aws(self) -> dict[str, str]:
        """Arguments for AWS clients: `boto3.client("sqs", **server.aws)`."""
        return {
            "endpoint_url": self.url,
            "region_name": "us-east-1",
            "aws_access_key_id": "test",
            "aws_secret_access_key": "test",
        }

    def close(self) -> None:
        """Stop the server, after requests in progress are finished."""
        self._portal.end(self._server.stop)
