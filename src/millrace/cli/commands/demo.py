"""`millrace demo`: sample data."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

from millrace.cli.exit_errors import ExitError
from millrace.cli.shell import Shell, is_millrace_folder
from millrace.cli.target import DATA_DEFAULT
from millrace.cli.verb import verb

ORDERS = [
    ("order-1", "Ada", "nails", 2, 9.80),
    ("order-2", "Grace", "hammer", 1, 24.50),
    ("order-3", "Edsger", "paint", 3, 41.70),
    ("order-4", "Barbara", "rope", 10, 18.00),
    ("order-5", "Ada", "saw", 1, 31.20),
]

MAIL = ["welcome, Ada", "your hammer is on its way", "welcome, Edsger", "a question about paint"]


@verb(
    "demo",
    examples="""
        millrace demo
        millrace demo --data playground
    """,
)
async def demo(shell: Shell) -> None:
    """Create a folder with sample data: the keyed queue `orders` and the work queue `mail`."""
    from millrace import Message

    if isinstance(shell.target, Path) and is_millrace_folder(shell.target):
        raise _exists(shell)
    async with shell.open(make=True) as m:
        if await m.queues():
            raise _exists(shell)
        orders = await m.queue("orders", keyed=True)
        await orders.publish_many(
            [
                Message(_order(name, item, count, total), key=key, headers={"source": "shop"})
                for key, name, item, count, total in ORDERS
            ]
        )
        # A new revision replaces the older one; a delete stays visible as a delete.
        await orders.publish(_order("Grace", "hammer", 2, 49.00), key="order-2")
        await orders.publish(None, key="order-4")
        mail = await m.queue("mail")
        await mail.publish_many([text.encode() for text in MAIL])
    _tell(shell)


def _exists(shell: Shell) -> ExitError:
    return ExitError(
        f"{shell.target} has queues already; the demo needs a new folder",
        "--data PATH gives one; `millrace queue list` lists the queues",
        code="exists",
    )


def _order(customer: str, item: str, count: int, total: float) -> bytes:
    fields = {"customer": customer, "item": item, "count": count, "total": total}
    return json.dumps(fields).encode()


def _tell(shell: Shell) -> None:
    where = "" if shell.target == DATA_DEFAULT else f" --data {shlex.quote(str(shell.target))}"
    lines = [
        (f"millrace queue list{where}", "list the queues"),
        (f"millrace peek orders{where}", "the newest revision of each order"),
        (f"millrace explain orders 2{where}", "the state of the first order-2"),
        (
            f"millrace follow orders --once --name report{where}",
            "all messages, then only new ones",
        ),
        (f"millrace publish mail 'hello'{where}", "publish a message"),
        (f"millrace work mail --once{where} -- cat", "run a command for each message"),
        (
            f"""millrace sql{where} "select key_text, text ->> 'item' from orders" """,
            "query with SQL",
        ),
    ]
    width = max(len(line) for line, _ in lines)
    text = "\n".join(f"  {line.ljust(width)}  # {why}" for line, why in lines)
    fields = {"path": str(shell.target), "queues": ["orders", "mail"]}
    shell.out.line(
        "demo", fields, f"created {shell.target} with the queues orders and mail. Try:\n{text}"
    )
