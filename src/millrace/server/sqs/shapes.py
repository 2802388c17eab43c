"""What the actions of SQS are asked, and what they answer; named as in its JSON protocol.

In the older protocol lists and maps have other names: `NAMED` has them.
"""

from __future__ import annotations

import msgspec
from msgspec import field

from millrace.server.aws.form import Items, Named, Pairs

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


class Takes(msgspec.Struct, frozen=True, rename="pascal", forbid_unknown_fields=True):
    """What an action is asked; what it does not know is refused, and not passed over."""


class Gives(msgspec.Struct, frozen=True, rename="pascal", omit_defaults=True):
    """What an action answers; what says nothing is left out."""


class OfQueue(Takes, frozen=True):
    """A queue, by its address, and nothing else."""

    queue_url: str


# --- Queues --------------------------------------------------------------------------------------


class CreateQueueIn(Takes, frozen=True):
    """A name, and how the queue is to be."""

    queue_name: str
    attributes: dict[str, str] = {}
    tags: dict[str, str] = field(default_factory=dict, name="tags")
    more_tags: dict[str, str] = field(default_factory=dict, name="Tags")
    """The same: clients differ in the first letter."""


class QueueUrlOut(Gives, frozen=True):
    """Where a queue is."""

    queue_url: str


class GetQueueUrlIn(Takes, frozen=True):
    """A name, and whose queue it is."""

    queue_name: str
    owner: str = field(default="", name="QueueOwnerAWSAccountId")


class ListQueuesIn(Takes, frozen=True):
    """Which queues."""

    queue_name_prefix: str = ""
    next_token: str = ""
    max_results: int | None = None


class ListQueuesOut(Gives, frozen=True):
    """Where they are."""

    queue_urls: list[str] = []
    next_token: str | None = None


class ListSourcesIn(Takes, frozen=True):
    """Whose dead letters go there?"""

    queue_url: str
    next_token: str = ""
    max_results: int | None = None


class ListSourcesOut(Gives, frozen=True):
    """These queues'."""

    queue_urls: list[str] = field(name="queueUrls")
    next_token: str | None = None


class GetAttributesIn(Takes, frozen=True):
    """Which attributes; All."""

    queue_url: str
    attribute_names: list[str] = []


class AttributesOut(Gives, frozen=True):
    """Attributes of a queue."""

    attributes: dict[str, str] = {}


class SetAttributesIn(Takes, frozen=True):
    """Attributes, and how they are to be."""

    queue_url: str
    attributes: dict[str, str]


class TagQueueIn(Takes, frozen=True):
    """Tags that are added, or changed."""

    queue_url: str
    tags: dict[str, str]


class UntagQueueIn(Takes, frozen=True):
    """Tags that go."""

    queue_url: str
    tag_keys: list[str]


class TagsOut(Gives, frozen=True):
    """The tags of a queue."""

    tags: dict[str, str] = {}


class AddPermissionIn(Takes, frozen=True):
    """Who may do what."""

    queue_url: str
    label: str
    accounts: list[str] = field(name="AWSAccountIds")
    actions: list[str]


class RemovePermissionIn(Takes, frozen=True):
    """What was allowed, and is no longer."""

    queue_url: str
    label: str


# --- Messages ------------------------------------------------------------------------------------


class AttributeValue(Gives, frozen=True, forbid_unknown_fields=True):
    """An attribute of a message."""

    string_value: str | None = None
    binary_value: bytes | None = None
    string_list_values: list[str] | None = None
    binary_list_values: list[bytes] | None = None
    data_type: str = ""


class MessageIn(Takes, frozen=True):
    """A message."""

    message_body: str
    delay_seconds: int | None = None
    message_attributes: dict[str, AttributeValue] = {}
    message_system_attributes: dict[str, AttributeValue] = {}
    message_deduplication_id: str | None = None
    message_group_id: str | None = None


class SendMessageIn(MessageIn, frozen=True, kw_only=True):
    """A message, and where it goes."""

    queue_url: str


class SendEntry(MessageIn, frozen=True, kw_only=True):
    """A message of several."""

    id: str


class SendMessageOut(Gives, frozen=True):
    """What became of a message."""

    body_md5: str = field(name="MD5OfMessageBody")
    message_id: str
    attributes_md5: str | None = field(default=None, name="MD5OfMessageAttributes")
    system_md5: str | None = field(default=None, name="MD5OfMessageSystemAttributes")
    sequence_number: str | None = None


class SendMessageBatchIn(Takes, frozen=True):
    """Messages, and where they go."""

    queue_url: str
    entries: list[SendEntry] = []


class SentEntry(SendMessageOut, frozen=True, kw_only=True):
    """What became of one of several."""

    id: str


class FailedEntry(Gives, frozen=True):
    """Why one of several was refused."""

    id: str
    sender_fault: bool
    code: str
    message: str | None = None


class SendMessageBatchOut(Gives, frozen=True):
    """What became of each."""

    successful: list[SentEntry] = []
    failed: list[FailedEntry] = []


class ReceiveMessageIn(Takes, frozen=True):
    """How many, for how long, and what is wanted of them."""

    queue_url: str
    attribute_names: list[str] = []
    message_system_attribute_names: list[str] = []
    message_attribute_names: list[str] = []
    max_number_of_messages: int | None = None
    visibility_timeout: int | None = None
    wait_time_seconds: int | None = None
    receive_request_attempt_id: str | None = None


class MessageOut(Gives, frozen=True):
    """A message."""

    message_id: str
    receipt_handle: str
    body_md5: str = field(name="MD5OfBody")
    body: str
    attributes: dict[str, str] = {}
    attributes_md5: str | None = field(default=None, name="MD5OfMessageAttributes")
    message_attributes: dict[str, AttributeValue] = {}


class ReceiveMessageOut(Gives, frozen=True):
    """Messages; none, if none came."""

    messages: list[MessageOut] = []


class DeleteMessageIn(Takes, frozen=True):
    """Which message."""

    queue_url: str
    receipt_handle: str


class ReceiptEntry(Takes, frozen=True):
    """One message of several."""

    id: str
    receipt_handle: str


class DeleteMessageBatchIn(Takes, frozen=True):
    """Which messages."""

    queue_url: str
    entries: list[ReceiptEntry] = []


class DoneEntry(Gives, frozen=True):
    """One of several that was done."""

    id: str


class BatchOut(Gives, frozen=True):
    """What became of each."""

    successful: list[DoneEntry] = []
    failed: list[FailedEntry] = []


class ChangeVisibilityIn(Takes, frozen=True):
    """Which message, and for how long from now nobody else gets it."""

    queue_url: str
    receipt_handle: str
    visibility_timeout: int


class VisibilityEntry(Takes, frozen=True):
    """One message of several."""

    id: str
    receipt_handle: str
    visibility_timeout: int | None = None


class ChangeVisibilityBatchIn(Takes, frozen=True):
    """Which messages, and for how long each."""

    queue_url: str
    entries: list[VisibilityEntry] = []


# --- Moving dead letters -------------------------------------------------------------------------


class StartMoveIn(Takes, frozen=True):
    """From where to where, and how fast."""

    source_arn: str
    destination_arn: str | None = None
    max_number_of_messages_per_second: int | None = None


class StartMoveOut(Gives, frozen=True):
    """By which the task is known."""

    task_handle: str


class CancelMoveIn(Takes, frozen=True):
    """Which task."""

    task_handle: str = ""


class CancelMoveOut(Gives, frozen=True):
    """How far it had come."""

    moved: int = field(name="ApproximateNumberOfMessagesMoved")


class ListMovesIn(Takes, frozen=True):
    """Of which queue."""

    source_arn: str
    max_results: int | None = None


class MoveOut(Gives, frozen=True):
    """A task."""

    status: str
    source_arn: str
    started: int = field(name="StartedTimestamp")
    moved: int = field(name="ApproximateNumberOfMessagesMoved")
    task_handle: str | None = None
    destination_arn: str | None = None
    max_number_of_messages_per_second: int | None = None
    to_move: int | None = field(default=None, name="ApproximateNumberOfMessagesToMove")
    failure_reason: str | None = None


class ListMovesOut(Gives, frozen=True):
    """The newest tasks, newest first."""

    results: list[MoveOut] = []
