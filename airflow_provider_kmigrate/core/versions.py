"""Kafka's metadata versions: how inter.broker.protocol.version, metadata.version and the feature level name the same thing."""

from __future__ import annotations

_FIRST_LEVEL = {"3.4": (8, 1), "3.5": (9, 3), "3.6": (12, 3), "3.7": (15, 5), "3.8": (20, 1), "3.9": (21, 1)}
"""Release -> the feature level of its IV0, and how many variants it has (`org.apache.kafka.server.common.MetadataVersion`)."""


def level_of(version: str) -> int | None:
    """The feature level of `3.9`, `3.9.2` or `3.9-IV0`; a release means its latest variant. None for versions before the bridge releases."""
    release, _, variant = version.strip().partition("-IV")
    first, count = _FIRST_LEVEL.get(".".join(release.split(".")[:2]), (None, 0))
    if first is None or not (variant or "0").isdecimal():
        return None
    place = int(variant) if variant else count - 1
    return first + place if place < count else None


def version_of(level: int) -> str | None:
    """The full name of a feature level, such as `3.9-IV0` for 21; None for levels that no bridge release knows."""
    for release, (first, count) in _FIRST_LEVEL.items():
        if first <= level < first + count:
            return f"{release}-IV{level - first}"
    return None


def same_version(one: str, other: str) -> bool:
    """Whether two names mean one metadata version; unknown names must be equal letter by letter."""
    level = level_of(one)
    return one.strip() == other.strip() if level is None else level == level_of(other)
