"""Compressed record batches: shorter, the same rows, and no damage goes unnoticed."""

from __future__ import annotations

import struct

import pyarrow as pa
import pytest
from pyroaring import BitMap64

from millrace.core.cells import Kind
from millrace.core.format.block import Block
from millrace.core.format.codec import encode_cell
from millrace.core.model import Death, NewMessage
from millrace.core.spec import QueueSpec
from millrace.errors import Corrupt
from millrace.store import compression
from millrace.store.compression import UnpackedCache, compress_batch, decompress_batch
from millrace.store.row_location import COMPRESSED
from millrace.store.sealed import SEALED_SCHEMA, read_footer
from tests.store.test_disk_store import Scene
from tests.store.test_sealed_stats import look_after
from tests.support.contracts.story import SHARD

ROWS = [NewMessage(b"value %d " % at * 40, b"key-%d" % at, (("h", b"x"),)) for at in range(200)]


def batch() -> pa.RecordBatch:
    return Block.of_messages(ROWS).arrow(1, 1, 5).select(SEALED_SCHEMA.names)


def configure(scene: Scene, codec: str) -> None:
    spec = QueueSpec(compressed=codec)  # type: ignore[arg-type]
    scene.story.batch(cells=[(int(Kind.SPEC), b"", encode_cell(spec))])


def flags(scene: Scene) -> list[bool]:
    """Return for each record batch on the disk whether it is compressed."""
    numbers = [int(name.removesuffix(".arrow")) for name in scene.files()]
    return [
        bool(line.flags & COMPRESSED)
        for number in numbers
        for line in read_footer(scene.disk, number)
    ]


@pytest.mark.parametrize("codec", ["zstd", "lz4"])
def test_a_batch_comes_back(codec: compression.Codec) -> None:
    message, is_packed = compress_batch(batch(), codec)
    assert is_packed
    assert message.size < batch().serialize().size // 3
    assert message.size % 8 == 0
    assert decompress_batch(message, SEALED_SCHEMA, compressed=True).equals(batch())
    assert compress_batch(batch(), None)[1] is False


def test_what_does_not_get_shorter_stays_as_it_is() -> None:
    small = Block.of_bodies([b"x"]).arrow(1, 1, 5).select(SEALED_SCHEMA.names)
    message, is_packed = compress_batch(small, "zstd")
    assert not is_packed
    assert message.equals(small.serialize())


def test_a_size_is_judged_before_anything_is_allocated(monkeypatch: pytest.MonkeyPatch) -> None:
    message, _ = compress_batch(batch(), "zstd")
    [largest] = sorted(compression._declared(memoryview(message)))[-1:]
    data = bytearray(message)
    at = data.index(struct.pack("<q", largest))
    data[at : at + 8] = struct.pack("<q", 1 << 50)

    def allocate(*_: object) -> pa.RecordBatch:
        raise AssertionError("it was unpacked")

    monkeypatch.setattr(pa.ipc, "read_record_batch", allocate)
    with pytest.raises(Corrupt, match="more than any can have"):
        decompress_batch(pa.py_buffer(bytes(data)), SEALED_SCHEMA, compressed=True)


def test_a_message_that_is_cut_is_corrupt() -> None:
    message, _ = compress_batch(batch(), "zstd")
    for size in (0, 7, 40, 200, message.size // 2):
        with pytest.raises(Corrupt):
            decompress_batch(message.slice(0, size), SEALED_SCHEMA, compressed=True)


def test_both_kinds_lie_side_by_side() -> None:
    """The setting applies to later passes; rewriting a file uses the newest one."""
    scene = Scene()
    scene.story.publish(*ROWS)
    scene.subject.seal_all()
    configure(scene, "zstd")
    scene.story.publish(*ROWS)
    scene.story.stage("s", *ROWS)
    scene.subject.seal_all()
    assert sorted(set(flags(scene))) == [False, True]
    scene.story.compare()
    configure(scene, "lz4")
    scene.story.pin(1)
    scene.story.die(Death.SETTLED, *range(1, 150), *range(201, 350))
    scene.story.compare()
    scene.story.unpin(1)
    look_after(scene)
    assert all(flags(scene))
    configure(scene, "")
    scene.story.die(Death.SETTLED, *range(150, 190), *range(350, 390))
    look_after(scene)
    scene.story.check()


def test_it_takes_less_room() -> None:
    sizes: list[int] = []
    for codec in ("", "lz4", "zstd"):
        scene = Scene()
        configure(scene, codec)
        scene.story.publish(*ROWS)
        scene.subject.seal_all()
        [name] = scene.files()
        file = scene.disk.open(f"sealed/{name}")
        sizes.append(file.size)
        file.close()
    plain, lz4, zstd = sizes
    assert zstd < lz4 < plain // 2


def test_little_is_kept_unpacked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compression, "UNPACKED_BYTES_MAX", 100)
    kept = UnpackedCache()
    for at in range(5):
        kept.put((True, 1, at), at, 40)
    assert len(kept) == 2
    assert kept.get((True, 1, 3)) == 3
    kept.put((True, 2, 0), 9, 1_000)
    assert len(kept) == 1, "the newest one, however large it is"
    kept.forget({(True, 2)})
    assert (len(kept), kept._bytes) == (0, 0)


def test_bytes_of_rows_are_counted_as_they_are_read() -> None:
    """A short place may hold long rows."""
    scene = Scene()
    configure(scene, "zstd")
    scene.story.publish(*(NewMessage(bytes(10_000)) for _ in range(50)))
    scene.subject.seal_all()
    seqs = BitMap64(range(1, 51))
    assert len(scene.subject.store.rows(SHARD, seqs, 35_000)) == 3
    assert len(scene.subject.store.rows(SHARD, seqs, 10)) == 1


def test_a_flipped_bit_is_found() -> None:
    """The checksum is that of the compressed bytes."""
    scene = Scene()
    configure(scene, "zstd")
    scene.story.publish(*ROWS)
    scene.subject.seal_all()
    scene.subject.reopen()
    [name] = scene.files()
    [line] = read_footer(scene.disk, int(name.removesuffix(".arrow")))
    scene.disk.flip(f"sealed/{name}", line.offset + line.length - 100)
    with pytest.raises(Corrupt, match="is damaged"):
        scene.subject.store.rows(SHARD, BitMap64([1]))
