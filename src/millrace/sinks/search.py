"""A sink for OpenSearch and Elasticsearch: rows become documents.

The index has no transactions: documents are written when they are staged, each with a version made
of its run's fence and the number of its span's end, and the boundary after all of them. A repeated
write has the same version or an older one, and the server refuses older versions: a repeat is
idempotent.

Rule 1: the fence and the boundary are one document, updated by compare-and-set (`if_seq_no`). They
are checked before rows are written; a run that is fenced between the two can only write what its
successor writes as well, or what the successor's versions refuse.

Rule 2: a delete is a document, too, a tombstone, so that its version is known: otherwise a late
write would restore a deleted document. Readers use the alias, which excludes tombstones; they are
removed after a day.

Rule 3: a later run always writes later versions. The number alone would not suffice: spans that
were cut at other places of several shards may have the same one.

Rule 4: a refused version must be older than one of the same flow and queue. If another writer made
the document, that is an error: the row would be lost.
"""

from __future__ import annotations

import hashlib
import http.client
import os
import re
import ssl
import time
from base64 import b64encode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Annotated, cast
from urllib.parse import SplitResult, quote, unquote, urlsplit

import msgspec
import pyarrow as pa

from millrace import limits
from millrace.decoding import convert
from millrace.errors import Invalid, Retry
from millrace.sinks.base import DELETE, OP, Held, Task, overtaken
from millrace.sinks.boundary import Boundary, Span, goes_on
from millrace.sinks.lane import check_key
from millrace.sinks.links import Links
from millrace.sinks.newest import newest
from millrace.sinks.wording import shown, to_json, to_text

ENVIRONMENT = "SEARCH_URL"
FLOWS = "millrace-flows"
LIVE = "-live"
"""Suffix of the alias for readers, after the index's name."""
DELETED, WRITER, VERSION = "millrace_deleted", "millrace_writer", "millrace_version"
"""The sink's own fields: time of deletion of a tombstone, writer, and version."""

FENCE_BITS = 40
"""Versions have 63 bits: enough for millions of runs, each ahead of all before it by more rows than
a span has.
"""

ALL = "*"

_FIELD = re.compile(r"field \[([^\]]+)\]|mapping set to strict, dynamic introduction of \[([^\]]+)")

_MAPPING: Json = {
    "properties": {
        DELETED: {"type": "date", "format": "epoch_millis"},
        WRITER: {"type": "keyword", "index": False, "doc_values": False},
        VERSION: {"type": "long", "index": False},
    }
}


class _Flow(msgspec.Struct, frozen=True):
    fence: int
    boundary: str | None
    base: int = 0
    """Added to the numbers of boundaries: versions of a new flow exceed those of the existing
    documents, such as its own before it was rewound.
    """


class Search(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An index, which is created if missing, and its alias for readers."""

    index: str
    url: str = ""
    """http://user:password@host:9200, or https; by default the environment variable SEARCH_URL."""
    key: tuple[str, ...] = ("key",)
    document: str = ALL
    """A column with the document as JSON; "*": all columns are its fields."""
    certificates: str = ""
    """A file of certificate authorities, if the system does not trust the server's."""
    tombstones: Annotated[int, msgspec.Meta(ge=60)] = limits.SEARCH_TOMBSTONE_SECONDS
    """Seconds until tombstones are removed."""

    def __repr__(self) -> str:
        return f"<Search {self.index}>"

    @property
    def lanes(self) -> int:
        """See `Sink.lanes`; it keeps rows of the same key in order."""
        return limits.SINK_LANES

    def check(self, schema: pa.Schema) -> None:
        """See `Sink.check`."""
        if not self.key:
            raise Invalid("a document has an id: key says of which columns", field="key")
        check_key(schema, self.key)
        if self.document not in (ALL, *schema.names):
            raise Invalid(
                f"document names the column {self.document!r}; the rows have "
                f"{', '.join(schema.names)}",
                field="document",
            )
        for name in schema.names:
            if name in (DELETED, WRITER, VERSION):
                raise Invalid(f"column {name!r} is the sink's own; rename it", field=name)

    def open(self, flow: str, schema: pa.Schema) -> Held:
        """See `Sink.open`."""
        self.check(schema)
        link = _links.get(self)
        self._make(link)
        while True:
            found, place = self._flow(link, flow)
            if found is None:
                found = _Flow(0, None, self._highest(link))
            now = msgspec.structs.replace(found, fence=found.fence + 1)
            if self._put_flow(link, flow, now, place):
                return Held(flow, now.fence, _boundary(now))

    def stage(self, task: Task, batches: Iterable[pa.RecordBatch]) -> bytes:
        """See `Sink.stage`; the documents are visible from now on."""
        link = _links.get(self)
        now, _ = self._fenced(link, task.held)
        if not goes_on(_boundary(now), task.span):
            return b"{}"
        version = now.base + (now.fence << FENCE_BITS) + task.span.upto.number
        bulk = _Bulk(self, link, version, _writer(task))
        for batch in newest(batches, self.key):
            bulk.add(batch)
        bulk.send()
        return b"{}"

    def commit(self, held: Held, span: Span, staged: Sequence[bytes]) -> Held:
        """See `Sink.commit`."""
        link = _links.get(self)
        now, place = self._fenced(link, held)
        if not goes_on(_boundary(now), span):
            return msgspec.structs.replace(held, boundary=_boundary(now))
        then = msgspec.structs.replace(now, boundary=span.upto.text())
        if not self._put_flow(link, held.flow, then, place):
            raise overtaken(held)
        return msgspec.structs.replace(held, boundary=span.upto)

    def clean(self, held: Held) -> None:
        """Delete tombstones that are old enough."""
        link = _links.get(self)
        self._fenced(link, held)
        before = int((time.time() - self.tombstones) * 1000)
        query: Json = {
            "size": limits.SEARCH_PAGE_ROWS,
            "query": {"range": {DELETED: {"lt": before}}},
            "seq_no_primary_term": True,
            "_source": False,
        }
        while True:
            link.ask("POST", f"/{quote(self.index)}/_refresh")
            hits = _hits(link.ask("POST", f"/{quote(self.index)}/_search", query).json())
            lines = [
                # Only if unchanged: the document may exist again.
                {
                    "delete": {
                        "_id": hit["_id"],
                        "if_seq_no": hit["_seq_no"],
                        "if_primary_term": hit["_primary_term"],
                    }
                }
                for hit in hits
            ]
            if not lines:
                return
            body = b"".join(msgspec.json.encode(line) + b"\n" for line in lines)
            if link.ask("POST", f"/{quote(self.index)}/_bulk", body).json().get("errors"):
                # Some have changed or cannot be deleted now; the next run tries again.
                return

    def close(self) -> None:
        """See `Sink.close`."""
        _links.drop(self)

    def rows(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """See `Readable.rows`: the fields of documents that are not tombstones."""
        link = _links.get(self)
        link.ask("POST", f"/{quote(self.index)}/_refresh")
        query: Json = {"size": limits.SEARCH_PAGE_ROWS, "sort": ["_doc"]}
        path = f"/{quote(self.index + LIVE)}/_search?scroll=5m"
        found = link.ask("POST", path, query).json()
        while hits := _hits(found):
            sources = [cast("Json", hit["_source"]) for hit in hits]
            lines = [{name: source.get(name) for name in columns} for source in sources]
            yield pa.RecordBatch.from_pylist(lines)
            again: Json = {"scroll": "5m", "scroll_id": found["_scroll_id"]}
            found = link.ask("POST", "/_search/scroll", again).json()
        link.ask("DELETE", "/_search/scroll", {"scroll_id": found.get("_scroll_id")})

    def stands(self, flow: str) -> Boundary | None:
        """See `Asked.stands`."""
        found, _ = self._flow(_links.get(self), flow)
        return None if found is None else _boundary(found)

    def kept(self, columns: Sequence[str]) -> Sequence[str]:
        """See `Choosy.kept`: a document from one column has fields of its own."""
        return columns if self.document == ALL else ()

    # --- The index --------------------------------------------------------------------------------

    def _make(self, link: Link) -> None:
        index = quote(self.index)
        flows: Json = {"mappings": {"dynamic": False}}
        for path, body in ((f"/{FLOWS}", flows), (f"/{index}", {"mappings": _MAPPING})):
            made = link.ask("PUT", path, body)
            if made.status >= 400 and "already_exists" not in made.reason():
                raise Invalid(f"index {path[1:]} cannot be made: {made.reason()}", field="index")
        put = link.ask("PUT", f"/{index}/_mapping", _MAPPING)
        if put.status >= 400:
            raise Invalid(f"index {self.index} does not fit: {put.reason()}", field="index")
        live: Json = {"bool": {"must_not": {"exists": {"field": DELETED}}}}
        add: Json = {"add": {"index": self.index, "alias": self.index + LIVE, "filter": live}}
        said = link.ask("POST", "/_aliases", {"actions": [add]})
        if said.status >= 400:
            raise Invalid(
                f"alias {self.index}{LIVE} cannot be made: {said.reason()}", field="index"
            )

    # --- The flow ---------------------------------------------------------------------------------

    def _path(self, flow: str) -> str:
        return f"/{FLOWS}/_doc/{quote(f'{self.index} {flow}', safe='')}"

    def _flow(self, link: Link, flow: str) -> tuple[_Flow | None, str]:
        """Return the document of the flow, and the parameters that make its update conditional."""
        found = link.ask("GET", self._path(flow))
        if found.status == 404:
            return None, "op_type=create"
        line = found.json()
        place = f"if_seq_no={line['_seq_no']}&if_primary_term={line['_primary_term']}"
        return convert(line["_source"], _Flow), place

    def _put_flow(self, link: Link, flow: str, value: _Flow, place: str) -> bool:
        """Store the flow; return False if it was changed since it was read."""
        said = link.ask("PUT", f"{self._path(flow)}?{place}", msgspec.to_builtins(value))
        if said.status == 409:
            return False
        if said.status >= 400:
            raise Invalid(f"flow {flow!r} cannot be stored: {said.reason()}", field="index")
        return True

    def _highest(self, link: Link) -> int:
        """Return the highest version in the index."""
        link.ask("POST", f"/{quote(self.index)}/_refresh")
        query: Json = {"size": 1, "sort": [{VERSION: "desc"}], "_source": [VERSION]}
        hits = _hits(link.ask("POST", f"/{quote(self.index)}/_search", query).json())
        sources = [cast("dict[str, int]", hit["_source"]) for hit in hits]
        return max((source.get(VERSION, 0) for source in sources), default=0)

    def _fenced(self, link: Link, held: Held) -> tuple[_Flow, str]:
        """Return the present state of the flow.

        Raises:
            Stale: another run has opened the flow.
        """
        found, place = self._flow(link, held.flow)
        if found is None or found.fence != held.fence:
            raise overtaken(held)
        return found, place


class _Bulk:
    """A buffer of documents for bulk requests."""

    def __init__(self, sink: Search, link: Link, version: int, writer: str) -> None:
        self._sink = sink
        self._link = link
        self._version = version
        self._writer = writer
        self._lines: list[bytes] = []
        self._size = 0
        self._now = int(time.time() * 1000)

    def add(self, batch: pa.RecordBatch) -> None:
        """Add rows to the buffer, and send it when it is full."""
        for row in batch.to_pylist():
            name = self._id(row)
            place = {"_id": name, "version": self._version, "version_type": "external_gte"}
            self._lines += [msgspec.json.encode({"index": place}), self._document(row, name)]
            self._size += len(self._lines[-1]) + len(self._lines[-2])
            if self._size >= limits.SEARCH_BULK_BYTES:
                self.send()

    def send(self) -> None:
        """Send the buffered documents."""
        if not self._lines:
            return
        body = b"\n".join([*self._lines, b""])
        self._lines, self._size = [], 0
        said = self._link.ask("POST", f"/{quote(self._sink.index)}/_bulk", body)
        if said.status >= 400:
            raise Invalid(f"the search index refuses: {said.reason()}", field="index")
        line = said.json()
        if not line.get("errors"):
            return
        behind: list[str] = []
        for item in cast("list[dict[str, Json]]", line["items"]):
            [done] = item.values()
            status = cast("int", done["status"])
            if status == 409:
                behind.append(str(done["_id"]))
            elif status == 429 or status >= 500:
                raise Retry(f"the search index is busy: {_why(done)}", field="url")
            elif status >= 400:
                raise self._refused(done)
        self._judge(behind)

    def _judge(self, names: Sequence[str]) -> None:
        """Check that documents with a later version were written by this flow."""
        for at in range(0, len(names), limits.SEARCH_PAGE_ROWS):
            some = names[at : at + limits.SEARCH_PAGE_ROWS]
            path = f"/{quote(self._sink.index)}/_mget?_source_includes={WRITER}"
            found = self._link.ask("POST", path, {"ids": some}).json()
            for document in cast("list[Json]", found["docs"]):
                source = cast("Json", document.get("_source") or {})
                if document.get("found") and source.get(WRITER) != self._writer:
                    raise Invalid(
                        f"document {document['_id']!r} of index {self._sink.index} was written by "
                        "somebody else, with a later version; use another index, or remove it",
                        field="index",
                    )

    def _id(self, row: Json) -> str:
        texts = [to_text(row[name]) for name in self._sink.key]
        if texts == [""]:
            raise Invalid(
                f"column {self._sink.key[0]!r} is empty in a row, which is no document id; "
                "leave such rows out in a step",
                field="key",
            )
        return texts[0] if len(texts) == 1 else msgspec.json.encode(texts).decode()

    def _document(self, row: Json, name: str) -> bytes:
        own: Json = {WRITER: self._writer, VERSION: self._version}
        if row.pop(OP, None) == DELETE:
            return to_json({**own, DELETED: self._now})
        if self._sink.document == ALL:
            return to_json({**row, **own})
        value = row[self._sink.document]
        try:
            parsed = msgspec.json.decode(cast("bytes | str", value), type=dict[str, object])
        except (msgspec.MsgspecError, TypeError, UnicodeDecodeError) as error:
            raise Invalid(
                f"row {name!r}, column {self._sink.document!r} is {shown(value)}, which is no JSON "
                f"object: {error}",
                field=self._sink.document,
            ) from None
        return to_json({**parsed, **own})

    def _refused(self, done: Json) -> Invalid:
        why = _why(done)
        found = _FIELD.search(why)
        column = next((part for part in found.groups() if part), None) if found else None
        where = f"row {done['_id']!r}" + (f", column {column!r}" if column else "")
        return Invalid(
            f"{where}: the search index does not take it: {why}; mend or drop it in a step",
            field=column or "index",
        )


def _why(done: Json) -> str:
    error = cast("Json", done.get("error") or {})
    cause = cast("Json", error.get("caused_by") or {})
    texts = [error.get("reason"), cause.get("reason")]
    return ": ".join(str(text) for text in texts if text)


def _hits(found: Json) -> list[Json]:
    return cast("list[Json]", cast("Json", found.get("hits") or {}).get("hits") or [])


def _writer(task: Task) -> str:
    """Return an identifier of a document's flow and queues; a queue that was created again has
    another one.
    """
    places = [(place.shards, place.history) for place in task.span.upto.places]
    return hashlib.sha256(repr((task.held.flow, places)).encode()).hexdigest()[:16]


def _boundary(flow: _Flow) -> Boundary | None:
    return None if flow.boundary is None else Boundary.of_text(flow.boundary)


def _connect(sink: Search) -> Link:
    url = sink.url or os.environ.get(ENVIRONMENT, "")
    if not url:
        raise Invalid(f"there is no url, and none in {ENVIRONMENT}", field="url")
    return Link(url, sink.certificates)


_links: Links[Search, Link] = Links(_connect, lambda link: link.close())


# --- An HTTP client for search indexes: JSON over a single connection ----------------------------

Json = dict[str, object]


class Answer(msgspec.Struct, frozen=True):
    """A response: status code and body."""

    status: int
    body: bytes

    def json(self) -> Json:
        """Parse the body as a JSON object."""
        return msgspec.json.decode(self.body or b"{}", type=dict[str, object])

    def reason(self) -> str:
        """Return the server's reason for refusing the request."""
        try:
            error = self.json().get("error")
        except msgspec.MsgspecError:
            error = None
        if isinstance(error, dict):
            return f"{error.get('type')}: {error.get('reason')}"
        return str(error or self.body[:200].decode(errors="replace") or self.status)


class Link:
    """A connection to a server."""

    def __init__(self, url: str, certificates: str) -> None:
        found, port = _parted(url)
        if found is None or found.scheme not in ("http", "https") or not found.hostname:
            # The URL is not shown, since a malformed one may have its password anywhere.
            raise Invalid("url is not http://host:9200 or https://host:9200", field="url")
        self._prefix = found.path.rstrip("/")
        self._headers: dict[str, str] = {}
        if found.username is not None:
            pair = f"{unquote(found.username)}:{unquote(found.password or '')}"
            self._headers["Authorization"] = f"Basic {b64encode(pair.encode()).decode()}"
        host, seconds = found.hostname, limits.SINK_ANSWER_SECONDS
        self._http: http.client.HTTPConnection
        if found.scheme == "https":
            context = ssl.create_default_context(cafile=certificates or None)
            self._http = http.client.HTTPSConnection(host, port, timeout=seconds, context=context)
        else:
            self._http = http.client.HTTPConnection(host, port, timeout=seconds)

    def ask(
        self, method: str, path: str, body: bytes | Mapping[str, object] | None = None
    ) -> Answer:
        """Return the response to a request.

        Raises:
            Retry: the server does not respond, or is overloaded.
            Invalid: authentication failed.
        """
        lines = isinstance(body, bytes)
        data = body if body is None or isinstance(body, bytes) else msgspec.json.encode(body)
        kind = "application/x-ndjson" if lines else "application/json"
        try:
            self._http.request(
                method, self._prefix + path, data, {**self._headers, "Content-Type": kind}
            )
            response = self._http.getresponse()
            answer = Answer(response.status, response.read())
        except (OSError, http.client.HTTPException) as error:
            self.close()
            raise Retry(
                f"the search index does not answer: {error!s}; is it running there?",
                field="url",
            ) from error
        if answer.status in (401, 403):
            raise Invalid(f"the search index lets nobody in: {answer.reason()}", field="url")
        if answer.status == 429 or answer.status >= 500:
            raise Retry(f"the search index is busy or not ready: {answer.reason()}", field="url")
        return answer

    def close(self) -> None:
        """Close the connection; the next request opens it again."""
        self._http.close()


def _parted(url: str) -> tuple[SplitResult | None, int]:
    """Return the parsed URL and its port, or None if it is malformed."""
    try:
        found = urlsplit(url)
        return found, found.port or 9200
    except ValueError:
        # The error quotes the text in the place of the port, which may be a part of the password.
        return None, 0
