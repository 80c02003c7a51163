"""Kafka's own topics, and which partition of one belongs to a group or a transactional id (Kafka's `Utils.abs(hashCode) % count`)."""

from __future__ import annotations

OFFSETS_TOPIC = "__consumer_offsets"
TRANSACTIONS_TOPIC = "__transaction_state"

_MIN_INT = -(2**31)


def java_hash(text: str) -> int:
    """Java's `String.hashCode`: over UTF-16 units, wrapped to a signed 32-bit number."""
    units = text.encode("utf-16-be", "surrogatepass")
    total = 0
    for i in range(0, len(units), 2):
        total = (31 * total + (units[i] << 8 | units[i + 1])) & 0xFFFFFFFF
    return total - 2**32 if total & 2**31 else total


def magnitude(group: str) -> int:
    """A group's partition is this modulo their count; Kafka's `Utils.abs` maps the number without an absolute value to 0."""
    number = java_hash(group)
    return 0 if number == _MIN_INT else abs(number)
