"""What kmigrate's gates ask of nodes, and whether a release of Kafka serves it: `kafka_requests.json`, generated from each release's ApiKeys.

A row for each request that kmigrate itself sends to a chosen node (`clients.wire`). Clients of librdkafka are not here: they speak to
brokers as every application does, which no release in the data refuses. What depends on the metadata version is in `versions`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from importlib.resources import files


class Listener(StrEnum):
    """The kinds of nodes that serve requests, as Kafka's message files name them."""

    ZK_BROKER = "zk_broker"  # in ZooKeeper mode and in migration mode
    BROKER = "broker"  # in KRaft mode
    CONTROLLER = "controller"

    def __str__(self) -> str:
        return _NAMES[self]


_NAMES = {
    Listener.ZK_BROKER: "a broker in ZooKeeper mode",
    Listener.BROKER: "a broker in KRaft mode",
    Listener.CONTROLLER: "a controller",
}


@dataclass(frozen=True, slots=True)
class RequestNeed:
    """A request that kmigrate sends. `lowest`: the lowest version that has what is read of it; `listeners`: the nodes that are asked.

    `purpose` completes "kmigrate needs it to"; `source`: KIPs. `is_optional`: where it is not served, there is nothing to read.
    """

    request: str
    lowest: int
    listeners: tuple[Listener, ...]
    purpose: str
    source: str
    is_optional: bool = False


_NODES = (Listener.ZK_BROKER, Listener.BROKER, Listener.CONTROLLER)
_BROKERS = (Listener.ZK_BROKER, Listener.BROKER)
_KRAFT = (Listener.BROKER, Listener.CONTROLLER)
_COMPARE = "compare what ZooKeeper and KRaft store"

NEEDS: tuple[RequestNeed, ...] = (
    RequestNeed("ApiVersions", 3, _NODES, "see a broker's mode and a controller's migration flag", "KIP-866"),
    RequestNeed("SaslHandshake", 1, _NODES, "log in", "KIP-152"),
    RequestNeed("SaslAuthenticate", 1, _NODES, "log in", "KIP-152"),
    # a broker that serves it is in KRaft mode (`clients.wire.ApiVersions.mode`)
    RequestNeed("DescribeQuorum", 0, _KRAFT, "see who leads the quorum, and who follows", "KIP-595"),
    RequestNeed("DescribeConfigs", 1, _NODES, f"{_COMPARE} of brokers' settings", "KIP-226, KIP-919"),
    RequestNeed("DescribeAcls", 1, _KRAFT, f"{_COMPARE} of ACLs", "KIP-290, KIP-801"),
    RequestNeed("DescribeClientQuotas", 0, (Listener.BROKER,), f"{_COMPARE} of quotas", "KIP-546"),
    RequestNeed("DescribeUserScramCredentials", 0, (Listener.BROKER,), f"{_COMPARE} of users", "KIP-554, KIP-900"),
    RequestNeed("DescribeDelegationToken", 1, (Listener.BROKER,), f"{_COMPARE} of tokens", "KIP-48, KIP-900"),
    RequestNeed("ListTransactions", 0, _BROKERS, f"{_COMPARE} of producer ids", "KIP-664"),
    RequestNeed("Metadata", 4, _BROKERS, "see leaders and ISRs", "KIP-202"),
    RequestNeed("ListPartitionReassignments", 0, _BROKERS, "see reassignments", "KIP-455"),
    RequestNeed("DescribeLogDirs", 1, _BROKERS, "see log directories, and what a replica is behind", "KIP-113"),
    RequestNeed("ElectLeaders", 1, _BROKERS, "have preferred leaders elected", "KIP-460"),
    RequestNeed("CreatePartitions", 0, _BROKERS, "expand __consumer_offsets", "KIP-195"),
    RequestNeed("FindCoordinator", 4, _BROKERS, "see who coordinates groups", "KIP-699"),
    RequestNeed("ListGroups", 0, _BROKERS, "see consumer groups", "KIP-40"),
    RequestNeed("DescribeGroups", 0, _BROKERS, "see consumer groups", "KIP-40"),
    RequestNeed("ListOffsets", 2, _BROKERS, "see the ends of logs", "KIP-98"),
    RequestNeed("OffsetFetch", 8, _BROKERS, "see groups' offsets", "KIP-709"),
    RequestNeed("OffsetCommit", 2, _BROKERS, "copy groups' offsets", "KIP-40"),
    RequestNeed("DeleteGroups", 1, _BROKERS, "remove old copies of groups", "KIP-229"),
    RequestNeed("ConsumerGroupDescribe", 0, (Listener.BROKER,), "see groups of the new protocol", "KIP-848", is_optional=True),
    RequestNeed("ListClientMetricsResources", 0, (Listener.BROKER,), "see client metrics", "KIP-714", is_optional=True),
    # only the Test button of the controllers' connection asks it
    RequestNeed("DescribeCluster", 1, (Listener.CONTROLLER,), "name a controller's cluster", "KIP-919", is_optional=True),
)


@dataclass(frozen=True, slots=True)
class ServedRequest:
    """A request as one release serves it: versions from `lowest` to `highest`, by these kinds of nodes."""

    key: int
    lowest: int
    highest: int
    listeners: frozenset[Listener]


@cache
def served_requests() -> Mapping[str, Mapping[str, ServedRequest]]:
    """Release -> request -> how it is served, from the package's data; read once, when it is first asked for."""
    data = json.loads(files(__package__).joinpath("kafka_requests.json").read_text(encoding="utf-8"))
    releases: dict[str, dict[str, ServedRequest]] = {release: {} for release in data["releases"]}
    for name, variants in data["requests"].items():
        for variant in variants:
            lowest, highest = variant["versions"]
            served = ServedRequest(variant["key"], lowest, highest, frozenset(map(Listener, variant["listeners"])))
            for release in variant.get("in", data["releases"]):
                releases[release][name] = served
    return releases


def find_missing_requests(line: tuple[int, int]) -> tuple[str, ...]:
    """What nodes of a release line, such as (3, 6), do not serve and kmigrate needs, each as text; empty too of a line without data."""
    begin = f"{line[0]}.{line[1]}."
    missing = (text for release in served_requests() if release.startswith(begin) for text in _find_missing(release))
    return tuple(dict.fromkeys(missing))


def _find_missing(release: str) -> Iterator[str]:
    served = served_requests()[release]
    for need in NEEDS:
        found = served.get(need.request)
        for listener in () if need.is_optional else need.listeners:
            if found is None or listener not in found.listeners or found.highest < need.lowest:
                yield f"{listener} does not serve {need.request}, which kmigrate needs to {need.purpose} ({need.source})"
