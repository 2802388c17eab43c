"""What the actions of SNS are asked, and what they answer; named as in its model."""

from __future__ import annotations

import msgspec
from msgspec import field

from millrace.server.aws.form import Items, Named, Pairs

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


class Takes(msgspec.Struct, frozen=True, rename="pascal", forbid_unknown_fields=True):
    """What an action is asked; what it does not know is refused, and not passed over."""


class Gives(msgspec.Struct, frozen=True, rename="pascal", omit_defaults=True):
    """What an action answers; what says nothing is left out."""


class Anything(Takes, frozen=True, forbid_unknown_fields=False):
    """What is not looked at."""


class Done(Gives, frozen=True):
    """An answer that says nothing."""


class OfTopic(Takes, frozen=True):
    """A topic, and nothing else."""

    topic_arn: str = ""


class Page(Takes, frozen=True):
    """Where a list goes on."""

    next_token: str = ""


class Tag(Gives, frozen=True):
    """A tag."""

    key: str
    value: str


# --- Topics --------------------------------------------------------------------------------------


class CreateTopicIn(Takes, frozen=True):
    """A name, and how the topic is to be."""

    name: str = ""
    attributes: dict[str, str] = {}
    tags: list[Tag] = []
    data_protection_policy: str | None = None


class TopicOut(Gives, frozen=True):
    """Which topic."""

    topic_arn: str


class ListTopicsOut(Gives, frozen=True):
    """Topics, and where the list goes on."""

    topics: list[TopicOut]
    next_token: str | None = None


class AttributesOut(Gives, frozen=True):
    """Attributes of a topic or a subscription."""

    attributes: dict[str, str]


class SetTopicAttributesIn(Takes, frozen=True):
    """An attribute, and how it is to be."""

    topic_arn: str = ""
    attribute_name: str = ""
    attribute_value: str = ""


class TagIn(Takes, frozen=True):
    """Tags that are added, or changed."""

    resource_arn: str = ""
    tags: list[Tag] = []


class UntagIn(Takes, frozen=True):
    """Tags that go."""

    resource_arn: str = ""
    tag_keys: list[str] = []


class OfResource(Takes, frozen=True):
    """What has tags."""

    resource_arn: str = ""


class TagsOut(Gives, frozen=True):
    """The tags of a topic."""

    tags: list[Tag]


class AddPermissionIn(Takes, frozen=True):
    """Who may do what."""

    topic_arn: str = ""
    label: str = ""
    accounts: list[str] = field(default_factory=list, name="AWSAccountId")
    actions: list[str] = field(default_factory=list, name="ActionName")


class RemovePermissionIn(Takes, frozen=True):
    """What was allowed, and is no longer."""

    topic_arn: str = ""
    label: str = ""


# --- Subscriptions -------------------------------------------------------------------------------


class SubscribeIn(Takes, frozen=True):
    """What goes where."""

    topic_arn: str = ""
    protocol: str = ""
    endpoint: str = ""
    attributes: dict[str, str] = {}
    return_subscription_arn: bool = False


class SubscriptionOut(Gives, frozen=True):
    """Which subscription."""

    subscription_arn: str


class ConfirmCall(Takes, frozen=True):
    """What the owner of an endpoint was told."""

    topic_arn: str = ""
    token: str = ""
    authenticate_on_unsubscribe: str = ""


class OfSubscription(Takes, frozen=True):
    """A subscription, and nothing else."""

    subscription_arn: str | None = None


class ListByTopicIn(Takes, frozen=True):
    """Of which topic, and where the list goes on."""

    topic_arn: str = ""
    next_token: str = ""


class Listed(Gives, frozen=True):
    """A subscription of a list."""

    subscription_arn: str
    owner: str
    protocol: str
    endpoint: str
    topic_arn: str


class SubscriptionsOut(Gives, frozen=True):
    """Subscriptions, and where the list goes on."""

    subscriptions: list[Listed]
    next_token: str | None = None


class SetSubscriptionAttributesIn(Takes, frozen=True):
    """An attribute, and how it is to be."""

    subscription_arn: str | None = None
    attribute_name: str = ""
    attribute_value: str = ""


# --- Messages ------------------------------------------------------------------------------------


class AttributeValue(Takes, frozen=True):
    """An attribute of a message."""

    data_type: str = ""
    string_value: str | None = None
    binary_value: bytes | None = None


class MessageIn(Takes, frozen=True):
    """A message."""

    message: str = ""
    subject: str | None = None
    message_structure: str = ""
    message_attributes: dict[str, AttributeValue] = {}
    message_deduplication_id: str = ""
    message_group_id: str = ""


class PublishCall(MessageIn, frozen=True, kw_only=True):
    """A message, and where it goes."""

    topic_arn: str | None = None
    target_arn: str | None = None
    phone_number: str = ""


class PublishOut(Gives, frozen=True):
    """By which the message is known."""

    message_id: str
    sequence_number: str | None = None


class PublishEntry(MessageIn, frozen=True, kw_only=True):
    """A message of several."""

    id: str = ""


class PublishBatchIn(Takes, frozen=True):
    """Messages, and where they go."""

    topic_arn: str = ""
    entries: list[PublishEntry] = field(default_factory=list, name="PublishBatchRequestEntries")


class PublishedEntry(PublishOut, frozen=True, kw_only=True):
    """What became of one of several."""

    id: str


class FailedEntry(Gives, frozen=True):
    """Why one of several was refused."""

    id: str
    code: str
    message: str
    sender_fault: bool


class PublishBatchOut(Gives, frozen=True):
    """What became of each."""

    successful: list[PublishedEntry]
    failed: list[FailedEntry]
