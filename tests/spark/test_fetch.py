"""Rows straight from the socket: cut off and resumed, refused, and given up in time."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pyarrow as pa
import pytest

from millrace import sync
from millrace.client.snapshot_token import write_snapshot_token
from millrace.errors import Closed, NotFound, SnapshotExpired, Unauthenticated
from millrace.spark.fetch import fetch, let_go, snapshot_path
from millrace.spark.home import QueueEndpoint
from tests.server.server_process import Process

ROWS = 3000


@pytest.fixture(scope="module")
def m(server: Process) -> Iterator[sync.Millrace]:
    with sync.connect(server.address, token=server.token) as found:
        found.queue("fetched").publish_many([b"%04d" % at * 250 for at in range(ROWS)])
        yield found
    let_go()


def ticket_of(queue: sync.Queue) -> str:
    return write_snapshot_token(queue.snapshot(seconds=60).__enter__()._twin)


@contextmanager
def cutting(port: int, after: list[int]) -> Iterator[int]:
    """A way to a server that ends each connection after so many bytes of its answers; the last
    number counts for all that follow."""
    listener = socket.create_server(("127.0.0.1", 0))

    def pump(source: socket.socket, target: socket.socket, most: int) -> None:
        with closing(source), closing(target):
            while most > 0 and (data := source.recv(min(most, 65536))):
                target.sendall(data)
                most -= len(data)
            for one in (source, target):
                one.shutdown(socket.SHUT_RDWR)

    def quietly(*arguments: object) -> None:
        try:
            pump(*arguments)  # type: ignore[arg-type]
        except OSError:
            return

    def accept() -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            most = after.pop(0) if len(after) > 1 else after[0]
            server = socket.create_connection(("127.0.0.1", port))
            for pair in ((client.dup(), server.dup(), 2**40), (server, client, most)):
                threading.Thread(target=quietly, args=pair, daemon=True).start()

    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    try:
        yield listener.getsockname()[1]
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()


def read(home: QueueEndpoint, path: str, **asked: str) -> list[pa.RecordBatch]:
    return list(fetch(home, path, {"shard": "0", **asked}, 0))


def seqs(batches: list[pa.RecordBatch]) -> list[int]:
    return [seq.as_py() for batch in batches for seq in batch.column("seq")]


def test_one_connection_serves_many_reads(server: Process, m: sync.Millrace) -> None:
    home = QueueEndpoint(server.address, token_file=server.token_file)
    path = snapshot_path("default", "fetched", ticket_of(m.find("fetched")))
    assert seqs(read(home, path)) == list(range(1, ROWS + 1))
    [batch] = read(home, path, columns="seq,time", upto="7")
    assert (batch.schema.names, batch.num_rows) == (["seq", "time"], 7)
    begun = fetch(home, path, {"shard": "0"}, 5)
    assert next(begun).column("seq")[0].as_py() == 6
    # One that is left in the middle is not used again.
    del begun
    assert seqs(read(home, path, upto="3")) == [1, 2, 3]
    assert read(home, path, upto="0") == []


def test_who_is_cut_off_goes_on_after_the_last_row(server: Process, m: sync.Millrace) -> None:
    path = snapshot_path("default", "fetched", ticket_of(m.find("fetched")))
    with cutting(server.port, [100, 300_000, 1_200_000, 0, 2**40]) as port:
        home = QueueEndpoint(f"http://127.0.0.1:{port}", token_file=server.token_file)
        assert seqs(read(home, path)) == list(range(1, ROWS + 1))


def test_a_server_that_is_away_is_waited_for_and_then_given_up(
    server: Process, m: sync.Millrace
) -> None:
    path = snapshot_path("default", "fetched", ticket_of(m.find("fetched")))
    with cutting(server.port, [0]) as port:
        home = QueueEndpoint(f"http://127.0.0.1:{port}", token_file=server.token_file, patience=0.3)
        with pytest.raises(Closed, match=r"has not answered for 0\.3 s"):
            read(home, path)


def test_what_is_refused_is_not_tried_again(server: Process, m: sync.Millrace) -> None:
    home = QueueEndpoint(server.address, token_file=server.token_file)
    queue = m.find("fetched")
    with queue.snapshot(seconds=60) as snapshot:
        path = snapshot_path("default", "fetched", write_snapshot_token(snapshot._twin))
    with pytest.raises(SnapshotExpired):
        read(home, path)
    with pytest.raises(NotFound):
        read(home, path.replace("fetched", "other"))
    with pytest.raises(Unauthenticated):
        read(QueueEndpoint(server.address), path)
