"""A token on its way to Spark's processes.

Rule 1: no option and no setting holds a token: plans, logs and checkpoints show them. They name a
file that holds it, and each process reads that for itself.
Rule 2: where the token came without a file, one is made that ends with this process, however that
ends, and that only its user can read. On other machines there is no such file.
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
    """The same place, with a file that holds its token for as long as the context lasts."""
    if where.token is None or where.token_file:
        yield where
    elif hasattr(os, "memfd_create"):
        with open(os.memfd_create("millrace-token"), "wb", buffering=0) as file:
            # It is made readable by all, and who reads a secret refuses such a file.
            os.fchmod(file.fileno(), 0o600)
            file.write(where.token.encode())
            path = f"/proc/{os.getpid()}/fd/{file.fileno()}"
            yield msgspec.structs.replace(where, token_file=path)
    else:
        with NamedTemporaryFile("wb", buffering=0, prefix="millrace-") as file:
            file.write(where.token.encode())
            yield msgspec.structs.replace(where, token_file=file.name)
