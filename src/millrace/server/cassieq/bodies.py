"""What CassieQ's callers send and are sent."""

from __future__ import annotations

from typing import Annotated, TypeVar

import msgspec

from millrace.core.receipt import read
from millrace.errors import Invalid
from millrace.server.cassieq.signature import SIGNED
from millrace.server.rest.route import Ask, read_query

Asked = TypeVar("Asked", bound=msgspec.Struct)

Whole = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
Counted = Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)]


def query_of(ask: Ask, kind: type[Asked]) -> Asked:
    """What stands behind the question mark, beside what makes it a signed address."""
    return read_query(ask, kind, beside=SIGNED)


class NoQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Nothing stands there."""


# --- Queues --------------------------------------------------------------------------------------


class CreateQuery(
    msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True
):
    """Of the request that makes a queue."""

    error_if_exists: bool = False


class QueueIn(
    msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True
):
    """A queue that is to be made; what is left out, or null, is as usual."""

    queue_name: str
    max_delivery_count: Counted | None = None
    dlq_name: str | None = None
    bucket_size: Counted | None = None
    repair_worker_poll_seconds: Whole | None = None
    repair_worker_bucket_finalize_time_seconds: Whole | None = None
    delete_buckets_after_finalize: bool | None = None
    strict_fifo: bool | None = None


class QueueOut(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A queue that is there."""

    account_name: str
    queue_name: str
    id: str
    version: int
    """Of each queue of a name another one, which is larger than those before."""
    status: str = "Active"
    max_delivery_count: int
    """0: messages are delivered without end, which CassieQ's own requests cannot ask for."""
    dlq_name: str | None
    bucket_size: int
    repair_worker_poll_frequency_seconds: int
    repair_worker_tombstoned_bucket_timeout_seconds: int
    delete_buckets_after_finalization: bool
    strict_fifo: bool


class Statistics(msgspec.Struct, frozen=True):
    """What is counted of a queue."""

    size: int
    """Messages that were not acknowledged."""


# --- Messages ------------------------------------------------------------------------------------


class PutQuery(
    msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True
):
    """Of the request that puts a message."""

    initial_invisibility_seconds: Whole = 0


class NextQuery(
    msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True
):
    """Of the request for a message."""

    invisibility_time_seconds: Whole = 30


class ReceiptQuery(
    msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True
):
    """Which message, by the receipt of its delivery."""

    pop_receipt: str


class UpdateIn(
    msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True
):
    """What a message is to be from now on."""

    message: str | None = None
    """None: it stays, and only its time is another one."""
    new_invisibility_seconds: Whole = 0


class MessageOut(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A message that is the caller's for a while."""

    pop_receipt: str
    message: str
    delivery_count: int
    """How often it was delivered, this time included."""
    message_tag: str
    message_encoding: str = ""
    """base64, where the message was published through another API and is no text."""


class UpdateOut(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """By which the message is known from now on."""

    pop_receipt: str
    message_tag: str


def receipt_in(ask: Ask) -> str:
    """The receipt that the query names.

    Raises:
        Invalid, Forged: there is none.
    """
    if "popReceipt" not in ask.query():
        raise Invalid("popReceipt is missing; send that of the delivery", field="popReceipt")
    receipt = query_of(ask, ReceiptQuery).pop_receipt
    read(receipt)
    return receipt


# --- Accounts ------------------------------------------------------------------------------------


class AccountOut(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """An account, and its keys by their names."""

    account_name: str
    keys: dict[str, str]


class KeyIn(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """A key that is to be made."""

    key_name: str


class LevelOut(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A right that an address can be signed for."""

    level: str
    short_form: str


class PermissionIn(
    msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True
):
    """What an address is to be signed for."""

    account_name: str
    key_name: str
    levels: Annotated[list[str], msgspec.Meta(min_length=1, max_length=7)]
    """Letters, or the names of levels."""
    start_time: str | None = None
    end_time: str | None = None
    queue_name: str | None = None


class PermissionOut(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What goes behind the question mark of addresses."""

    query_param: str
