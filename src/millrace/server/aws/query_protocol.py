"""The query protocol: requests are forms, responses are XML.

A form has a field for every leaf, named by its path: `Entry.1.Attribute.2.Name`. The names of lists
and maps differ between services and cannot be derived from the JSON protocol, so that each service
has a table of them.

Rule 1: requests are parsed into the same Structs as in the JSON protocol, and responses rendered
from the same.
Rule 2: the depth of names and the number of fields are bounded; the numbers of list items need not
be dense, only their order counts.
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
"""The fields of a form, nested by the parts of their names."""

T = TypeVar("T", bound=msgspec.Struct)


class Items(msgspec.Struct, frozen=True):
    """A list in a form: item numbers follow the path `way`."""

    way: tuple[str, ...]


class Pairs(msgspec.Struct, frozen=True):
    """A map in a form: a list of pairs with these field names."""

    way: tuple[str, ...]
    key: str
    value: str


Named = Mapping[str, Items | Pairs]
"""Names of lists and maps, by their name in the JSON protocol; all other fields have the same name
in both. An entry `Action.name` applies to one action only.
"""


NOT_IN_XML = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff\ud800-\udfff]")
"""Characters that XML cannot represent, not even escaped."""

AROUND = frozenset({"Action", "Version", "Timestamp", "AWSAccessKeyId"})
"""Fields of a form that are not parameters of the action."""


def read_fields(text: str) -> dict[str, str]:
    """Parse the fields of a form.

    Raises:
        Fault: the form is malformed, has too many fields, or has one twice.
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
    # Names and values are separated by bytes that never occur in UTF-8.
    data = text.replace("+", " ").encode().replace(b"&", _BETWEEN).replace(b"=", _EQUALS)
    parts = (part.partition(_EQUALS) for part in _unquoted(data).split(_BETWEEN) if part)
    return [(name.decode(), value.replace(_EQUALS, b"=").decode()) for name, _, value in parts]


def _unquoted(data: bytes) -> bytes:
    """Decode percent-escapes like `urllib.parse.unquote_to_bytes`, in large steps.

    That function makes an object of each escape, which takes twenty times the memory, and seconds
    for a large message.

    Raises:
        ValueError: an escape stands for a byte that UTF-8 does not have.
    """
    if b"%" not in data:
        return data
    data += b"  "
    pieces: list[bytes] = []
    skipped = 0
    for at in range(0, len(data) - 2, limits.AWS_FORM_STEP_BYTES):
        # Two more bytes, which may be the digits of the last escape.
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
        # The number of bytes in the next step that belong to an escape in this one.
        skipped = 2 if is_escape[-1] else int(is_escape[-2:-1].any())
    return b"".join(pieces)


_EQUALS, _BETWEEN = b"\xfe", b"\xff"
_NO_DIGIT = 16
_HEX_DIGITS = np.full(256, _NO_DIGIT, np.uint8)
"""The value of each byte that is a hexadecimal digit."""
_HEX_DIGITS[list(b"0123456789abcdef")] = range(_NO_DIGIT)
_HEX_DIGITS[list(b"ABCDEF")] = range(10, _NO_DIGIT)


def tree_of(fields: Mapping[str, str]) -> Tree:
    """Nest the fields by the parts of their names."""
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
    """Convert the fields of a form to the Struct of a request.

    Raises:
        msgspec.ValidationError: a field is missing or has an invalid value.
    """
    known = {name: below for name, below in tree.items() if name not in AROUND}
    return convert(_plain(known, kind, named, action), kind, strict=False)


def _plain(tree: Tree, kind: object, named: Named, action: str) -> dict[str, object]:
    """Return the tree with lists and maps in place of numbered fields; unknown fields stay, to be
    refused.
    """
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
            # Clients write an empty list under the name of the list, without items.
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
        # A list of one item, without its number.
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
    """Return the Struct that a field's type is or contains, or None."""
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return kind
    for argument in getattr(kind, "__args__", ()):
        found = _inner(argument)
        if found is not None:
            return found
    return None


# --- Answers -------------------------------------------------------------------------------------


def write_xml(answer: msgspec.Struct | None, named: Named, action: str) -> str:
    """Render the fields of a response as XML, without the enclosing elements."""
    parts: list[str] = []
    if answer is not None:
        _write(msgspec.to_builtins(answer, builtin_types=(bytes,)), named, action, parts)
    return "".join(parts)


_PLAIN_NAMES = {"QueueUrls": "queueUrls", "Messages": "messages"}
"""Names of lists that differ between a JSON response to a query and the JSON protocol."""


def write_plain(answer: msgspec.Struct, named: Named) -> dict[str, object]:
    """Return an answer to a query in JSON: maps are lists of pairs, as in XML."""
    plain = _as_plain(msgspec.to_builtins(answer), named)
    assert isinstance(plain, dict)
    return plain


def _as_plain(value: object, named: Named) -> object:
    if isinstance(value, list):
        return [_as_plain(item, named) for item in value]
    if not isinstance(value, dict):
        return value
    plain: dict[str, object] = {}
    for name, below in value.items():
        form = named.get(name)
        if isinstance(below, dict) and isinstance(form, Pairs):
            pairs = [
                {form.key: key, form.value: _as_plain(one, named)} for key, one in below.items()
            ]
            plain[name] = pairs
        else:
            plain[_PLAIN_NAMES.get(str(name), str(name))] = _as_plain(below, named)
    return plain


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
    """Return a text escaped for XML; line ends are escaped so that no parser normalizes them.

    Characters that XML cannot represent, published through other protocols, are replaced by U+FFFD:
    a single one would invalidate the whole response.
    """
    return escape(NOT_IN_XML.sub("\ufffd", text), {"\r": "&#xD;", '"': "&quot;"})
