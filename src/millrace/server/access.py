"""Users, rules and their secrets: the importable names of `millrace.server.auth.access`."""

from millrace.server.auth.access import *  # noqa: F403
