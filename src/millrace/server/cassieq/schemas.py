"""Request and response bodies of CassieQ's API."""

from __future__ import annotations

from typing import Annotated, TypeVar

import msgspec

from millrace.core.format.receipt import read
from millrace.errors import Invalid
from millrace.server.cassieq.signature import SIGNED
from millrace.server.web.route import RequestContext, read_query

Asked = TypeVar("Asked", bound=msgspec.Struct)

Whole = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
Counted = Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)]


def query_of(ask: RequestContext, kind: type[Asked]) -> Asked:
    """Parse the query string; the parameters of signed addresses are accepted and ignored."""
    return read_query(ask, kind, beside=SIGNED)


class NoQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An empty query."""


# --- Queues --------------------------------------------------------------------------------------


class CreateQuery(
    msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True
):
    """The query of the request that creates a queue."""

    error_if_exists: bool = False


class QueueIn(
    msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True
):
    """The queue to create; fields that are omitted or null take their defaults."""

    queue_name: str
    max_delivery_count: Counted | None = None
    dlq_name: str | None = None
    bucket_size: Counted | None = None
    repair_worker_poll_seconds: Whole | None = None
    repair_worker_bucket_finalize_time_seconds: Whole | None = None
    delete_buckets_after_finalize: bool | None = None
    strict_fifo: bool | None = None


class CassieqQueue(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A queue with its settings."""

    account_name: str
    queue_name: str
    id: str
    version: int
    """The queue's version: a later queue of the same name has a larger one."""
    status: str = "Active"
    max_delivery_count: int
    """The limit of deliveries; 0 means no limit, which CassieQ's own requests cannot set."""
    dlq_name: str | None
    bucket_size: int
    repair_worker_poll_frequency_seconds: int
    repair_worker_tombstoned_bucket_timeout_seconds: int
    delete_buckets_after_finalization: bool
    strict_fifo: bool


class Statistics(msgspec.Struct, frozen=True):
    """Statistics of a queue."""

    size: int
    """Number of unacknowledged messages."""


# --- Messages ------------------------------------------------------------------------------------


class PutQuery(
    msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True
):
    """The query of the request that puts a message."""

    initial_invisibility_seconds: Whole = 0


class NextQuery(
    msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True
):
    """The query of the request that gets a message."""

    invisibility_time_seconds: Whole = 30


class ReceiptQuery(
    msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True
):
    """The receipt of a delivery, which identifies the message."""

    pop_receipt: str


class UpdateIn(
    msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True
):
    """The changes to a message."""

    message: str | None = None
    """The new text; null keeps the text and changes the invisibility alone."""
    new_invisibility_seconds: Whole = 0


class CassieqMessage(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A message that is delivered to the caller and invisible to others for a time."""

    pop_receipt: str
    message: str
    delivery_count: int
    """Number of deliveries, including this one."""
    message_tag: str
    message_encoding: str = ""
    """`base64` if another API published the message and it is not text in UTF-8."""


class UpdateOut(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The receipt and tag of a message after an update."""

    pop_receipt: str
    message_tag: str


def receipt_in(ask: RequestContext) -> str:
    """Return the receipt in the query.

    Raises:
        Invalid, Forged: the receipt is missing or malformed.
    """
    if "popReceipt" not in ask.query():
        raise Invalid("popReceipt is missing; send that of the delivery", field="popReceipt")
    receipt = query_of(ask, ReceiptQuery).pop_receipt
    read(receipt)
    return receipt


# --- Accounts ------------------------------------------------------------------------------------


class AccountOut(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """An account with its keys by name."""

    account_name: str
    keys: dict[str, str]


class KeyIn(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """The key to create."""

    key_name: str


class LevelOut(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """An authorization level of signed addresses."""

    level: str
    short_form: str


class PermissionIn(
    msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True
):
    """The rights to sign for an address, and the time for which they are valid."""

    account_name: str
    key_name: str
    levels: Annotated[list[str], msgspec.Meta(min_length=1, max_length=7)]
    """Letters or names of levels."""
    start_time: str | None = None
    end_time: str | None = None
    queue_name: str | None = None


class PermissionOut(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A signed query string for addresses."""

    query_param: str
