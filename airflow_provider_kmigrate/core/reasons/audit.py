"""Entries of the audit: what happened to records, logs and groups, and whether the evidence is complete."""

from __future__ import annotations

from airflow_provider_kmigrate.core.reasons.causes import AuditCause
from airflow_provider_kmigrate.core.reasons.entry import Area, Entry

_NEW_BASELINE = "[take a new fingerprint](operators-guide.md#a-new-look)"
_NEW_EVENTS = "[start the events again](operators-guide.md#new-events)"

AREAS = (
    Area(
        "A",
        "The audit",
        "the audit: what happened to records and groups",
        "after a step, or during one",
        "The sentence is about the past: the cluster may be healthy now. A finding that begins with *Before the step began* fails nothing:"
        " the step did not cause it. Each finding lists its first cases: topic, partition, offsets, members, times. Keep the event files;"
        " they are the proof.",
    ),
    Area(
        "D",
        "Logs and commits",
        "logs and commits, before a step and after it",
        "audit",
        "The audit compares what the logs and `__consumer_offsets` held before a step with what they hold after it. This needs no change"
        " in any client.",
    ),
    Area(
        "L",
        "Evidence",
        "is the evidence complete",
        "audit",
        "A record that no client reported is not a record that was lost. So each of these makes a verdict INCONCLUSIVE at best, and says"
        " nothing about the cluster.",
    ),
    Area(
        "V",
        "Canaries",
        "canaries: a broker, an instance of a group",
        "audit, rolls, consumers",
        "The first broker of a roll and the first instance of a group are compared with the others before the next one follows.",
    ),
    Area(
        "X",
        "The audit's own run",
        "the audit could not start or read",
        "audit",
        "The audit could not start, or could not rely on what it read. The cluster is not concerned.",
    ),
)

ENTRIES = (
    Entry(
        "A01",
        "Acknowledged records were lost or replaced",
        "Kafka confirmed these records to their producer. They are no longer in the log, another record has their offset, or a group"
        " skipped them.",
        False,
        "Unknown: it serves, but more records may be lost.",
        (
            "Pause the DAG.",
            "Read one case: `kafka-console-consumer.sh --bootstrap-server $B --topic T --partition P --offset N --max-messages 1`.",
            "The record is there: the group skipped it. Set the group's offset back (A05).",
            "It is not there, or another one is: continue with D01. Check P07 and G12.",
        ),
        "Finalize, or restart another broker, before the cause is known.",
        causes=(AuditCause.LOST, AuditCause.DIVERGED),
    ),
    Entry(
        "A03",
        "Records are in the log twice or out of order",
        "A producer's retry was stored again, or a record came after a later one of its partition. Every consumer gets them like this.",
        True,
        "Yes.",
        (
            "Out of order: did two members own the partition then? See A08.",
            (
                "Check the producer: `enable.idempotence=true`? Was it restarted at that time? Without idempotence, more than one request in flight"
                " reorders records."
            ),
            "Inform the owner. If it was idempotent all the time: keep logs and events, and report it.",
        ),
        "Delete records to remove the copies: `kafka-delete-records.sh` also removes everything before them.",
        causes=(AuditCause.STORED_TWICE, AuditCause.REORDERED),
    ),
    Entry(
        "A05",
        "A group lost its place",
        "A group committed beyond records that it did not receive, or its committed offset was removed or set forward. At its next start"
        " it skips these records, or reads everything again.",
        True,
        "Only as long as the group is not restarted.",
        (
            "Did the owner reset or delete the group, or did its offsets expire? Then check only what was skipped.",
            "Otherwise compare: `kafka-consumer-groups.sh --bootstrap-server $B --describe --group G`.",
            (
                "Stop the group and set it to the offset of the first case: `kafka-consumer-groups.sh --bootstrap-server $B --group G"
                " --reset-offsets --topic T:P --to-offset N --execute`. Start it."
            ),
        ),
        "Restart the group first.",
        causes=(AuditCause.COMMIT_GAP, AuditCause.COMMIT_REMOVED),
    ),
    Entry(
        "A06",
        "Records were delivered again",
        "A group received records that it had received before, as after a member that was killed before it committed. Work that is not"
        " idempotent was done twice.",
        True,
        "Yes.",
        (
            "Compare the times with restarts of the members.",
            (
                "Few records when a member restarted: normal. Mark the `verdict` task as success; the next gate checks only what comes after its"
                " own step began."
            ),
            (
                "Many, when a broker restarted: check the group's commits (`kafka-consumer-groups.sh --bootstrap-server $B --describe --group G`)"
                " and inform its owner."
            ),
            (
                "A scheduled audit repeats it until `judged_from` in `audit` is later. Clients that are killed on purpose:"
                " `tolerated: [redelivered]`."
            ),
        ),
        "Reset offsets before the owner is informed.",
        causes=(AuditCause.REDELIVERED,),
    ),
    Entry(
        "A08",
        "Two members worked on one partition",
        "Two members of a group owned the partition at the same time, or one received records of a partition that it did not own.",
        False,
        "Unknown: if it continues, both process the same records.",
        (
            "`kafka-consumer-groups.sh --bootstrap-server $B --describe --group G --members`, against more than one broker.",
            "Brokers name different coordinators: see K01.",
            "Stop one of the two members. Check the group's rebalances at that time.",
            "Does the member report when it gets and gives up partitions? If not, the events are wrong, not the group.",
        ),
        "Restart brokers because of it.",
        causes=(AuditCause.DOUBLE_OWNED, AuditCause.NOT_OWNED),
    ),
    Entry(
        "A10",
        "Records waited",
        "Records waited although their group existed: no member owned the partition, nothing was delivered, or no commit moved. A member"
        " may have stopped fetching and still count as stable.",
        True,
        "The cluster is safe. The group falls behind; nothing is lost while the topic keeps its records.",
        (
            "Run `kafka-consumer-groups.sh --bootstrap-server $B --describe --group G` twice. If the offset does not move, restart one member.",
            "It moves: check the group's rebalances and the partition's leader at that time. Seconds are normal.",
            "The next audit clears it once the group commits.",
        ),
        "Trust the state `Stable`. Raise the limit to get a PASS.",
        causes=(AuditCause.UNOWNED, AuditCause.WAITED, AuditCause.GROUP_STALLED),
    ),
    Entry(
        "A11",
        "A fact that fails nothing",
        "The audit shows what it compared, and what it left out of the comparison.",
        True,
        "Yes.",
        ("Nothing now. Check later if something important was left out, such as a topic that `topics` should name.",),
        "Read what was left out as checked, or a sample as everything.",
        causes=(
            AuditCause.UNEVEN,
            AuditCause.OWNER_WITHOUT_EVENTS,
            AuditCause.COMPACTED,
            AuditCause.RETENTION,
            AuditCause.UNCHANGED,
            AuditCause.NOT_REQUESTED,
            AuditCause.OWNER_CHANGES,
            AuditCause.CANARY_WITHIN,
            AuditCause.LEFT_OUT,
        ),
    ),
    Entry(
        "A14",
        "Producers gave up records",
        "These records were never confirmed, so they are not lost. They may be in the log all the same. If it is the last event of a"
        " producer, nothing shows that it can write.",
        True,
        "Check [section 1](#1-is-the-cluster-serving): can producers write?",
        (
            "Fix what the error names. One confirmed record of that producer clears an INCONCLUSIVE.",
            "Do producers retry longer than a broker's restart takes (`delivery.timeout.ms`)?",
        ),
        "Send them again without checking whether they are in the log.",
        causes=(AuditCause.SENDS_GIVEN_UP, AuditCause.SENDS_FAIL),
    ),
    Entry(
        "D01",
        "A log is shorter or different than before",
        "Records that were in the log are gone, were replaced or truncated, or its leader did not know the newest epoch. Retention does"
        " not explain it: replicas disagreed.",
        False,
        "Unknown: more records may be lost.",
        (
            "Pause the DAG. Raise `retention.ms` of the topic, so that nothing else is removed.",
            "Compare the replicas: `kafka-dump-log.sh --files <segment>` on each broker of the partition.",
            "A replica still has the records: stop nothing, and copy its partition directory first.",
            "Search the brokers' logs for `Truncating`, the controller's log for unclean elections. Check P07.",
        ),
        "Restart a broker or elect a leader before: a replica that becomes a follower truncates its log too.",
        causes=(AuditCause.LOG_SHRUNK, AuditCause.LOG_CHANGED, AuditCause.LOG_TRUNCATED, AuditCause.EPOCH_WENT_BACK),
    ),
    Entry(
        "D05",
        "Partitions are gone, or their topic was created again",
        "Their records are gone with them. If it is `__consumer_offsets`, so are the commits of every group.",
        False,
        "No, unless the owner deleted the topic on purpose.",
        (
            (
                "Ask the owner. Deleted on purpose: remove the topic from `topics` in `audit`, or add it to `ignored`; clear the gate. Created"
                f" again: {_NEW_BASELINE}."
            ),
            "Not on purpose: pause the DAG. Search the active controller's log for `DeleteTopic`.",
            (
                "A controller deleted it because of an old `/migration` (P06): stop all KRaft controllers at once. Brokers keep the logs for a"
                " while, in directories that may end in `-stray` or `-delete`."
            ),
            "`__consumer_offsets`: start no consumer; restore the offsets from the backup (K30).",
        ),
        "Create the topic again: it gets a new id, and the old files are dropped. Delete `-stray` directories.",
        causes=(AuditCause.PARTITIONS_GONE, AuditCause.TOPIC_RECREATED),
    ),
    Entry(
        "D11",
        "Commits went back",
        "A group committed a lower offset than before, and receives those records again. A reset by hand, two owners, or a retried commit"
        " that arrived late look like this.",
        True,
        "Yes; the group repeats work.",
        (
            "Was the group reset on purpose? " + _NEW_BASELINE.capitalize() + ", or every later gate repeats this.",
            "Does it always start from the beginning? Name it under `rewinding` in `audit`, and clear the gate.",
            "Otherwise: which members committed, and do brokers name different coordinators (K01)?",
            (
                "A late commit: the next audit settles it. On an idle partition the next member reads a few records again; if that is harmless,"
                " mark the `verdict` task as success."
            ),
        ),
        "Set offsets forward before it is known which one is right.",
        causes=(AuditCause.COMMIT_WENT_BACK, AuditCause.COMMIT_LATE),
    ),
    Entry(
        "D17",
        "Records were removed for an unknown reason",
        "A log begins later than its retention explains, or `cleanup.policy` was changed meanwhile. The topic's settings may have been lost;"
        " then the brokers' defaults remove records.",
        False,
        "No, unless the owner changed it on purpose: more records may be removed.",
        (
            (
                "`kafka-configs.sh --bootstrap-server $B --describe --entity-type topics --entity-name T --all`: are `retention.ms`,"
                " `retention.bytes` and `cleanup.policy` right?"
            ),
            "If not, set them at once.",
            f"Changed or deleted on purpose: {_NEW_BASELINE}.",
        ),
        "Wait: removed records do not come back.",
        causes=(AuditCause.START_UNEXPLAINED, AuditCause.POLICY_CHANGED),
    ),
    Entry(
        "L04",
        "A client's events are incomplete",
        "What this client did and did not write down is unknown. It counts neither as lost nor as delivered.",
        True,
        "Yes.",
        (
            "The text names the writer and the first gap. Was its disk full, its file cut, moved or rotated, or did the process end hard?",
            (
                "Find the missing file and put it back beside the others (`ownership.jsonl` too). A writer without a file: was it started, and with"
                " the folder that the audit reads?"
            ),
            "Two processes under one name: give each its own name.",
            f"Gone for good: {_NEW_EVENTS}. Otherwise clear the audit after some time with all clients running.",
        ),
        "Edit, join, renumber or delete event files, or leave the client out of the audit.",
        causes=(
            AuditCause.BAD_LINES,
            AuditCause.WRITER_ABSENT,
            AuditCause.NO_START,
            AuditCause.NUMBERS_MISSING,
            AuditCause.RECORD_INCOMPLETE,
            AuditCause.NUMBER_REUSED,
            AuditCause.COUNT_GAP,
            AuditCause.EVENTS_LOST,
            AuditCause.RANGE_UNKNOWN,
            AuditCause.MALFORMED,
            AuditCause.MEMBER_EVENTS_LOST,
        ),
    ),
    Entry(
        "L05",
        "A client was killed, or shows no sign of life",
        "It wrote no stop, and no event for longer than `behind`; a client that runs writes one every few seconds. Its last acts may be"
        " missing.",
        True,
        "Yes.",
        (
            "Does it hang, or did its machine sleep or its clock change? Restart it with SIGTERM and clear the audit.",
            (
                "It was killed in this step: start it again. If the verdict reports nothing else, mark the `verdict` task as success; the next gate"
                " counts it as old."
            ),
            "Leave its files in place.",
        ),
        "End audited clients with SIGKILL.",
        causes=(AuditCause.NO_STOP,),
    ),
    Entry(
        "L11",
        "Not settled yet",
        "A group has not received everything, its newest events were not read, or the canary's window is not over. Loss is not proven.",
        True,
        "Yes.",
        (
            "Wait: the audit runs again by itself.",
            "It stays: does the group reach the end of its logs? Check its lag (A10).",
            "To stop clients: producers first; consumers once they have read everything.",
        ),
        "Call it a loss, or none, before the next audit. Shorten the window.",
        causes=(AuditCause.NOT_DELIVERED_YET, AuditCause.IN_UNREAD_EVENTS, AuditCause.WINDOW_OPEN),
    ),
    Entry(
        "L12",
        "Offsets that were not delivered",
        "These are markers of transactions, aborted or compacted records; or records that the group skipped. The events cannot tell which.",
        True,
        "Yes.",
        (
            (
                "Read the offsets of the first cases: `kafka-console-consumer.sh --bootstrap-server $B --topic T --partition P --offset N"
                " --max-messages 1 --isolation-level read_committed`. A record with an offset inside the gap was skipped (A01)."
            ),
            "Better evidence: wrap the topic's producers, audit a topic that is not compacted, start a VerifiableConsumer with `--verbose`.",
        ),
        "Take a gap for a loss, or for none. Change the topic's cleanup policy for it.",
        causes=(AuditCause.GAPS_UNCLEAR, AuditCause.MAYBE_COMPACTED, AuditCause.SKIPPED),
    ),
    Entry(
        "L14",
        "No evidence for this step",
        "Nothing was written or delivered since the step began that the audit can use. Older evidence, or that of other groups or"
        " partitions, shows nothing about the step.",
        True,
        "Check [section 1](#1-is-the-cluster-serving): can producers write, and do groups read?",
        (
            "Do producers and consumers run, and write events to the folder that the audit reads? For logs: are records kept for longer than from one audit to the next?",
            "A topic without traffic needs one record. The audit then runs again by itself, or clear it.",
            "Level L1, or no audited clients: it is kmigrate's own probe, see Y05.",
            f"Logs: retention removed everything that was compared, or `topics` names only compacted or empty topics. {_NEW_BASELINE.capitalize()}.",
            "No wrapped producer: remove `events` from `audit`; the probe and the logs remain.",
        ),
        "Read it as a pass, or mark the verdict as success because older evidence was fine.",
        causes=(
            AuditCause.NOTHING_TO_COMPARE,
            AuditCause.NOTHING_ACKED,
            AuditCause.NO_GROUP,
            AuditCause.NO_EVIDENCE,
            AuditCause.LEVEL_UNMEASURED,
        ),
    ),
    Entry(
        "L15",
        "A client's clock is ahead",
        "It wrote events with times in the future. With such a clock a dead client looks alive, and nothing can be ordered by time.",
        True,
        "Yes.",
        (
            "Compare the clocks of the client's machine and of Spark's driver with NTP, and set them.",
            "Restart the client. Clear the audit.",
        ),
        "Raise `skew_ms` to hours.",
        causes=(AuditCause.CLOCK_AHEAD,),
    ),
    Entry(
        "V11",
        "The canary cannot be compared",
        "There are too few members, values or records, or the window cannot distinguish chance from a slower canary. The text says which.",
        True,
        "Yes: no other instance is switched, none is rolled back.",
        (
            "Keep at least three members on the old client, with audit events, in a time with traffic.",
            (
                "Not observed before its switch: wrap the application before the move (`MigratingConsumer.audited`), with a `consumer.id` or"
                " `client.id` that begins with the instance's name."
            ),
            (
                "Use a longer `audit.canary.window` or more instances, or decide by the figures in the text. Without `audit.canary` the other"
                " checks remain."
            ),
        ),
        "Repeat it until it passes. Restart the canary to get a second observation: it would be compared with itself.",
        causes=(
            AuditCause.FEW_MEMBERS,
            AuditCause.NO_TRAFFIC,
            AuditCause.FEW_VALUES,
            AuditCause.CANARY_UNCLEAR,
            AuditCause.CANARY_UNSEEN,
        ),
    ),
    Entry(
        "V17",
        "The canary is worse than the others",
        "Its records come later than those of the other members, by more than chance explains, or it receives none while others do.",
        True,
        "Its partitions wait.",
        (
            (
                "`kafka-consumer-groups.sh --bootstrap-server $B --describe --group G --members`: does it own partitions, and do their offsets move?"
                " Restart a member that does not move."
            ),
            "It is late: stop it or roll it back.",
        ),
        "Switch more members before.",
        causes=(AuditCause.CANARY_IDLE, AuditCause.CANARY_WORSE),
    ),
    Entry(
        "V23",
        "The first broker of a pass is worse in its new mode",
        "Since its restart it answers late, does not answer, or leaves its ISRs, compared with before and with the other brokers.",
        True,
        "Clients of its partitions wait as long. It is rolled back by itself (V26), or could not be (V27).",
        (
            "Late: its garbage collector's log and heap, its disks, what else runs on its machine, its own log since the restart.",
            "No answer: pauses and restarts in its log, `Out of memory` in the kernel's log, the network to Airflow's worker.",
            "Out of ISRs: `replica.lag.time.max.ms`, disks, network, a quota or a throttle (B14).",
        ),
        "Set `policy.canary_bake` to 0, or lower `min.insync.replicas`, to get past it.",
    ),
    Entry(
        "V26",
        "The first broker of a pass was rolled back",
        "It was worse in its new mode and runs as before its restart. No other broker was touched. Its id is in `/_kmigrate/taken-back`.",
        True,
        "Yes, the cluster is as before this roll.",
        (
            "Find the cause first: its log, and the figures of V23. A cold machine is a cause too.",
            "Clear its task: it is rolled and observed again. Or start `kmigrate_rollback__<cluster>`.",
        ),
        "Mark its task as success: the next broker would be the first one.",
    ),
    Entry(
        "V27",
        "The first broker of a pass could not be rolled back",
        "It is worse in its new mode; what prevents the rollback stands beside this code. No other broker is rolled.",
        True,
        "As safe as a slow broker is.",
        (
            "Fix what stands beside it (its own entry). In the middle of a restart: its log says why it does not come up (R01).",
            "Clear the task: the broker is judged again.",
        ),
        "Install its old file by hand.",
    ),
    Entry(
        "V30",
        "A group or a switched instance is not healthy",
        "Records wait without commits, the instance is away or restarts again and again, or members come and go.",
        True,
        "Records wait; none is lost while the topics keep them. A canary is rolled back by itself.",
        (
            "Read the logs of the members in the text: what ends them? Memory, a health check, a record that they cannot handle, `max.poll.interval.ms`.",
            "`python -m airflow_provider_kmigrate.groups scan` says who is in the group and what is wrong.",
        ),
        "Judge by owners or by a Stable group. Switch or restart others. Shorten `bake` until it passes.",
    ),
    Entry(
        "V33",
        "A canary was rolled back",
        "The group was worse for it, for the reasons beside this one. The instance runs as before; no other was switched.",
        True,
        "Yes.",
        ("Fix what the reasons name, and clear the task. A later run does not begin by itself: see K69.",),
        "Raise `commit_within` until it passes.",
    ),
    Entry(
        "X02",
        "Partitions could not be read",
        "The audit reads where each log begins and ends. For these partitions, usually without a leader, it knows nothing.",
        True,
        "Without a leader their producers and consumers wait: check [section 1](#1-is-the-cluster-serving).",
        (
            "Wait until each partition has a leader (G13).",
            "The observation is repeated by itself; otherwise clear the failed task.",
        ),
        'Start the first roll without the observation, or read it as "unchanged".',
        causes=(AuditCause.LOG_UNREAD, AuditCause.OFFSETS_UNREAD, AuditCause.PARTITION_UNREAD),
    ),
    Entry(
        "X03",
        "Checkpoint and output do not match",
        "The stream's checkpoint and its output folder are not of this topic, or not of each other: one is gone, or an older copy. Events"
        " would be missing or there twice.",
        True,
        "Yes.",
        (
            "One of the two was restored: restore the other one of the same time.",
            "Otherwise move both away together: `<result>/<cluster>/events/runs`, of scheduled audits `.../scheduled`.",
            "Clear `audit`. The topic is read from its beginning, which must still be there (X12).",
        ),
        "Replace only one of the two.",
        causes=(AuditCause.CHECKPOINT_MISMATCH,),
    ),
    Entry(
        "X04",
        "Damaged, or of another release",
        "A stored fingerprint or verdict, an event or a commit has a format that this release cannot read. Without it a loss may stay hidden.",
        True,
        "Yes; this step is not checked.",
        (
            "Events or a verdict: read them with the release that wrote them, or upgrade this one.",
            "A fingerprint: take a new one before the next step. After the step it is too late (L14).",
            "Records of `__consumer_offsets`: report which Kafka wrote them.",
        ),
        "Edit the file or its version. Delete records of `__consumer_offsets`.",
        causes=(
            AuditCause.SNAPSHOTS_DIFFER,
            AuditCause.SNAPSHOT_DAMAGED,
            AuditCause.SCHEMA_UNKNOWN,
            AuditCause.VERDICT_UNKNOWN,
            AuditCause.COMMITS_UNKNOWN,
        ),
    ),
    Entry(
        "X06",
        "Spark lacks Java or its Kafka jars",
        "Spark runs on Java, and reads Kafka with its connector's jars.",
        True,
        "Yes.",
        (
            "Java: install a Java 17 runtime on the machine that runs the audit, or set `JAVA_HOME`.",
            (
                "Jars: `python -m airflow_provider_kmigrate.audit.connector` fetches them with Maven (Debian, Ubuntu: `apt-get install maven`) and"
                " prints their paths; or name your own."
            ),
        ),
        "Mix versions of connector and Spark.",
        causes=(AuditCause.JARS_MISSING, AuditCause.JAVA_MISSING),
    ),
    Entry(
        "X08",
        "A setting of the audit is wrong",
        "The audit does not know this setting, topic or SASL mechanism. Nothing was audited.",
        True,
        "Yes.",
        (
            "Correct `audit` in the cluster file as the text says, or the request (`audit/request.py` lists its keys).",
            "A topic that does not exist: correct its name or remove it.",
            "A SASL mechanism that Spark cannot use: take another one, or give Spark its own options.",
            "Clear the failed task.",
        ),
        "Take the missing verdict for a good one. Let Spark read without TLS or SASL. Create an empty topic of that name.",
        causes=(
            AuditCause.SAMPLE_WRONG,
            AuditCause.MECHANISM_UNKNOWN,
            AuditCause.REQUEST_WRONG,
            AuditCause.TOPIC_MISSING,
        ),
    ),
    Entry(
        "X12",
        "The events topic removes its events",
        "Its retention or compaction removes events before an audit has read them. What they reported is lost, at every audit.",
        True,
        "Yes.",
        (
            (
                "`kafka-configs.sh --bootstrap-server $B --alter --entity-type topics --entity-name T --add-config"
                " retention.ms=-1,retention.bytes=-1,cleanup.policy=delete`"
            ),
            "Events are missing already: create a new topic with these settings, and name it as `events_topic`.",
            "Move `<result>/<cluster>/events` away. Restart all producers and consumers so that they write there; clear `audit`.",
        ),
        "Replace only the checkpoint. Shorten the retention before the migration is over.",
        causes=(AuditCause.EVENTS_REMOVED, AuditCause.EVENTS_EXPIRE),
    ),
)
