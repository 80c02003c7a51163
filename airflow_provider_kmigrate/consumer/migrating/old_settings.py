"""The old consumer's settings in an application that has just left it: what becomes of each name here.

All names are those of `kafka.consumer.ConsumerConfig` and `kafka.utils.ZKConfig` of Kafka 0.8.2 to 1.1.1. What stands in none of the
tables is taken under its own name: by this consumer, or by librdkafka, which has the old `fetch.message.max.bytes`,
`socket.receive.buffer.bytes`, and `smallest` and `largest` of `auto.offset.reset`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from airflow_provider_kmigrate.consumer.migrating.values import cannot, flag

RENAMED: Final = {"auto.commit.enable": "enable.auto.commit"}

_WAITS: Final = "who has to wait for a partition watches its owner's znode"
_RDKAFKA: Final = "librdkafka has a way of its own"
NO_EFFECT: Final = {
    "rebalance.max.retries": _WAITS,
    "rebalance.backoff.ms": _WAITS,
    "zookeeper.sync.time.ms": "every look at the group begins with a sync",
    "zookeeper.connection.timeout.ms": "a server that is away is tried until it is back",
    "zookeeper.clientCnxnSocket": "it is a Java client's",
    "num.consumer.fetchers": _RDKAFKA,
    "queued.max.message.chunks": "queued.max.messages.kbytes bounds what is fetched ahead",
    "refresh.leader.backoff.ms": _RDKAFKA,
    "offsets.channel.backoff.ms": _RDKAFKA,
    "offsets.channel.socket.timeout.ms": _RDKAFKA,
    "offsets.commit.max.retries": "a commit that failed is tried again while the partition is held",
    "dual.commit.enabled": "the stage says which stores are kept",
}
"""Name -> why nothing is done with it."""


class _Only(NamedTuple):
    """The one value that means what is done here anyway."""

    value: str
    why: str
    remedy: str


_ONLY: Final = {
    "offsets.storage": _Only(
        "zookeeper",
        "A migrating consumer keeps both stores; an old one that commits to Kafka is refused there as soon as this one has joined.",
        "Give the group's old consumers offsets.storage=zookeeper (dual.commit.enabled for one restart), then leave it out here.",
    ),
    "consumer.timeout.ms": _Only(
        "-1",
        "Nothing here ends by an exception because no record came.",
        "Leave it out; give poll the time, and look for its None.",
    ),
}
_BLACK: Final = (
    "A member registers names, or one white list.",
    "Leave it out, and subscribe to the names of the topics, or to a white list.",
)
_REFUSED: Final = {
    "topic.blacklist": _BLACK,
    "mirror.topics.blacklist": _BLACK,
    "mirror.topics.whitelist": (
        "A member registers what it subscribes to.",
        "Leave it out, and subscribe to '^<the white list>'.",
    ),
    "mirror.consumer.numthreads": ("A member has one stream.", "Leave it out, and make so many consumers."),
}
"""Name -> why, and what to do. `topic.blacklist` is librdkafka's: it would hide topics of which the member takes its share all the same."""


def renamed(properties: Mapping[str, Any]) -> dict[str, Any]:
    """Under the names of today. Raises `Refused` where both names are given and do not agree."""
    for old, new in RENAMED.items():
        if old in properties and flag(properties[old]) != flag(properties.get(new, properties[old])):
            text = f"{old} is {properties[old]}, and {new} {properties[new]}."
            raise cannot(text, "They are one setting by two names.", f"Leave {old} out.")
    return {RENAMED.get(name, name): value for name, value in properties.items()}


def is_old(name: str) -> bool:
    """Whether it is a setting that only the old consumer knows, and librdkafka would refuse."""
    return name in NO_EFFECT or name in _ONLY


def check_old(properties: Mapping[str, Any]) -> None:
    """Raises `Refused` (Y06) for what would not be obeyed, and matters."""
    for name, (why, remedy) in _REFUSED.items():
        if name in properties:
            raise cannot(f"{name} is set.", why, remedy)
    for name, only in _ONLY.items():
        if str(properties.get(name, only.value)).lower() != only.value:
            raise cannot(f"{name} is {properties[name]}.", only.why, only.remedy)


def without_effect(names: Iterable[str]) -> str:
    """Those among them with which nothing is done, and why; empty: none."""
    return "; ".join(f"{name}: {NO_EFFECT[name]}" for name in sorted(names) if name in NO_EFFECT)
