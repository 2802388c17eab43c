"""The table of the native API's routes."""

from __future__ import annotations

from millrace.server.web.route import Routes

ROUTES = Routes()

SPACE = "/v1/spaces/{space}"
QUEUE = f"{SPACE}/queues/{{queue}}"
TOPIC = f"{SPACE}/topics/{{topic}}"
