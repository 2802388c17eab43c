"""Server settings: the importable names of `millrace.server.process.server_settings`."""

from millrace.server.process.server_settings import *  # noqa: F403
