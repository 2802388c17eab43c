"""Passes a token to Spark's processes through a file.

Rule 1: no option and no setting contains a token, since plans, logs and checkpoints show them. They
name a file with the token, and each process reads it.

Rule 2: a token that came without a file is put into one that only its user can read, and that
disappears with this process, however it ends. It is not available on other machines.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from tempfile import NamedTemporaryFile

import msgspec

from millrace.pipeline.opening import Where


@contextmanager
def shown(where: Where) -> Iterator[Where]:
    """Return the location with a file that holds its token until the context ends."""
    if where.token is None or where.token_file:
        yield where
    elif hasattr(os, "memfd_create"):
        with open(os.memfd_create("millrace-token"), "wb", buffering=0) as file:
            # The file is created readable by all, and readers of secrets refuse such a file.
            os.fchmod(file.fileno(), 0o600)
            file.write(where.token.encode())
            path = f"/proc/{os.getpid()}/fd/{file.fileno()}"
            yield msgspec.structs.replace(where, token_file=path)
    else:
        with NamedTemporaryFile("wb", buffering=0, prefix="millrace-") as file:
            file.write(where.token.encode())
            yield msgspec.structs.replace(where, token_file=file.name)
