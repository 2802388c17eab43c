"""Codecs of single fields: they encode our own values, and decode and validate those from outside.

Rule 1: `pack` trusts its input, which our own code has made. `unpack` trusts nothing: it returns
only values that a program could have passed to the API.
Rule 2: `unpack` refuses with `Invalid` or `TooLarge`, and names the field.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, cast

import msgspec
from pyroaring import BitMap64

from millrace import limits
from millrace.core import validate
from millrace.core.format.block import FLAG_SQUEEZED, HEADER, Block
from millrace.core.publishing.validate_rows import whole_block
from millrace.errors import Corrupt, Invalid, TooLarge
from millrace.rpc.frames import BlobReader, BlobWriter

_TOP = 2**63 - 1


class FieldCodec(Protocol):
    """Encodes, decodes and validates one kind of value."""

    def pack(self, value: object, blobs: BlobWriter) -> object:
        """Return the value for MessagePack; large data goes to `blobs`."""
        ...

    def unpack(self, raw: object, field: str, blobs: BlobReader) -> object:
        """Decode and validate a value.

        Raises:
            Invalid, TooLarge: the value is not allowed.
        """
        ...


def invalid_value(raw: object, field: str, wanted: str) -> Invalid:
    """Return the error for a value of the wrong type or form."""
    return Invalid(f"{field} is {validate.shown(raw)}, not {wanted}", field=field)


class PlainCodec:
    """Base of codecs whose values need no encoding."""

    def pack(self, value: object, blobs: BlobWriter) -> object:
        return value


class IntCodec(PlainCodec):
    """An integer within bounds."""

    def __init__(self, least: int = 0, most: int = _TOP) -> None:
        self._minimum = least
        self._maximum = most

    def unpack(self, raw: object, field: str, blobs: BlobReader) -> int:
        if type(raw) is not int or raw < self._minimum:
            raise invalid_value(raw, field, f"a whole number from {self._minimum} on")
        if raw > self._maximum:
            raise TooLarge(
                f"{field} is {validate.shown(raw)}, up to {self._maximum} is allowed",
                field=field,
                limit=self._maximum,
            )
        return raw


class BoolCodec(PlainCodec):
    """A bool."""

    def unpack(self, raw: object, field: str, blobs: BlobReader) -> bool:
        if type(raw) is not bool:
            raise invalid_value(raw, field, "True or False")
        return raw


class NameCodec(PlainCodec):
    """A name; empty only if it is optional."""

    def __init__(self, *, needed: bool = True, most: int = limits.NAME_CHARS_MAX) -> None:
        self._needed = needed
        self._maximum = most

    def unpack(self, raw: object, field: str, blobs: BlobReader) -> str:
        return "" if raw == "" and not self._needed else validate.name(raw, field, self._maximum)


class IdCodec(PlainCodec):
    """An id of a message or call; empty only if it is optional."""

    def __init__(self, *, needed: bool = True) -> None:
        self._needed = needed

    def unpack(self, raw: object, field: str, blobs: BlobReader) -> str:
        if raw == "" and not self._needed:
            return ""
        text = validate.id_text(raw, field)
        if text is None:
            raise invalid_value(raw, field, "a text")
        return text


class TextCodec(PlainCodec):
    """A text with a maximal size in bytes."""

    def __init__(self, most: int) -> None:
        self._maximum = most

    def unpack(self, raw: object, field: str, blobs: BlobReader) -> str:
        if type(raw) is not str:
            raise invalid_value(raw, field, "a text")
        if len(raw.encode()) > self._maximum:
            raise TooLarge(
                f"{field} has more than {self._maximum} bytes", field=field, limit=self._maximum
            )
        return raw


class PatternCodec(PlainCodec):
    """A text that matches a regular expression."""

    def __init__(self, pattern: str, *, most: int) -> None:
        self._pattern = re.compile(pattern)
        self._maximum = most

    def unpack(self, raw: object, field: str, blobs: BlobReader) -> str:
        if type(raw) is not str or len(raw) > self._maximum or not self._pattern.fullmatch(raw):
            raise invalid_value(raw, field, "what it should be")
        return raw


class BytesCodec(PlainCodec):
    """Bytes with a minimal and a maximal length."""

    def __init__(self, least: int, most: int) -> None:
        self._minimum = least
        self._maximum = most

    def unpack(self, raw: object, field: str, blobs: BlobReader) -> bytes:
        if type(raw) is not bytes:
            raise invalid_value(raw, field, "bytes")
        if not self._minimum <= len(raw) <= self._maximum:
            raise TooLarge(
                f"{field} has {len(raw)} bytes; {self._minimum} to {self._maximum} are allowed",
                field=field,
                limit=self._maximum,
            )
        return raw


class ChoiceCodec(PlainCodec):
    """One of several fixed texts."""

    def __init__(self, *known: str) -> None:
        self._known = known

    def unpack(self, raw: object, field: str, blobs: BlobReader) -> str:
        if type(raw) is str and raw in self._known:
            return raw
        raise invalid_value(raw, field, f"one of {', '.join(map(repr, self._known))}")


class OptionalCodec:
    """None or a value."""

    def __init__(self, shape: FieldCodec) -> None:
        self._codec = shape

    def pack(self, value: object, blobs: BlobWriter) -> object:
        return None if value is None else self._codec.pack(value, blobs)

    def unpack(self, raw: object, field: str, blobs: BlobReader) -> object:
        return None if raw is None else self._codec.unpack(raw, field, blobs)


class IntOrCodec:
    """An integer, or a value of another codec that never encodes to an integer."""

    def __init__(self, number: IntCodec, other: FieldCodec) -> None:
        self._number = number
        self._other = other

    def pack(self, value: object, blobs: BlobWriter) -> object:
        return value if type(value) is int else self._other.pack(value, blobs)

    def unpack(self, raw: object, field: str, blobs: BlobReader) -> object:
        shape = self._number if type(raw) is int else self._other
        return shape.unpack(raw, field, blobs)


class ConvertedCodec:
    """A value that is converted to another type for its codec, and back."""

    def __init__(
        self,
        shape: FieldCodec,
        pack: Callable[[object], object],
        unpack: Callable[[object], object],
    ) -> None:
        self._codec = shape
        self._pack = pack
        self._unpack = unpack

    def pack(self, value: object, blobs: BlobWriter) -> object:
        return self._codec.pack(self._pack(value), blobs)

    def unpack(self, raw: object, field: str, blobs: BlobReader) -> object:
        return self._unpack(self._codec.unpack(raw, field, blobs))


class ListCodec:
    """A tuple of values with the same codec and a maximal length."""

    def __init__(self, shape: FieldCodec, most: int, *, least: int = 0) -> None:
        self._codec = shape
        self._maximum = most
        self._minimum = least

    def pack(self, value: object, blobs: BlobWriter) -> object:
        return [self._codec.pack(one, blobs) for one in cast("Sequence[object]", value)]

    def unpack(self, raw: object, field: str, blobs: BlobReader) -> tuple[object, ...]:
        listed = check_list(raw, field, self._maximum)
        if len(listed) < self._minimum:
            raise Invalid(f"{field} are empty; name at least one", field=field)
        return tuple(self._codec.unpack(one, field, blobs) for one in listed)


class TupleCodec:
    """A tuple with a codec for each value."""

    def __init__(self, *shapes: FieldCodec) -> None:
        self._codecs = shapes

    def pack(self, value: object, blobs: BlobWriter) -> object:
        values = cast("Sequence[object]", value)
        return [shape.pack(one, blobs) for shape, one in zip(self._codecs, values, strict=True)]

    def unpack(self, raw: object, field: str, blobs: BlobReader) -> tuple[object, ...]:
        if type(raw) is not list or len(raw) != len(self._codecs):
            raise invalid_value(raw, field, f"a list of {len(self._codecs)}")
        return tuple(
            shape.unpack(one, field, blobs) for shape, one in zip(self._codecs, raw, strict=True)
        )


class DictCodec:
    """A dict, encoded as a flat list of alternating keys and values."""

    def __init__(self, key: FieldCodec, value: FieldCodec, most: int) -> None:
        self._key = key
        self._value = value
        self._maximum = most

    def pack(self, value: object, blobs: BlobWriter) -> object:
        out: list[object] = []
        for key, one in cast("Mapping[object, object]", value).items():
            out += (self._key.pack(key, blobs), self._value.pack(one, blobs))
        return out

    def unpack(self, raw: object, field: str, blobs: BlobReader) -> dict[object, object]:
        listed = check_list(raw, field, 2 * self._maximum)
        if len(listed) % 2:
            raise invalid_value(raw, field, "keys and values")
        return {
            self._key.unpack(key, field, blobs): self._value.unpack(one, field, blobs)
            for key, one in zip(listed[::2], listed[1::2], strict=True)
        }


class StructCodec:
    """A struct, encoded as the list of its fields in order; each field is validated.

    The last fields may be `added`, by a later version: they are left out while they have their
    default, so that both versions understand each other without them.
    """

    def __init__(self, kind: type[msgspec.Struct], *shapes: FieldCodec, added: int = 0) -> None:
        self.kind = kind
        self._least = len(shapes) - added
        self._defaults = kind.__struct_defaults__[-added:] if added else ()
        self._fields = tuple(zip(kind.__struct_fields__, shapes, strict=True))
        self._packed = [
            (at, shape) for at, shape in enumerate(shapes) if not isinstance(shape, PlainCodec)
        ]

    def pack(self, value: object, blobs: BlobWriter) -> list[object]:
        values: list[object] = list(msgspec.structs.astuple(cast("msgspec.Struct", value)))
        for default in reversed(self._defaults):
            if values[-1] != default:
                break
            values.pop()
        for at, shape in self._packed:
            if at < len(values):
                values[at] = shape.pack(values[at], blobs)
        return values

    def unpack(self, raw: object, field: str, blobs: BlobReader) -> msgspec.Struct:
        if type(raw) is not list or not self._least <= len(raw) <= len(self._fields):
            raise invalid_value(
                raw, field, f"the {len(self._fields)} fields of {self.kind.__name__}"
            )
        if len(raw) == 3 == len(self._fields):
            # Unrolled versions of the general case below, for the most frequent structs.
            (name, one), (name_2, two), (name_3, three) = self._fields
            return self.kind(
                one.unpack(raw[0], name, blobs),
                two.unpack(raw[1], name_2, blobs),
                three.unpack(raw[2], name_3, blobs),
            )
        if len(raw) == 4 == len(self._fields):
            (name, one), (name_2, two), (name_3, three), (name_4, four) = self._fields
            return self.kind(
                one.unpack(raw[0], name, blobs),
                two.unpack(raw[1], name_2, blobs),
                three.unpack(raw[2], name_3, blobs),
                four.unpack(raw[3], name_4, blobs),
            )
        return self.kind(
            *[
                shape.unpack(one, name, blobs)
                for (name, shape), one in zip(self._fields, raw, strict=not self._defaults)
            ]
        )


class UnionCodec:
    """A value of one of several numbered types; unknown numbers are refused."""

    def __init__(self, known: Mapping[int, tuple[type, FieldCodec]], what: str) -> None:
        self._by_number = {number: shape for number, (_, shape) in known.items()}
        self._by_type = {kind: (number, shape) for number, (kind, shape) in known.items()}
        self._what = what

    def kinds(self) -> frozenset[type]:
        """Return the types that it encodes."""
        return frozenset(self._by_type)

    def pack(self, value: object, blobs: BlobWriter) -> list[object]:
        numbered = self._by_type.get(type(value))
        if numbered is None:
            raise Invalid(
                f"{type(value).__name__} is {self._what} that is not sent to another process",
                field="call",
            )
        number, shape = numbered
        return [number, shape.pack(value, blobs)]

    def unpack(self, raw: object, field: str, blobs: BlobReader) -> object:
        if type(raw) is not list or len(raw) != 2 or type(raw[0]) is not int:
            raise invalid_value(raw, field, self._what)
        shape = self._by_number.get(raw[0])
        if shape is None:
            raise Invalid(f"{self._what} {raw[0]} is not known here", field=field)
        return shape.unpack(raw[1], field, blobs)


class SeqSetCodec:
    """A set of seqs: a single one as an integer, several as a list of 64-bit integers.

    It is not encoded as a roaring bitmap, whose decoder does not validate its bytes.
    """

    def __init__(self, most: int = limits.LEASE_MESSAGES_MAX, *, least: int = 1) -> None:
        self._maximum = most
        self._minimum = least

    def pack(self, value: object, blobs: BlobWriter) -> object:
        seqs = cast("BitMap64", value)
        if len(seqs) == 1:
            return seqs.min()
        return array("Q", seqs).tobytes()

    def unpack(self, raw: object, field: str, blobs: BlobReader) -> BitMap64:
        if type(raw) is int and 0 <= raw <= _TOP:
            return BitMap64([raw])
        if type(raw) is not bytes or len(raw) % 8:
            raise invalid_value(raw, field, "a set of seqs")
        if len(raw) > 8 * self._maximum:
            raise TooLarge(
                f"{field} has {len(raw) // 8} seqs, up to {self._maximum} are allowed",
                field=field,
                limit=self._maximum,
            )
        seqs = BitMap64(array("Q", raw))
        if len(seqs) < self._minimum or (seqs and seqs.max() > _TOP):
            raise invalid_value(raw, field, "a set of seqs")
        return seqs


class BlockCodec:
    """A block of rows, encoded as a blob; from outside it is validated in full."""

    def __init__(self, *, least: int = 1) -> None:
        self._minimum = least

    def pack(self, value: object, blobs: BlobWriter) -> object:
        block = cast("Block", value)
        buffers: list[bytes | bytearray | memoryview] = []
        size = block.encode_into(buffers)
        return blobs.add(buffers, size)

    def unpack(self, raw: object, field: str, blobs: BlobReader) -> Block:
        data = read_blob(raw, field, blobs)
        if len(data) >= HEADER.size:
            _, flags, reserved, *_ = HEADER.unpack_from(data)
            if flags & FLAG_SQUEEZED or reserved or flags > FLAG_SQUEEZED:
                raise Invalid(f"{field} are compressed, or of another version", field=field)
        try:
            block, size = Block.decode(data)
        except Corrupt as error:
            raise Invalid(f"{field} are no block: {error}", field=field) from error
        if size != len(data):
            raise Invalid(f"{field} have {len(data) - size} bytes too many", field=field)
        if block.count or self._minimum:
            whole_block(block)
        return block


def read_blob(raw: object, field: str, blobs: BlobReader) -> memoryview:
    """Return the blob at the place that `raw` names; no byte can be read twice.

    Raises:
        Invalid: it is not a valid place.
    """
    if type(raw) is list and len(raw) == 2 and type(raw[0]) is int and type(raw[1]) is int:
        data = blobs.take(raw[0], raw[1])
        if data is not None:
            return data
    raise invalid_value(raw, field, "a place among the blobs, after those named before")


def check_list(raw: object, field: str, max_length: int) -> list[object]:
    """Return a decoded list after checking its length."""
    if type(raw) is not list:
        raise invalid_value(raw, field, "a list")
    if len(raw) > max_length:
        raise TooLarge(
            f"{field} has {len(raw)} entries, up to {max_length} are allowed",
            field=field,
            limit=max_length,
        )
    return raw
