"""The blocking API: threads share one Millrace, whose engine runs on a thread of its own."""

from __future__ import annotations

import tempfile
from concurrent.futures import ThreadPoolExecutor

import millrace


def produce(queue: millrace.sync.Queue, name: str) -> None:
    # A producer that stopped goes on after the last number that the queue has seen.
    for number in range(queue.producer(name) + 1, 6):
        queue.publish(f"{name}-{number}".encode(), producer=name, number=number)


def consume(queue: millrace.sync.Queue) -> int:
    count = 0
    for lease in queue.work(batch=3, idle=0):
        with lease:
            count += 1
    return count


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, millrace.sync.open(folder) as m:
        queue = m.queue("parts")
        lake = queue.cursor("lake", retain=True)
        with ThreadPoolExecutor(4) as pool:
            for done in [pool.submit(produce, queue, name) for name in ("ann", "ben", "cat")]:
                done.result()
            counts = [done.result() for done in [pool.submit(consume, queue) for _ in range(4)]]
        print(f"4 workers settled {sum(counts)} messages")

        # The cursor retains: messages settled before it read them are still shown to it.
        with next(lake) as snapshot:
            table = snapshot.arrow().read_all()
            print(f"the lake gets {table.num_rows} rows with the columns {table.column_names}")


if __name__ == "__main__":
    main()
