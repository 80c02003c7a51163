"""Requests of Kafka's protocol that kafka-python does not have, as kafka-python reads them: one JSON file each."""

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
    """Their members, with what each has now and is to have."""


class DescribeDelegationTokenRequest(ApiMessage, load_json=__package__):  # type: ignore[call-arg,misc]
    """Tokens of these owners; None: all that the asking principal may see."""


class DescribeDelegationTokenResponse(ApiMessage, load_json=__package__):  # type: ignore[call-arg,misc]
    """Who may use which token until when. It carries each token's HMAC, a secret: take the rest out and drop it."""
