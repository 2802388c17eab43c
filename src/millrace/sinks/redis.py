"""A sink for Redis: rows become keys, exactly once.

`stage` pushes rows into a list of its own. The commit runs scripts on the server that move them
from there to their keys; each script first checks that the fence and the boundary are still the
ones that the run knows. A span of up to 5,000 rows is one script with its boundary: it becomes
visible as a whole. A larger one is moved in pieces, and its boundary with the last; after a crash
in between the span is repeated, which is idempotent.

Rule 1: keys are written only by scripts that check the fence and the boundary. So spans are applied
in order, by one run at a time, and rows need no versions of their own.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Literal, cast

import msgspec
import pyarrow as pa
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry as Again

from millrace import limits
from millrace.decoding import decode_json
from millrace.errors import Invalid, MillraceError, Retry
from millrace.sinks.base import DELETE, OP, Held, Task, overtaken
from millrace.sinks.boundary import Boundary, Span, goes_on
from millrace.sinks.lane import check_key
from millrace.sinks.links import Links
from millrace.sinks.newest import newest
from millrace.sinks.wording import (
    check_template,
    columns_of,
    fill,
    shown,
    to_bytes,
    to_json,
    values_in,
)

ENVIRONMENT = "REDIS_URL"

ALL = "*"

OWN = b"millrace:"
"""Prefix of the sink's own keys."""

APPLY = """
local now = redis.call('HMGET', KEYS[1], 'fence', 'boundary')
if now[1] ~= ARGV[1] then return 'fence' end
if (now[2] or '') ~= ARGV[2] then return 'boundary' end
local ttl, first, last = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])
local count = 0
for at = 3, #KEYS do count = count + redis.call('LLEN', KEYS[at]) end
if count ~= tonumber(ARGV[7]) then return 'gone' end
for at = 3, #KEYS do
  for _, packed in ipairs(redis.call('LRANGE', KEYS[at], first, last)) do
    local row, place, field = {}, 1, nil
    while place <= #packed do
      field, place = struct.unpack('>I4c0', packed, place)
      row[#row + 1] = field
    end
    local name = table.remove(row, 1)
    if #row == 0 then
      redis.call('DEL', name)
    elseif #row == 1 then
      redis.call('SET', name, row[1])
    else
      redis.call('DEL', name)
      redis.call('HSET', name, unpack(row))
    end
    if ttl > 0 and #row > 0 then redis.call('EXPIRE', name, ttl) end
  end
end
if ARGV[3] ~= '' then
  redis.call('HSET', KEYS[1], 'boundary', ARGV[3])
  for at = 3, #KEYS do
    redis.call('UNLINK', KEYS[at])
    redis.call('SREM', KEYS[2], KEYS[at])
  end
end
return 'done'
"""
"""Moves rows of staged lists to their keys, and then stores the boundary, if one is given."""

Value = bytes | str | int | float


class _Staged(msgspec.Struct, frozen=True, array_like=True):
    name: str
    rows: int


class Redis(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Keys with one value each, or with a hash of the row's columns."""

    url: str = ""
    """redis://user:password@host:port/database, or rediss:// with TLS; by default the environment
    variable REDIS_URL.
    """
    key: tuple[str, ...] = ("key",)
    name: str = ""
    """Template of key names, with columns in braces: "order:{key}"; by default the columns of the
    key, separated by colons.
    """
    store: Literal["value", "hash"] = "value"
    value: str = "value"
    """The column that is stored; "*" stores all of them, as JSON."""
    ttl: int = 0
    """Seconds until a row expires, counted from its last change; 0: never."""

    def __repr__(self) -> str:
        return f"<Redis {self.template}>"

    @property
    def lanes(self) -> int:
        """See `Sink.lanes`; it keeps rows of the same key in order."""
        return limits.SINK_LANES

    @property
    def template(self) -> str:
        """The template of key names."""
        return self.name or ":".join(f"{{{name}}}" for name in self.key)

    def check(self, schema: pa.Schema) -> None:
        """See `Sink.check`."""
        if not self.key:
            raise Invalid("a row in Redis has a name: key says of which columns", field="key")
        check_key(schema, self.key)
        check_template(self.template, self.key, "name")
        if self.store == "value" and self.value not in (ALL, *schema.names):
            raise Invalid(
                f"value names the column {self.value!r}; the rows have {', '.join(schema.names)}; "
                "'*' stores all of them, as JSON",
                field="value",
            )

    def open(self, flow: str, schema: pa.Schema) -> Held:
        """See `Sink.open`."""
        self.check(schema)
        with self._server() as server:
            both = server.pipeline(transaction=True)
            both.hincrby(_flow(flow), "fence", 1)
            both.hget(_flow(flow), "boundary")
            fence, text = both.execute()
        return Held(flow, int(fence), _boundary(text))

    def stage(self, task: Task, batches: Iterable[pa.RecordBatch]) -> bytes:
        """See `Sink.stage`."""
        flow, fence = task.held.flow, task.held.fence
        name, count = f"millrace:stage:{flow}:{fence}:{task.part}", 0
        with self._server() as server:
            for batch in newest(batches, self.key):
                for at in range(0, batch.num_rows, limits.REDIS_PIPELINE_ROWS):
                    rows = self._packed(batch.slice(at, limits.REDIS_PIPELINE_ROWS))
                    both = server.pipeline(transaction=False)
                    both.hget(_flow(flow), "fence")
                    both.sadd(_stages(flow), name)
                    both.rpush(name, *rows)
                    both.expire(name, limits.SINK_STAGED_SECONDS)
                    if both.execute()[0] != str(fence).encode():
                        server.unlink(name)
                        raise overtaken(task.held)
                    count += len(rows)
        return msgspec.json.encode(_Staged(name, count))

    def commit(self, held: Held, span: Span, staged: Sequence[bytes]) -> Held:
        """See `Sink.commit`."""
        parts = [decode_json(one, _Staged) for one in staged]
        parts = [part for part in parts if part.rows]
        with self._server() as server:
            if not goes_on(held.boundary, span):
                return held
            before = b"" if held.boundary is None else held.boundary.text().encode()
            if self._carry(server, held, span, parts, before):
                return msgspec.structs.replace(held, boundary=span.upto)
            # The caller's boundary is out of date; perhaps this very span was applied already.
            text = self._fenced(server, held)
            boundary = _boundary(text)
            if not goes_on(boundary, span):
                return msgspec.structs.replace(held, boundary=boundary)
            if not self._carry(server, held, span, parts, text or b""):
                raise overtaken(held)
        return msgspec.structs.replace(held, boundary=span.upto)

    def _carry(
        self,
        server: redis.Redis,
        held: Held,
        span: Span,
        parts: Sequence[_Staged],
        before: bytes,
    ) -> bool:
        """Move the rows; return False if the stored boundary differs from `before`."""
        after = span.upto.text()
        if sum(part.rows for part in parts) <= limits.REDIS_SCRIPT_ROWS:
            return self._apply(server, held, parts, before, after)
        for part in parts:
            for at in range(0, part.rows, limits.REDIS_SCRIPT_ROWS):
                upto = at + limits.REDIS_SCRIPT_ROWS - 1
                if not self._apply(server, held, [part], before, "", at, upto):
                    return False
        # An empty range (from 1 to 0): the last script moves no rows and drops the lists.
        return self._apply(server, held, parts, before, after, 1, 0)

    def clean(self, held: Held) -> None:
        """Drop the staged lists of fenced runs; others expire."""
        with self._server() as server:
            self._fenced(server, held)
            own = f"millrace:stage:{held.flow}:{held.fence}:".encode()
            found = cast("set[bytes]", server.smembers(_stages(held.flow)))
            left = [name for name in found if not name.startswith(own)]
            if left:
                server.unlink(*left)
                server.srem(_stages(held.flow), *left)

    def close(self) -> None:
        """See `Sink.close`."""
        _links.drop(self)

    def rows(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """See `Readable.rows`; if one column is stored, it and the key are bytes."""
        named = columns_of(self.template)
        with self._server() as server:
            lines: list[dict[str, object]] = []
            for name in server.scan_iter(count=limits.REDIS_PIPELINE_ROWS):
                values = values_in(name, self.template)
                if values is None or name.startswith(OWN):
                    continue
                line = self._read(server, name, dict(zip(named, values, strict=True)))
                lines.append({column: line.get(column) for column in columns})
                if len(lines) >= limits.SINK_READ_ROWS:
                    yield pa.RecordBatch.from_pylist(lines)
                    lines = []
            if lines:
                yield pa.RecordBatch.from_pylist(lines)

    def stands(self, flow: str) -> Boundary | None:
        """See `Asked.stands`."""
        with self._server() as server:
            return _boundary(cast("bytes | None", server.hget(_flow(flow), "boundary")))

    def kept(self, columns: Sequence[str]) -> Sequence[str]:
        """See `Choosy.kept`."""
        if self.store == "hash" or self.value == ALL:
            return columns
        return [name for name in columns if name in (*self.key, self.value)]

    def _read(self, server: redis.Redis, name: bytes, line: dict[str, object]) -> dict[str, object]:
        if self.store == "hash":
            fields = cast("dict[bytes, bytes]", server.hgetall(name))
            return {field.decode(): value for field, value in fields.items()}
        raw = cast("bytes | None", server.get(name))
        if self.value != ALL:
            return {**line, self.value: raw}
        return msgspec.json.decode(raw or b"{}", type=dict[str, object])

    # --- Rows -------------------------------------------------------------------------------------

    def _packed(self, batch: pa.RecordBatch) -> list[bytes]:
        """Encode each row for the script: a name and its value, or the fields of its hash; a name
        alone is a delete.
        """
        packed: list[bytes] = []
        for row in batch.to_pylist():
            name = fill(self.template, row)
            if name.startswith(OWN):
                raise Invalid(
                    f"a row would be the key {shown(name)}, and keys with that beginning are the "
                    'sink\'s own; give the rows a beginning of theirs, as name = "row:{key}"',
                    field="name",
                )
            line = [name]
            if row.pop(OP, None) != DELETE:
                line += self._values(row)
            packed.append(b"".join(len(part).to_bytes(4, "big") + part for part in line))
        return packed

    def _values(self, row: dict[str, object]) -> list[bytes]:
        if self.store == "value":
            return [to_json(row) if self.value == ALL else to_bytes(row[self.value])]
        return [
            part
            for name, value in row.items()
            if value is not None
            for part in (name.encode(), to_bytes(value))
        ]

    def _apply(
        self,
        server: redis.Redis,
        held: Held,
        parts: Sequence[_Staged],
        before: bytes,
        after: str,
        first: int = 0,
        last: int = -1,
    ) -> bool:
        """Run the script; return False if the stored boundary differs from `before`."""
        script = server.register_script(APPLY)
        rows = sum(part.rows for part in parts)
        values: list[Value] = [held.fence, before, after, self.ttl, first, last, rows]
        keys = [_flow(held.flow), _stages(held.flow), *(part.name for part in parts)]
        said = script(keys=keys, args=values)
        if said == b"fence":
            raise overtaken(held)
        if said == b"gone":
            raise Retry(
                "rows that were staged in Redis are gone, as after a crash or a failover; stage "
                "them again",
                field="staged",
            )
        return bool(said == b"done")

    # --- The flow ---------------------------------------------------------------------------------

    def _fenced(self, server: redis.Redis, held: Held) -> bytes | None:
        """Return the boundary as it is stored.

        Raises:
            Stale: another run has opened the flow.
        """
        fields = ["fence", "boundary"]
        fence, text = cast("list[bytes | None]", server.hmget(_flow(held.flow), fields))
        if fence != str(held.fence).encode():
            raise overtaken(held)
        return text

    @contextmanager
    def _server(self) -> Iterator[redis.Redis]:
        """Connect to the server and translate its errors into Millrace errors."""
        try:
            yield _links.get(self)
        except MillraceError:
            raise
        except redis.AuthenticationError as error:
            raise Invalid(f"Redis lets nobody in: {error}; look at the url", field="url") from error
        except (redis.ConnectionError, redis.TimeoutError, redis.ReadOnlyError, OSError) as error:
            _links.drop(self)
            raise Retry(
                f"Redis does not answer: {str(error).rstrip('.')}; is it running there?",
                field="url",
            ) from error
        except redis.OutOfMemoryError as error:
            raise Retry(
                f"Redis has no room: {error}; raise its maxmemory, or set a ttl", field="url"
            ) from error
        except redis.RedisError as error:
            raise Invalid(f"Redis refuses: {error}", field="url") from error


def _flow(flow: str) -> str:
    return f"millrace:flow:{flow}"


def _stages(flow: str) -> str:
    return f"millrace:stages:{flow}"


def _boundary(text: bytes | None) -> Boundary | None:
    return None if text is None else Boundary.of_text(text)


def _connect(sink: Redis) -> redis.Redis:
    url = sink.url or os.environ.get(ENVIRONMENT, "")
    if not url:
        raise Invalid(f"there is no url, and none in {ENVIRONMENT}", field="url")
    try:
        return redis.Redis.from_url(
            url,
            socket_connect_timeout=limits.SINK_CONNECT_SECONDS,
            socket_timeout=limits.SINK_ANSWER_SECONDS,
            # Retries are off: a request sent twice could be executed twice, and each opening raises
            # the fence.
            retry=Again(NoBackoff(), 0),
        )
    except ValueError as error:
        # The original error could quote the URL with its password.
        raise Invalid(
            "url is no address of Redis, such as redis://user:password@host:6379/0", field="url"
        ) from error


_links: Links[Redis, redis.Redis] = Links(_connect, lambda server: server.close())
