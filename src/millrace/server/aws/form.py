"""The query protocol: calls as forms, answers as XML.

A form has a field for every leaf, named by its way: `Entry.1.Attribute.2.Name`. How lists and maps
are named differs between services, and does not follow from what the calls are in JSON; so each
service tells it in a table.

Rule 1: a call is read into the same Struct as in JSON, and answered from the same.
Rule 2: names are bounded in depth, forms in fields; the numbers of a list need not be dense, and
their order counts.
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Mapping
from typing import TypeAlias, TypeVar
from urllib.parse import parse_qsl
from xml.sax.saxutils import escape

import msgspec
import numpy as np

from millrace import limits
from millrace.decoding import convert
from millrace.server.aws.fault import Fault, invalid_parameter

Tree: TypeAlias = "dict[str, Tree | str]"
"""A form by the parts of its names."""

T = TypeVar("T", bound=msgspec.Struct)


class Items(msgspec.Struct, frozen=True):
    """A list: under `way` there are numbers, and below them its items."""

    way: tuple[str, ...]


class Pairs(msgspec.Struct, frozen=True):
    """A map: a list of pairs, whose halves have these names."""

    way: tuple[str, ...]
    key: str
    value: str


Named = Mapping[str, Items | Pairs]
"""By the names that fields of calls and answers have in JSON; what is not there is called in both
protocols alike. Of one that has another form in some actions, under `Action.name`, too."""


NOT_IN_XML = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff\ud800-\udfff]")
"""Characters that no XML has, written however."""

AROUND = frozenset({"Action", "Version", "Timestamp", "AWSAccessKeyId"})
"""Fields of a form that are no parameters of the action."""


def read_fields(text: str) -> dict[str, str]:
    """The fields of a form.

    Raises:
        Fault: it is no form, or has too many fields, or one twice.
    """
    try:
        pairs = _pairs_of(text)
    except ValueError as error:
        raise Fault("MalformedQueryString", f"The form cannot be read: {error}.") from error
    found = dict(pairs)
    if len(found) < len(pairs):
        raise Fault("MalformedQueryString", "A parameter stands there twice.")
    return found


def _pairs_of(text: str) -> list[tuple[str, str]]:
    if len(text) <= limits.AWS_FORM_SHORT_CHARS:
        return parse_qsl(
            text, keep_blank_values=True, errors="strict", max_num_fields=limits.AWS_FORM_FIELDS_MAX
        )
    if text.count("&") >= limits.AWS_FORM_FIELDS_MAX:
        raise ValueError("it has too many fields")
    # Names and values are told apart by bytes that UTF-8 has not.
    data = text.replace("+", " ").encode().replace(b"&", _BETWEEN).replace(b"=", _EQUALS)
    parts = (part.partition(_EQUALS) for part in _unquoted(data).split(_BETWEEN) if part)
    return [(name.decode(), value.replace(_EQUALS, b"=").decode()) for name, _, value in parts]


def _unquoted(data: bytes) -> bytes:
    """As `urllib.parse.unquote_to_bytes`, which makes an object of each escape: that takes twenty
    times the memory, and seconds for a large message.

    Raises:
        ValueError: an escape stands for a byte that UTF-8 has not.
    """
    if b"%" not in data:
        return data
    data += b"  "
    pieces: list[bytes] = []
    skipped = 0
    for at in range(0, len(data) - 2, limits.AWS_FORM_STEP_BYTES):
        # Two bytes more, which may be the digits of the last escape.
        found = np.frombuffer(data[at : at + limits.AWS_FORM_STEP_BYTES + 2], np.uint8)
        digits = _HEX_DIGITS[found]
        high, low = digits[1:-1], digits[2:]
        is_escape = (found[:-2] == ord("%")) & (high < _NO_DIGIT) & (low < _NO_DIGIT)
        plain = np.where(is_escape, high << 4 | low, found[:-2])
        if (is_escape & (plain >= _EQUALS[0])).any():
            raise ValueError("its escapes are no UTF-8")
        is_left = np.ones(len(found), np.bool_)
        is_left[1:-1] &= ~is_escape
        is_left[2:] &= ~is_escape
        is_left[:skipped] = False
        pieces.append(plain[is_left[:-2]].tobytes())
        # What of the next bytes belongs to an escape in these.
        skipped = 2 if is_escape[-1] else int(is_escape[-2:-1].any())
    return b"".join(pieces)


_EQUALS, _BETWEEN = b"\xfe", b"\xff"
_NO_DIGIT = 16
_HEX_DIGITS = np.full(256, _NO_DIGIT, np.uint8)
"""The value of each byte that is a hexadecimal digit."""
_HEX_DIGITS[list(b"0123456789abcdef")] = range(_NO_DIGIT)
_HEX_DIGITS[list(b"ABCDEF")] = range(10, _NO_DIGIT)


def tree_of(fields: Mapping[str, str]) -> Tree:
    """The fields by the parts of their names."""
    tree: Tree = {}
    for name, value in fields.items():
        parts = name.split(".")
        if len(parts) > limits.AWS_FORM_DEPTH_MAX:
            raise invalid_parameter(f"The parameter {name[:100]} is not known.")
        at = tree
        for part in parts[:-1]:
            below = at.setdefault(part, {})
            if isinstance(below, str):
                raise invalid_parameter(f"The parameter {name[:100]} is both a text and more.")
            at = below
        if isinstance(at.get(parts[-1]), dict):
            raise invalid_parameter(f"The parameter {name[:100]} is both a text and more.")
        at[parts[-1]] = value
    return tree


def read_form(tree: Tree, kind: type[T], named: Named, action: str) -> T:
    """What a form says, as in JSON.

    Raises:
        msgspec.ValidationError: it does not say what is needed, or otherwise than it can be.
    """
    known = {name: below for name, below in tree.items() if name not in AROUND}
    return convert(_plain(known, kind, named, action), kind, strict=False)


def _plain(tree: Tree, kind: object, named: Named, action: str) -> dict[str, object]:
    """The tree with its lists and maps as such, as far as the kind has them; what it has not stays
    as it is, to be refused."""
    plain: dict[str, object] = {}
    read: set[str] = set()
    for field in msgspec.structs.fields(kind):  # type: ignore[arg-type]
        name = field.encode_name
        form = named.get(f"{action}.{name}") or named.get(name)
        inner = _inner(field.type)
        read.add(name if form is None else form.way[0])
        if form is None:
            if name in tree:
                below = tree[name]
                is_struct = isinstance(below, dict) and inner is not None
                plain[name] = _plain(below, inner, named, action) if is_struct else below  # type: ignore[arg-type]
            continue
        items = _items(tree, form.way)
        if items is None and tree.get(name) == "":
            # So clients write a list of nothing: by its own name, not by that of its items.
            read.add(name)
            items = []
        if items is None:
            continue
        if isinstance(form, Items):
            plain[name] = [_item(item, inner, named, action) for item in items]
        else:
            plain[name] = {
                _key(item, form.key): _value(item, form.value, inner, named, action)
                for item in items
            }
    plain.update({name: below for name, below in tree.items() if name not in read})
    return plain


def _items(tree: Tree, way: tuple[str, ...]) -> list[Tree | str] | None:
    at: Tree | str = tree
    for part in way:
        if isinstance(at, str) or part not in at:
            return None
        at = at[part]
    if isinstance(at, str):
        # A list of one, without its number.
        return [at] if at else []
    try:
        order = sorted(at, key=int)
    except ValueError:
        raise invalid_parameter(f"{'.'.join(way)} is a list: its items have numbers.") from None
    return [at[number] for number in order]


def _item(item: Tree | str, inner: object, named: Named, action: str) -> object:
    if isinstance(item, dict) and inner is not None:
        return _plain(item, inner, named, action)
    return item


def _key(item: Tree | str, key: str) -> str:
    found = item.get(key) if isinstance(item, dict) else None
    if not isinstance(found, str):
        raise invalid_parameter(f"An entry of a map has no {key}.")
    return found


def _value(item: Tree | str, value: str, inner: object, named: Named, action: str) -> object:
    assert isinstance(item, dict)
    below = item.get(value, "")
    if isinstance(below, dict) and inner is not None:
        return _plain(below, inner, named, action)
    return below


def _inner(kind: object) -> object:
    """The Struct that a field is or is made of, if there is one."""
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return kind
    for argument in getattr(kind, "__args__", ()):
        found = _inner(argument)
        if found is not None:
            return found
    return None


# --- Answers -------------------------------------------------------------------------------------


def write_xml(answer: msgspec.Struct | None, named: Named, action: str) -> str:
    """An answer's fields as XML, without what is around them."""
    parts: list[str] = []
    if answer is not None:
        _write(msgspec.to_builtins(answer, builtin_types=(bytes,)), named, action, parts)
    return "".join(parts)


def _write(fields: Mapping[str, object], named: Named, action: str, parts: list[str]) -> None:
    for name, value in fields.items():
        if value is None:
            continue
        form = named.get(f"{action}.{name}") or named.get(name)
        around = form.way[:-1] if form is not None else ()
        parts.extend(f"<{one}>" for one in around)
        if isinstance(value, list):
            assert isinstance(form, Items), name
            _list(value, form, named, action, parts)
        elif isinstance(value, dict) and isinstance(form, Pairs):
            _pairs(value, form, named, action, parts)
        else:
            _element(name, value, named, action, parts)
        parts.extend(f"</{one}>" for one in reversed(around))


def _list(items: list[object], form: Items, named: Named, action: str, parts: list[str]) -> None:
    for item in items:
        _element(form.way[-1], item, named, action, parts)


def _pairs(
    items: Mapping[str, object], form: Pairs, named: Named, action: str, parts: list[str]
) -> None:
    for key, value in items.items():
        parts.append(f"<{form.way[-1]}>")
        _element(form.key, key, named, action, parts)
        _element(form.value, value, named, action, parts)
        parts.append(f"</{form.way[-1]}>")


def _element(name: str, value: object, named: Named, action: str, parts: list[str]) -> None:
    parts.append(f"<{name}>")
    if isinstance(value, dict):
        _write(value, named, action, parts)
    elif isinstance(value, bool):
        parts.append("true" if value else "false")
    elif isinstance(value, bytes):
        parts.append(b64encode(value).decode())
    else:
        parts.append(text_of(str(value)))
    parts.append(f"</{name}>")


def text_of(text: str) -> str:
    """A text within XML; line ends are written so that no reader changes them.

    What XML cannot hold, which other protocols can publish, becomes a mark: one such character
    would spoil the whole answer.
    """
    return escape(NOT_IN_XML.sub("\ufffd", text), {"\r": "&#xD;", '"': "&quot;"})
