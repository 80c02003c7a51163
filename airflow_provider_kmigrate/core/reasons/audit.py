"""Entries of the audit: what happened to records, logs and groups, and whether the evidence is complete."""

from __future__ import annotations

from airflow_provider_kmigrate.core.reasons.entry import read

AREAS, ENTRIES = read("""
A The audit
about: the audit: what happened to records and groups
when: after a step, or during one
intro: The sentence is about the past: the cluster may be healthy now. A finding that begins with *Before the step began* fails nothing: the step did not cause it. Each finding lists its first cases: topic, partition, offsets, members, times. Keep the event files; they are the proof.

A01 Acknowledged records were lost or replaced
means: Kafka confirmed these records to their producer. They are no longer in the log, another record has their offset, or a group skipped them.
meanwhile: Unknown: it serves, but more records may be lost.
do: Pause the DAG.
do: Read one case: `kafka-console-consumer.sh --bootstrap-server $B --topic T --partition P --offset N --max-messages 1`.
do: The record is there: the group skipped it. Set the group's offset back (A05).
do: It is not there, or another one is: continue with D01. Check P07 and G12.
never: Finalize, or restart another broker, before the cause is known.
causes: LOST, DIVERGED

A03 Records are in the log twice or out of order
means: A producer's retry was stored again, or a record came after a later one of its partition. Every consumer gets them like this.
meanwhile: Yes.
do: Out of order: did two members own the partition then? See A08.
do: Check the producer: `enable.idempotence=true`? Was it restarted at that time? Without idempotence, more than one request in flight reorders records.
do: Inform the owner. If it was idempotent all the time: keep logs and events, and report it.
never: Delete records to remove the copies: `kafka-delete-records.sh` also removes everything before them.
causes: STORED_TWICE, REORDERED

A05 A group lost its place
means: A group committed beyond records that it did not receive, or its committed offset was removed or raised. At its next start it skips these records, or reads everything again.
meanwhile: Only as long as the group is not restarted.
do: Did the owner reset or delete the group, or did its offsets expire? Then check only what was skipped.
do: Otherwise compare: `kafka-consumer-groups.sh --bootstrap-server $B --describe --group G`.
do: Stop the group and set it to the offset of the first case: `kafka-consumer-groups.sh --bootstrap-server $B --group G --reset-offsets --topic T:P --to-offset N --execute`. Start it.
never: Restart the group first.
causes: COMMIT_GAP, COMMIT_REMOVED

A06 Records were delivered again
means: A group received records that it had received before, as after a member that was killed before it committed. Work that is not idempotent was done twice.
meanwhile: Yes.
do: Compare the times with restarts of the members.
do: Few records when a member restarted: normal. Mark the `verdict` task as success; the next gate checks only what comes after its own step began.
do: Many, when a broker restarted: check the group's commits (`kafka-consumer-groups.sh --bootstrap-server $B --describe --group G`) and inform its owner.
do: A scheduled audit repeats it until `baseline_time` in `audit` is later. Clients that are killed on purpose: `allow: [redelivered]`.
never: Reset offsets before the owner is informed.
causes: REDELIVERED

A08 Two members worked on one partition
means: Two members of a group owned the partition at the same time, or one received records of a partition that it did not own.
meanwhile: Unknown: if it continues, both process the same records.
do: `kafka-consumer-groups.sh --bootstrap-server $B --describe --group G --members`, against more than one broker.
do: Brokers name different coordinators: see K01.
do: Stop one of the two members. Check the group's rebalances at that time.
do: Does the member report when it gets and gives up partitions? If not, the events are wrong, not the group.
never: Restart brokers because of it.
causes: DOUBLE_OWNED, NOT_OWNED

A10 Records waited
means: Records waited although their group existed: no member owned the partition, or no commit moved. A member may have stopped fetching and still count as stable.
meanwhile: The cluster is safe. The group falls behind; nothing is lost while the topic keeps its records.
do: Run `kafka-consumer-groups.sh --bootstrap-server $B --describe --group G` twice. If the offset does not move, restart one member.
do: It moves: check the group's rebalances and the partition's leader at that time. Seconds are normal.
do: The next audit clears it once the group commits.
never: Trust the state `Stable`.
causes: UNOWNED, GROUP_STALLED

A11 A fact that fails nothing
means: The audit shows what it compared, and what it left out of the comparison.
meanwhile: Yes.
do: Nothing now. Check later if something important was left out, such as a topic that `topics` should name.
never: Read what was left out as checked, or a sample as everything.
causes: UNEVEN, OWNER_WITHOUT_EVENTS, COMPACTED, RETENTION, UNCHANGED, NOT_REQUESTED, OWNER_CHANGES, CANARY_WITHIN, LEFT_OUT, COMMITS_READ

A14 Producers gave up records
means: These records were never confirmed, so they are not lost. They may be in the log anyway. If it is the last event of a producer, nothing shows that it can write.
meanwhile: Unknown: check [section 1](#1-is-the-cluster-serving). Can producers write?
do: Fix what the error names. One confirmed record of that producer clears an INCONCLUSIVE.
do: Do producers retry longer than a broker's restart takes (`delivery.timeout.ms`)?
never: Send them again without checking whether they are in the log.
causes: SENDS_GIVEN_UP, SENDS_FAIL

A16 A client handed out records twice by itself
means: One member got the same records again in the polls that followed, in the same generation of its group. Its client library fetched them twice, as some do near a change of leaders: neither the group nor a broker delivered them again. Work that is not idempotent was done twice.
meanwhile: Yes.
do: Nothing in the migration: it fails no audit. The count is of records, apart from those of A06.
do: Inform the application's owner if its work is not idempotent. An application that seeks back looks the same.
do: It happens often without restarts of brokers: look for a newer version of the client library.
never: Reset offsets because of it.
causes: CLIENT_REPEATED
source: measured

D Logs and commits
about: logs and commits, before a step and after it
when: audit
intro: The audit compares what the logs and `__consumer_offsets` held before a step with what they hold after it. This needs no change in any client.

D01 A log is shorter or different than before
means: Records that were in the log are gone, were replaced or truncated, or its leader did not know the newest epoch. Retention does not explain it: replicas disagreed.
meanwhile: Unknown: more records may be lost.
do: Pause the DAG. Raise `retention.ms` of the topic, so that nothing else is removed.
do: Compare the replicas: `kafka-dump-log.sh --files <segment>` on each broker of the partition.
do: A replica still has the records: stop nothing, and copy its partition directory first.
do: Search the brokers' logs for `Truncating`, the controller's log for unclean elections. Check P07.
never: Restart a broker or elect a leader before: a replica that becomes a follower truncates its log too.
causes: LOG_SHRUNK, LOG_CHANGED, LOG_TRUNCATED, EPOCH_WENT_BACK

D05 Partitions are gone, or their topic was created again
means: Their records are gone with them. If it is `__consumer_offsets`, so are the commits of every group.
meanwhile: No, unless the owner deleted the topic on purpose.
do: Ask the owner. Deleted on purpose: remove the topic from `topics` in `audit`, or add it to `exclude_topics`; clear the gate. Created again: [take a new fingerprint](operators-guide.md#a-new-fingerprint).
do: Not on purpose: pause the DAG. Search the active controller's log for `DeleteTopic`.
do: A controller deleted it because of an old `/migration` (P06): stop all KRaft controllers at once. Brokers keep the logs for a while, in directories that may end in `-stray` or `-delete`.
do: `__consumer_offsets`: start no consumer; restore the offsets from the backup (K30).
never: Create the topic again: it gets a new id, and the old files are dropped. Delete `-stray` directories.
causes: PARTITIONS_GONE, TOPIC_RECREATED

D11 Commits went back
means: A group committed a lower offset than before, and receives those records again. A reset by hand, two owners, or a retried commit that arrived late look like this.
meanwhile: Yes; the group repeats work.
do: Was the group reset on purpose? [Take a new fingerprint](operators-guide.md#a-new-fingerprint), or every later gate repeats this.
do: Does it always start from the beginning? Name it under `resetting_groups` in `audit`, and clear the gate.
do: Otherwise: which members committed, and do brokers name different coordinators (K01)?
do: A late commit: the next audit settles it. On an idle partition the next member reads a few records again; if that is harmless, mark the `verdict` task as success.
never: Raise offsets before it is known which one is right.
causes: COMMIT_WENT_BACK, COMMIT_LATE

D17 Records were removed for an unknown reason
means: A log begins later than its retention explains, or `cleanup.policy` was changed meanwhile. The topic's settings may have been lost; then the brokers' defaults remove records.
meanwhile: No, unless the owner changed it on purpose: more records may be removed.
do: `kafka-configs.sh --bootstrap-server $B --describe --entity-type topics --entity-name T --all`: are `retention.ms`, `retention.bytes` and `cleanup.policy` right?
do: If not, set them at once.
do: Changed or deleted on purpose: [take a new fingerprint](operators-guide.md#a-new-fingerprint).
never: Wait: removed records do not come back.
causes: START_UNEXPLAINED, POLICY_CHANGED

D21 Commits of a group are in two partitions of __consumer_offsets
means: Brokers used two counts of this topic (K01), or it was expanded. A broker restart or a leader change can bring an old offset back, or lose one: records are read again, or skipped.
meanwhile: **Only as long as no broker restarts and no leader moves.**
do: Restart no broker. If two coordinators commit for a group, or its only commit is misplaced, stop its consumers now.
do: Do all brokers use the topic's count? If not, see K01.
do: Then run the DAG `kmigrate_offsets_repair__<cluster>`: [repair](operators-guide.md#repair-__consumer_offsets).
do: Audit again.
never: Take the larger offset. Delete records by hand.
source: measured
causes: COORDINATORS_SPLIT, OFFSETS_REVIVED, COMMITS_MISPLACED, COPIES_LEFT

L Evidence
about: is the evidence complete
when: audit
intro: A record that no client reported is not a record that was lost. So each of these makes a verdict INCONCLUSIVE at best, and says nothing about the cluster.

L04 A client's events are incomplete
means: What this client did and did not write down is unknown. It counts neither as lost nor as delivered.
meanwhile: Yes.
do: The text names the writer and the first gap. Was its disk full, its file cut, moved or rotated, or did the process end hard?
do: Find the missing file and put it back beside the others (`ownership.jsonl` too). A writer without a file: was it started, and with the folder that the audit reads?
do: Two processes under one name: give each its own name.
do: Gone for good: [start the events again](operators-guide.md#new-events). Otherwise clear the audit after some time with all clients running.
never: Edit, join, renumber or delete event files, or leave the client out of the audit.
causes: BAD_LINES, WRITER_ABSENT, NO_START, NUMBERS_MISSING, RECORD_INCOMPLETE, NUMBER_REUSED, COUNT_GAP, MALFORMED, MEMBER_EVENTS_LOST

L05 A client was killed, or shows no sign of life
means: It wrote no stop, and no event for longer than `max_lag`; a client that runs writes one every few seconds. Its last acts may be missing.
meanwhile: Yes.
do: Does it hang, or did its machine sleep or its clock change? Restart it with SIGTERM and clear the audit.
do: It was killed in this step: start it again. If the verdict reports nothing else, mark the `verdict` task as success; the next gate counts it as old.
do: Leave its files in place.
never: End audited clients with SIGKILL.
causes: NO_STOP

L11 Not settled yet
means: A group has not received everything, its newest events were not read, or the canary's window is not over. Loss is not proven.
meanwhile: Yes.
do: Wait: the audit runs again by itself.
do: It stays: does the group reach the end of its logs? Check its lag (A10).
do: To stop clients: producers first; consumers once they have read everything.
never: Call it a loss, or none, before the next audit. Shorten the window.
causes: NOT_DELIVERED_YET, IN_UNREAD_EVENTS, WINDOW_OPEN

L12 Offsets that were not delivered
means: These are markers of transactions, aborted or compacted records; or records that the group skipped. The events do not show which.
meanwhile: Yes.
do: Read the offsets of the first cases: `kafka-console-consumer.sh --bootstrap-server $B --topic T --partition P --offset N --max-messages 1 --isolation-level read_committed`. A record with an offset inside the gap was skipped (A01).
do: Better evidence: wrap the topic's producers, audit a topic that is not compacted, start a VerifiableConsumer with `--verbose`.
never: Take a gap for a loss, or for none. Change the topic's cleanup policy for it.
causes: GAPS_UNCLEAR, MAYBE_COMPACTED, SKIPPED

L14 No evidence for this step
means: Nothing was written or delivered since the step began that the audit can use. Older evidence, or that of other groups or partitions, shows nothing about the step.
meanwhile: Unknown: check [section 1](#1-is-the-cluster-serving). Can producers write, and do groups read?
do: Do producers and consumers run, and write events to the folder that the audit reads? For logs: are records kept for longer than from one audit to the next?
do: A topic without traffic needs one record. The audit then runs again by itself, or clear it.
do: Level L1, or no audited clients: it is kmigrate's own probe, see Y05.
do: Logs: retention removed everything that was compared, or `topics` names only compacted or empty topics. [Take a new fingerprint](operators-guide.md#a-new-fingerprint).
do: No wrapped producer: remove `events` from `audit`; the probe and the logs remain.
never: Read it as a pass, or mark the verdict as success because older evidence was fine.
causes: NOTHING_TO_COMPARE, NOTHING_ACKED, NO_GROUP, NO_EVIDENCE, LEVEL_UNMEASURED, SESSION_SILENT

L15 A client's clock is ahead
means: It wrote events with times in the future. With such a clock a dead client looks alive, and nothing can be ordered by time.
meanwhile: Yes.
do: Compare the clocks of the client's machine and of Spark's driver with NTP, and set them.
do: Restart the client. Clear the audit.
never: Raise `skew_ms` to hours.
causes: CLOCK_AHEAD

V Canaries
about: canaries: a broker, an instance of a group
when: audit, rolls, consumers
intro: The first broker of a roll and the first instance of a group are compared with the others before the next one follows.

V11 The canary cannot be compared
means: There are too few members, values or records, or the window cannot distinguish chance from a slower canary. The text says which.
meanwhile: Yes: no other instance is switched, none is rolled back.
do: Keep at least three members on the old client, with audit events, in a time with traffic.
do: Not observed before its switch: wrap the application before the move (`audited_of`), with a `consumer.id` or `client.id` that begins with the instance's name.
do: Use a longer `audit.canary.window` or more instances, or decide by the figures in the text. Without `audit.canary` the other checks remain.
never: Repeat it until it passes. Restart the canary to get a second observation: it would be compared with itself.
causes: FEW_MEMBERS, NO_TRAFFIC, FEW_VALUES, CANARY_UNCLEAR, CANARY_UNSEEN

V17 The canary is worse than the others
means: Its records come later than those of the other members, by more than chance explains, or it receives none while others do.
meanwhile: Yes; its partitions wait.
do: `kafka-consumer-groups.sh --bootstrap-server $B --describe --group G --members`: does it own partitions, and do their offsets move? Restart a member that does not move.
do: It is late: stop it or roll it back.
never: Switch more members before.
causes: CANARY_IDLE, CANARY_WORSE

V23 The first broker of a pass is worse in its new mode
means: Since its restart it answers late, does not answer, or leaves its ISRs, compared with before and with the other brokers.
meanwhile: Clients of its partitions wait as long. It is rolled back by itself (V26), or could not be (V27).
do: Late: its garbage collector's log and heap, its disks, what else runs on its machine, its own log since the restart.
do: No answer: pauses and restarts in its log, `Out of memory` in the kernel's log, the network to Airflow's worker.
do: Out of ISRs: `replica.lag.time.max.ms`, disks, network, a quota or a throttle (B14).
never: Set `policy.canary_bake` to 0, or lower `min.insync.replicas`, to get past it.

V26 The first broker of a pass was rolled back
means: It was worse in its new mode and runs as before its restart. No other broker was touched. Its id is in `/_kmigrate/rolled-back`.
meanwhile: Yes, the cluster is as before this roll.
do: Find the cause first: its log, and the figures of V23. A cold machine is a cause too.
do: Clear its task: it is rolled and observed again. Or start `kmigrate_rollback__<cluster>`.
never: Mark its task as success: the next broker would be the first one.

V27 The first broker of a pass could not be rolled back
means: It is worse in its new mode; what prevents the rollback is named beside this code. No other broker is rolled.
meanwhile: Yes, but that broker stays slow.
do: Fix what is named beside it (its own entry). In the middle of a restart: its log says why it does not come up (R01).
do: Clear the task: the broker is judged again.
never: Install its old file by hand.

V30 A group or a switched instance is not healthy
means: Records wait without commits, the instance is away or restarts again and again, or members come and go.
meanwhile: Records wait; none is lost while the topics keep them. A canary is rolled back by itself.
do: Read the logs of the members in the text: what ends them? Memory, a health check, a record that they cannot handle, `max.poll.interval.ms`.
do: `kmigrate groups scan` lists the members of the group and what is wrong.
never: Judge by owners or by a Stable group. Switch or restart others. Shorten `bake` until it passes.

X The audit's own run
about: the audit could not start or read
when: audit
intro: The audit could not start, or could not rely on what it read. The cluster is not concerned.

X02 Partitions could not be read
means: The audit reads where each log begins and ends. For these partitions, usually without a leader, it knows nothing.
meanwhile: Without a leader their producers and consumers wait: check [section 1](#1-is-the-cluster-serving).
do: Wait until each partition has a leader (G13).
do: The observation is repeated by itself; otherwise clear the failed task.
never: Start the first roll without the observation, or read it as "unchanged".
causes: LOG_UNREAD, OFFSETS_UNREAD, PARTITION_UNREAD

X03 Checkpoint and output do not match
means: The stream's checkpoint and its output folder are not of this topic, or not of each other: one is gone, or an older copy. Events would be missing or there twice.
meanwhile: Yes.
do: One of the two was restored: restore the other one of the same time.
do: Otherwise move both away together: `<result>/<cluster>/events/runs`, of scheduled audits `.../scheduled`.
do: Clear `audit`. The topic is read from its beginning, which must still be there (X12).
never: Replace only one of the two.
causes: CHECKPOINT_MISMATCH

X04 Damaged, or of another release
means: A stored fingerprint or verdict, an event or a commit has a format that this release cannot read. Without it a loss may stay hidden.
meanwhile: Yes; this step is not checked.
do: Events or a verdict: read them with the release that wrote them, or upgrade this one.
do: A fingerprint: take a new one before the next step. After the step it is too late (L14).
do: Records of `__consumer_offsets`: report which Kafka wrote them.
never: Edit the file or its version. Delete records of `__consumer_offsets`.
causes: SNAPSHOTS_DIFFER, SNAPSHOT_DAMAGED, SCHEMA_UNKNOWN, VERDICT_UNKNOWN, COMMITS_UNKNOWN

X08 A setting of the audit is wrong
means: The audit does not know this setting, topic or SASL mechanism. Nothing was audited.
meanwhile: Yes.
do: Correct `audit` in the cluster file as the text says, or the request (`audit/request.py` lists its keys).
do: A topic that does not exist: correct its name or remove it.
do: A SASL mechanism that Spark cannot use: take another one, or give Spark its own options in `audit.spark.kafka_options`.
do: Clear the failed task.
never: Take the missing verdict for a good one. Let Spark read without TLS or SASL. Create an empty topic of that name.
causes: SAMPLE_WRONG, MECHANISM_UNKNOWN, REQUEST_WRONG, TOPIC_MISSING

X12 The events topic removes its events
means: Its retention or compaction removes events before an audit has read them. What they reported is lost, at every audit.
meanwhile: Yes.
do: `kafka-configs.sh --bootstrap-server $B --alter --entity-type topics --entity-name T --add-config retention.ms=-1,retention.bytes=-1,cleanup.policy=delete`
do: Events are missing already: create a new topic with these settings, and name it as `events_topic`.
do: Move `<result>/<cluster>/events` away. Restart all producers and consumers so that they write there; clear `audit`.
never: Replace only the checkpoint. Shorten the retention before the migration is over.
causes: EVENTS_REMOVED, EVENTS_EXPIRE
""")
