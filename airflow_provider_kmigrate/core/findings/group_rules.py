"""What stands behind the findings on single consumer groups (`groups.scan`): why each matters, how to mend it, where it comes from."""

from __future__ import annotations

from collections.abc import Mapping

from airflow_provider_kmigrate.core.findings.rules import Rule

_CONNECTOR = "Kafka 1.1.1: ZookeeperConsumerConnector"

GROUP_RULES: Mapping[str, Rule] = {
    "K12": Rule(
        "Its owners and positions are about to change.",
        "Wait until it is stable, then scan again.",
        "Kafka 3.9: GroupState",
    ),
    "K30": Rule(
        "What was not read cannot be called healthy: members may be there that nobody sees.",
        "Mend the access that is missing (U01, U02), then scan again.",
        "architecture: unknown is not healthy",
    ),
    "K31": Rule(
        "Every old consumer of the group lets go of everything and fails until this znode is gone; nobody reads.",
        "Find out whose it is and stop that process: the znode goes with its session.",
        f"{_CONNECTOR}; measured",
    ),
    "K32": Rule(
        "This looks like pykafka's registration, a bare topic name. It freezes every old consumer, and pykafka's owner znodes exclude nobody.",
        "Stop these members, or give one of the two kinds another group.",
        "pykafka: balancedconsumer.py; measured",
    ),
    "K33": Rule(
        "A migrating member that read it otherwise than Java does would take partitions that are not its own, so it refuses to compute.",
        "Register the topics by name, or write the wildcard with what both languages share, before the first migrating member joins.",
        "core/coordination/wildcard; KIP-125",
    ),
    "K34": Rule(
        "Such a member owns nothing, without any error. Kafka 1.0.1 and later escape a wildcard's backslashes twice: it then matches no name.",
        "Write the wildcard without backslashes (a dot as [.]), or name the topics.",
        "Kafka 1.0.1: TopicCount and Jackson; measured",
    ),
    "K35": Rule(
        "Only exactly `kafka` means Kafka mode, without a newline, in small letters. Members take everything else for ZooKeeper mode.",
        "Set the mode with kmigrate (groups zookeeper-mode), which writes these bytes and reads them back.",
        "KIP-125",
    ),
    "K36": Rule(
        "Each member computes the assignment for itself: members with another strategy, or round-robin of another Kafka line, never agree.",
        "Give every member, migrating ones too, the same partition.assignment.strategy; never mix Kafka before 1.0 with later ones.",
        "KAFKA-5822; measured",
        "Ask for partition.assignment.strategy and the Kafka version of every member; scan again when nothing is rebalancing.",
    ),
    "K37": Rule(
        "As soon as a migrating member is in the Kafka group, such a member's commits are refused and dropped; its work is then repeated.",
        "Set offsets.storage=zookeeper on these members (dual.commit.enabled keeps both for one restart) before the first one migrates.",
        "Kafka 3.9: ClassicGroup; reproduced",
    ),
    "K38": Rule(
        "Each side gives out all partitions: every record is processed twice, and commits overwrite each other.",
        "Stop the plain consumers until every member migrates and the mode is kafka.",
        "KIP-125, compatibility",
    ),
    "K39": Rule(
        "Which of two partitions with one hash comes first only a Scala hash map knows: a Python member may compute another assignment.",
        "Use range, or let no migrating member join while old round-robin members live.",
        "Kafka 1.1.1: PartitionAssignor",
    ),
    "K40": Rule(
        "Old consumers cannot read such a topic: they stand still on it, or stop.",
        "Set another compression.type and message.downconversion.enable=true until no old consumer is left to read it.",
        "Kafka 3.9: KafkaApis, RecordsUtil",
        "Let our user DESCRIBE_CONFIGS the topics, or look with kafka-configs.sh.",
    ),
    "K41": Rule(
        "Nobody reads these partitions. An old consumer gives up after four tries and then waits for the next change of the group.",
        "Scan with --wait 20; if they stay, restart one member of the group, which makes all of them share out anew.",
        "Kafka 1.1.1: rebalance.max.retries; measured",
    ),
    "K42": Rule(
        "An old consumer cannot start on an offset that is no number; on one outside its log, auto.offset.reset decides: skipped or repeated.",
        "Decide with its owner where the group goes on, and set that offset while no member is there.",
        "Kafka 1.1.1: ZkUtils",
    ),
    "K43": Rule(
        "Owners that are no members are those of a session that is about to expire: until then nobody else gets the partitions.",
        "Look again after the session's time-out; start no member meanwhile.",
        _CONNECTOR,
    ),
    "K44": Rule(
        "Records wait and the group's offset stands still. That owners are present says nothing: starved consumers keep theirs.",
        "Look at the members' logs; restart one member. If the last ZooKeeper-mode broker has left, bring one back into migration mode.",
        "measured: consumers coordinated through ZooKeeper",
        "Commits may be a minute apart (auto.commit.interval.ms): scan again with --wait 90. At the end of logs that do not grow, what is "
        "left may be markers of transactions.",
    ),
    "K45": Rule(
        "Members follow Kafka only when every one of them can: until then ZooKeeper coordinates, whatever the toggle says.",
        "Restart the old members as migrating ones, or set the mode back to zookeeper.",
        "KIP-125",
    ),
    "K46": Rule(
        "The next migrating member that begins such a partition begins there, however old the wish is: all records since come again.",
        "Restart the migrating members that hold them, if it is wanted still; else take them away (groups reset --forget).",
        "kmigrate: migration/reset",
    ),
}
