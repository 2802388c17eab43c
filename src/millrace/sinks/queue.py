"""A sink for queues: rows become messages of another queue, exactly once.

`stage` writes rows as a stage of the queue, which is invisible. The commit is one transaction: it
moves a cursor, publishes the stages, and writes the flow's row (fence and boundary) into a queue of
its own, `millrace-flows`.

Rule 1: the cursor is the fence. `open` resets it, which makes it a new one: a run that opened
earlier has a snapshot of the old cursor, cannot commit it, and with it the whole transaction fails.

Rule 2: a run uses a snapshot of the cursor only if it finds its own row in it.

Rule 3: the same snapshot can be committed twice. So every commit also publishes a stage that was
made for it alone: an attempt with an unknown result and its repetition are never both applied.
"""

from __future__ import annotations

import hashlib
import os
import secrets
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from threading import Lock
from typing import Annotated, cast

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from millrace import limits, sync
from millrace.client.message import Message, rows_that_fit
from millrace.client.multi_shard_cursor import find_cursor
from millrace.client.reserved import plain_column, plain_headers
from millrace.client.snapshot_token import read_snapshot_token, write_snapshot_token
from millrace.core.format.block import SCHEMA
from millrace.core.format.column import Array
from millrace.decoding import decode_json
from millrace.errors import (
    Exists,
    Invalid,
    NotFound,
    Refused,
    Retry,
    SnapshotExpired,
    Stale,
    Unknown,
)
from millrace.sinks.base import DELETE, OP, PUT, Held, Task, overtaken
from millrace.sinks.boundary import Boundary, Span, goes_on
from millrace.sinks.lane import check_key
from millrace.sinks.newest import newest
from millrace.sinks.wording import shown, to_bytes, to_json

FLOWS = "millrace-flows"
"""Name of the queue of the flows' rows, in the space of the target queue."""

ALL = "*"
HEADERS = "headers"


class _Flow(msgspec.Struct, frozen=True):
    fence: int
    boundary: str | None
    run: str = ""
    """Distinguishes two runs that open at the same moment, with the same fence; the last one
    counts.
    """


class _State(msgspec.Struct, frozen=True, array_like=True):
    """The state of a run until its next commit."""

    run: str
    ticket: str
    """The snapshot that the commit moves the cursor over; it contains the run's own row."""
    token: str
    """A stage of the queue of flows, which the commit publishes: it allows only one commit."""


class QueueSink(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A queue, which is created if missing."""

    queue: Annotated[str, msgspec.Meta(min_length=1)]
    """`name`, or `space/name`."""
    url: str = ""
    """URL of a server; the caller's token is in MILLRACE_TOKEN, or in `token_file`."""
    path: str = ""
    """A folder of queues, instead of a server."""
    token_file: str = ""
    certificates: str = ""
    key: tuple[str, ...] = ()
    """The column that becomes the message's key: then the queue is keyed. Empty: it is not."""
    value: str = "value"
    """The column that becomes the body; "*": all of them, as JSON."""

    def __post_init__(self) -> None:
        if bool(self.url) == bool(self.path):
            raise Invalid("give the url of a server, or the path of a folder", field="url")

    def __repr__(self) -> str:
        return f"<QueueSink {self.queue}>"

    @property
    def lanes(self) -> int:
        """See `Sink.lanes`; it keeps messages of the same key in order."""
        return limits.SINK_LANES if self.key else 0

    def check(self, schema: pa.Schema) -> None:
        """See `Sink.check`."""
        if len(self.key) > 1:
            raise Invalid("a message has one key: join the columns in a step", field="key")
        check_key(schema, self.key)
        if self.value not in (ALL, *schema.names):
            raise Invalid(
                f"value names the column {self.value!r}; the rows have {', '.join(schema.names)}; "
                "'*' makes JSON of all of them",
                field="value",
            )

    def open(self, flow: str, schema: pa.Schema) -> Held:
        """See `Sink.open`."""
        self.check(schema)
        with self._place() as m:
            self._queue(m)
            flows = m.queue(FLOWS, space=self._space, keyed=True, retention="log")
            # The reset fences the commits of other runs, so that the following reads stay valid.
            cursor = flows.cursor(_mark(self._name, flow))
            cursor.reset("beginning")
            with flows.snapshot() as snapshot:
                found = self._flow(snapshot, flow)
            fence = 1 if found is None else found.fence + 1
            text = None if found is None else found.boundary
            run = secrets.token_hex(8)
            row = msgspec.json.encode(_Flow(fence, text, run))
            boundary = None if text is None else Boundary.of_text(text)
            held = Held(flow, fence, boundary)
            if found is None:
                # A cursor moves over rows only; this message has no reader.
                flows.publish(b"", key=_mark(self._name, flow))
            try:
                first = cursor.next()
                if first is None:
                    raise overtaken(held)
                # Committed with a step of the cursor, which fails if another run has reset it since
                # the read.
                with m.transaction() as t:
                    t.commit(first)
                    t.publish(flows, row, key=self._key(flow))
            except (NotFound, Stale) as error:
                raise overtaken(held) from error
            return self._going_on(flows, held, run)

    def stage(self, task: Task, batches: Iterable[pa.RecordBatch]) -> bytes:
        """See `Sink.stage`."""
        mark = _mark(self._name, task.held.flow)
        part = hashlib.sha256(task.part.encode()).hexdigest()[:24]
        name, rows = f"{mark}-{task.held.fence}-{part}", 0
        with self._place() as m:
            queue = self._queue(m)
            for batch in newest(batches, self.key) if self.key else batches:
                while batch.num_rows:
                    count = max(1, rows_that_fit(batch, limits.SINK_STAGE_BYTES))
                    queue.stage(name, self._messages(batch.slice(0, count)))
                    batch, rows = batch.slice(count), rows + count
        return name.encode() if rows else b""

    def commit(self, held: Held, span: Span, staged: Sequence[bytes]) -> Held:
        """See `Sink.commit`."""
        if not goes_on(held.boundary, span):
            return held
        names = [name.decode() for name in staged if name]
        with self._place() as m:
            flows, queue = m.find(FLOWS, space=self._space), self._queue(m)
            try:
                return self._publish(m, flows, queue, held, span, names)
            except (NotFound, Stale) as error:
                now, is_spent = self._judge(flows, held, error)
                if not goes_on(now.boundary, span):
                    return now
                if not is_spent:
                    raise self._gone(error) from error
            try:
                return self._publish(m, flows, queue, now, span, names)
            except (NotFound, Stale) as error:
                raise self._gone(error) from error

    def _publish(
        self,
        m: sync.Millrace,
        flows: sync.Queue,
        queue: sync.Queue,
        held: Held,
        span: Span,
        names: Sequence[str],
    ) -> Held:
        state = _state(held)
        row = msgspec.json.encode(_Flow(held.fence, span.upto.text(), state.run))
        snapshot = read_snapshot_token(flows._twin, state.ticket)
        with m.transaction() as t:
            t._twin.commit(snapshot)
            t.publish_staged(flows, [state.token])
            if names:
                t.publish_staged(queue, names)
            t.publish(flows, row, key=self._key(held.flow))
        return self._going_on(flows, msgspec.structs.replace(held, boundary=span.upto), state.run)

    def _judge(self, flows: sync.Queue, held: Held, error: Refused) -> tuple[Held, bool]:
        """Explain a refused commit: return the flow's state, and True if the token is spent, so
        that an earlier attempt with an unknown result can no longer be applied.

        Raises:
            Stale: another run has opened the flow.
        """
        run = _state(held).run
        # The token is read first: if it is spent, the flow's row shows by what.
        is_spent = _state(held).token not in flows.stages()
        with flows.snapshot() as snapshot:
            found = self._flow(snapshot, held.flow)
        if found is None or found.run != run:
            raise overtaken(held) from error
        boundary = None if found.boundary is None else Boundary.of_text(found.boundary)
        now = msgspec.structs.replace(held, boundary=boundary)
        return (self._going_on(flows, now, run) if is_spent else now), is_spent

    def _gone(self, error: Refused) -> Retry:
        return Retry(
            f"rows that were staged for queue {self.queue} are gone: {error.message}; stage them "
            "again",
            field="staged",
        )

    def _going_on(self, flows: sync.Queue, held: Held, run: str) -> Held:
        """Return the state with everything that the next commit needs.

        Raises:
            Stale: another run has opened the flow.
        """
        mark = _mark(self._name, held.flow)
        try:
            # Without a claim: a fenced run must not fence the present one.
            cursor = flows._portal.run(partial(find_cursor, flows._twin, mark))
            if cursor is None:
                raise overtaken(held)
            snapshot = sync.Cursor(flows._portal, cursor).next()
            found = None if snapshot is None else self._flow(snapshot, held.flow)
        except (NotFound, SnapshotExpired) as error:
            raise overtaken(held) from error
        if snapshot is None or found is None or found.run != run:
            raise overtaken(held)
        token = f"{mark}-{held.fence}-{secrets.token_hex(8)}"
        flows.stage(token, [Message(token.encode(), key=f"{self._key(held.flow)} token")])
        state = _State(run, write_snapshot_token(snapshot._twin), token)
        return msgspec.structs.replace(held, state=msgspec.json.encode(state).decode())

    def clean(self, held: Held) -> None:
        """Drop the stages of fenced runs; others expire."""
        mark = _mark(self._name, held.flow)
        with self._place() as m:
            for queue in (self._queue(m), m.find(FLOWS, space=self._space)):
                for name in queue.stages():
                    if name.startswith(f"{mark}-") and not name.startswith(f"{mark}-{held.fence}-"):
                        queue.drop_stage(name)

    def close(self) -> None:
        """See `Sink.close`."""
        with _lock:
            m = _connections.pop(self._connection_key(), None)
        if m is not None:
            m.close()

    def rows(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """See `Readable.rows`: key, value, op, and the columns that the queue itself adds."""
        with self._place() as m, self._queue(m).snapshot() as snapshot:
            for batch in snapshot.arrow():
                if self.key:
                    batch = batch.filter(batch.column("value").is_valid())
                ops = pa.array(map(_op, batch.column(HEADERS).to_pylist()), pa.string())
                value = _nulled(batch.column("value"), _are(ops, DELETE))
                whole = batch.set_column(batch.schema.names.index("value"), "value", value)
                yield whole.append_column(OP, ops).select(list(columns))

    def stands(self, flow: str) -> Boundary | None:
        """See `Asked.stands`."""
        with self._place() as m:
            try:
                flows = m.find(FLOWS, space=self._space)
            except NotFound:
                return None
            with flows.snapshot() as snapshot:
                found = self._flow(snapshot, flow)
        text = None if found is None else found.boundary
        return None if text is None else Boundary.of_text(text)

    def kept(self, columns: Sequence[str]) -> Sequence[str]:
        """See `Choosy.kept`."""
        body = () if self.value == ALL else (self.value,)
        return [name for name in columns if name in (self._key_column, *body, HEADERS)]

    # --- Rows -------------------------------------------------------------------------------------

    def _messages(self, batch: pa.RecordBatch) -> pa.RecordBatch | list[Message]:
        """Convert the rows to messages in the queue's form."""
        names = batch.schema.names
        ops = batch.column(OP) if OP in names else None
        deletes = ops is not None and bool(pc.any(_are(ops, DELETE)).as_py())
        if self.value == ALL or (deletes and not self.key):
            return [self._message(row) for row in batch.to_pylist()]
        value = _bytes(batch.column(self.value), self.value)
        missing = value.is_null()
        if deletes and ops is not None:
            missing = pc.and_not(missing, _are(ops, DELETE))
            value = _nulled(value, _are(ops, DELETE))
        columns = {"value": value}
        if self._key_column in names:
            columns["key"] = _bytes(batch.column(self._key_column), self._key_column)
        if HEADERS in names and batch.column(HEADERS).null_count < batch.num_rows:
            found = batch.column(HEADERS)
            whole = pa.concat_arrays([found]) if found.offset else found
            columns[HEADERS] = plain_column(whole.view(SCHEMA.field(HEADERS).type))
        if pc.any(missing).as_py():
            raise self._missing()
        return pa.RecordBatch.from_pydict(columns)

    def _message(self, row: dict[str, object]) -> Message:
        op = row.pop(OP, PUT) or PUT
        pairs = cast("list[dict[str, object]] | None", row.get(HEADERS)) or []
        named = (
            (str(pair.get("key") or pair.get("name")), to_bytes(pair["value"])) for pair in pairs
        )
        headers = list(plain_headers(tuple(named)))
        found = row.get(self._key_column)
        key = None if found is None else to_bytes(found)
        if op == DELETE:
            if self.key:
                return Message(None, key=key, headers=headers)
            headers.append((OP, DELETE.encode()))
        elif self.value != ALL and row[self.value] is None:
            raise self._missing()
        value = to_json(row) if self.value == ALL else to_bytes(row[self.value])
        return Message(value, key=key, headers=headers)

    def _missing(self) -> Invalid:
        return Invalid(
            f"column {self.value!r} is null in a row that is put; say op = 'delete', or give it a "
            "value",
            field=self.value,
        )

    # --- The place --------------------------------------------------------------------------------

    @property
    def _space(self) -> str:
        space, slash, _ = self.queue.partition("/")
        return space if slash else "default"

    @property
    def _name(self) -> str:
        return self.queue.rpartition("/")[2]

    @property
    def _key_column(self) -> str:
        """A message may have a key in a queue that is not keyed, too."""
        return self.key[0] if self.key else "key"

    def _key(self, flow: str) -> str:
        return f"{self._name} {flow}"

    def _queue(self, m: sync.Millrace) -> sync.Queue:
        try:
            return m.queue(self._name, space=self._space, keyed=bool(self.key))
        except Exists as error:
            raise Invalid(
                f"queue {self.queue} is there, and {error.message}; give the setting key for a "
                "keyed queue, and only for one",
                field="key",
            ) from error

    def _flow(self, snapshot: sync.Snapshot, flow: str) -> _Flow | None:
        wanted = self._key(flow).encode()
        for row in snapshot.rows():
            if row.key == wanted and row.body is not None:
                return decode_json(row.body, _Flow)
        return None

    @contextmanager
    def _place(self) -> Iterator[sync.Millrace]:
        """Open the server or folder; calls with an unknown result raise `Retry`."""
        try:
            yield self._opened()
        except Unknown as error:
            self.close()
            raise Retry(
                f"{self.url or self.path} has not answered: {error.message}; is it running there?",
                field="url",
            ) from error

    def _opened(self) -> sync.Millrace:
        key = self._connection_key()
        with _lock:
            if key not in _connections:
                _connections[key] = self._open_place()
            return _connections[key]

    def _connection_key(self) -> _ConnectionKey:
        # With the credentials: a sink must not act with the rights of another sink's token.
        return os.getpid(), self.url, self.path, self.token_file, self.certificates

    def _open_place(self) -> sync.Millrace:
        if self.path:
            return sync.open(self.path)
        token = os.environ.get("MILLRACE_TOKEN")
        if self.token_file:
            try:
                with open(self.token_file, encoding="utf-8") as file:
                    token = file.read().strip()
            except OSError as error:
                raise Invalid(
                    f"token_file {shown(self.token_file)} cannot be read: {error.strerror}",
                    field="token_file",
                ) from None
        return sync.connect(self.url, token=token, certificates=self.certificates or None)


_ConnectionKey = tuple[int, str, str, str, str]
"""Process, address or folder, and the files with the credentials."""

_connections: dict[_ConnectionKey, sync.Millrace] = {}
"""The connections of this process; any thread may use them."""

_lock = Lock()


def _state(held: Held) -> _State:
    return decode_json(held.state, _State)


def _mark(queue: str, flow: str) -> str:
    """Return a name for the cursor and stages of a flow; names cannot contain slashes."""
    return f"flow-{hashlib.sha256(f'{queue} {flow}'.encode()).hexdigest()[:24]}"


def _bytes(column: Array, name: str) -> Array:
    try:
        return cast("Array", pc.cast(column, pa.binary()))
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        raise Invalid(
            f"column {name!r} is of type {column.type}; cast it to text or bytes", field=name
        ) from None


def _are(column: Array, text: str) -> pa.BooleanArray:
    same = pc.equal(column, pa.scalar(text))
    return cast("pa.BooleanArray", pc.fill_null(same, pa.scalar(value=False)))


def _nulled(column: Array, where: pa.BooleanArray) -> Array:
    return cast("Array", pc.if_else(where, pa.scalar(None, pa.binary()), column))


def _op(pairs: object) -> str:
    found = cast("list[dict[str, object]]", pairs or [])
    is_delete = any(pair["name"] == OP and pair["value"] == DELETE.encode() for pair in found)
    return DELETE if is_delete else PUT
