"""Entries of users' applications: consumer groups, their coordinators, and Spark jobs."""

from __future__ import annotations

from airflow_provider_kmigrate.core.reasons.entry import read

AREAS, ENTRIES = read("""
K Coordinators and groups
about: coordinators and consumer groups
when: preflight, before each restart of a broker, soak, watch, inventory, consumers
intro: A broker reads the number of partitions of `__consumer_offsets` once, when it starts. If the topic was expanded since, restarted brokers and
intro: old ones send groups to different coordinators: some groups are consumed twice, some not at all, some lose their offsets. A migration
intro: restarts every broker twice. So each broker is asked with made-up names which number it uses: in preflight, before each restart, every
intro: 30 s in a soak, and by the watch. The sensor `CoordinatorConsistencySensor` asks the same in a DAG of your own.
intro:
intro: The DAG `kmigrate_offsets_topic__<cluster>` expands the topic without any of this; K79 to K85 are its own; K90 is that of `kmigrate_offsets_repair__<cluster>`.
intro:
intro: K77 is the same of transactions. K30 to K76 and K91 to K97 are of the scan (`kmigrate groups scan`; [consumers.md](consumers.md)), of moving
intro: groups, and of copying their offsets.

K01 A broker uses another count of __consumer_offsets
means: That broker computes coordinators with another number of partitions than the topic has. After a restart brokers disagree: groups are consumed twice, not at all, or lose their offsets. The log names the groups.
meanwhile: **Only as long as no broker restarts.**
do: Restart no broker, and stop what restarts them (patches, auto-healing). Groups with two coordinators or none: stop their consumers.
do: No broker has restarted since the expansion: run the DAG `kmigrate_offsets_topic__<cluster>`. `partitions`: the topic's own count, or a higher multiple of the one that brokers use: then fewer groups stop.
do: Brokers differ already: stop the groups that the log names. Restart every broker with its present file, one after the other. Then run the DAG `kmigrate_offsets_repair__<cluster>`: it gives each group the newest offset of both partitions.
do: Every broker has certainly restarted since kmigrate "last verified" it: delete the znode `/_kmigrate/partition-counts`, clear `backup` alone.
do: Run preflight again, or clear the refused task. A rollback that cannot wait: run it with `accept_split_groups` ([section 11](#11-rollback)).
never: Restart only the broker that differs.
source: measured

K02 The count of a coordinator topic is not known
means: No number, or more than one, explains the answers of these brokers about `__consumer_offsets` or `__transaction_state`. Leaders that move meanwhile cause this.
meanwhile: Yes. No broker is restarted before it is known.
do: Wait until no leader moves; a step continues by itself. Clear `preflight`.
do: kmigrate has not noted the counts, and the answers fit several (an older release began this migration): clear `backup` alone, not what follows it.
do: May kmigrate's user DESCRIBE the groups and transactional ids `__coord_probe*`? Has a partition of the topic no leader?
do: Several numbers fit: make sure that the topic was not expanded since these brokers started.
never: Skip preflight, or expand the topic now.

K30 A group could not be read
means: ZooKeeper, the brokers, a log's end or the coordinator did not answer for this group. Members may be there that are not visible.
meanwhile: Yes: nothing is switched or written.
do: Wait if an election is under way; the step retries by itself.
do: Fix the access (U01, R01): may kmigrate's user DESCRIBE the group and its topics? Then scan or try again.
ask: Scan again once each partition has a leader and the group's coordinator answers: with one part unread, nothing shows whether the group works.
never: Treat a partial read as complete, or copy it by hand.
source: architecture: unknown is not healthy

K31 A registration that freezes the group
means: ZooKeeper consumers cannot read a znode below `/consumers/<group>/ids`: each of them gives up its partitions and fails until it is gone (measured). A bare topic name is pykafka's.
meanwhile: **No**: the group does not consume, and its lag grows.
do: `zookeeper-shell.sh $ZK get -s /consumers/<group>/ids/<member>`: the name has its host, `ephemeralOwner` its session.
do: Stop that process. The znode goes with its session, and the group recovers by itself.
do: Members of pykafka: give them a group of their own.
never: Write another content into the znode.
source: Kafka 1.1.1: ZookeeperConsumerConnector; pykafka: balancedconsumer.py; measured

K33 A wildcard that is not safe
means: The wildcard selects no topic, or Java and Python may read it differently. Such a member owns nothing, or a migrating member refuses to compute an assignment.
meanwhile: Yes, until the first migrating member joins.
do: Name the topics, or use a simpler wildcard: a dot as `[.]`, no backslashes (Kafka 1.0.1 to 1.1 escape them twice).
do: Check the topic's name.
never: Let a migrating member join first.
source: core/member/registration; KIP-125; Kafka 1.0.1: TopicCount and Jackson; measured

K35 The mode is written wrong
means: `migration/mode` holds something other than exactly `kafka` or `zookeeper`, such as a newline behind it. Members take it for ZooKeeper mode.
meanwhile: Yes: all members read it alike.
do: Set the mode with kmigrate, which writes the exact bytes: `kmigrate groups zookeeper-mode --group <group>`.
never: Set it with `zookeeper-shell.sh` or `echo`.
source: KIP-125

K36 Members may compute different assignments
means: Each member computes the assignment itself. With another strategy, round-robin of another Kafka line, or two partitions with one hash, members never agree.
meanwhile: Yes, until a member with another strategy joins.
do: Look up `partition.assignment.strategy` and the Kafka version of every member. Give migrating members the same.
do: Partitions with one hash: change all members to `range` at once, or migrate with every ZooKeeper consumer stopped.
never: Mix strategies, or round-robin of Kafka before 1.0 and later.
source: KAFKA-5822; Kafka 1.1.1: PartitionAssignor; measured
ask: Ask for partition.assignment.strategy and the Kafka version of every member; scan again when nothing is rebalancing.

K37 ZooKeeper consumers that commit to Kafka
means: Once a migrating member is in the Kafka group, their commits are refused and dropped; their work is repeated.
meanwhile: Yes, until the first migrating member joins.
do: Restart these members with `offsets.storage=kafka` and `dual.commit.enabled=true`.
do: Restart them with `offsets.storage=zookeeper`. Then migrate.
never: Migrate the first member before that.
source: Kafka 3.9: ClassicGroup; reproduced

K38 Everything is processed twice
means: Kafka consumers are in the group while ZooKeeper coordinates its other members. Each side assigns every partition.
meanwhile: **Not for the application**: every record is processed twice, and the two sides overwrite each other's progress.
do: Stop the Kafka consumers. They come last: after every member migrates and the mode is `kafka`.
do: The mode is `kafka` and they were there before: stop the ZooKeeper consumer that K45 names instead.
never: Stop the members in ZooKeeper instead, unless offsets were copied first.
source: KIP-125, compatibility

K40 Topics that ZooKeeper consumers cannot read
means: The topic has `compression.type=zstd` or `message.downconversion.enable=false`, or its settings are unknown. Brokers refuse its records to ZooKeeper consumers.
meanwhile: Not for records written since that setting.
do: Set another `compression.type`, and `message.downconversion.enable=true`, until no ZooKeeper consumer is left. Only newer consumers can read what is in zstd already.
never: Count on ZooKeeper consumers as a rollback for this group.
source: Kafka 3.9: KafkaApis, RecordsUtil
ask: Let kmigrate's user DESCRIBE_CONFIGS the topics, or check with kafka-configs.sh.

K42 Offsets that no consumer can start from
means: An offset is no number, or is outside its log: the topic was created again, the offset was set wrong, or retention was faster. auto.offset.reset would decide: records skipped or repeated.
meanwhile: Yes, until a member begins there. Nothing was written.
do: Decide with the group's owner where it continues.
do: Set that offset while no member is there. Wrong in one store only: `groups copy-offsets` from the other.
never: Let `auto.offset.reset` decide, or leave these offsets out.
source: Kafka 1.1.1: ZkUtils

K44 Partitions are not consumed
means: Records wait: no member owns the partitions, or no offset moves. Owners prove nothing: ZooKeeper consumers without a ZooKeeper-mode broker keep theirs and receive nothing (measured). Seconds after a rebalance are normal.
meanwhile: **Not for the application**: records wait. None is lost while the topics keep them.
do: Scan with `--wait 20`; if commits may be 60 s apart, with `--wait 90`. Markers of transactions at a log's end look like a lag.
do: It stays: restart one member, the one whose log says `can't rebalance after 4 retries`. All members then share the partitions again.
do: Has the last ZooKeeper-mode broker left? Bring one back into migration mode (G21). See also K31 and K36.
never: Create or delete owner znodes by hand, or take present owners for health.
source: Kafka 1.1.1: rebalance.max.retries; measured: consumers coordinated through ZooKeeper
ask: Commits may be a minute apart (auto.commit.interval.ms): scan again with --wait 90. At the end of logs that do not grow, what is left may be markers of transactions.

K45 The mode does not fit the members
means: ZooKeeper consumers need mode `zookeeper`, Kafka consumers mode `kafka`. Members follow Kafka only when all of them can.
meanwhile: Unknown: check at once whether records are read twice (K38).
do: The mode is `kafka`, and ZooKeeper consumers are there: restart them as migrating members, or set the mode back.
do: In a move: set the mode that the members need, or bring the group to one side with `kmigrate_consumers_rollback__<cluster>`.
never: Switch more instances, or let Kafka consumers join, before that.
source: KIP-125

K46 A reset is pending
means: An operator recorded offsets for this group (`migration/reset`), and no migrating member has begun there. The next one would, however old the reset is.
meanwhile: Yes. Nothing was switched or deleted; a reset just taken up is gone within seconds.
do: Still wanted, and members migrate: restart the instances that hold these partitions, one by one.
do: Not wanted: `kmigrate groups reset-offsets --delete --group billing ...`.
do: All members are Kafka consumers: stop them, reset with `kafka-consumer-groups.sh --bootstrap-server $B --reset-offsets`, start them, forget this one, clear the task.
never: Delete it without informing the operator who requested it.
source: kmigrate: migration/reset

K52 The group is not stable
means: Members get, give up or wait for partitions, do not follow the mode yet, or left owner znodes behind. A session that is about to expire keeps its partitions until then.
meanwhile: Yes.
do: Wait half a minute and scan again; start no member meanwhile.
do: For minutes: look for a member that restarts again and again. `zookeeper-shell.sh $ZK get -s` on an owner znode shows its session, ZooKeeper's `dump` its client; it may be another library.
never: Restart members, change the mode or delete owners to end it: their holder may be alive and read on.
source: Kafka 3.9: GroupState; Kafka 1.1.1: ZookeeperConsumerConnector

K55 An instance has no member
means: No member of this instance is in the group, or the group has none at all. kmigrate starts no application that was stopped before. A killed process stays in ZooKeeper until its session is over.
meanwhile: Yes, with less capacity.
do: If it is stopped, start it. If it runs, check two things: its `consumer.id` and `client.id` are, or begin with, its name in the cluster file; its mode is the one it was given.
do: Clear the task: an instance that is absent for 45 s is restarted once more.
do: Its machine is gone for good: take it out of the cluster file, clear the task.
never: Take it out of the file while it runs. Run its command by hand at the same time.

K56 Members that the file does not know
means: The group changes its coordination as a whole: a member that is not moved holds it back, or reads twice.
meanwhile: Yes.
do: Add its instance to the group in the cluster file, or stop it.
never: Continue and hope that it follows.

K58 Not in this order
means: The order is ZooKeeper consumer, migrating member, mode kafka, Kafka consumer; the first instance of the file goes first. Otherwise two kinds of members read every partition.
meanwhile: Yes: nothing was switched.
do: In a move: switch the members that the text names first. A canary that was rolled back (K69): fix what it names, clear its task.
do: In a rollback: bring Kafka consumers to migrating members first, `kmigrate_consumers_rollback__<cluster>` with goal `zookeeper_mode`, or stop them.
never: Restart it by hand as the other kind. Write or delete znodes by hand. Reorder the file's instances.

K60 Offsets of the two stores differ
means: The store that the instance will read is behind the other: records would be read once more.
meanwhile: Yes.
do: A rollback copies them itself: wait.
do: In a move: find out why migrating members' commits to Kafka fail (their logs).
never: Copy offsets by hand under live members.

K64 Offsets were set back in one store
means: The store that the group reads is behind leftovers in the other one, as after a replay. A migrating member begins at the larger of both: records would be skipped.
meanwhile: Yes: nothing was switched.
do: Ask the group's owner. It was set back: make both stores alike with the `groups copy-offsets` command in the text (`--take-over` if the refused run still owns the cluster). Clear the task.
do: ZooKeeper consumers that commit to Kafka only look the same: let them read something, clear the task.
never: Copy towards the store that the group reads.

K66 A member that may be dead is still in the Kafka group
means: A member of the Kafka group is named like a migrating member that ZooKeeper does not know. Kafka keeps a dead member's place for its session; or it is a Kafka consumer.
meanwhile: Yes: kmigrate waits for `switch_timeout` (300 s).
do: It died: wait for `session.timeout.ms` (45 s by default).
do: It lives: it is a Kafka consumer. Stop it, or bring it back (K56, K58).
do: In an emergency, and sure that it is dead: `zookeeper-mode --force`.
never: Restart others meanwhile.

K69 The group was rolled back
means: A canary, a watch, an audit or an operator rolled this group back, and it was not released since. The reasons beside this one, or the text, say why. No other instance was switched. Groups behind it wait.
meanwhile: Yes: it consumes as before. Every scheduled run fails at its `check` until you decide.
do: Fix what it was rolled back for.
do: In the very run that rolled it back: clear the failed task. In another run release it: the conf or the command in the text.
do: It stays, and others continue: take it out of the cluster file's `groups`, or move one wave (`{"wave": 2}`).
never: Raise `commit_within` until it passes. Delete the `migration/hold` znode from a script.

K71 Something else writes to this store
means: Offsets were to be written to a store whose side has members, or that changed since it was read. Kafka would refuse; members in ZooKeeper would overwrite them.
meanwhile: Yes: nothing was written.
do: Stop the members in the text. Without members: find the client that writes; a scan with `--wait` shows the store that moves.
do: Plan the copy again. Migrating members keep both stores by themselves.
never: Copy again and again until it holds, or use `--reset` to get past it.

K76 A reset that no member can take up
means: The offset is beyond its log, the partition is selected by no member, or the group has no migrating member.
meanwhile: Yes: nothing was written.
do: Correct it. For ZooKeeper or Kafka consumers set offsets while they are stopped, with their own tools.
never: Write the znode by hand.

K77 A broker uses another count of __transaction_state
means: That broker computes the coordinator of a transactional id with another number of partitions than the topic has. Once a leader of this topic moves, its transactional ids cannot be used until their broker restarts; after a restart brokers disagree.
meanwhile: **Only as long as no broker restarts and no leader moves.**
do: Restart no broker, and stop what restarts them.
do: In a planned window stop all transactional producers (Kafka Streams and Flink too). Wait until `kafka-transactions.sh --bootstrap-server $B list` shows none that is ongoing.
do: Restart every broker with its present file, one after the other. Start the producers.
do: Run preflight again, or clear the task that was refused.
never: Expand `__transaction_state`. Restart only the broker that differs.
source: Kafka 3.9: TransactionStateManager.validateTransactionTopicPartitionCountIsStable

K79 Groups that must be stopped have members
means: While brokers disagree about its coordinator, a group with members is consumed twice or not at all; while members commit, no copy of their offsets is the last one. So groups that move in an expansion, or that are repaired, must have no member.
meanwhile: In an expansion yes: brokers agree, and these groups work. In a repair **only as long as no broker restarts and no leader moves.**
do: Stop every consumer of the groups in the text. The step observes it and continues by itself.
do: The consumers are unknown: `kafka-consumer-groups.sh --bootstrap-server $B --describe --members --group G` shows their hosts.
do: A consumer that was killed leaves after its session timeout; so does one with a `group.instance.id`, also after a clean stop.
never: Start one of these groups before the task `progress` waits for it, or, in a repair, before it is done and every broker has restarted. Delete the group instead: that removes its offsets.

K81 A transaction holds back a group's commits
means: An open transaction has offsets of this group, or hides all later records of a partition of `__consumer_offsets`, also those of other groups. What seems to be a group's newest commit may be an old one.
meanwhile: Yes: nothing was exported, deleted or repaired because of it.
do: Stop the producers that commit for this group (Kafka Streams, Flink) cleanly. The step continues by itself.
do: It stays: `kafka-transactions.sh --bootstrap-server $B find-hanging` finds a transaction without a producer. The same tool aborts it.
never: Delete the group.

K82 A group's offsets are not those of the export
means: The group committed after its offsets were saved, or it appeared since. kmigrate chooses neither the export nor the new commits.
meanwhile: Yes: offsets of the groups in the text were neither deleted nor overwritten.
do: Stop its consumers. `kafka-consumer-groups.sh --bootstrap-server $B --describe --group G` shows what it has now, the export in the backup what it had.
do: Before any restart, in a group that the export does not have: clear `moving_groups.stopped` and its downstream tasks.
do: The export is right: delete the group (`--delete --group G`), and clear the failed task.
do: The new commits are right: keep them with `--reset-offsets --to-current --export --dry-run`, delete the group, clear the task, and set them again before it starts.
never: Take the higher offset without looking: records in between may be unread.

K83 Not an expansion that can be done now
means: The number is no multiple of the count that brokers use: nearly all groups would move (of one in k times the old count one in k stays). Or another expansion is under way, none has begun, the topic does not exist, or a broker uses the new count already, so that this one cannot be undone. Kafka cannot remove partitions.
meanwhile: Yes: nothing was changed. Groups that were stopped stay stopped.
do: Run the DAG with a number in the text as `partitions`: it does what is left.
do: Undo it first (`undo`), as long as no broker has restarted. Then begin another one.
do: A task of the middle was cleared alone: clear the one in the text, with its downstream tasks.
do: No topic, since no group has ever committed: write the count that you want as `offsets.topic.num.partitions` into every broker's file, and restart them one by one.
never: Create or expand `__consumer_offsets` by hand: its groups break when the first broker restarts (K01). Delete `/_kmigrate/offsets-topic` while groups wait for their offsets.

K84 A group that moved does not consume yet
means: Its offsets are in place. It has no member, or has not committed since this task began and is not at the end of its partitions.
meanwhile: Yes: only its lag grows.
do: Start its consumers.
do: They run: do they join (`kafka-consumer-groups.sh --bootstrap-server $B --describe --group G`), and process?
do: It stays stopped on purpose: mark this task as success. Nothing else is left to do.
never: Reset its offsets.

K85 __consumer_offsets holds other commits than it must
means: kmigrate reads the raw log before it deletes groups, afterwards, and once their offsets are imported. It must hold exactly the commits that brokers report, each of them once: another copy would be served after a later change of leaders.
meanwhile: Yes: offsets of the groups in the text are in the log or in the export. Keep these groups stopped.
do: A consumer that assigns its partitions itself (Flink, `assign`) commits without being a member: stop it. Clear the task.
do: May kmigrate's user DESCRIBE all topics and groups? Brokers leave out what it may not, without an error. Grant it, and clear the task.
do: A copy in another partition, and all brokers use the topic's count: run `kmigrate_offsets_repair__<cluster>`, then clear the task. Brokers do not use it yet: leave the expansion (`undo`), and continue as for brokers that differ (K01, step 3).
do: It stays after a deletion: is every partition of the topic in sync (S02)? Clear the task.
never: Delete or start the groups in the text.

K90 An operator must decide which offset is right
means: A group committed in two partitions of `__consumer_offsets`, and the commit times do not settle which value is its own: two coordinators served it alternately, the newer value is smaller, or it was removed. The log lists the values.
meanwhile: Only while the group stays stopped. Nothing of it was changed.
do: Ask the owner of the group up to where records were processed. A smaller offset reads records again, a larger one may skip some.
do: Run `kmigrate_offsets_repair__<cluster>` again with the decision in its conf: `{"decisions": {"billing": {"orders-0": 111}}}`. `null` keeps it removed. Only values that the log lists are taken.
never: Take the larger offset because it is larger.

K91 An instance does not stop, or starts again by itself
means: In a cutover the old version and the new one must never run at once: both would read every partition. A command that ends well proves nothing; members do.
meanwhile: Yes: before the new version starts nothing is lost or read twice, only lag grows. A failed cutover starts the old version again.
do: What starts it: systemd (`Restart=`, a timer), Kubernetes (`replicas`, an operator), a supervisor, a second machine? Let the stop command turn that off, and the start command turn it on.
do: Its process hangs or sleeps: end it. Its session in ZooKeeper lasts some seconds longer, its place in Kafka up to `session.timeout.ms`.
do: In a rollback that waits: stop the new version in the text by hand. The old one starts by itself then; clear the task if it gave up.
never: Start the old version while members in the text read from Kafka.

K92 A client commits for a group without members
means: All instances have stopped, no member is registered, and offsets move. A client that commits without joining the group would overwrite what the cutover copies.
meanwhile: Yes: nothing was copied. The old version runs again.
do: The text has the partition that was written last. Which application reads it without a group: a Storm topology, Flume, a SimpleConsumer, librdkafka with `offset.store.method=broker` of old, a script?
do: Stop it with the others: let the stop command of an instance do that. Then release the group and run again.
never: Raise `switch_timeout` until it happens to be quiet.

K93 The new version does not do what the old one did
means: It did not join, joined before the offsets were copied, reads other topics or partitions, or its command failed. Where it began before the copy is unknown: records may have been skipped there.
meanwhile: Yes: a failed cutover stops it, copies back what it processed if it began at the copied offsets, and starts the old version.
do: Did it start (its own log)? Its `group.id` must be the old one, its `client.id` must be, or begin with, the instance's name in the file.
do: It must subscribe to exactly the topics of the old version. Other topics: a group of their own, or a later release.
do: It joined too early: nothing but kmigrate may start it. Kafka's offsets of that run are no proof of work: `groups copy-offsets --to kafka --reset --group <group>` while it is stopped.
never: Start it by hand while kmigrate waits.

K94 The note of a cutover cannot be read
means: `/consumers/<group>/migration/cutover` says how far a cutover is, and was written by a newer kmigrate or by something else. Without it, it is unknown whether Kafka's offsets may be copied back.
meanwhile: Yes: nothing was changed. Does the application run? It may be stopped.
do: A newer kmigrate began this cutover: use that version.
do: Otherwise look at the group (`kmigrate groups scan --group <group>`). Old version, new one or none: bring all instances to one of the two by hand, then delete this znode.
never: Delete it while instances of both versions run.

K95 A group uses ZooKeeper without a registered member
means: Its offsets in ZooKeeper move without any consumer below `/consumers/<group>/ids`: clients commit there by OffsetCommit version 0, or write the znodes themselves (Storm, Flume, old bindings). KRaft brokers do not take these commits.
meanwhile: Yes, until the first broker is in KRaft mode. From then on commits to such a broker fail (version 0), and a restarted client begins at its old offsets. What reads brokers or topics in ZooKeeper finds none after the last broker.
do: Which application has this `group.id`? The brokers' request log (`kafka.request.logger`, OffsetCommit with version 0) has its address.
do: Let it commit to Kafka: a newer client, or `offset.store.method` or `offsets.storage` of Kafka. Stop it, copy its offsets (`kmigrate groups copy-offsets --to kafka --group <group>`), start the new version.
never: Begin the second roll first.
source: Kafka 3.9: KafkaApis.handleOffsetCommitRequest

K96 A copy of its offsets may be removed before it runs again
means: ZooKeeper keeps offsets for ever. Kafka removes those of a group without members after `offsets.retention.minutes` (7 days by default). This group has been without members for longer than that, or for a day while the brokers' value was not read.
meanwhile: Yes: nothing was changed.
do: Does its application still run, such as once a month? Start its new version soon after the copy; or raise `offsets.retention.minutes` on all brokers first.
do: `kmigrate groups copy-offsets --to kafka --group <group> --expiring` copies all the same.
do: If no team knows the group, leave it: its znodes harm nothing.
never: Copy, and rely on the offsets weeks later: `auto.offset.reset` would decide where it starts.
source: Kafka 3.9: GroupMetadata.removeExpiredOffsets (KIP-211)
ask: Let kmigrate's user DESCRIBE_CONFIGS the cluster, or read `offsets.retention.minutes` with kafka-configs.sh.

K97 The old version would get no record
means: No broker is registered in ZooKeeper: the last one has left ZooKeeper mode, or all are down. ZooKeeper consumers find brokers there alone (measured: they starve without an error). Nothing of the group was stopped.
meanwhile: Yes: the group goes on reading from Kafka.
do: Brokers are down: start them. This continues by itself.
do: The cluster has left ZooKeeper mode, and the new version is at fault: fix it, or deploy another build that reads from Kafka, with the same `group.id`. Its offsets stay.
do: The old version is needed: roll the cluster back first (`kmigrate_rollback__<cluster>`), as long as it is not finalized, then the group.
never: Start the old version by hand: it owns partitions and reads nothing.

J users' Spark jobs
about: users' Spark jobs: what could hurt them, and holding them
when: around risky steps
intro: J01 to J14: a user's Spark job is held, should be held, or makes no progress. J20 to J24: a roll could hurt it; `spark_job_risks` reports these before anything is changed, fails if a job must not be rolled like this, and otherwise warns. The cluster is not concerned.

J01 The job still runs
means: The hold is set; the job stops as soon as the batch under way is committed.
meanwhile: Yes. It continues reading.
do: Wait: it stops between two batches. Spark's page shows a long batch. The limit is `hold_timeout`.
do: The cluster cannot wait, as in a rollback: mark the task as success. The job may then repeat its batch, or fail if a partition loses its leader.
never: Kill the application: its batch would be done again.

J02 A batch is half done
means: The checkpoint has planned a batch that is not committed. The job would do it again from its beginning.
meanwhile: Yes, while the job is stopped.
do: The sink takes a repeated batch only once: write `idempotent_sink: true` into the cluster file.
do: Otherwise check the sink, and remove what that batch wrote.
never: Delete files of the checkpoint.

J03 A log ends before the job's place
means: The log was truncated after the job had read it: its sink holds records that are no longer in the log.
meanwhile: **No.** Treat it as lost data.
do: Do not start the job.
do: Find the leader change that truncated the log (an unclean election?).
do: Save what the sink holds before those offsets are written again.
never: Set `failOnDataLoss=false` to start the job.

J04 Records or partitions of the job are gone
means: A topic was deleted or created again, or records that the job had not read were removed while it was held.
meanwhile: Yes, for the cluster. The job stays held.
do: Decide with the job's owner: continue behind the gap with a new checkpoint, or read the missing records from elsewhere.
do: Keep holds shorter than retention.ms.
never: Start it with the old checkpoint of another topic, or set `failOnDataLoss=false`.

J05 The job's state or its logs cannot be read
means: Its hold folder or checkpoint does not answer, is on storage that is not reached from here, is of another release, or has no recent state; or brokers did not report where its partitions end. Such a job can neither be held nor resumed.
meanwhile: Yes. Nothing was changed.
do: Check that it runs, uses `spark_hold.keep_running` of the same release as Airflow, and has the hold folder and checkpoint that the cluster file names.
do: Storage that is not reached, by Airflow: install its provider on the workers, and name its connection as `conn_id` of the job. By an application: give `keep_running` its session, or its own `files` (Spark Connect does not reach it). Or use a folder that this machine mounts.
do: Ends of logs: start the brokers that do not answer.
do: An application that is meant to be stopped: set `hold: never`. A rollback continues without it after a minute.
never: Continue as if it were held, resume it by hand, or point `checkpoint` at a copy.

J09 Another query used the checkpoint
means: A query ran with the job's checkpoint while the job was held. With two at a time records are written twice.
meanwhile: Yes, while the job is stopped.
do: Find that query and stop it: one checkpoint belongs to one running query.
do: Clear the task.
never: Start the job beside it.

J11 The job makes no progress
means: It has failed, or its query has not asked the brokers since the roll. A living application proves nothing.
meanwhile: Yes, for the cluster. The job's readers wait.
do: Check Spark's page and the job's log.
do: The query failed or hangs: fix it, start the job again, clear the task.
do: Its topics have no new records: only a job under `spark_hold.keep_running` can show progress. Mark the task as success.
never: Roll on before you know. Delete its checkpoint.

J12 The job continued from another position
means: It runs from other offsets than it had stopped at: records were skipped or are done again.
meanwhile: **Not for the job's output.**
do: Stop the job. Compare its checkpoint with the record of the hold. Repair the sink.
never: Let it run on.

J13 Another run holds the job
means: Only the run that holds it releases it; that run does not know of this one.
meanwhile: Yes.
do: Wait for that run, or end it: the next run takes over what an ended run holds.
never: Remove the marker of another run's hold.

J14 The job reads on after its hold command
means: The command said that the job has stopped, and its committed offsets moved after that. It was released again.
meanwhile: Yes. It continues reading.
do: Run the command by hand, and see what still reads: `kafka-consumer-groups.sh --bootstrap-server $B --describe --group G`.
do: It ends with 0 before the job has stopped: let it wait. The job commits less often than `quiet`: raise `quiet`.
never: Roll as if it were held.

J20 Options that hurt the job in a roll
means: It skips truncated records silently, gives up early, learns of partitions late, or shares a group with another job.
meanwhile: Yes, until the rolls begin.
do: Take the named options out for the time of the migration. Add no partitions meanwhile.
do: Give each query its own `kafka.group.id`, or none.
do: Or hold the job: `hold: always`.
never: Set `failOnDataLoss=false`, or lower limits further, during a migration.
source: measured

J22 A receiver that coordinates in ZooKeeper
means: The job is a ZooKeeper consumer: when the last broker leaves ZooKeeper mode its partitions stop (measured).
meanwhile: Yes, until the second roll ends.
do: Rewrite it with Structured Streaming, from the offsets in ZooKeeper, before the second roll.
never: Roll the last broker while it runs.
source: measured

J24 The job may lose a leader
means: A topic has one replica, or its topics are not known. Without a leader the job may fail. It blocks if the job may never be held.
meanwhile: Yes, until the rolls begin.
do: List its topics under `spark_jobs` in the cluster file. May kmigrate's user describe them?
do: Raise the replication factor, or let the job be held: `hold: risky`, under `spark_hold.keep_running`.
never: Set `hold: never` for such a job.
source: measured
""")
