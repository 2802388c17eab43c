"""Shapes: how one value stands in a frame, and what is taken for one that comes from outside.

Rule 1: `pack` is given what our own code has made. `unpack` believes nothing: what it returns, a
program that uses the API could have made.
Rule 2: what `unpack` refuses, it refuses with `Invalid` or `TooLarge`, naming the field.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, cast

import msgspec
from pyroaring import BitMap64

from millrace import limits
from millrace.core import check
from millrace.core.block import FLAG_SQUEEZED, HEADER, Block
from millrace.core.check_rows import whole_block
from millrace.errors import Corrupt, Invalid, TooLarge
from millrace.rpc.frames import Blobs, Pieces

_TOP = 2**63 - 1


class Shape(Protocol):
    """How one kind of value stands in a frame."""

    def pack(self, value: object, blobs: Blobs) -> object:
        """The value as msgpack has it."""
        ...

    def unpack(self, raw: object, field: str, blobs: Pieces) -> object:
        """The value behind what was sent.

        Raises:
            Invalid, TooLarge: it is none.
        """
        ...


def wrong(raw: object, field: str, wanted: str) -> Invalid:
    """What is said of a value that is none."""
    return Invalid(f"{field} is {check.shown(raw)}, not {wanted}", field=field)


class Plain:
    """Values that stand for themselves."""

    def pack(self, value: object, blobs: Blobs) -> object:
        return value


class Whole(Plain):
    """A whole number within bounds."""

    def __init__(self, least: int = 0, most: int = _TOP) -> None:
        self._least = least
        self._most = most

    def unpack(self, raw: object, field: str, blobs: Pieces) -> int:
        if type(raw) is not int or raw < self._least:
            raise wrong(raw, field, f"a whole number from {self._least} on")
        if raw > self._most:
            raise TooLarge(
                f"{field} is {check.shown(raw)}, up to {self._most} is allowed",
                field=field,
                limit=self._most,
            )
        return raw


class Flag(Plain):
    """Yes or no."""

    def unpack(self, raw: object, field: str, blobs: Pieces) -> bool:
        if type(raw) is not bool:
            raise wrong(raw, field, "True or False")
        return raw


class Name(Plain):
    """A name; empty only where none is needed."""

    def __init__(self, *, needed: bool = True, most: int = limits.NAME_CHARS_MAX) -> None:
        self._needed = needed
        self._most = most

    def unpack(self, raw: object, field: str, blobs: Pieces) -> str:
        return "" if raw == "" and not self._needed else check.name(raw, field, self._most)


class IdText(Plain):
    """An id of a message or a call; empty only where none is needed."""

    def __init__(self, *, needed: bool = True) -> None:
        self._needed = needed

    def unpack(self, raw: object, field: str, blobs: Pieces) -> str:
        if raw == "" and not self._needed:
            return ""
        found = check.id_text(raw, field)
        if found is None:
            raise wrong(raw, field, "a text")
        return found


class Text(Plain):
    """Any text of so many bytes."""

    def __init__(self, most: int) -> None:
        self._most = most

    def unpack(self, raw: object, field: str, blobs: Pieces) -> str:
        if type(raw) is not str:
            raise wrong(raw, field, "a text")
        if len(raw.encode()) > self._most:
            raise TooLarge(
                f"{field} has more than {self._most} bytes", field=field, limit=self._most
            )
        return raw


class Pattern(Plain):
    """Text of one form."""

    def __init__(self, pattern: str, *, most: int) -> None:
        self._pattern = re.compile(pattern)
        self._most = most

    def unpack(self, raw: object, field: str, blobs: Pieces) -> str:
        if type(raw) is not str or len(raw) > self._most or not self._pattern.fullmatch(raw):
            raise wrong(raw, field, "what it should be")
        return raw


class Data(Plain):
    """Bytes of a length within bounds."""

    def __init__(self, least: int, most: int) -> None:
        self._least = least
        self._most = most

    def unpack(self, raw: object, field: str, blobs: Pieces) -> bytes:
        if type(raw) is not bytes:
            raise wrong(raw, field, "bytes")
        if not self._least <= len(raw) <= self._most:
            raise TooLarge(
                f"{field} has {len(raw)} bytes, from {self._least} to {self._most} are allowed",
                field=field,
                limit=self._most,
            )
        return raw


class Choice(Plain):
    """One of some texts."""

    def __init__(self, *known: str) -> None:
        self._known = known

    def unpack(self, raw: object, field: str, blobs: Pieces) -> str:
        if type(raw) is str and raw in self._known:
            return raw
        raise wrong(raw, field, f"one of {', '.join(map(repr, self._known))}")


class Optional:
    """None, or a value."""

    def __init__(self, shape: Shape) -> None:
        self._shape = shape

    def pack(self, value: object, blobs: Blobs) -> object:
        return None if value is None else self._shape.pack(value, blobs)

    def unpack(self, raw: object, field: str, blobs: Pieces) -> object:
        return None if raw is None else self._shape.unpack(raw, field, blobs)


class Either:
    """A whole number, or a value of another shape that is none."""

    def __init__(self, number: Whole, other: Shape) -> None:
        self._number = number
        self._other = other

    def pack(self, value: object, blobs: Blobs) -> object:
        return value if type(value) is int else self._other.pack(value, blobs)

    def unpack(self, raw: object, field: str, blobs: Pieces) -> object:
        shape = self._number if type(raw) is int else self._other
        return shape.unpack(raw, field, blobs)


class Converted:
    """What stands as a value of another type."""

    def __init__(
        self, shape: Shape, pack: Callable[[object], object], unpack: Callable[[object], object]
    ) -> None:
        self._shape = shape
        self._pack = pack
        self._unpack = unpack

    def pack(self, value: object, blobs: Blobs) -> object:
        return self._shape.pack(self._pack(value), blobs)

    def unpack(self, raw: object, field: str, blobs: Pieces) -> object:
        return self._unpack(self._shape.unpack(raw, field, blobs))


class Many:
    """A tuple of values of one shape, at most so many."""

    def __init__(self, shape: Shape, most: int, *, least: int = 0) -> None:
        self._shape = shape
        self._most = most
        self._least = least

    def pack(self, value: object, blobs: Blobs) -> object:
        return [self._shape.pack(one, blobs) for one in cast("Sequence[object]", value)]

    def unpack(self, raw: object, field: str, blobs: Pieces) -> tuple[object, ...]:
        listed = listed_of(raw, field, self._most)
        if len(listed) < self._least:
            raise Invalid(f"{field} are empty; name at least one", field=field)
        return tuple(self._shape.unpack(one, field, blobs) for one in listed)


class Record:
    """A tuple of values, each with a shape of its own."""

    def __init__(self, *shapes: Shape) -> None:
        self._shapes = shapes

    def pack(self, value: object, blobs: Blobs) -> object:
        values = cast("Sequence[object]", value)
        return [shape.pack(one, blobs) for shape, one in zip(self._shapes, values, strict=True)]

    def unpack(self, raw: object, field: str, blobs: Pieces) -> tuple[object, ...]:
        if type(raw) is not list or len(raw) != len(self._shapes):
            raise wrong(raw, field, f"a list of {len(self._shapes)}")
        return tuple(
            shape.unpack(one, field, blobs) for shape, one in zip(self._shapes, raw, strict=True)
        )


class Table:
    """A dict, as a list of keys and values by turns."""

    def __init__(self, key: Shape, value: Shape, most: int) -> None:
        self._key = key
        self._value = value
        self._most = most

    def pack(self, value: object, blobs: Blobs) -> object:
        out: list[object] = []
        for key, one in cast("Mapping[object, object]", value).items():
            out += (self._key.pack(key, blobs), self._value.pack(one, blobs))
        return out

    def unpack(self, raw: object, field: str, blobs: Pieces) -> dict[object, object]:
        listed = listed_of(raw, field, 2 * self._most)
        if len(listed) % 2:
            raise wrong(raw, field, "keys and values")
        return {
            self._key.unpack(key, field, blobs): self._value.unpack(one, field, blobs)
            for key, one in zip(listed[::2], listed[1::2], strict=True)
        }


class Form:
    """A struct, as the list of its fields in their order; its fields are checked one by one."""

    def __init__(self, kind: type[msgspec.Struct], *shapes: Shape) -> None:
        self.kind = kind
        self._fields = tuple(zip(kind.__struct_fields__, shapes, strict=True))
        self._packed = [
            (at, shape) for at, shape in enumerate(shapes) if not isinstance(shape, Plain)
        ]

    def pack(self, value: object, blobs: Blobs) -> list[object]:
        values: list[object] = list(msgspec.structs.astuple(cast("msgspec.Struct", value)))
        for at, shape in self._packed:
            values[at] = shape.pack(values[at], blobs)
        return values

    def unpack(self, raw: object, field: str, blobs: Pieces) -> msgspec.Struct:
        if type(raw) is not list or len(raw) != len(self._fields):
            raise wrong(raw, field, f"the {len(self._fields)} fields of {self.kind.__name__}")
        if len(raw) == 3:
            # As below, for what is sent most.
            (name, one), (name_2, two), (name_3, three) = self._fields
            return self.kind(
                one.unpack(raw[0], name, blobs),
                two.unpack(raw[1], name_2, blobs),
                three.unpack(raw[2], name_3, blobs),
            )
        if len(raw) == 4:
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
                for (name, shape), one in zip(self._fields, raw, strict=True)
            ]
        )


class OneOf:
    """A value of one of several types, each known by its number; what is unknown is refused."""

    def __init__(self, known: Mapping[int, tuple[type, Shape]], what: str) -> None:
        self._by_number = {number: shape for number, (_, shape) in known.items()}
        self._by_type = {kind: (number, shape) for number, (kind, shape) in known.items()}
        self._what = what

    def kinds(self) -> frozenset[type]:
        """The types that it knows."""
        return frozenset(self._by_type)

    def pack(self, value: object, blobs: Blobs) -> list[object]:
        found = self._by_type.get(type(value))
        if found is None:
            raise Invalid(
                f"{type(value).__name__} is {self._what} that is not sent to another process",
                field="call",
            )
        number, shape = found
        return [number, shape.pack(value, blobs)]

    def unpack(self, raw: object, field: str, blobs: Pieces) -> object:
        if type(raw) is not list or len(raw) != 2 or type(raw[0]) is not int:
            raise wrong(raw, field, self._what)
        shape = self._by_number.get(raw[0])
        if shape is None:
            raise Invalid(f"{self._what} {raw[0]} is not known here", field=field)
        return shape.unpack(raw[1], field, blobs)


class Seqs:
    """A set of seqs: one as itself, several as a list of 64-bit numbers.

    Not as the bytes of a roaring bitmap: those are believed by whoever reads them.
    """

    def __init__(self, most: int = limits.LEASE_MESSAGES_MAX, *, least: int = 1) -> None:
        self._most = most
        self._least = least

    def pack(self, value: object, blobs: Blobs) -> object:
        seqs = cast("BitMap64", value)
        if len(seqs) == 1:
            return seqs.min()
        return array("Q", seqs).tobytes()

    def unpack(self, raw: object, field: str, blobs: Pieces) -> BitMap64:
        if type(raw) is int and 0 <= raw <= _TOP:
            return BitMap64([raw])
        if type(raw) is not bytes or len(raw) % 8:
            raise wrong(raw, field, "a set of seqs")
        if len(raw) > 8 * self._most:
            raise TooLarge(
                f"{field} has {len(raw) // 8} seqs, up to {self._most} are allowed",
                field=field,
                limit=self._most,
            )
        seqs = BitMap64(array("Q", raw))
        if len(seqs) < self._least or (seqs and seqs.max() > _TOP):
            raise wrong(raw, field, "a set of seqs")
        return seqs


class Rows:
    """A block, as its own bytes among the blobs; from outside it is looked through."""

    def __init__(self, *, least: int = 1) -> None:
        self._least = least

    def pack(self, value: object, blobs: Blobs) -> object:
        block = cast("Block", value)
        buffers: list[bytes | bytearray | memoryview] = []
        size = block.encode_into(buffers)
        return blobs.add(buffers, size)

    def unpack(self, raw: object, field: str, blobs: Pieces) -> Block:
        data = piece(raw, field, blobs)
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
        if block.count or self._least:
            whole_block(block)
        return block


def piece(raw: object, field: str, blobs: Pieces) -> memoryview:
    """Return the blob at the place that `raw` names; no byte is taken twice.

    Raises:
        Invalid: it is no such place.
    """
    if type(raw) is list and len(raw) == 2 and type(raw[0]) is int and type(raw[1]) is int:
        data = blobs.take(raw[0], raw[1])
        if data is not None:
            return data
    raise wrong(raw, field, "a place among the blobs, after those named before")


def listed_of(raw: object, field: str, most: int) -> list[object]:
    """A list, at most so long."""
    if type(raw) is not list:
        raise wrong(raw, field, "a list")
    if len(raw) > most:
        raise TooLarge(
            f"{field} has {len(raw)} entries, up to {most} are allowed", field=field, limit=most
        )
    return raw
