"""What preflight may find: every code of its own, why it matters, how to mend it and where the rule comes from.

`B` blocks the migration, `W` warns; the numbers of B1-B6 are those of KIP-866's preconditions. Checks that other rooms make at every step
keep their codes here: C (properties files), G (gates), I (identity), K (coordinators), U (what could not be read).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from airflow_provider_kmigrate.core.model import Reason


class Severity(StrEnum):
    """Whether a migration may start in spite of a finding."""

    BLOCK = "block"
    WARN = "warn"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was found; `source` is where the rule comes from: a KIP, a ticket, Kafka's code, a measurement."""

    reason: Reason
    severity: Severity
    source: str

    @property
    def code(self) -> str:
        return self.reason.code

    def __str__(self) -> str:
        return f"{self.severity}: {self.reason} (source: {self.source})"


@dataclass(frozen=True, slots=True)
class Rule:
    """What stands behind a code."""

    why: str
    remedy: str
    source: str


RULES: Mapping[str, Rule] = {
    "B0": Rule(
        "What was not read cannot be called healthy.",
        "Mend the access that the message names, then run preflight again.",
        "architecture: unknown is not healthy",
    ),
    "B1a": Rule(
        "A broker registers with the controllers only if its inter.broker.protocol.version is their metadata.version exactly.",
        "Make the versions equal: finish the upgrade of the brokers, or format the controllers with that release.",
        "KIP-866; BrokerRegistrationRequest, min = max = IBP",
    ),
    "B1b": Rule(
        "Older metadata versions copy without transactions, or lose topics, ACLs and producer ids on the way.",
        "Upgrade every broker to Kafka 3.9.2 and raise inter.broker.protocol.version to 3.9 first.",
        "KAFKA-17457 and the bug list of KIP-866",
    ),
    "B2a": Rule(
        "Without /cluster/id this is not the tree of a running Kafka cluster; controllers would create a wrong chroot silently.",
        "Correct hosts and chroot in the ZooKeeper connection: the chroot is what follows the slash in the brokers' zookeeper.connect.",
        "ZkData.scala, createChrootIfNecessary",
    ),
    "B2b": Rule(
        "An id may belong to one node only. A controller under a broker's id, or under one that partitions name, breaks both.",
        "Choose controller ids that no broker has or ever had, such as 3000 and up; they cannot be changed later.",
        "KIP-866; KAFKA-20395",
    ),
    "B2c": Rule(
        "A broker that is not rolled keeps the copy from ever starting, and is cut off once it does: acked records were lost so.",
        "List every broker of the cluster in the cluster file.",
        "measured: half backed-out first roll",
    ),
    "B2d": Rule(
        "Its file would be replaced and its process stopped in the belief that it is another broker.",
        "Correct host or properties of this broker in the cluster file.",
        "reliability: every act is identified",
    ),
    "B4a": Rule(
        "The migration restarts brokers one by one and needs all of them; a dead one also keeps the copy from ever starting.",
        "Start the broker and wait until it is in every ISR, or decommission it and take it out of the cluster file.",
        "KRaftMigrationDriver, WAIT_FOR_BROKERS",
    ),
    "B4b": Rule(
        "The copy waits for every id that partitions are assigned to, for ever if that broker is gone.",
        "Reassign these partitions to living brokers.",
        "KRaftMigrationDriver, imageDoesNotContainAllBrokers",
    ),
    "B4c": Rule(
        "Another stop could make these partitions unavailable.",
        "Bring every replica back into its ISR first.",
        "safe-to-stop predicate",
    ),
    "B4d": Rule(
        "Replicas that move while brokers restart leave strays behind, and no ISR is what it seems.",
        "Let the reassignment finish, or cancel it; stop what starts them (Cruise Control).",
        "KAFKA-16120, KAFKA-16121",
    ),
    "B5": Rule(
        "Pending deletions are not taken over; what is left of these topics stays on the brokers' disks.",
        "Wait until /admin/delete_topics is empty; a deletion that hangs usually waits for a broker that is down.",
        "KAFKA-15605",
    ),
    "B6a": Rule(
        "The copy crashes on a topic without an id.",
        "Raise inter.broker.protocol.version to 2.8 or higher and restart the brokers; their controller then writes the ids.",
        "ZkTopicMigrationClient, topicIdOpt.get",
    ),
    "B6b": Rule(
        "KRaft takes control by raising this epoch; without it no ZooKeeper controller was ever elected, or the tree is damaged.",
        "Find out why there is no /controller_epoch; never write it by hand before a migration.",
        "KafkaZkClient.scala",
    ),
    "K04": Rule(
        "Whichever broker creates the topic gives it its own count; brokers that run by then keep theirs, and groups are consumed twice.",
        "Make offsets.topic.num.partitions equal on every broker and restart them, or remove it everywhere.",
        "KIP-895; GroupCoordinator startup",
    ),
    "W1": Rule(
        "Producers with acks=all are refused on these partitions while any broker that holds them restarts, twice per broker.",
        "Raise the replication factor above min.insync.replicas, or accept the pauses.",
        "safe-to-stop predicate",
    ),
    "W2": Rule(
        "These partitions can be neither written nor read while their only broker restarts, twice, from seconds to minutes each.",
        "Raise the replication factor, or accept the outages and tell the owners of these topics.",
        "safe-to-stop predicate",
    ),
    "W3": Rule(
        "With fewer than three controllers, or an even number, the loss or restart of one may stop all metadata changes.",
        "Use three controllers, or five.",
        "KIP-595",
    ),
}


def blocks(code: str, seen: str) -> Finding:
    """A finding that stops the migration; `seen` is what was seen."""
    return _found(code, seen, Severity.BLOCK)


def warns(code: str, seen: str) -> Finding:
    """A finding that a person should know of."""
    return _found(code, seen, Severity.WARN)


def _found(code: str, seen: str, severity: Severity) -> Finding:
    rule = RULES[code]
    return Finding(Reason(code, seen, rule.why, rule.remedy), severity, rule.source)
