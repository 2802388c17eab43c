"""The object store port: named objects with create-only and compare-and-set writes.

Rule 1: reads are linearizable: what a write that has returned has done, every later read sees.
Rule 2: a write has three outcomes: done, not done, or `BackendUnavailable`, after which it may have
been done, may be done at any later time, or never. Adapters do not retry: the callers know how to
ask again so that a write counts once.
Rule 3: an adapter ends its requests before the process ends.

`tests.support.contracts.check_objects` holds every adapter to this page.
"""

from __future__ import annotations

import re
from typing import NamedTuple, Protocol

from millrace import limits
from millrace.errors import Invalid, Retry

Version = str
"""A version of an object; equal versions mean equal contents."""

_SEGMENT = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*")


class ObjectEntry(NamedTuple):
    """An object in a listing."""

    name: str
    size: int


class BackendUnavailable(Retry):
    """The backend did not answer: the outcome of a write is unknown."""

    code = "backend_unavailable"


class ObjectStore(Protocol):
    """Objects by name."""

    async def create(self, name: str, data: bytes) -> Version | None:
        """Create an object; return its version, or None if one of this name exists, whatever is in
        it.

        Raises:
            BackendUnavailable: it may have been created, or will be.
        """
        ...

    async def replace(self, name: str, data: bytes, version: Version) -> Version | None:
        """Replace an object of this version; return its new version, or None if it has another
        version or does not exist.

        Raises:
            BackendUnavailable: it may have been replaced, or will be.
        """
        ...

    async def read(self, name: str) -> tuple[bytes, Version] | None:
        """Return an object and its version; None if there is none.

        Raises:
            BackendUnavailable: it could not be read.
        """
        ...

    async def read_range(self, name: str, start: int, length: int) -> bytes | None:
        """Return a part of an object, shorter if the object ends before; None if there is none.

        Raises:
            BackendUnavailable: it could not be read.
        """
        ...

    async def entries(self, prefix: str) -> list[ObjectEntry]:
        """Return the objects whose names begin with `prefix`, sorted by name.

        Raises:
            BackendUnavailable: they could not be listed.
        """
        ...

    async def delete(self, name: str) -> None:
        """Delete an object; a missing one is no error.

        Raises:
            BackendUnavailable: it may have been deleted, or will be.
        """
        ...


def check_name(name: str) -> str:
    """Return the name of an object, which is a path of plain segments.

    Raises:
        Invalid: it is none; it could leave the folder of a store.
    """
    if len(name) > limits.OBJECT_NAME_CHARS_MAX or not all(
        map(_SEGMENT.fullmatch, name.split("/"))
    ):
        raise Invalid(f"{name!r} is not the name of an object", field="name")
    return name
