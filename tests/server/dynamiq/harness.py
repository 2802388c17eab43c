"""Requests to Dynamiq's routes, and what they are answered."""

from __future__ import annotations

import json

from tests.server.rest.harness import Answer, Served

QUEUES = "/v1/queues"
TOPICS = "/v1/topics"
MAIL = f"{QUEUES}/mail"
NEWS = f"{TOPICS}/news"


def value(answer: Answer) -> object:
    """What an answer says in JSON, with its status."""
    assert answer.headers["content-type"] == "application/json"
    return answer.status, json.loads(answer.body)


def error(answer: Answer) -> tuple[int, str]:
    """Why something was not done, where that is told by an object."""
    assert set(answer.json) == {"error"}
    return answer.status, answer.text("error")


def text_error(answer: Answer) -> tuple[int, str]:
    """The same, where it is told by a text."""
    found = json.loads(answer.body)
    assert isinstance(found, str)
    return answer.status, found


async def put(server: Served, body: bytes, *, path: str = MAIL) -> str:
    """The id of a message that was put."""
    answer = await server.ask("PUT", f"{path}/message", body, type="text/plain")
    assert answer.status == 200, answer
    assert answer.headers["content-type"] == "text/plain; charset=utf-8"
    return answer.body.decode()


async def take(server: Served, count: object = 10, *, path: str = MAIL) -> list[dict[str, str]]:
    """Messages, as they are answered."""
    answer = await server.ask("GET", f"{path}/messages/{count}")
    assert answer.status == 200, answer
    found = json.loads(answer.body)
    assert isinstance(found, list)
    return found
