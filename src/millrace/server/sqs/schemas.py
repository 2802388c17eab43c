"""Requests and responses of the SQS actions, with the field names of its JSON protocol.

In the query protocol lists and maps have other names: see `NAMED`.
"""

from __future__ import annotations

import msgspec
from msgspec import field

from millrace.server.aws.message_attributes import AttributeValue
from millrace.server.aws.query_protocol import Items, Named, Pairs

NAMED: Named = {
    "AttributeNames": Items(("AttributeName",)),
    "MessageAttributeNames": Items(("MessageAttributeName",)),
    "MessageSystemAttributeNames": Items(("MessageSystemAttributeName",)),
    "TagKeys": Items(("TagKey",)),
    "AWSAccountIds": Items(("AWSAccountId",)),
    "Actions": Items(("ActionName",)),
    "Attributes": Pairs(("Attribute",), "Name", "Value"),
    "MessageAttributes": Pairs(("MessageAttribute",), "Name", "Value"),
    "MessageSystemAttributes": Pairs(("MessageSystemAttribute",), "Name", "Value"),
    "Tags": Pairs(("Tag",), "Key", "Value"),
    "tags": Pairs(("Tag",), "Key", "Value"),
    "StringListValues": Items(("StringListValue",)),
    "BinaryListValues": Items(("BinaryListValue",)),
    "Messages": Items(("Message",)),
    "QueueUrls": Items(("QueueUrl",)),
    "queueUrls": Items(("QueueUrl",)),
    "Results": Items(("ListMessageMoveTasksResultEntry",)),
    "Failed": Items(("BatchResultErrorEntry",)),
    "SendMessageBatch.Entries": Items(("SendMessageBatchRequestEntry",)),
    "SendMessageBatch.Successful": Items(("SendMessageBatchResultEntry",)),
    "DeleteMessageBatch.Entries": Items(("DeleteMessageBatchRequestEntry",)),
    "DeleteMessageBatch.Successful": Items(("DeleteMessageBatchResultEntry",)),
    "ChangeMessageVisibilityBatch.Entries": Items(("ChangeMessageVisibilityBatchRequestEntry",)),
    "ChangeMessageVisibilityBatch.Successful": Items(("ChangeMessageVisibilityBatchResultEntry",)),
}


class SqsRequest(msgspec.Struct, frozen=True, rename="pascal", forbid_unknown_fields=True):
    """Base of requests; unknown fields are refused, not ignored."""


class SqsResponse(msgspec.Struct, frozen=True, rename="pascal", omit_defaults=True):
    """Base of responses; fields with their default value are omitted."""


class OfQueue(SqsRequest, frozen=True):
    """A request with only the URL of a queue."""

    queue_url: str


# --- Queues --------------------------------------------------------------------------------------


class CreateQueueIn(SqsRequest, frozen=True):
    """Request of CreateQueue."""

    queue_name: str
    attributes: dict[str, str] = {}
    tags: dict[str, str] = field(default_factory=dict, name="tags")
    more_tags: dict[str, str] = field(default_factory=dict, name="Tags")
    """The same under its other name: clients differ in the case of the first letter."""


class QueueUrlOut(SqsResponse, frozen=True):
    """Response with the URL of a queue."""

    queue_url: str


class GetQueueUrlIn(SqsRequest, frozen=True):
    """Request of GetQueueUrl: a queue's name, and optionally the account of its owner."""

    queue_name: str
    owner: str = field(default="", name="QueueOwnerAWSAccountId")


class ListQueuesIn(SqsRequest, frozen=True):
    """Request of ListQueues."""

    queue_name_prefix: str = ""
    next_token: str = ""
    max_results: int | None = None


class ListQueuesOut(SqsResponse, frozen=True):
    """Response of ListQueues."""

    queue_urls: list[str] = []
    next_token: str | None = None


class ListSourcesIn(SqsRequest, frozen=True):
    """Request of ListDeadLetterSourceQueues."""

    queue_url: str
    next_token: str = ""
    max_results: int | None = None


class ListSourcesOut(SqsResponse, frozen=True):
    """Response of ListDeadLetterSourceQueues."""

    queue_urls: list[str] = field(name="queueUrls")
    next_token: str | None = None


class GetAttributesIn(SqsRequest, frozen=True):
    """Request of GetQueueAttributes: names of attributes, or `All`."""

    queue_url: str
    attribute_names: list[str] = []


class SqsAttributesOut(SqsResponse, frozen=True):
    """Response of GetQueueAttributes."""

    attributes: dict[str, str] = {}


class SetAttributesIn(SqsRequest, frozen=True):
    """Request of SetQueueAttributes."""

    queue_url: str
    attributes: dict[str, str]


class TagQueueIn(SqsRequest, frozen=True):
    """Request of TagQueue: tags to add or change."""

    queue_url: str
    tags: dict[str, str]


class UntagQueueIn(SqsRequest, frozen=True):
    """Request of UntagQueue: keys of the tags to remove."""

    queue_url: str
    tag_keys: list[str]


class SqsTagsOut(SqsResponse, frozen=True):
    """Response of ListQueueTags."""

    tags: dict[str, str] = {}


class SqsAddPermissionIn(SqsRequest, frozen=True):
    """Request of AddPermission: accounts, and the actions that they are allowed."""

    queue_url: str
    label: str
    accounts: list[str] = field(name="AWSAccountIds")
    actions: list[str]


class SqsRemovePermissionIn(SqsRequest, frozen=True):
    """Request of RemovePermission: the label of a statement."""

    queue_url: str
    label: str


# --- Messages ------------------------------------------------------------------------------------


class SqsMessageIn(SqsRequest, frozen=True):
    """Base of the messages to send."""

    message_body: str
    delay_seconds: int | None = None
    message_attributes: dict[str, AttributeValue] = {}
    message_system_attributes: dict[str, AttributeValue] = {}
    message_deduplication_id: str | None = None
    message_group_id: str | None = None


class SendMessageIn(SqsMessageIn, frozen=True, kw_only=True):
    """Request of SendMessage."""

    queue_url: str


class SendEntry(SqsMessageIn, frozen=True, kw_only=True):
    """One message of a SendMessageBatch request."""

    id: str


class SendMessageOut(SqsResponse, frozen=True):
    """Response of SendMessage."""

    body_md5: str = field(name="MD5OfMessageBody")
    message_id: str
    attributes_md5: str | None = field(default=None, name="MD5OfMessageAttributes")
    system_md5: str | None = field(default=None, name="MD5OfMessageSystemAttributes")
    sequence_number: str | None = None


class SendMessageBatchIn(SqsRequest, frozen=True):
    """Request of SendMessageBatch."""

    queue_url: str
    entries: list[SendEntry] = []


class SentEntry(SendMessageOut, frozen=True, kw_only=True):
    """Result of one published entry of a batch."""

    id: str


class SqsFailedEntry(SqsResponse, frozen=True):
    """Error of one refused entry of a batch."""

    id: str
    sender_fault: bool
    code: str
    message: str | None = None


class SendMessageBatchOut(SqsResponse, frozen=True):
    """Response of SendMessageBatch."""

    successful: list[SentEntry] = []
    failed: list[SqsFailedEntry] = []


class ReceiveMessageIn(SqsRequest, frozen=True):
    """Request of ReceiveMessage."""

    queue_url: str
    attribute_names: list[str] = []
    message_system_attribute_names: list[str] = []
    message_attribute_names: list[str] = []
    max_number_of_messages: int | None = None
    visibility_timeout: int | None = None
    wait_time_seconds: int | None = None
    receive_request_attempt_id: str | None = None


class SqsMessageOut(SqsResponse, frozen=True):
    """A received message."""

    message_id: str
    receipt_handle: str
    body_md5: str = field(name="MD5OfBody")
    body: str
    attributes: dict[str, str] = {}
    attributes_md5: str | None = field(default=None, name="MD5OfMessageAttributes")
    message_attributes: dict[str, AttributeValue] = {}


class ReceiveMessageOut(SqsResponse, frozen=True):
    """Response of ReceiveMessage; empty if no message was available."""

    messages: list[SqsMessageOut] = []


class DeleteMessageIn(SqsRequest, frozen=True):
    """Request of DeleteMessage."""

    queue_url: str
    receipt_handle: str


class ReceiptEntry(SqsRequest, frozen=True):
    """One entry of a DeleteMessageBatch request."""

    id: str
    receipt_handle: str


class DeleteMessageBatchIn(SqsRequest, frozen=True):
    """Request of DeleteMessageBatch."""

    queue_url: str
    entries: list[ReceiptEntry] = []


class DoneEntry(SqsResponse, frozen=True):
    """Result of one successful entry of a batch."""

    id: str


class BatchOut(SqsResponse, frozen=True):
    """Response of DeleteMessageBatch and ChangeMessageVisibilityBatch."""

    successful: list[DoneEntry] = []
    failed: list[SqsFailedEntry] = []


class ChangeVisibilityIn(SqsRequest, frozen=True):
    """Request of ChangeMessageVisibility: a receipt and its new visibility timeout from now."""

    queue_url: str
    receipt_handle: str
    visibility_timeout: int


class VisibilityEntry(SqsRequest, frozen=True):
    """One entry of a ChangeMessageVisibilityBatch request."""

    id: str
    receipt_handle: str
    visibility_timeout: int | None = None


class ChangeVisibilityBatchIn(SqsRequest, frozen=True):
    """Request of ChangeMessageVisibilityBatch."""

    queue_url: str
    entries: list[VisibilityEntry] = []


# --- Moving dead letters -------------------------------------------------------------------------


class StartMoveIn(SqsRequest, frozen=True):
    """Request of StartMessageMoveTask: source, destination and rate limit."""

    source_arn: str
    destination_arn: str | None = None
    max_number_of_messages_per_second: int | None = None


class StartMoveOut(SqsResponse, frozen=True):
    """Response of StartMessageMoveTask."""

    task_handle: str


class CancelMoveIn(SqsRequest, frozen=True):
    """Request of CancelMessageMoveTask."""

    task_handle: str = ""


class CancelMoveOut(SqsResponse, frozen=True):
    """Response of CancelMessageMoveTask: the number of messages moved before."""

    moved: int = field(name="ApproximateNumberOfMessagesMoved")


class ListMovesIn(SqsRequest, frozen=True):
    """Request of ListMessageMoveTasks."""

    source_arn: str
    max_results: int | None = None


class MoveOut(SqsResponse, frozen=True):
    """A message move task in a list."""

    status: str
    source_arn: str
    started: int = field(name="StartedTimestamp")
    moved: int = field(name="ApproximateNumberOfMessagesMoved")
    task_handle: str | None = None
    destination_arn: str | None = None
    max_number_of_messages_per_second: int | None = None
    to_move: int | None = field(default=None, name="ApproximateNumberOfMessagesToMove")
    failure_reason: str | None = None


class ListMovesOut(SqsResponse, frozen=True):
    """Response of ListMessageMoveTasks, newest task first."""

    results: list[MoveOut] = []
