"""What is asked of messages by their ids; see `commands.py`."""

from __future__ import annotations

import msgspec
from pyroaring import BitMap64


class Delete(msgspec.Struct, frozen=True):
    """End these messages, whoever holds them. Answer: how many were there."""

    seqs: BitMap64
