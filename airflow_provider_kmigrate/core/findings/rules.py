"""Every code of preflight's own: why it matters, how to mend it, where the rule comes from, and how to learn what is not known.

`B` blocks the migration, `W` warns; the numbers of B1-B13 are those of KIP-866's preconditions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Rule:
    """What stands behind a code; `ask`: how to find out where preflight could not see it, empty where it always can."""

    why: str
    remedy: str
    source: str
    ask: str = ""


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
    "B1c": Rule(
        "This release loses or wedges metadata in a migration; the issues that the message names are fixed in later ones.",
        "Upgrade every broker first, best to Kafka 3.9.2 or later: the last line with ZooKeeper, with all known races of the migration fixed.",
        "bug list of KIP-866, from the release tags",
        'Look into a broker\'s log for "Kafka version:", and write it as kafka_release into the cluster file.',
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
    "B2f": Rule(
        "A controller is formatted there, and a rollback moves its directory away, whole: with what another node keeps in it.",
        "Give this controller a log_dir and a properties file that nothing else uses; move a file of the package away.",
        "measured: a rollback moved a running broker's data",
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
        "Run kafka-reassign-partitions.sh --list, and let our user DESCRIBE the cluster (ListPartitionReassignments).",
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
    "B6c": Rule(
        "The copy reads the finalized features there; a cluster without it runs with a protocol version before 2.7, or its tree is damaged.",
        "Raise inter.broker.protocol.version and restart the brokers; their controller writes /feature when it is elected.",
        "KIP-584; ZkData.scala",
    ),
    "B7a": Rule(
        "A broker in migration mode with several log directories registers only from metadata version 3.7-IV2 on; before, replicas are lost track of.",
        "Raise inter.broker.protocol.version to 3.8 or later (3.9 is best) on every broker first, or migrate brokers with one directory each.",
        "KIP-858; KAFKA-16431, KAFKA-16606",
    ),
    "B7b": Rule(
        "A log directory that fails halts a broker in migration mode, and its replicas are gone until it is mended.",
        "Mend or replace the disk, restart the broker, and wait until its replicas are back in every ISR.",
        "KAFKA-16431",
        "Let our user DESCRIBE the cluster, or run kafka-log-dirs.sh --describe, and look for errors.",
    ),
    "B8a": Rule(
        "The migration moves AclAuthorizer to StandardAuthorizer. Nobody knows whether another class works without ZooKeeper, or where its rules are.",
        "Ask its maker for a class that works in KRaft, move its rules, and name it as authorizer.class.name under quorum.properties.",
        "KIP-866; KAFKA-15098",
    ),
    "B8b": Rule(
        "The controllers get the authorizer of one broker: rights would change with the migration, for everybody.",
        "Give every broker the same authorizer.class.name, and restart them.",
        "KIP-866",
    ),
    "B8c": Rule(
        "The copy reads every rule, user and setting. One that it cannot read ends the active controller's process, and its successor's.",
        "Remove what the text names with the tool that made it, and write it anew: kafka-acls.sh, or kafka-configs.sh, --bootstrap-server.",
        "ZkAclMigrationClient; AclEntry.fromBytes",
    ),
    "B8d": Rule(
        "Controllers copy the rules of the ZooKeeper that brokers register in. Rules elsewhere are left behind: nobody but super users may do anything.",
        "Write these rules into the cluster's own ZooKeeper, take authorizer.zookeeper.url out of every broker's file, and restart them.",
        "AclAuthorizer, ZkUrlProp; ZkAclMigrationClient",
        "Resolve names and references on the broker's machine and compare servers and chroot with zookeeper.connect; where they differ, move the rules.",
    ),
    "B9a": Rule(
        "SCRAM users are not copied by this metadata version: after the migration nobody of them could log in.",
        "Raise inter.broker.protocol.version to 3.6 or later first.",
        "KIP-900; KAFKA-14830",
    ),
    "B9b": Rule(
        "Delegation tokens are copied from metadata version 3.6-IV2 on, and are void on nodes without the same secret key.",
        "Raise inter.broker.protocol.version to 3.6-IV2 or later; write one delegation.token.secret.key into every broker's file.",
        "KAFKA-15219",
    ),
    "B9c": Rule(
        "Controllers have no SCRAM user before the copy, so that no broker could log in to start it.",
        "Use PLAIN, GSSAPI or TLS there: quorum.security, or sasl.mechanism.controller.protocol in every broker's file with its login. Clients keep SCRAM.",
        "KAFKA-15513; KIP-900",
    ),
    "B9d": Rule(
        "A node with SASL towards the controllers that has no login for its mechanism does not start: a controller never, a broker when it is rolled.",
        "Write that key into every broker's file (controllers inherit it), and user_<name> of each into that of PLAIN; restarting is the roll's.",
        "JaasContext.loadServerContext",
        "See that the JAAS file of each service (java.security.auth.login.config), controllers' too, has a section KafkaServer with this mechanism.",
    ),
    "B10a": Rule(
        "Controllers write the znodes that brokers own. Without the brokers' identity every one of these writes is refused (NoAuth).",
        "Give the controllers the brokers' identity towards ZooKeeper: the same zookeeper.* keys in the files of all.",
        'KIP-866; KRaftMigrationDriver, "ZooKeeper authentication"',
        "Check on each controller's machine that its service has what the brokers' have: the JAAS section Client, keystores at the same paths.",
    ),
    "B10b": Rule(
        "A ZooKeeper client refuses answers above jute.maxbuffer (1 MB): the controller loses its session again and again and never copies.",
        "Give controllers (and brokers) -Djute.maxbuffer=4194304 or more in KAFKA_OPTS, the value that ZooKeeper has.",
        "ZooKeeper administrator's guide",
        "Check that the controllers' services have -Djute.maxbuffer as the brokers' have it (in KAFKA_OPTS), 4 MB or more.",
    ),
    "B11": Rule(
        "Passwords that were set dynamically lie in ZooKeeper encrypted with it; without it controllers copy what nobody can read any more.",
        "Write the same password.encoder.secret into every broker's file (controllers inherit it), or set these passwords in the files.",
        "ControllerServer.scala, PasswordEncoder.NOOP",
    ),
    "B12a": Rule(
        "A rolling upgrade is under way, or was left half-way; brokers of two releases react differently to the same controller.",
        "Finish the upgrade, so that every broker runs the same release.",
        "KIP-866",
    ),
    "B12b": Rule(
        "Kafka's client (3.8.4) needs ZooKeeper 3.5 or later; controllers could not connect.",
        "Upgrade the ensemble to 3.8, one server at a time, before the migration.",
        "ZooKeeper compatibility; Kafka upgrade notes",
        "Ask each server: echo srvr | nc HOST 2181; allow srvr in 4lw.commands.whitelist, and let this machine reach the servers.",
    ),
    "B13a": Rule(
        "Brokers forward requests with the principal in them: a builder that does not implement KafkaPrincipalSerde fails them all in KRaft.",
        "Use a builder that implements KafkaPrincipalSerde, and put its jar on the controllers too.",
        "KIP-590; KafkaPrincipalSerde",
        "Ask the maker of the class whether it implements KafkaPrincipalSerde, and put its jar on the controllers too.",
    ),
    "B13b": Rule(
        "Controllers have no ACL before the copy: a broker that is no super user is refused when it registers, and the copy never starts.",
        "Write the principals of brokers and controllers into super.users of every broker's file (controllers inherit it).",
        "StandardAuthorizer; ControllerApis, CLUSTER_ACTION",
        "Find the name by which brokers know each other (for TLS the certificate's subject), and see that super.users has it.",
    ),
    "B13c": Rule(
        "Controllers let nobody but super users in before the copy, not even each other: without votes the quorum never has a leader, and no broker registers.",
        "Secure their listener (quorum.security in the cluster file), or give controllers these names: super.users under quorum.properties, all of them.",
        "measured: VOTE, AuthorizerNotReadyException; StandardAuthorizer, ControllerApis",
        "Find the names (for TLS the certificates' subjects), and see that super.users has those of brokers and controllers.",
    ),
    "B14": Rule(
        "A replica that comes back after a restart is held to the throttle: it stays out of its ISR for hours, and the roll waits.",
        "End the reassignment with kafka-reassign-partitions.sh --verify, or remove the *.replication.throttled.* settings of topics and brokers.",
        "measured by others: catch-up under a throttle; reliability",
    ),
    "B15": Rule(
        "The roll restarts every broker with what its file says: other data, listeners, rights or copies than the cluster has now.",
        "Restart the broker with this file before the migration, or put back what runs; write into the file what its start command adds (--override).",
        "KIP-226, STATIC_BROKER_CONFIG; reliability: one change at a time",
        "Compare kafka-configs.sh --describe --all --entity-type brokers --entity-name N with the file; let our user DESCRIBE_CONFIGS the cluster.",
    ),
    "B16": Rule(
        "Controllers never have them. A broker in KRaft mode opens its listeners before it knows them: it does not start, or serves no client there.",
        "Write them into each broker's file as they are in force (no restart for that); of listeners and their map also remove the dynamic ones after one.",
        "measured: listeners refused connections and TLS, no start; SslFactory, CertificateEntries.ensureCompatible",
    ),
    "B17": Rule(
        "Controllers inherit the address: on another machine it leads nowhere, or to somebody else's ZooKeeper. Without other servers the copy never starts.",
        "Write the ensemble's servers by names or addresses that every machine knows into the brokers' files, and restart them.",
        "KIP-866; core.files.render",
    ),
    "B18": Rule(
        "Controllers have one value for the whole cluster, that of the first broker's file: rights, or the fate of records, would change for the others.",
        "Give every broker the same, and restart those that had another, as a change of its own.",
        "KIP-866; core.files.render",
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
    "W4": Rule(
        "This release can be migrated, but known defects of the migration are in it; the message names them.",
        "Upgrade to Kafka 3.9.2 or later first.",
        "bug list of KIP-866, from the release tags",
        'Look into a broker\'s log for "Kafka version:", and write it as kafka_release into the cluster file.',
    ),
    "W5": Rule(
        "Several log directories are early access in KRaft mode with this release.",
        "Upgrade to 3.9.2 first, or try it on a copy of the cluster.",
        "Kafka 3.7 upgrade notes; KIP-858",
    ),
    "W6": Rule(
        "They hold nothing back now, but the next reassignment, and what it moves, would run under them.",
        "Remove them: kafka-configs.sh --alter --delete-config with the names of the message.",
        "reliability: nothing of another act is left",
    ),
    "W7": Rule(
        "A broker in migration mode may take 300 s to stop. Killed before, it recovers its logs at the next start, for minutes or hours.",
        "Raise hosts.stop_timeout above 300 s, and TimeoutStopSec of the service (terminationGracePeriodSeconds of a pod) above that.",
        "measured: a stop without controller took 300.8 s; systemd kills after 90 s",
        "Look on each node: systemctl show -p TimeoutStopUSec kafka; raise it above 330 s and write it as hosts.kill_after into the cluster file.",
    ),
    "W8": Rule(
        "Tokens, certificates, retention and the order of evidence go by the clock.",
        "Let the same time service (chrony, ntpd) set the clocks of all nodes, of ZooKeeper and of this machine.",
        "reliability: evidence is ordered by time",
        "Compare date -u on the nodes and on this machine, or see that chronyc tracking is well on all of them.",
    ),
    "W9": Rule(
        "Another tool that moves replicas or writes settings in the middle of a roll undoes what was checked before each restart.",
        "Pause it (Cruise Control: self-healing and executor; CMAK: read only) and tell its owners, until the migration is finalized.",
        "peers: interlocks against other actors",
        "Ask who runs Cruise Control, CMAK or scripts against this cluster, and have them paused.",
    ),
    "W10": Rule(
        "A plain ZooKeeper broker does not start with version 1. It shows only in the last step of a way back.",
        "Nothing now: the way back rewrites the file while the broker is down. Add no broker that kafka-storage has formatted.",
        "KAFKA-20762; measured",
    ),
    "W11": Rule(
        "KRaft keeps dynamic passwords in its metadata log as they are: whoever reads a controller's disk, or a snapshot of it, has them.",
        "Protect the controllers' disks, or move these passwords into the files before the migration.",
        "KIP-866; ControllerServer.scala",
    ),
    "W12": Rule(
        "In KRaft mode the policy runs on the controllers, and alter.config.policy is given other arguments than before.",
        "Put its jar on the controllers and try it with a test topic; see alter.config.policy.kraft.compatibility.enable (3.9.2).",
        "KAFKA-19026; KIP-1252",
    ),
    "W13": Rule(
        "Controllers do not follow every setting of brokers that was made dynamically; what they decide may differ from what brokers decided.",
        "Write these settings into the files as well, where a controller needs them; leave them alone until the migration is finalized.",
        "KIP-866; Kafka 3.9 notes on unclean.leader.election.enable",
    ),
    "W14": Rule(
        "Such a rule is copied, but may match other requests after the migration, or none.",
        "Look at each of them with its owner; write it anew with kafka-acls.sh --bootstrap-server where it does not say what was meant.",
        "cp-ansible#1805, strimzi#11612",
    ),
    "W15": Rule(
        "The upgrade of the brokers has not been finished. The controllers are formatted for the older version, and stay on it for the whole migration.",
        "Raise inter.broker.protocol.version to the release that runs, best to 3.9, as a change of its own.",
        "KIP-866",
    ),
    "W16": Rule(
        "Tiered storage in KRaft mode is complete in 3.9 only.",
        "Raise release and inter.broker.protocol.version to 3.9 first.",
        "KIP-405; Kafka 3.9 notes",
    ),
    "W17": Rule(
        "In the second roll the last broker that serves them leaves ZooKeeper, and their members would starve: it will be refused (G21).",
        "Move these groups with that DAG (groups: in the cluster file) in time, or stop their consumers before the second roll.",
        "measured: consumers coordinated through ZooKeeper",
    ),
    "W18": Rule(
        "The roll restarts every broker with what its file says: what changes then would be taken for the migration's doing.",
        "Restart the broker with this file before the migration, or put back what runs.",
        "KIP-226, STATIC_BROKER_CONFIG; reliability: one change at a time",
    ),
    "W19": Rule(
        "Configuration management that writes the file anew in the middle of a roll takes out the migration's keys: the next restart strands the broker.",
        "Pause it for these nodes, also its timers and agents, until the migration is finalized; then give it the new files.",
        "peers: interlocks against other actors",
    ),
    "W20": Rule(
        "Until now the broker that was asked, or was controller, decided by its own. Controllers decide for all by those of the first broker's file.",
        "Make them equal on all brokers, or write what you want under quorum.properties in the cluster file.",
        "KIP-866; core.files.render",
    ),
    "K04": Rule(
        "Whichever broker creates the topic gives it its own count; brokers that run by then keep theirs, and groups are consumed twice.",
        "Make offsets.topic.num.partitions equal on every broker and restart them, or remove it everywhere.",
        "KIP-895; GroupCoordinator startup",
    ),
}
