"""Finds Storm spouts that keep their offsets in the cluster's ensemble (storm-kafka's `KafkaSpout`, before storm-kafka-client).

A spout writes `<zkRoot>/<id>/partition_<n>`, at any root that its topology chose, and mostly looks brokers up in ZooKeeper, too. No group shows it.
Source: Storm 1.2: org.apache.storm.kafka.PartitionManager, .trident.ZkBrokerReader
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any, Final

from kazoo.protocol.serialization import GetChildren, GetData

from airflow_provider_kmigrate.clients.zookeeper_session import Changed, Session
from airflow_provider_kmigrate.core.shared.foreign_json import read_json
from airflow_provider_kmigrate.core.shared.text import printable
from airflow_provider_kmigrate.exceptions import AuthenticationFailed, Unavailable

_LEVELS: Final = 3  # below the root: a zkRoot of one or two names, and the spout's id
_MOST: Final = 5_000  # znodes a level: an ensemble may be shared with systems that have many
_PARTITION: Final = re.compile(r"(?:.+)?partition_[0-9]+", re.DOTALL)


def find_storm_spouts(session: Session, without: Sequence[str]) -> tuple[str, ...] | None:
    """The paths of spouts, outside our chroot too. `without`: folders of Kafka itself.

    None: there are more znodes than are looked at, or an answer is missing: only a warning depends on it, which must not make unread what blocks.
    """
    try:
        return _find_in_levels(session, without)
    except Unavailable:
        return None


def _find_in_levels(session: Session, without: Sequence[str]) -> tuple[str, ...] | None:
    level, spouts, is_whole = [""], list[str](), True
    for _ in range(_LEVELS):
        families = list(_read_children(session, level))
        spouts += [path for path, names in families if _has_spout(session, path, names)]
        below = (f"{path}/{name}" for path, names in families for name in sorted(names) if f"{path}/{name}" not in without)
        level = list(islice(below, _MOST + 1))
        if len(level) > _MOST:
            level, is_whole = level[:_MOST], False
    spouts += [path for path, names in _read_children(session, level) if _has_spout(session, path, names)]
    return tuple(printable(path) for path in sorted(spouts)) if spouts or is_whole else None


def _read_children(session: Session, paths: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """The names below each of these znodes; what is gone, or closed to us, is left out."""
    answers = _ask(session, [GetChildren(path or "/", None) for path in paths])
    return ((path, names or []) for path, names in zip(paths, answers, strict=True))


def _ask(session: Session, requests: Sequence[Any]) -> Iterator[Any]:
    """The answers to requests with absolute paths; kazoo's own calls would put our chroot in front. None: gone, or closed to us."""
    client, waiting = session.client(), list[Any]()
    for request in requests:
        result = client.handler.async_result()
        client._call(request, result)  # noqa: SLF001  # as kazoo itself does
        waiting.append(result)
    for request, result in zip(requests, waiting, strict=True):
        answer = None
        with suppress(Changed, AuthenticationFailed):
            answer = session.wait_for_result(request.path, result)
        yield answer


def _has_spout(session: Session, path: str, names: Sequence[str]) -> bool:
    """True if a partition's znode below holds what a spout writes."""
    partition = next((name for name in sorted(names) if _PARTITION.fullmatch(name)), None)
    if partition is None:
        return False
    (answer,) = _ask(session, [GetData(f"{path}/{partition}", None)])
    return answer is not None and is_spout(answer[0])


def is_spout(data: bytes) -> bool:
    """True if a znode holds a spout's position: `{"topology": {...}, "offset": 5, "partition": 0, "broker": {...}, "topic": "t"}`."""
    try:
        values = read_json(data)
    except ValueError:
        return False
    return isinstance(values, dict) and {"topology", "offset", "partition"} <= values.keys()
