"""Requests and responses of the SNS actions, with the field names of its service model."""

from __future__ import annotations

import msgspec
from msgspec import field

from millrace.server.aws.query_protocol import Items, Named, Pairs

NAMED: Named = {
    "Attributes": Pairs(("Attributes", "entry"), "key", "value"),
    "MessageAttributes": Pairs(("MessageAttributes", "entry"), "Name", "Value"),
    "Tags": Items(("Tags", "member")),
    "TagKeys": Items(("TagKeys", "member")),
    "Topics": Items(("Topics", "member")),
    "Subscriptions": Items(("Subscriptions", "member")),
    "AWSAccountId": Items(("AWSAccountId", "member")),
    "ActionName": Items(("ActionName", "member")),
    "PublishBatchRequestEntries": Items(("PublishBatchRequestEntries", "member")),
    "Successful": Items(("Successful", "member")),
    "Failed": Items(("Failed", "member")),
}


class SnsRequest(msgspec.Struct, frozen=True, rename="pascal", forbid_unknown_fields=True):
    """Base of requests; unknown fields are refused, not ignored."""


class SnsResponse(msgspec.Struct, frozen=True, rename="pascal", omit_defaults=True):
    """Base of responses; fields with their default value are omitted."""


class UncheckedRequest(SnsRequest, frozen=True, forbid_unknown_fields=False):
    """A request whose fields are ignored, for actions that are not supported."""


class SnsEmptyOut(SnsResponse, frozen=True):
    """A response without fields."""


class OfTopic(SnsRequest, frozen=True):
    """A request with only the ARN of a topic."""

    topic_arn: str = ""


class SnsListIn(SnsRequest, frozen=True):
    """A list request: the token of the next page."""

    next_token: str = ""


class Tag(SnsResponse, frozen=True):
    """A tag of a topic, in requests and responses."""

    key: str
    value: str


# --- Topics --------------------------------------------------------------------------------------


class CreateTopicIn(SnsRequest, frozen=True):
    """Request of CreateTopic."""

    name: str = ""
    attributes: dict[str, str] = {}
    tags: list[Tag] = []
    data_protection_policy: str | None = None


class SnsTopicOut(SnsResponse, frozen=True):
    """Response of CreateTopic, and an entry of ListTopics."""

    topic_arn: str


class ListTopicsOut(SnsResponse, frozen=True):
    """Response of ListTopics."""

    topics: list[SnsTopicOut]
    next_token: str | None = None


class SnsAttributesOut(SnsResponse, frozen=True):
    """Response of GetTopicAttributes and GetSubscriptionAttributes."""

    attributes: dict[str, str]


class SetTopicAttributesIn(SnsRequest, frozen=True):
    """Request of SetTopicAttributes."""

    topic_arn: str = ""
    attribute_name: str = ""
    attribute_value: str = ""


class TagIn(SnsRequest, frozen=True):
    """Request of TagResource: tags to add or change."""

    resource_arn: str = ""
    tags: list[Tag] = []


class UntagIn(SnsRequest, frozen=True):
    """Request of UntagResource: keys of the tags to remove."""

    resource_arn: str = ""
    tag_keys: list[str] = []


class OfResource(SnsRequest, frozen=True):
    """A request with only the ARN of a tagged resource."""

    resource_arn: str = ""


class SnsTagsOut(SnsResponse, frozen=True):
    """Response of ListTagsForResource."""

    tags: list[Tag]


class SnsAddPermissionIn(SnsRequest, frozen=True):
    """Request of AddPermission: accounts, and the actions that they are allowed."""

    topic_arn: str = ""
    label: str = ""
    accounts: list[str] = field(default_factory=list, name="AWSAccountId")
    actions: list[str] = field(default_factory=list, name="ActionName")


class SnsRemovePermissionIn(SnsRequest, frozen=True):
    """Request of RemovePermission: the label of a statement."""

    topic_arn: str = ""
    label: str = ""


# --- Subscriptions -------------------------------------------------------------------------------


class SubscribeIn(SnsRequest, frozen=True):
    """Request of Subscribe."""

    topic_arn: str = ""
    protocol: str = ""
    endpoint: str = ""
    attributes: dict[str, str] = {}
    return_subscription_arn: bool = False


class SnsSubscriptionOut(SnsResponse, frozen=True):
    """Response of Subscribe and ConfirmSubscription."""

    subscription_arn: str


class ConfirmCall(SnsRequest, frozen=True):
    """Request of ConfirmSubscription: the token that the endpoint received."""

    topic_arn: str = ""
    token: str = ""
    authenticate_on_unsubscribe: str = ""


class OfSubscription(SnsRequest, frozen=True):
    """A request with only the ARN of a subscription."""

    subscription_arn: str | None = None


class ListByTopicIn(SnsRequest, frozen=True):
    """Request of ListSubscriptionsByTopic."""

    topic_arn: str = ""
    next_token: str = ""


class SubscriptionSummary(SnsResponse, frozen=True):
    """A subscription in a list."""

    subscription_arn: str
    owner: str
    protocol: str
    endpoint: str
    topic_arn: str


class SubscriptionsOut(SnsResponse, frozen=True):
    """Response of the two actions that list subscriptions."""

    subscriptions: list[SubscriptionSummary]
    next_token: str | None = None


class SetSubscriptionAttributesIn(SnsRequest, frozen=True):
    """Request of SetSubscriptionAttributes."""

    subscription_arn: str | None = None
    attribute_name: str = ""
    attribute_value: str = ""


# --- Messages ------------------------------------------------------------------------------------


class SnsAttributeValue(SnsRequest, frozen=True):
    """The value of a message attribute."""

    data_type: str = ""
    string_value: str | None = None
    binary_value: bytes | None = None


class SnsMessageIn(SnsRequest, frozen=True):
    """Base of the messages to publish."""

    message: str = ""
    subject: str | None = None
    message_structure: str = ""
    message_attributes: dict[str, SnsAttributeValue] = {}
    message_deduplication_id: str = ""
    message_group_id: str = ""


class PublishCall(SnsMessageIn, frozen=True, kw_only=True):
    """Request of Publish."""

    topic_arn: str | None = None
    target_arn: str | None = None
    phone_number: str = ""


class PublishOut(SnsResponse, frozen=True):
    """Response of Publish."""

    message_id: str
    sequence_number: str | None = None


class PublishEntry(SnsMessageIn, frozen=True, kw_only=True):
    """One message of a PublishBatch request."""

    id: str = ""


class PublishBatchIn(SnsRequest, frozen=True):
    """Request of PublishBatch."""

    topic_arn: str = ""
    entries: list[PublishEntry] = field(default_factory=list, name="PublishBatchRequestEntries")


class PublishedEntry(PublishOut, frozen=True, kw_only=True):
    """Result of one published entry of a batch."""

    id: str


class SnsFailedEntry(SnsResponse, frozen=True):
    """Error of one refused entry of a batch."""

    id: str
    code: str
    message: str
    sender_fault: bool


class PublishBatchOut(SnsResponse, frozen=True):
    """Response of PublishBatch."""

    successful: list[PublishedEntry]
    failed: list[SnsFailedEntry]
