"""Requests of Kafka's protocol that kafka-python misses, in kafka-python's format: one JSON file each."""

from kafka.protocol.api_message import ApiMessage

__all__ = [
    "ConsumerGroupDescribeRequest",
    "ConsumerGroupDescribeResponse",
    "DescribeDelegationTokenRequest",
    "DescribeDelegationTokenResponse",
]


class ConsumerGroupDescribeRequest(ApiMessage, load_json=__package__):  # type: ignore[call-arg,misc]
    """Groups of the consumer protocol (KIP-848), to their coordinator."""


class ConsumerGroupDescribeResponse(ApiMessage, load_json=__package__):  # type: ignore[call-arg,misc]
    """The groups' members, with the current and target assignment of each."""


class DescribeDelegationTokenRequest(ApiMessage, load_json=__package__):  # type: ignore[call-arg,misc]
    """Tokens of these owners; None: all that the asking principal may see."""


class DescribeDelegationTokenResponse(ApiMessage, load_json=__package__):  # type: ignore[call-arg,misc]
    """The users and expiry of each token. It carries each token's HMAC, a secret: take the other fields and drop it."""
