"""The registry port: small values that change by compare-and-set only.

The registry holds what nodes agree upon: nodes, owners of commit groups, epochs, ends of loglets.

Rule 1: reads and writes of one key are linearizable.
Rule 2: a write ends only when its own value or a later version was read (X11). Reading the old
version again is no outcome: the write may still be applied. `write` asks again until it knows; a
caller that must not wait abandons the write by writing the same version itself, with another value.
Rule 3: every value names its writer and a random attempt, by which a writer recognises its own
value. Values have a format version; a later one is refused.

`tests.support.contracts.check_registry` holds every registry to this page.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import msgspec

from millrace import limits
from millrace.backend.objects import Version
from millrace.decoding import msgpack_decoder
from millrace.errors import Corrupt, Refused, TooLarge

FORMAT = 1
"""Version of the format of values."""


class RegistryValue(NamedTuple):
    """A value with the version that a compare-and-set must name."""

    data: bytes
    version: Version
    writer: str


class WriteConflict(Refused):
    """The key has another version: the write is not in force and never will be."""

    code = "write_conflict"

    def __init__(
        self, message: str, *, current: RegistryValue | None, may_have_applied: bool
    ) -> None:
        super().__init__(message, field="version")
        self.current = current
        """The value that was found; None: the key does not exist."""
        self.may_have_applied = may_have_applied
        """True if an attempt had no answer: it may have been in force before the value that was
        found. An owner that claims by a write is fenced in both cases; a counter would have
        counted."""


class Registry(Protocol):
    """Small versioned values by key."""

    async def read(self, key: str) -> RegistryValue | None:
        """Return the value of a key; None if there is none.

        Raises:
            BackendUnavailable: it could not be read.
        """
        ...

    async def write(self, key: str, data: bytes, expected: Version | None) -> RegistryValue:
        """Replace the value of this version, or create it if `expected` is None.

        Returns once the value is stored. It may be cancelled: the outcome is then unknown, as that
        of any write.

        Raises:
            WriteConflict: the key has another version.
            TooLarge: the value exceeds 64 KiB.
        """
        ...

    async def names(self, prefix: str) -> list[str]:
        """Return the keys that begin with `prefix`, sorted.

        Raises:
            BackendUnavailable: they could not be listed.
        """
        ...


class _Envelope(msgspec.Struct, frozen=True, array_like=True):
    """A value as it is stored."""

    format: int
    writer: str
    attempt: bytes
    data: bytes


_encoder = msgspec.msgpack.Encoder()
_decoder = msgpack_decoder(_Envelope)


def encode_value(data: bytes, writer: str, attempt: bytes) -> bytes:
    """Encode a value with its writer and attempt.

    Raises:
        TooLarge: the value exceeds 64 KiB.
    """
    if len(data) > limits.REGISTRY_VALUE_BYTES_MAX:
        raise TooLarge(
            f"a registry value has at most {limits.REGISTRY_VALUE_BYTES_MAX} bytes",
            field="data",
            limit=limits.REGISTRY_VALUE_BYTES_MAX,
        )
    return _encoder.encode(_Envelope(FORMAT, writer, attempt, data))


def decode_value(key: str, stored: bytes, version: Version) -> tuple[RegistryValue, bytes]:
    """Return a stored value and its attempt.

    Raises:
        Corrupt: it is no value of a registry.
        Refused: it was written by a later version.
    """
    try:
        envelope = _decoder.decode(stored)
    except msgspec.MsgspecError as error:
        raise Corrupt(f"the registry value {key!r} cannot be decoded", field=key) from error
    if envelope.format != FORMAT:
        raise Refused(
            f"the registry value {key!r} has format {envelope.format}, and this version knows "
            f"{FORMAT}: update this node",
            field=key,
        )
    return RegistryValue(envelope.data, version, envelope.writer), envelope.attempt
