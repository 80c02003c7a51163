"""Entries of the migration and the rollback as a whole: gates, phases, who owns the cluster, the comparison of both stores."""

from __future__ import annotations

from airflow_provider_kmigrate.core.reasons.entry import read

AREAS, ENTRIES = read("""
E ZooKeeper and KRaft compared
about: ZooKeeper and KRaft compared
when: in dual-write
intro: In dual-write both sides must store the same metadata. A difference that two comparisons in a row show does not go away by itself: the
intro: dual-write never repeats a write that it lost. In `soak` such a difference ends the run; the cluster stays in dual-write. If ZooKeeper
intro: only misses topics or leaders, the soak itself makes another controller lead, up to three times.
intro:
intro: **The remedy is the same for every kind:** a new active controller writes all metadata to ZooKeeper again.
intro:
intro: 1. Find the active controller: `kafka-metadata-quorum.sh --bootstrap-controller $C describe --status` (`LeaderId`).
intro: 2. Check that every controller's file has `zookeeper.metadata.migration.enable=true` ([G05](#g05)).
intro: 3. Restart the active controller with your own service command. If partitions have leader -1 in ZooKeeper, do not: clear `copy`, `soak`
intro:    or `controller_failover.failover` instead. kmigrate completes half-written topics first ([G07](#g07)).
intro: 4. Wait until G07 is gone. Clear the task; both sides are compared again.

E01 Topics only in ZooKeeper
means: ZooKeeper has topics that KRaft does not have.
meanwhile: Yes. If the topic is in use, its partitions may be lost: see D05 at once.
do: Was the topic deleted just now? Then wait a minute.
do: Ask the owner whether the topic is still needed.
do: Not needed: make another controller lead (see the remedy above). It removes the topic from ZooKeeper.
never: Finalize while a topic in use is in ZooKeeper only.

E02 ZooKeeper misses or contradicts what KRaft has
means: A write to ZooKeeper was lost or is on its way. A rollback now would lose it, or bring back the old value.
meanwhile: Yes. Clients see what KRaft has.
do: Wait a minute: a change made just now is copied by itself.
do: Stop what keeps changing it: a reassignment (`kafka-reassign-partitions.sh --bootstrap-server $B --list`), elections, a broker that comes and goes.
do: It stays: make another controller lead (see the remedy above).
never: Write the topic, id, partition, credential or producer id block into ZooKeeper by hand.

E08 Settings, quotas, access rules or tokens differ
means: A dynamic broker setting, a quota, an ACL or a delegation token is not the same on both sides. A tool may have written to ZooKeeper directly.
meanwhile: Yes, unless the difference denies or allows a client. KRaft brokers use what KRaft has; brokers in migration mode use ZooKeeper's ACLs.
do: Was it changed just now? Then wait a minute.
do: Stop the tool that writes to ZooKeeper: `kafka-configs --zookeeper`, `kafka-acls --authorizer-properties`, CMAK. A change that is wanted: make it with `--bootstrap-server $B`.
do: Tokens only in ZooKeeper: kmigrate's user may not see them. Grant it `Describe` on delegation tokens.
do: It stays: make another controller lead (see the remedy above). That also deletes a quota that Kafka left in ZooKeeper.
never: Change or delete the znode by hand, remove the authorizer, or delete tokens.
source: measured

G Gates
about: gates before and between steps
when: all the way
intro: Conditions before and between steps. *Not yet* is a wait. *Never* is a refusal: an operator must remove the cause. Each gate prevents a failure that was observed on real brokers.

G00 A condition could not be checked
means: Something that this step needs was not read. Unknown is not healthy.
meanwhile: kmigrate changes nothing. Check [section 1](#1-is-the-cluster-serving): are clients served?
do: Find the U code in the same log: it names what did not answer, and why.
do: Fix that. The step continues by itself; a task that has failed must be cleared.
do: A broker that knows no topic at all was never reached by a controller: start the controllers.
never: Restart a broker by hand, or take unknown for healthy.

G02 Partition states above the controller's epoch
means: A partition's state has a higher epoch than /controller_epoch: the ZooKeeper controller can neither move its leader nor shrink its ISR (KAFKA-20488). An earlier rollback did not raise the epoch.
meanwhile: **No.** It serves and other checks are healthy, but the next broker that fails stops all writes to its partitions (measured).
do: Stop no broker.
do: Start `kmigrate_rollback__<cluster>` ([section 11](#11-rollback)): one transaction of its plan raises /controller_epoch and has a controller elected. ZooKeeper must own the cluster; every controller of the cluster file must be stopped.
do: In a rollback that failed with this code: clear `handover.transaction` with *Downstream*.
never: Raise the epoch by hand, or while KRaft owns the cluster. Restart brokers because of it: that helps only some partitions.
source: KAFKA-20488; measured

G04 An old metadata log
means: A controller's directory has been in a quorum that is over. Started with it, the controllers take the cluster over within 5 s and delete topics created since (measured).
meanwhile: Only as long as that controller is not started.
do: A rollback is under way, or stopped after `handover`: finish it. It moves the directory away.
do: `rolled_back` failed with it: check the host (U04), then clear `wipe.controller_N` with *Downstream*.
do: Otherwise make sure that the controller is stopped.
do: On its host: `mv /var/lib/kraft /var/lib/kraft.old`. Create an empty directory with the same owner.
do: Clear the task. Keep the old directory until the migration is over.
never: Start the controller to see what is in the directory.
source: measured

G05 A controller runs without the migration flag
means: The first controller elected without `zookeeper.metadata.migration.enable=true` finalizes the migration at once, without any check (KAFKA-20960).
meanwhile: **No**, unless `finalize` is running. While it is a standby nothing has happened; any failover may elect it.
do: Type `kmigrate flag return <cluster> N --airflow-url URL`: `controllers.provision_N` restarts it with the flag, alone. In a rollback clear `controller_failover.restore_flag_N`. Or start the rollback: it does that first.
do: Good: the status shows `with the migration flag`. The run is over: start a new one of `kmigrate_zk_to_kraft__<cluster>`. It begins with the controllers.
do: The task waits with R12: see there. By hand: install its file (`kmigrate render` ([section 12](#12-a-machine-is-dead-for-good))), and restart only this one.
do: It leads, and the copy is not over: nothing is finalized, and the copy goes on once the flag is back. A copy was over: the cluster **is** finalized; continue with P02.
do: Find out what wrote its file, such as configuration management, and stop that.
never: Restart, stop or kill another controller or a broker before the flag is back: that is a failover.
source: KAFKA-20960; ActivationRecordsGenerator (3.9): only ZkMigrationState MIGRATION is finalized

G07 The dual-write lags or does not move
means: ZooKeeper does not receive what KRaft writes. What is missing there is lost by a rollback. Normal for seconds after a start or a failover.
meanwhile: Yes. KRaft serves; ZooKeeper falls behind.
do: Wait two minutes. `copy`, `soak`, the roll of a broker and a rollback's `controller_failover` restart a stalled dual-write themselves, up to three times. Good: the lag falls to 0.
do: In another task: clear `copy` or `soak` with *Downstream*.
do: Is ZooKeeper up, with a quorum? Are there client-metrics subscriptions (G09)?
do: Search the active controller's log. `BadVersion for /migration`: check every flag (G05), then restart that controller. `migration fault`: fix what it names. `Could not find partition state in ZK`: leave it to kmigrate; it needs write access below `/brokers/topics`.
do: `Completing the ZK migration` in any controller's log: the cluster is finalized; see P02.
do: A rollback from a copy that never ends: tick *Do not fail the controllers over* ([section 11](#11-rollback)).
never: Finalize meanwhile. Delete `/migration` or a topic's znodes.
source: measured

G09 Client-metrics subscriptions exist
means: At the next controller failover the dual-write to ZooKeeper stops until they are deleted.
meanwhile: Yes, until a controller fails over.
do: Note the settings: `kafka-client-metrics.sh --bootstrap-server $B --describe`.
do: Delete each: `kafka-client-metrics.sh --bootstrap-server $B --delete --name <name>`.
do: Clear the task. Create them again after the finalization.
never: Create one before the cluster is finalized.
source: measured

G12 A stop left leaders behind
means: The controller could not move the leaders of a broker that stopped slowly: its epoch is too low, or the broker is isolated from it. kmigrate started the broker again and stopped there.
meanwhile: **No.** The broker is back and every check is healthy, but the next broker that fails may stop all writes.
do: Pause the DAG.
do: Compare `zookeeper-shell.sh $ZK get /controller_epoch` with `controller_epoch` in `get /brokers/topics/<topic>/partitions/<n>/state` of the named partitions.
do: The state is higher, and ZooKeeper owns the cluster: proceed as in G02.
do: Otherwise search the brokers' logs for `already written by another controller`, and see P07.
do: Clearing the task continues without another check.
never: Stop another broker. Write `/controller_epoch` while KRaft owns the cluster.
source: measured

G13 Partitions without a leader
means: These partitions accept no write and no read.
meanwhile: **Not for these partitions.** All others are served.
do: Wait 10 s: `copy.copied` and the roll of a broker elect leaders by themselves.
do: `kafka-leader-election.sh --bootstrap-server $B --election-type preferred --all-topic-partitions`
do: Still no leader: the broker of their last ISR is down. Start it.
never: `--election-type unclean`: it discards acknowledged records.

G20 The quorum has no leader, or a controller lags
means: No controller answers as the leader, or one is more than 1,000 records behind. Another restart could cost the majority.
meanwhile: With a leader, yes. Without one, brokers serve but nothing can be created, elected or moved.
do: `kafka-metadata-quorum.sh --bootstrap-controller $C describe --status`; add `--replication` for the lags. An election takes seconds, a lag falls by itself.
do: Longer: fewer than a majority run. Start the missing controllers, each with its own directory and the flag (G05).
do: All run, and none leads: search their logs for `UnknownHostException`. A name that did not resolve when a controller started stays unresolved: before any broker has moved, restart that controller.
never: Start a controller with an empty directory to make up the number (R11).

G21 Groups still live on ZooKeeper
means: These consumers coordinate through `/consumers`. Without a ZooKeeper-mode broker they stop consuming, although their owners still look healthy (measured).
meanwhile: Before the second roll ends, yes: its last broker waits. In a soak or later the cluster is safe, but these consumers receive nothing.
do: List them: `kmigrate groups scan`.
do: Move them with the DAG `kmigrate_consumers__<cluster>` (`groups` in the cluster file), or have their owner stop them. Clear the task.
do: In a soak or later: stop these consumers, or start them as Kafka consumers.
do: If they must consume at once: install the `migration` file of one broker (`kmigrate render` ([section 12](#12-a-machine-is-dead-for-good))) and restart it with every ISR full. Move the groups. Then clear `second_roll` with *Downstream*.
never: Delete anything under `/consumers`, or forget them until the second roll.
source: measured
ask: Ask each team with Storm topologies: do its Kafka spouts keep offsets in this ensemble (`zkRoot`), or look brokers up there?

G22 Not every broker is in the mode that this step needs
means: The next act would leave these brokers behind. KRaft takes over once the last broker is in migration mode, and isolates each one in ZooKeeper mode: acknowledged records were lost (measured). One that the finalization leaves behind never comes back.
meanwhile: Yes. With one broker down, as safe as your replication.
do: Clear the task of each broker: `first_roll`, `second_roll`, or in a rollback `to_zookeeper.broker_N` with *Downstream*. A broker that is down is started, in a rollback with its original file.
do: It does not come up: read its log (R01).
do: Still under `/brokers/ids`? Its ZooKeeper session ends within 18 s.
do: A broker that is not in the cluster file: see G36.
never: Set a broker's mode by hand, finalize with it (P02), or mark `rolled_back` as success: the next migration would begin on this cluster.
source: measured

G23 A controller does not answer
means: It starts, it hangs, or it is unreachable. Its migration flag is unknown, and another restart could cost the quorum its majority.
meanwhile: Yes, while a majority of the others is up. Before the migration no controller answers: that is normal.
do: Check its process and log. Start it with its own directory and the flag in its file. kmigrate continues by itself.
do: Usual causes: a wrong `zookeeper.connect`, no identity for ZooKeeper or the brokers, a port in use. Fix it, clear the task.
do: The log ends with `KRaftMigrationDriver ... shutting down` and nothing follows for a minute: it waits forever for a closed ZooKeeper client. `kill -9` that process; the task starts it again.
do: The machine is dead for good: [section 12](#12-a-machine-is-dead-for-good).
never: Restart another controller meanwhile, or format its directory again.

G26 A controller is not stopped
means: The rollback needs every KRaft controller stopped here, also one that the cluster file does not name. A running one writes to ZooKeeper, or takes the cluster over again.
meanwhile: Before `handover.transaction` yes, but no controller may be active. After it, or while `/migration` changes: **no**, stop that controller now.
do: Find out what started it again: a service manager after a reboot, `Restart=always` of its unit, a playbook. Stop and disable it there.
do: Only its state is unknown: its agent must report that it is stopped (U04). A dead machine: [section 12](#12-a-machine-is-dead-for-good).
do: `/migration` still changes: another controller runs. Search `controller.quorum.voters` in a broker's file, hosts of earlier attempts, ZooKeeper's clients (`echo cons | nc zk1 2181`). Stop it.
do: Clear the task that failed. `handover.transaction` stops a controller that was started meanwhile by itself.
never: Delete `/controller` or `/migration`. Move a directory away while its process runs.

G27 Brokers still in KRaft mode
means: This step of the rollback needs a cluster without KRaft brokers: they know KRaft controllers only.
meanwhile: While the controllers run. Without them these brokers serve, but nothing moves.
do: Before `handover.transaction`: start a new run of the rollback once this one is over. It starts the controllers and rolls these brokers back first.
do: After it: stop each of these brokers, then clear its `to_zookeeper.broker_N` with *Downstream*. It gets its original file and is started.
never: Stop the controllers by hand under a KRaft broker.

G28 This broker knows no controller
means: A stopping broker asks its controller first. None is known to it now, so the stop would take 300 s (measured).
meanwhile: Yes: it serves. Without a controller nothing is elected.
do: Wait: after a handover it takes less than a second.
do: Longer than a minute: is ZooKeeper up (U01)? `zookeeper-shell.sh $ZK get /controller` names the controller. Read its log, and the log of a broker that names another one.
do: Beside R05: start the controllers that are down. Leaders missing at the same time: see G02.
never: Stop a broker by hand meanwhile. One that hangs ends by itself after 300 s.
source: measured

G30 The handover to ZooKeeper has not happened
means: `/controller` or `/migration` is still KRaft's. A broker in ZooKeeper mode beside a KRaft controller is isolated and loses what it acknowledges (measured).
meanwhile: Yes, nothing was done. If a KRaft controller runs: see G26.
do: Clear `handover.transaction` with *Downstream*: the steps run in their order. A task marked as success may be the cause.
never: Delete the znodes by hand.
source: measured

G32 One broker alone cannot be rolled back to ZooKeeper mode
means: The controllers own the cluster, or will as soon as a broker registers. A broker in ZooKeeper mode beside them loses what it acknowledges (measured).
meanwhile: Yes, nothing was done. The broker is as slow as it was.
do: Fix the broker where it is, and clear its task.
do: Or roll the whole cluster back: `kmigrate_rollback__<cluster>` stops the controllers first.
never: Restart it with its original file by hand.
source: measured

G33 ZooKeeper may miss what KRaft holds
means: The rollback is about to stop a controller or to hand over, and ZooKeeper is not known to hold everything. What it misses would be lost for good. The codes beside this one say what.
meanwhile: Yes; this act stopped and wrote nothing. If a majority of the controllers is stopped already, hurry: nothing can be elected.
do: Mark the run as failed and start a new run of the rollback, or clear `controller_failover` with *Downstream*: a new leader writes to ZooKeeper what is missing.
do: `controller_failover` fails: follow the codes beside it. Controllers that cannot be started: [section 11](#11-rollback).
do: With G00 beside it: start the controllers. If they are dead for good, only a run with `accept_loss` continues.
never: Stop the controllers by hand, or delete the topic that differs.

G34 Changed since the approval
means: A controller is about to lose its flag, and something that was approved has changed or could not be read again. The codes beside this one say what. With G07 alone it is normal for seconds.
meanwhile: Yes while every controller has its flag. If one misses it, any election finalizes: act now.
do: Fix what the codes beside it name. The task waits 180 s; then clear it.
do: A stalled dual-write while every controller has its flag: clear `soak` with *Downstream*; approval is asked again.
do: A stalled dual-write after one lost its flag: start the rollback ([section 11](#11-rollback)). Restart no controller by hand.
do: R12 beside it: see there first.
never: Mark the task as success: its controller keeps the flag.

G35 What the conf accepts is not valid
means: The conf has an `accept_loss` or `accept_split_groups` that is not the cluster id, or an `accept_loss` without `skip_failover`. It would have no effect, and the rollback would stop at what it accepts, perhaps hours from now.
meanwhile: Yes. Nothing was changed.
do: Start a new run with the conf that the text names, or without `accept_loss`: `controller_failover.equivalence` then names what would be lost ([section 11](#11-rollback)).
never: Accept a loss before it is named.

G36 A broker that the cluster file does not name
means: ZooKeeper or a broker lists it. kmigrate does not know its mode, has no original of its file, and cannot restart it. It keeps the copy from starting, and the takeover would isolate it: acknowledged records were lost (measured).
meanwhile: Yes: it serves. No broker is restarted while it is there, in a rollback either.
do: Stop what starts brokers, such as an autoscaler; then add this broker to the cluster file and clear `backup`, which saves its original.
do: Or decommission it: move its partitions away with `kafka-reassign-partitions.sh`, then stop it.
do: It has gone, and is still listed: its ZooKeeper session ends within 18 s. The task continues by itself.
do: It cannot be stopped, and a rollback must go on: start a new run of the rollback with *Brokers to leave as they are*. Its plan says what that costs.
never: Stop it before its partitions have moved (B4b), or let a broker of another mode join.
source: measured: half backed-out first roll

G37 A rollback from here is not assured
means: This step would move the cluster further away from ZooKeeper, and something that a rollback depends on does not hold or could not be read. The codes beside this one say what, and the text says who can fix it.
meanwhile: Yes; nothing was stopped. The cluster stays where it is.
do: Fix what the codes beside it name. A wait continues by itself; a refused task must be cleared.
do: To see the whole answer: the result of `kmigrate_watch__<cluster>`, or clear `before_approval.readiness`.
do: Do you prefer a rollback? Start it ([section 11](#11-rollback)): it has its own conditions and does not need this one.
never: Mark the task as success: its node stays in its mode, and later steps assume that it moved.

G38 Consumer groups did not continue after a restart
means: These groups committed offsets before the broker restarted. It is back, they have lag, and their offsets do not change: their clients hang, were killed, or commit rarely.
meanwhile: The cluster serves. The groups' records are late, and none is lost while the topics keep them. No other broker restarts.
do: Restart the clients that the text names, by client id and host; of a group without members, the last ones before the restart. "Unknown topic" in a client's log is a known fault of clients.
do: A librdkafka client that does not stop (its deadlock 5476): `kill -9` it.
do: It rebalances: restart members that are missing, or whose logs show no JoinGroup.
do: It stays stopped on purpose, or may be left: name it under `exclude` of `group_progress` in the cluster file. Slow clients: `max_lag`, or a longer `commit_within`.
do: The step continues by itself within minutes. A task that has failed must be cleared.
never: Mark the task as success: the next restart may stop the other clients, too.
source: measured

G39 A broker beside KRaft that the cluster file does not name
means: It joined while KRaft owns the cluster: an autoscaler or a replaced machine started it. It has no original, so no rollback can put it back on ZooKeeper, and the handover would isolate it.
meanwhile: Yes: it serves. No node is restarted while it is there, in the soak, the finalization and a rollback either.
do: Stop what starts brokers, such as an autoscaler; then move this broker's partitions away with `kafka-reassign-partitions.sh`, and stop it.
do: In a rollback: the same. The task waits, and continues by itself once no broker lists it. It cannot be stopped: start a new run with *Brokers to leave as they are*; its plan says what that costs.
do: It must stay: finish or roll back the migration first, without it.
never: Add it to the cluster file now, or continue with a rollback while it leads partitions.

G40 A controller of a finalized cluster does not answer
means: A controller without the flag leads after the copy, or every file that could be read is the one of a finalized cluster. No node needs the migration flag or ZooKeeper any more.
meanwhile: With a majority of controllers and in-sync replicas up, yes. With everything down nothing is served.
do: Start it with the file that it has: `systemctl start kafka` on its machine. Controllers first, then brokers that are down.
do: Do not find out by hand what was finalized: the last lines of the run's journal have it ([section 9](#9-where-the-evidence-is)).
do: It does not start at boot: `systemctl enable kafka` (O07).
never: Give a controller the migration flag back, or start ZooKeeper for it: a finalized quorum ignores both.
source: measured: a finalized cluster had no controller after a power cut

G41 Kafka's own gauges contradict kmigrate
means: The gauges of a controller, at `controller_metrics` of the cluster file, show another state of the migration than kmigrate observed, three times in a row. One of them is wrong.
meanwhile: Yes. Nothing is decided by these gauges: no step waits for them, and a rollback does not depend on them.
do: Ask Kafka itself: `zookeeper-shell.sh $ZK get /migration` and `kafka-metadata-quorum.sh --bootstrap-controller $C describe --status`.
do: They say what kmigrate says: the exporter's rules map another gauge to the name, or the address is another cluster's. Correct it, or take the key out of the cluster file.
do: They say what the gauges say: answer no approval. Keep the watch's log and the run's journal, and report it.
never: Finalize while the two disagree and it is not known why.
source: docs/metrics.md: the gauges' values in each phase, measured

G42 Records are acknowledged more slowly than before the first restart
means: The probe's own records, sent through every broker, wait longer for their acknowledgements than before the first restart, or fewer are acknowledged. The last broker is back in its ISRs, but the cluster has not recovered.
meanwhile: Yes, more slowly. No other broker restarts; a controller that is finalized waits 30 s at most. A rollback does not wait for it.
do: Wait while caches are cold. The step continues by itself; a task that has failed must be cleared.
do: The text names the slow partitions of `kmigrate-probe`: check disk, network and processor of their leaders and followers (`kafka-topics.sh --bootstrap-server $B --describe --topic kmigrate-probe`), and of the probe's worker.
do: The load is higher than when the run began, and stays so: mark this run as failed and start a new one. It finds what is done, and its probe measures again.
do: To continue without a probe: `probe: false` under `audit`.
never: Mark the task as success: the next restart takes capacity from a cluster that is slow already.

G43 The finalization stands half-way
means: kmigrate's own `finalize` took the flag from these controllers, and did not end. Any election may finalize now.
meanwhile: **No.** It serves, but the next failover decides whether a rollback is possible.
do: Is `finalize` running? Do nothing. Did it stop half-way? Clear its failed task, or start the rollback.
do: Which it will be is your choice as long as a controller with the flag leads (`kafka-metadata-quorum.sh --bootstrap-controller $C describe --status`). Afterwards only the first is possible.
never: Restart, stop or kill another controller or a broker meanwhile: that is a failover.
source: KAFKA-20960

G44 Controllers that never had the migration flag
means: A KRaft controller runs, and /migration does not exist: none was ever elected with the flag. Such a quorum is a new cluster of its own (ZkMigrationState NONE), and exits if it gets the flag.
meanwhile: Yes. ZooKeeper owns the cluster.
do: Stop these controllers, empty their directories (G04), and clear `preflight`.
do: `/migration` was deleted by hand while brokers are in migration or KRaft mode: get help before any controller restarts (P09).
never: Give them the flag.
source: ActivationRecordsGenerator (3.9)

G45 The cluster has no controller
means: No KRaft controller leads, and ZooKeeper has none: no leader moves, no ISR shrinks, no topic is created. It has lasted for longer than an election or the handover of a rollback.
meanwhile: **No.** Brokers serve, but the next one that fails stops acks=all writes to its partitions.
do: Start the controllers that do not answer, each with its own directory and the flag in its file (G23). A majority is enough.
do: ZooKeeper owns the cluster: bring the ensemble back (U01); a broker becomes controller by itself.
never: Restart a broker meanwhile: in migration mode it needs the quorum to start. Delete `/controller`.

G46 A rollback has left the cluster without a controller
means: A rollback stopped the controllers, and has not handed the cluster over to ZooKeeper for longer than that takes: no leader moves, no ISR shrinks, no topic is created.
meanwhile: **No.** Brokers serve, but the next one that fails stops acks=all writes to its partitions.
do: A task of the run in the text is running: let it work. It hands over, or starts the controllers again. Bring back a machine that another alarm names.
do: None is running: clear the task of it that failed.
never: Start one controller by hand, or delete `/controller`. Restart a broker meanwhile: in migration mode it needs the quorum to start.

H Who owns the cluster
about: who owns the cluster (the fence)
when: all the way
intro: One DAG run owns a cluster at a time, by a record in ZooKeeper with a number that only grows. ZooKeeper and the nodes reject an older number. To see the owner: `zookeeper-shell.sh $ZK get /_kmigrate/<cluster id>/owner`.

H01 Another run owns the cluster
means: Another run began a migration, a rollback or a move of groups here and is not over. Two runs on one cluster can lose data.
meanwhile: Yes.
do: A process of it is alive: wait until it ends, or pause its DAG and let its task finish. A killed process looks alive for about 10 s.
do: That run waits for an answer or soaks: a rollback takes its lock by itself. To migrate, answer its request.
do: That run is queued: unpause its DAG; it begins by itself.
do: No process is alive: continue that run. Clear its failed task ([section 5](#5-how-to-continue)).
do: That run is over for good: mark it failed in Airflow and clear this task.
do: Airflow does not know that run any more: free the cluster with `kmigrate unlock CLUSTER.yaml` ([section 13](#13-free-a-cluster)). It then says `is free`.
never: Break the lock of a run that works, or delete its znode.

H03 This process may not act
means: A newer task or run owns the cluster, or this process is one that only observes. The fence works as designed.
meanwhile: Yes.
do: Nothing. Read the log of the newer task.
do: No newer task exists: clear this one; it takes a new number. If it fails again, keep the log: it is a defect of kmigrate.
never: Lower the number in a node's `token` file, or break a lock because of it.

H05 The kill switch is on
means: The Airflow Variable `kmigrate_stop__<cluster>`, or `kmigrate_stop` for every cluster, is set. It is read before every act.
meanwhile: As safe as the phase of the cluster; `max_hybrid` continues counting.
do: Ask who set it: its text is in the message.
do: To continue: `kmigrate resume <cluster>`, then clear the failed task. To roll back: delete it as well, then start the rollback.
never: Do the next step by hand.

H06 No valid approval
means: The approval was skipped or marked as success, is not whole, is too old or of the future, or is of another run, another migration or other evidence than now; or a node, a file or an original that the approved readiness rested on has changed.
meanwhile: Yes: this act was not made. If G05 names a controller, fix that first.
do: Start a new run of the same DAG. It does only what is left, and asks with fresh evidence; a migration soaks again. Read it, and answer `approve`.
do: `approve` was skipped or marked as success, or an approver left `approvers`, or more must approve now: clear `approve` with *Downstream*.
do: It says that this run has asked before: only a new run helps. Airflow keeps the first text of a request, whatever is cleared.
never: Mark `approve` or `finalize.*` as success: it does not count as an answer.

H07 The kill switch could not be read
means: Airflow did not say whether the Variable is set. It may be on, so nothing was changed.
meanwhile: As safe as the phase of the cluster. A node that an earlier killed task left stopped stays down until the retry.
do: Check Airflow: `airflow jobs check`, the API server's log, the task's right to read Variables.
do: The task retries by itself; after its last try, clear it.
never: Take a Variable that cannot be read for one that is not set.

H09 The stored progress of a task cannot be read
means: A newer kmigrate wrote it, or it is damaged. It may hold a verdict, or say that an instance was stopped for a restart.
meanwhile: Yes: nothing was done. Check that every broker and instance runs.
do: A newer kmigrate wrote it: install that version here again, then clear the task.
do: It is damaged: start a new run of the DAG. It observes the cluster and does what is left.
never: Delete the stored progress to make the task continue.

H10 An answer does not count
means: The user is not in `approvers` of the cluster file, started this run under `not_requester`, has approved already where two must, or gave no reason where one is required.
meanwhile: Yes: nothing was changed, and the request still waits.
do: Have an approver answer: `approvers.users` in the cluster file lists the ids of their users, as Airflow's auth manager has them.
do: A reason is required: answer again, with the field *Reason* filled in.
do: Airflow does not say who started the run: start a new one in Airflow's page.
never: Add yourself to `approvers` to get past it. Approve with another user's login.

H11 No run of the rollback would begin
means: The DAG of the rollback is paused, or another run of it is under way. A new run would own the cluster, stay queued, and do nothing.
meanwhile: Yes: nothing changes the cluster. After `start_rollback` the queued run owns it; before, nothing was handed over.
do: It is paused: `airflow dags unpause -y kmigrate_rollback__<cluster>`, then clear the task that failed: `approve`, `start_rollback` or `rollback_started`.
do: Another run is under way: answer its request, wait for its end, or mark it failed. Then clear the task that failed.
do: Airflow does not answer, or the scheduler begins no run: check `airflow jobs check` and the API server, then clear the task that failed.
never: Break the lock of the queued run. Pause the DAG again before `plan` of its run has begun.

H12 The run that owns the cluster does not go on
means: A run began to change this cluster and stands: its DAG is paused, it is queued, it failed, or its process died. Nothing else may act until it ends.
meanwhile: As long as no other alarm is reported with it. In a rollback's `handover` nothing may wait: see G46.
do: Its DAG is paused: `airflow dags unpause -y DAG_ID`, with the DAG that the text names.
do: It is queued although its DAG is not paused: end the other run of that DAG, or check the scheduler (`airflow jobs check`).
do: It failed: clear the task that failed ([section 5](#5-how-to-continue)). It observes the cluster and does the rest. The rollback takes the lock of a run that only waits.
do: Its task stands on "running" although its worker died: mark that task failed, then clear it.
do: Airflow does not know the run any more: free the cluster ([section 13](#13-free-a-cluster)).
never: Break the lock of a run that is only queued or paused.

H13 The record of an approval is not believed
means: Another client than kmigrate could have written it, or did: any client of ZooKeeper may write its znode or one above it although kmigrate's connection has an identity, or its signature is wrong.
meanwhile: Yes: nothing was changed. If G05 names a controller, fix that first.
do: It names a znode that any client may write: as kmigrate's user of ZooKeeper, in `zookeeper-shell.sh`, `setAcl -R /_kmigrate auth::cdrwa`. Then start a new run of the DAG, which asks again.
do: The signature is wrong: `approvers.signing_conn_id`, or its password, was changed since, or another client wrote the record. Start a new run of the DAG, and find out who can write to ZooKeeper.
do: It came with a handover and has no signature, where any client may write to ZooKeeper: answer the request of this run. To not be asked twice, give the ZooKeeper connection an identity, or set `signing_conn_id`.
never: Write or delete the record by hand.

H14 kmigrate's znodes belong to another identity
means: `/_kmigrate`, where kmigrate keeps who owns the cluster and what was approved, was made by another identity of ZooKeeper, or has one in its ACL. That identity can take the cluster from a run and write approvals; kmigrate itself may be unable to write there.
meanwhile: Yes, as safe as before. Nothing was changed.
do: It is an identity of yours, such as an earlier one of kmigrate: as that identity (or ZooKeeper's super user), in `zookeeper-shell.sh`, give the tree to the one of the ZooKeeper connection, alone: `setAcl -R /_kmigrate sasl:kafka:cdrwa` (or `x509:<subject>:cdrwa`, `digest:<user>:<hash>:cdrwa`). Then run preflight again.
do: If no administrator knows it: find out who can write to ZooKeeper. Before the first migration, delete the tree (`deleteall /_kmigrate`): kmigrate makes it again. While one is under way it has what a rollback needs: keep it, and give it to kmigrate as above.
never: Delete the tree while a migration is under way.
source: ZooKeeper: who creates a znode chooses its ACL, and a creator's ADMIN right changes those below only one by one

H15 Without ZooKeeper nothing is approved
means: Who owns the cluster and what was approved is in ZooKeeper, after the finalization, too. A key (`signing_conn_id`) signs a record, but keeps no second run away: so without ZooKeeper no run of kmigrate asks, approves or changes anything: no clean-up, no expansion of `__consumer_offsets`, no rollback of consumer groups.
meanwhile: As long as no alarm is reported with it: nothing was changed.
do: It was not switched off on purpose: start it again, then clear the task. The migration is not finalized: that is urgent, see Z05.
do: It is switched off after the finalization, and something is left to do by a run, such as `kmigrate_clean_up__<cluster>`: start ZooKeeper again with its data until that run is over. No broker connects to it.
do: Its data is gone: by hand. The log of the task `leftovers` lists what a clean-up would remove. kmigrate expands no `__consumer_offsets` and rolls no group back there.
never: Begin an empty ZooKeeper in its place: no run takes one for this cluster (I01).

H16 The plan is not the one that was reviewed
means: The run is bound to a plan (`plan` of its conf), and what decides it has changed since: the cluster file, a broker's file, a unit, the brokers' version or kmigrate. Each task compares before it acts; a rollback is refused by its first task only.
meanwhile: Yes, as safe as before. This task changed nothing. A node that an earlier try had stopped is started again in any case.
do: The reason names what has changed. Also: `kmigrate plan CLUSTER.yaml --compare SAVED`, with the plan that was reviewed. Not of the migration: with `--of rollback`, `groups`, `expansion` or `clean-up`.
do: The change is meant: have the new plan reviewed, and start a run with its fingerprint.
do: It is not meant: undo it, and start the run again. A node that did not answer is a difference, too.
never: Start the run without the fingerprint to get past this.

P The phase
about: the phase of the migration
when: all the way

P01 Not in this phase
means: A step in the wrong phase can cost metadata or the rollback. The reasons beside it say what was observed.
meanwhile: Yes, unless an alarm is reported with it.
do: Act on the reason beside it first, if there is one.
do: Run the steps in their order: clear the first task of the run that has not succeeded. In phase *unknown* kmigrate waits for the named nodes. In phase *finalized* there is nothing to do.
never: Mark a task as success to reach a later one.

P02 Brokers left behind after the finalization
means: The cluster is finalized, and a broker runs, or would start, in a ZooKeeper mode: an older file was put back, or it missed its roll. It receives no metadata; its leaders and ISRs cannot move. The broker may not answer at all.
meanwhile: **No.** The next broker that stops makes its partitions unwritable. Other checks may all be healthy.
do: Start a run of `kmigrate_zk_to_kraft__<cluster>`. It installs the broker's KRaft file and restarts it, whether it answers or not; no other node is touched, and no approval is asked for.
do: Good: `kmigrate status CLUSTER.yaml` shows it in `kraft mode`. ZooKeeper is switched off, so no run can own the cluster: by hand. Install its `kraft` file (`kmigrate render` ([section 12](#12-a-machine-is-dead-for-good))) and restart it.
do: Stop what wrote the older file.
never: Roll any broker back: no controller would accept it.

P04 /migration is malformed
means: Its content is not what Kafka writes, so the owner of the cluster is unknown. Empty content stops the dual-write forever (KAFKA-19480).
meanwhile: Yes; nothing moves on.
do: `zookeeper-shell.sh $ZK get -s /migration`. Find out who wrote it (`zookeeper-security-migration.sh` does).
do: A broker has moved: get help. The right content is only in the controllers. A rollback refuses.
do: No broker has moved: delete it by hand, in the order of [section 14](#14-delete-migration-by-hand).
never: Write content that looks right.
source: KAFKA-19480

P05 /controller is malformed or absent
means: The owner of the cluster is not known at this moment. Brokers elect a controller within seconds.
meanwhile: Unknown: check [section 1](#1-is-the-cluster-serving). Can topics be created?
do: Wait a minute.
do: `zookeeper-shell.sh $ZK get -s /controller`. An `ephemeralOwner` other than `0x0` is a running broker: restart that broker. Otherwise get help.
do: It stays absent in a rollback: a new run with `"skip_failover": true` ([section 11](#11-rollback)) continues if both sides are the same.
never: Delete it.

P06 /migration is left over from an earlier migration
means: New KRaft controllers would take the copy as done, push their own older or empty metadata into ZooKeeper and delete topics (measured).
meanwhile: Only as long as no KRaft controller runs. An alarm.
do: Pause the DAG. Stop every KRaft controller now (SIGTERM).
do: Start the rollback ([section 11](#11-rollback)): it saves and deletes `/migration` and moves the controllers' directories away.
do: The rollback refuses with P04: see there.
never: Start a controller, or roll a broker into migration mode, before `/migration` is gone. Delete it by hand.
source: measured

P07 A broker in ZooKeeper mode beside KRaft
means: KRaft owns the cluster, and this broker is isolated and does not notice it: what it acknowledges with acks=1 is lost (measured).
meanwhile: **No.** An alarm.
do: Restart it in migration mode now: clear its `first_roll` task without *Downstream*, in a rollback `to_migration.broker_N` with it.
do: G05 beside it: the flag first. A leader without it registers no broker in migration mode.
do: The log waits with S02, because this broker is isolated: do it by hand. Install its `migration` file (`kmigrate render` ([section 12](#12-a-machine-is-dead-for-good))), stop the broker (10 s are normal), start it.
do: When it is back in every ISR, clear the task.
never: Stop another broker or a controller first.
source: measured

P09 A KRaft broker without a copy
means: A broker runs in KRaft mode, but /migration shows no finished copy. It was deleted, or the chroot is wrong.
meanwhile: Unknown. Brokers serve; the dual-write may have stopped.
do: Pause the DAG. Compare the chroot of the ZooKeeper connection with `zookeeper.connect` (Z01).
do: `zookeeper-shell.sh $ZK get /migration` and `get /controller`.
do: `/migration` was deleted while KRaft owns the cluster: get help before any controller restarts.
never: Restart a controller: without `/migration` it does not know its position.

P11 The expected phase is not reached yet
means: The controllers have not reached ZooKeeper yet, or the copy is under way or has not begun.
meanwhile: Yes. Topics cannot be created while the copy runs.
do: Wait a minute.
do: `/migration` does not exist: check `zookeeper.connect` in the controllers' files, and whether their identity may write there. Search their logs for `ZooKeeper`.
do: Longer than `policy.copy_timeout`: search the active controller's log for `Still waiting for`; it names the missing node. A partition on a broker that is gone blocks the copy: reassign it (B4b).
never: Restart the active controller during the copy: the copy begins again. Create the znode.

P12 No rollback is possible
means: The migration is finalized: ZooKeeper gets no writes any more. A rollback would lose everything changed since.
meanwhile: Yes, nothing was done. A P02 beside it is an alarm.
do: Continue the migration: start a run of `kmigrate_zk_to_kraft__<cluster>`; it does what is left. Brokers in a ZooKeeper mode go first (P02).
never: Give controllers the flag back, or delete `/controller`: that rolls nothing back (measured).
source: measured

P13 Nothing has to be rolled back
means: The cluster shows no trace of a migration, so the rollback would ask for approval and hold the cluster for nothing.
meanwhile: Yes. Nothing was changed.
do: Was another cluster meant? Start `kmigrate_rollback__<its name>`.
do: A rollback has just ended with failed tasks? Clear those tasks in that run.
never: Start the migration to have something to roll back.

Q Is it quiet
about: is it quiet: may users' own jobs begin
when: users' DAGs
intro: `ClusterQuietSensor`, in front of a job of a user's own DAG, waits. The job has not begun; nothing is wrong with it.

Q01 The cluster is not quiet
means: A step of kmigrate is under way or a moment old, or partitions are not healthy. A job that starts now may wait or fail.
meanwhile: Yes. The user's job starts later.
do: Wait: between two long steps, and in a soak, the sensor lets the job through.
do: It stays: check the task of the run that owns the cluster. It failed or was killed; clear it.
do: Partitions without a leader or out of ISR for minutes: see S02. Partitions not read: the U codes of that run say why.
never: Set `quiet_for` to 0, or delete the journal, to let the job start.

S Safe to stop
about: is it safe to stop a broker
when: rolls
intro: Why no broker may be stopped now. kmigrate waits, and continues by itself when it is safe.

S02 Partitions have too few replicas in sync
means: Another stop could make partitions unavailable, or take them below min.insync.replicas: acks=all would be refused.
meanwhile: Yes: it serves. The next failure may hurt.
do: Wait until every replica is in its ISR: then `kafka-topics.sh --bootstrap-server $B --describe --under-replicated-partitions` prints nothing. A roll then continues by itself; clear a failed `preflight`.
do: It stays: the same command shows the broker that is in `Replicas` and not in `Isr`. Check its log, disk and network. An isolated broker: P07. No leader: G13. One `Leader` of them all: R05, step 5.
do: That command prints nothing, and the text begins with `Without broker`: those brokers must not be down at the same time. Stop one of them, start it, wait until it is in every ISR, then the next.
never: Lower `min.insync.replicas`, reassign replicas away, or run an unclean election to make the number fall.
source: safe-to-stop predicate

S04 Partitions are being reassigned
means: Another tool moves partitions. A restart in the middle prolongs the move, undoes the copy or leaves stray replicas behind.
meanwhile: Yes. Nothing was changed.
do: See what moves: `kafka-reassign-partitions.sh --bootstrap-server $B --list`. Let it finish.
do: Or cancel it: `kafka-reassign-partitions.sh --bootstrap-server $B --cancel --reassignment-json-file f.json`.
do: Stop what starts such moves (Cruise Control, a script) until the migration is over. A roll continues by itself; clear `preflight`.
never: Delete `/admin/reassign_partitions`.
source: KAFKA-16120, KAFKA-16121
ask: Run kafka-reassign-partitions.sh --list, and let kmigrate's user DESCRIBE the cluster (ListPartitionReassignments).

T Time
about: time: soaking, baking, waiting
when: soak, finalize

T01 Waiting
means: A condition must hold for a while before the next step.
meanwhile: Yes.
do: Nothing: it continues by itself.
never: Restart, switch, deploy or scale anything of it by hand meanwhile. Shorten the time at night.

T03 /migration still moves
means: A controller with the flag still writes to ZooKeeper: the migration is not finalized.
meanwhile: Yes.
do: Check every controller's file and process: one did not restart, or restarted with the old file. Clear its `finalize` task.
never: Switch ZooKeeper off.

T06 Brokers of both modes for longer than planned
means: Every election, and every tool that writes to ZooKeeper, is a chance for the two stores to differ.
meanwhile: Yes; decide in the morning.
do: Find out what the run waits for: the last lines of its task's log.
do: Let the second roll continue, or start the rollback.
do: Many brokers need longer: raise `max_hybrid` in the cluster file. Twice the minutes of one restart, times the brokers.
never: Leave it for the weekend.

T07 Outside the maintenance windows
means: The cluster file says when a restart of the migration may begin (`windows`, in UTC). It is not that time now.
meanwhile: Yes. A restart that has begun is finished, and `max_hybrid` continues counting.
do: Nothing: it continues in the next window.
do: To continue now: add a window to the cluster file. The waiting task reads it within five minutes; `finalize.*` must be cleared. To roll back: start the rollback, which needs no window.
never: Restart a node by hand to save time.

T08 A phase lasts longer than planned
means: The cluster has been in this phase for longer than `deadlines` of the cluster file says, by what the watch has observed.
meanwhile: As safe as the phase itself; a rollback stays possible until the finalization.
do: Find out what the run waits for: its running, waiting or failed task, and the last lines of its log.
do: `dual_write`: a request waits for an approver's answer, or the soak starts again and again. Its log names the gate.
do: Decide: continue, or start the rollback. If the phase may last longer, raise its deadline.
never: Shorten the soak to meet a deadline.

T09 The watch itself fails
means: `kmigrate_watch` ended with an error before it could judge the cluster. Until it works again it reports no new alarm, and ends none.
meanwhile: Not known. The tasks of a run check every gate themselves before each act.
do: Read the error at the end of the log of the task `watch`.
do: A login or a certificate was refused: correct the connection that the log names. Clear the task.
do: Until the watch works, run `kmigrate_preflight__<cluster>`, and look at the tasks of the migration.
never: Pause the watch because it fails.
""")
