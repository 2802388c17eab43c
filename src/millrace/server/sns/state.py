"""The SNS service, and the state that it keeps in a process: topic cache and deliveries."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from millrace.server.aws.actions import AwsService
from millrace.server.sns.faults import sns_fault_of
from millrace.server.sns.schemas import NAMED

if TYPE_CHECKING:
    from millrace.server.aws.api_protocol import AwsApi
    from millrace.server.aws.topic_envelope import EnvelopeContext
    from millrace.server.sns.endpoint_delivery import EndpointDelivery
    from millrace.server.sns.topic_cache import TopicCache


@dataclass(frozen=True, slots=True)
class SnsState:
    """The state that the actions of SNS share."""

    topics: TopicCache
    delivery: EndpointDelivery

    def around(self, base: str) -> EnvelopeContext:
        """Return the signer and the URLs for envelopes, for a server with this base URL."""
        return self.topics.around(base)


def state_of(aws: AwsApi) -> SnsState:
    """Return the state of SNS behind the APIs of AWS."""
    # The type of `AwsApi.sns` is a protocol, because `aws` must not import its services.
    assert isinstance(aws.sns, SnsState)
    return aws.sns


# --- The SNS service; the modules of this package register their actions with it -----------------

SNS = AwsService("sns", named=NAMED, fault=sns_fault_of)
