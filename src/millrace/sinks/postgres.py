"""A sink for tables of PostgreSQL, exactly once.

`stage` copies rows into an unlogged staging table in the same schema; the commit merges them,
checks the fence and the boundary under a lock, and writes the boundary, in one transaction. So a
span becomes visible as a whole.

Rule 1: the row of the flow is locked before anything else: a fenced run waits, sees the higher
fence, and changes nothing.

Rule 2: an unlogged table is empty after a crash of the server. The rows are counted before they are
merged; if some are missing, they have to be staged again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import cast

import msgspec
import psycopg
import pyarrow as pa
from psycopg import sql

from millrace import limits
from millrace.core.format.column import Array
from millrace.decoding import decode_json
from millrace.errors import Invalid, MillraceError, Refused, Retry
from millrace.sinks.base import DELETE, OP, PUT, Held, Task, overtaken
from millrace.sinks.boundary import Boundary, Span, goes_on
from millrace.sinks.lane import check_key
from millrace.sinks.links import Links
from millrace.sinks.null_key import check_null_keys
from millrace.sinks.postgres_types import column_type, is_nested, read_type, to_json
from millrace.sinks.wording import shown

FLOWS = "millrace_flows"
OURS = "millrace_"
"""Prefix of the sink's own columns and tables."""

Connection = psycopg.Connection[tuple[object, ...]]


class _Staged(msgspec.Struct, frozen=True, array_like=True):
    part: str
    rows: int
    deletes: int


class Postgres(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A table, which is created if missing; with a key, rows replace each other."""

    table: str
    """"orders", or "shop.orders" in another schema."""
    url: str = ""
    """postgresql://user:password@host:port/database; missing parts are taken from libpq's own
    variables (PGHOST, PGPASSWORD, PGPASSFILE …).
    """
    key: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"<Postgres {self.table}>"

    @property
    def lanes(self) -> int:
        """See `Sink.lanes`; the merge sees all parts at once."""
        return 0

    def check(self, schema: pa.Schema) -> None:
        """See `Sink.check`."""
        check_key(schema, self.key)
        for field in schema:
            column_type(field.name, field.type)
            if field.name.startswith(OURS):
                raise Invalid(
                    f"column {field.name!r}: names that begin with {OURS!r} are the sink's own; "
                    "rename it",
                    field=field.name,
                )

    def open(self, flow: str, schema: pa.Schema) -> Held:
        """See `Sink.open`."""
        self.check(schema)
        with self._transaction(limits.SINK_ANSWER_SECONDS, idle=limits.SINK_IDLE_SECONDS) as db:
            self._make(db, schema)
            row = db.execute(
                sql.SQL(
                    "INSERT INTO {} AS f (flow, fence) VALUES (%s, 1) "
                    "ON CONFLICT (flow) DO UPDATE SET fence = f.fence + 1 "
                    "RETURNING fence, boundary"
                ).format(self._beside(FLOWS)),
                [flow],
            ).fetchone()
            held = _held(flow, row)
            self._make_stage(db, held, schema)
        return held

    def stage(self, task: Task, batches: Iterable[pa.RecordBatch]) -> bytes:
        """See `Sink.stage`."""
        rows = deletes = 0
        with self._transaction(limits.SINK_COMMIT_SECONDS) as db:
            self._fenced(db, task.held, lock=False)
            # The staging table is empty after a crash in any case.
            db.execute("SET LOCAL synchronous_commit = off")
            for batch in check_null_keys(batches, self.key):
                if batch.num_rows:
                    deletes += self._copy(db, task, batch, rows)
                    rows += batch.num_rows
        return msgspec.json.encode(_Staged(task.part, rows, deletes))

    def commit(self, held: Held, span: Span, staged: Sequence[bytes]) -> Held:
        """See `Sink.commit`."""
        parts = [decode_json(one, _Staged) for one in staged]
        with self._transaction(limits.SINK_COMMIT_SECONDS, idle=limits.SINK_IDLE_SECONDS) as db:
            now = self._fenced(db, held, lock=True)
            if not goes_on(now.boundary, span):
                return msgspec.structs.replace(held, boundary=now.boundary)
            if any(part.rows for part in parts):
                self._merge(db, held, parts)
            db.execute(
                sql.SQL("UPDATE {} SET boundary = %s, changed = now() WHERE flow = %s").format(
                    self._beside(FLOWS)
                ),
                [span.upto.text(), held.flow],
            )
        return msgspec.structs.replace(held, boundary=span.upto)

    def clean(self, held: Held) -> None:
        """Drop the staging tables of fenced runs, unless they are still in use."""
        with self._transaction(limits.SINK_ANSWER_SECONDS) as db:
            self._fenced(db, held, lock=False)
            found = db.execute(
                "SELECT c.relname FROM pg_class c "
                "WHERE c.relkind = 'r' AND starts_with(c.relname, %s) AND c.relname <> %s "
                "AND c.relnamespace = (SELECT relnamespace FROM pg_class "
                "WHERE oid = %s::regclass)",
                [
                    self._stage_name(held.flow),
                    self._stage_name(held.flow, held.fence),
                    self._stage(held).as_string(db),
                ],
            ).fetchall()
        for (name,) in found:
            with self._transaction(limits.SINK_ANSWER_SECONDS) as db:
                db.execute(f"SET LOCAL lock_timeout = '{limits.SINK_LOCK_SECONDS}s'")
                try:
                    with db.transaction():
                        db.execute(
                            sql.SQL("DROP TABLE IF EXISTS {}").format(self._beside(str(name)))
                        )
                except psycopg.errors.LockNotAvailable:
                    continue

    def close(self) -> None:
        """See `Sink.close`."""
        _links.drop(self)

    def rows(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """See `Readable.rows`."""
        names = sql.SQL(", ").join(map(sql.Identifier, columns))
        query = sql.SQL("SELECT {} FROM {}").format(names, self._table())
        with (
            self._transaction(limits.SINK_COMMIT_SECONDS) as db,
            db.cursor(name="millrace_rows") as cursor,
        ):
            cursor.execute(query)
            while found := cursor.fetchmany(limits.SINK_READ_ROWS):
                kinds = [read_type(one.type_code) for one in cursor.description or ()]
                yield pa.RecordBatch.from_arrays(
                    [_array([row[at] for row in found], kind) for at, kind in enumerate(kinds)],
                    list(columns),
                )

    def stands(self, flow: str) -> Boundary | None:
        """See `Asked.stands`."""
        flows = self._beside(FLOWS)
        with self._transaction(limits.SINK_ANSWER_SECONDS) as db:
            if db.execute("SELECT to_regclass(%s)", [flows.as_string(db)]).fetchone() == (None,):
                return None
            query = sql.SQL("SELECT fence, boundary FROM {} WHERE flow = %s").format(flows)
            row = db.execute(query, [flow]).fetchone()
        return None if row is None else _held(flow, row).boundary

    # --- Names ------------------------------------------------------------------------------------

    def _table(self) -> sql.Identifier:
        return sql.Identifier(*self.table.split(".", 1))

    def _beside(self, name: str) -> sql.Identifier:
        """Return the name of an internal table, in the same schema."""
        return sql.Identifier(*self.table.split(".", 1)[:-1], name)

    def _stage_name(self, flow: str, fence: int | None = None) -> str:
        mark = hashlib.sha256(f"{self.table}\0{flow}".encode()).hexdigest()[:20]
        return f"{OURS}stage_{mark}_" + ("" if fence is None else str(fence))

    def _stage(self, held: Held) -> sql.Identifier:
        return self._beside(self._stage_name(held.flow, held.fence))

    def _stored(self, names: Sequence[str]) -> list[str]:
        """Return the columns that are stored: with a key, the operation is applied and not
        stored.
        """
        return [name for name in names if not (self.key and name == OP)]

    # --- Making -----------------------------------------------------------------------------------

    def _make(self, db: Connection, schema: pa.Schema) -> None:
        # Two runs that open at the same time would both create the tables.
        db.execute("SELECT pg_advisory_xact_lock(hashtext('millrace'))")
        db.execute(
            sql.SQL(
                "CREATE TABLE IF NOT EXISTS {} (flow text PRIMARY KEY, fence bigint NOT NULL, "
                "boundary text, changed timestamptz NOT NULL DEFAULT now())"
            ).format(self._beside(FLOWS))
        )
        parts = [
            sql.SQL("{} {}").format(
                sql.Identifier(name), sql.SQL(column_type(name, schema.field(name).type))
            )
            for name in self._stored(schema.names)
        ]
        if self.key:
            parts.append(sql.SQL("PRIMARY KEY ({})").format(_names(self.key)))
        db.execute(
            sql.SQL("CREATE TABLE IF NOT EXISTS {} ({})").format(
                self._table(), sql.SQL(", ").join(parts)
            )
        )

    def _make_stage(self, db: Connection, held: Held, schema: pa.Schema) -> None:
        """Create the staging table with the column types of the target table: values that these
        refuse are refused during the copy, when the row is known.
        """
        stored = self._stored(schema.names)
        try:
            with db.transaction():
                db.execute(
                    sql.SQL(
                        "CREATE UNLOGGED TABLE {} AS SELECT {}, ''::text AS millrace_part, "
                        "''::text AS millrace_op, 0::numeric AS millrace_seq, "
                        "0::bigint AS millrace_at FROM {} WITH NO DATA"
                    ).format(self._stage(held), _names(stored), self._table())
                )
                if self.key:
                    db.execute(
                        sql.SQL(
                            "EXPLAIN INSERT INTO {} ({}) SELECT {} FROM {} ON CONFLICT ({}) "
                            "DO NOTHING"
                        ).format(
                            self._table(),
                            _names(stored),
                            _names(stored),
                            self._stage(held),
                            _names(self.key),
                        )
                    )
        except psycopg.errors.UndefinedColumn as error:
            raise Invalid(
                f"table {self.table} is there and lacks a column of the rows: "
                f"{error.diag.message_primary}; add it, or leave it out of the rows",
                field="table",
            ) from error
        except psycopg.errors.InvalidColumnReference as error:
            raise Invalid(
                f"table {self.table} is there and has no unique index on ({', '.join(self.key)}); "
                "make one, so that rows can replace each other",
                field="key",
            ) from error

    # --- Rows -------------------------------------------------------------------------------------

    def _copy(self, db: Connection, task: Task, batch: pa.RecordBatch, at: int) -> int:
        """Copy one batch; return the number of deletes in it."""
        names = batch.schema.names
        stored = self._stored(names)
        columns: list[list[object]] = []
        for name in stored:
            values = batch.column(name).to_pylist()
            nested = is_nested(batch.schema.field(name).type)
            columns.append([to_json(one) for one in values] if nested else values)
        count = batch.num_rows
        ops = [one or PUT for one in batch.column(OP).to_pylist()] if OP in names else [PUT] * count
        seqs = batch.column("seq").to_pylist() if "seq" in names else [0] * count
        query = sql.SQL(
            "COPY {} ({}, millrace_part, millrace_op, millrace_seq, millrace_at) FROM STDIN"
        ).format(self._stage(task.held), _names(stored))
        rows = zip(*columns, [task.part] * count, ops, seqs, range(at, at + count), strict=True)
        try:
            with db.transaction(), db.cursor() as cursor, cursor.copy(query) as copy:
                for row in rows:
                    copy.write_row(row)
        except psycopg.DataError as error:
            stage = self._stage(task.held)
            raise blame(db, error, stage, stored, columns, self.key) from error
        return sum(one == DELETE for one in ops)

    def _merge(self, db: Connection, held: Held, parts: Sequence[_Staged]) -> None:
        stage, named = self._stage(held), [part.part for part in parts]
        found = db.execute(
            sql.SQL("SELECT count(*) FROM {} WHERE millrace_part = ANY(%s)").format(stage), [named]
        ).fetchone()
        if found != (sum(part.rows for part in parts),):
            raise Retry(
                f"rows that were staged for {self.table} are gone, as after a crash of the server; "
                "stage them again",
                field="staged",
            )
        stored = [
            str(name)
            for (name,) in db.execute(
                "SELECT attname FROM pg_attribute WHERE attrelid = %s::regclass AND attnum > 0 "
                "AND NOT attisdropped AND NOT starts_with(attname, %s) ORDER BY attnum",
                [stage.as_string(db), OURS],
            )
        ]
        if self.key:
            self._upsert(db, stage, stored, named, any(part.deletes for part in parts))
        else:
            db.execute(
                sql.SQL(
                    "INSERT INTO {} ({}) SELECT {} FROM {} WHERE millrace_part = ANY(%s)"
                ).format(self._table(), _names(stored), _names(stored), stage),
                [named],
            )
        db.execute(sql.SQL("DELETE FROM {} WHERE millrace_part = ANY(%s)").format(stage), [named])

    def _upsert(
        self,
        db: Connection,
        stage: sql.Identifier,
        stored: Sequence[str],
        named: Sequence[str],
        deletes: bool,  # noqa: FBT001
    ) -> None:
        newest = sql.SQL(
            "(SELECT DISTINCT ON ({keys}) * FROM {stage} WHERE millrace_part = ANY(%s) "
            "ORDER BY {keys}, millrace_seq DESC NULLS LAST, millrace_at DESC) n"
        ).format(keys=_names(self.key), stage=stage)
        if deletes:
            same = sql.SQL(" AND ").join(
                sql.SQL("t.{} = n.{}").format(sql.Identifier(name), sql.Identifier(name))
                for name in self.key
            )
            db.execute(
                sql.SQL("DELETE FROM {} t USING {} WHERE n.millrace_op = %s AND {}").format(
                    self._table(), newest, same
                ),
                [named, DELETE],
            )
        others = [name for name in stored if name not in self.key]
        action: sql.Composable = sql.SQL("NOTHING")
        if others:
            action = sql.SQL("UPDATE SET {}").format(
                sql.SQL(", ").join(
                    sql.SQL("{0} = excluded.{0}").format(sql.Identifier(name)) for name in others
                )
            )
        db.execute(
            sql.SQL(
                "INSERT INTO {} ({}) SELECT {} FROM {} WHERE n.millrace_op <> %s "
                "ON CONFLICT ({}) DO {}"
            ).format(
                self._table(), _names(stored), _names(stored), newest, _names(self.key), action
            ),
            [named, DELETE],
        )

    # --- The flow ---------------------------------------------------------------------------------

    def _fenced(self, db: Connection, held: Held, *, lock: bool) -> Held:
        """Return the present state of the flow.

        Raises:
            Stale: it was opened again by another run.
        """
        query = "SELECT fence, boundary FROM {} WHERE flow = %s" + (" FOR UPDATE" if lock else "")
        row = db.execute(sql.SQL(query).format(self._beside(FLOWS)), [held.flow]).fetchone()
        if row is None or row[0] != held.fence:
            raise overtaken(held)
        return _held(held.flow, row)

    @contextmanager
    def _transaction(self, seconds: int, *, idle: int = 0) -> Iterator[Connection]:
        """Open a transaction and translate errors of the server into Millrace errors. A connection
        that holds locks and is idle for `idle` seconds is cut off by the server.
        """
        db = _links.get(self)
        try:
            with db.transaction():
                db.execute(
                    f"SET LOCAL statement_timeout = '{seconds}s';"
                    f"SET LOCAL idle_in_transaction_session_timeout = '{idle}s'"
                )
                yield db
        except MillraceError:
            raise
        except (psycopg.OperationalError, psycopg.InterfaceError) as error:
            _links.drop(self)
            raise _unheard(error) from error
        except psycopg.Error as error:
            raise refusal(error, self.table) from error


def _held(flow: str, row: tuple[object, ...] | None) -> Held:
    if row is None:
        raise Refused(f"flow {flow!r} is not there any more", field="flow")
    fence, text = row
    return Held(flow, int(str(fence)), None if text is None else Boundary.of_text(str(text)))


def _array(values: list[object], kind: pa.DataType | None) -> Array:
    return cast("Array", pa.array(values) if kind is None else pa.array(values, type=kind))


def _names(names: Iterable[str]) -> sql.Composed:
    return sql.SQL(", ").join(map(sql.Identifier, names))


def _unheard(error: psycopg.Error) -> Retry:
    text = str(error).strip().splitlines()
    return Retry(
        f"PostgreSQL does not answer: {text[0] if text else type(error).__name__}; is it running "
        "there?",
        field="url",
    )


def _connect(sink: Postgres) -> Connection:
    try:
        return psycopg.connect(
            sink.url,
            autocommit=True,
            connect_timeout=limits.SINK_CONNECT_SECONDS,
            application_name="millrace",
        )
    except psycopg.OperationalError as error:
        text = str(error)
        if "authentication failed" in text or "does not exist" in text or "no password" in text:
            raise Invalid(
                f"PostgreSQL lets nobody in: {text.strip()}; look at the url, or at PGUSER and "
                "PGPASSWORD",
                field="url",
            ) from error
        raise _unheard(error) from error
    except psycopg.ProgrammingError as error:
        # The original error could quote the URL with its password.
        raise Invalid(
            "url is no address of PostgreSQL, such as postgresql://user:password@host:5432/shop",
            field="url",
        ) from error


_links: Links[Postgres, Connection] = Links(_connect, lambda db: db.close())


# --- Finds the row and column that PostgreSQL has refused ----------------------------------------


def blame(
    db: psycopg.Connection[tuple[object, ...]],
    error: psycopg.Error,
    stage: sql.Identifier,
    names: Sequence[str],
    columns: Sequence[Sequence[object]],
    key: Sequence[str],
) -> Invalid:
    """Return an error that names row and column: each row is tried separately until one fails."""
    why = error.diag.message_primary or str(error)
    for row in zip(*columns, strict=True):
        if not _fits(db, stage, names, row):
            bad = [
                (name, value)
                for name, value in zip(names, row, strict=True)
                if not _fits(db, stage, [name], [value])
            ]
            name, value = bad[0] if bad else ("?", None)
            return Invalid(
                f"{_row(names, row, key)}, column {name!r}: PostgreSQL does not take "
                f"{shown(value)}: {why}; mend or drop it in a step",
                field=name,
            )
    return Invalid(f"PostgreSQL does not take a row: {why}", field="rows")


def refusal(error: psycopg.Error, table: str) -> Invalid:
    """Return the error for an operation that the table refused."""
    diag = error.diag
    said = ": ".join(
        part for part in (diag.message_primary or str(error), diag.message_detail) if part
    )
    column = diag.column_name
    where = f"table {table}" + (f", column {column!r}" if column else "")
    return Invalid(f"{where}: PostgreSQL refuses: {said}", field=column or "table")


def _fits(
    db: psycopg.Connection[tuple[object, ...]],
    stage: sql.Identifier,
    names: Sequence[str],
    row: Sequence[object],
) -> bool:
    query = sql.SQL("COPY {} ({}) FROM STDIN").format(
        stage, sql.SQL(", ").join(map(sql.Identifier, names))
    )
    try:
        with (
            db.transaction(force_rollback=True),
            db.cursor() as cursor,
            cursor.copy(query) as copy,
        ):
            copy.write_row(row)
    except psycopg.DataError:
        return False
    return True


def _row(names: Sequence[str], row: Sequence[object], key: Sequence[str]) -> str:
    wanted = [name for name in (key or ("seq", "key")) if name in names]
    if not wanted:
        return "a row"
    return "row " + ", ".join(f"{name} {shown(row[names.index(name)])}" for name in wanted)
