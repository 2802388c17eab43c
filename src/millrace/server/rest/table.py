"""The table that the modules of this folder write their routes into."""

from __future__ import annotations

from millrace.server.rest.route import Routes

ROUTES = Routes()

SPACE = "/v1/spaces/{space}"
QUEUE = f"{SPACE}/queues/{{queue}}"
TOPIC = f"{SPACE}/topics/{{topic}}"
