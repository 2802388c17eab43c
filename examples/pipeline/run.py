"""A queue into a lake, through Spark: publish, run the pipeline, look, change, run it again.

Run it in an empty folder: `python run.py`. It needs millrace[spark,delta] and Java.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from deltalake import DeltaTable

from millrace import Message, sync
from millrace.pipeline import Setting, read_pipeline, run_pipeline, verify_pipeline

HERE = Path(__file__).parent


def order(key: str, customer: str, amount: float) -> Message:
    """An order, as the shop would publish it."""
    return Message(json.dumps({"customer": customer, "amount": amount}).encode(), key)


def main() -> None:
    """The whole way."""
    declaration = Path("orders.toml")
    declaration.write_text((HERE / "orders.toml").read_text())
    environ = {**os.environ, "LAKE": str(Path("lake").absolute())}
    pipeline = read_pipeline(declaration, environ)
    setting = Setting(environ=environ)
    publish([order("1", "ada", 30.0), order("2", "bob", 12.5), order("3", "cy", -1.0)])
    run_pipeline(pipeline, setting, once=True)
    publish([order("2", "bob", 15.0), Message(None, "1")])
    run_pipeline(pipeline, setting, once=True)
    table = DeltaTable("lake/orders").to_pyarrow_table(columns=["id", "customer", "amount"])
    print("the lake has", table.to_pylist())
    for found in verify_pipeline(pipeline, setting):
        print(found.sink, "is", "right" if found.is_right else "wrong", "by", found.method)


def publish(messages: list[Message]) -> None:
    """Into the queue, as another program would."""
    with sync.open("data") as m:
        m.queue("orders", keyed=True, retention="log").publish_many(messages)


if __name__ == "__main__":
    main()
