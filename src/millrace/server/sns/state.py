"""The state that SNS keeps in a process: the topic cache and the deliveries to endpoints."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

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
