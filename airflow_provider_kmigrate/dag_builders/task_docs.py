"""Each task's page in Airflow: what the task does, when it is done, what a failure means."""

from __future__ import annotations

import re

from airflow_provider_kmigrate.core.reasons import ENTRIES

_FAILED = (
    "**Failed:** the log ends with a code, what was observed, what it means and what to do next. `kmigrate runbook CODE` "
    "prints the whole entry. Fix the cause, then clear this task: it observes the cluster and does only what is left."
)
_NODE = re.compile(r"_\d+$")
_JOB = re.compile(r"(hold_for|progress_after|resume_after)_\w+\.")  # a Spark job's name follows, which may be anything

_DOCS = {
    "preflight": "Checks whether this cluster may be migrated, and changes nothing. Lists every finding with its remedy: blockers, unknowns, "
    "warnings. The log names the page with all of them. If the cluster is finalized already, all later tasks are skipped and the run succeeds.",
    "watch": "Observes the cluster once, takes no lock and changes nothing. A success reports the cluster's phase and whether a rollback is assured; the "
    "XCom `readiness` has that as a table. A failure means that an operator must act: an alarm, hybrid mode for longer than `policy.max_hybrid`, or a "
    "rollback that is not possible any more. It also fails if, in all retries, nodes do not respond or are out of their ISRs, a rollback is not assured, "
    "or a finalization stays incomplete. Nodes that kmigrate itself is restarting do not count for `policy.start_timeout`.",
    "backup": "Saves every broker's original properties file and ZooKeeper's tree, and reads them back by hash. Every later file is "
    "rendered from these originals; a rollback restores them byte for byte. Notes the partition counts of `__consumer_offsets` and "
    "`__transaction_state` in ZooKeeper: a later expansion is seen, whatever brokers answer.",
    "provision": "Writes this controller's properties file, formats its empty directory with the pinned cluster id and the brokers' "
    "version, and starts it with the migration flag. No broker is touched.",
    "ready": "Waits until every controller answers with the migration flag and all follow one leader. A controller without the flag "
    "would end the migration before it began.",
    "broker": "Writes this broker's next properties file and restarts it, as soon as every partition can spare it. Done when it is "
    "registered, known to all others and back in every ISR, in several observations in a row. The first broker of a pass then bakes for "
    "`policy.canary_bake`. If it is worse than before and than the others, only this broker is rolled back. The task then fails with the "
    "figures (V26).\n\n**Skipped:** this broker is the ZooKeeper controller; `postponed` restarts it last, so that the controller moves "
    "only once. Or brokers that were rolled back come first. The log says which.",
    "postponed": "Restarts the brokers of this pass that were skipped.",
    "leaders": "Elects the preferred replicas again, so that leadership is spread as before the roll.",
    "registered": "Waits until every broker of the cluster file answers and is known to all others, and every consumer group that made "
    "progress before the last restart makes progress again.",
    "copied": "Waits until the controllers have copied all metadata from ZooKeeper and write every change to both sides.",
    "phase": "Waits until the cluster is observed in the dual-write phase.",
    "dual_write_lag": "Waits until ZooKeeper is at most a few records behind KRaft and the dual-write makes progress.",
    "equivalence": "Compares what ZooKeeper and KRaft store: topics with their ids, replicas, leaders and configs, broker settings, quotas, "
    "SCRAM credentials, ACLs, delegation tokens. Zero lag does not prove that nothing is missing. What KRaft does not "
    "report is listed as not compared.",
    "readiness": "Judges from one observation whether a rollback is assured: dual-write, both sides, epochs, files and originals, the ensemble, "
    'space, brokers that the cluster file does not name. Its result is the answer to "can we still go back?", with the time that a rollback '
    "would take and what it would lose; the request for approval shows it. Its XCom `fingerprint` is the hash of that verdict and its evidence.",
    "rollback_plan": "Plans a rollback without executing it, to show that it is still possible. The next step makes it impossible forever. Every broker's "
    "original must be in the backup, unaltered.",
    "start_probe": "Starts a small stream of numbered records through every broker (topic `kmigrate-probe`). Every audit of this run checks their "
    "acknowledgements and deliveries. Its processes stay on the worker that started them.",
    "check_probe": "Checks in the probe's files that its records are acknowledged and read. **Failed:** the worker that started it is gone, or "
    "`audit.result` is not the same folder on all workers. No broker has been restarted yet.",
    "stop_probe": "Stops the probes of this cluster on this worker, once all their records are read.",
    "soak": "Watches dual-write for `policy.min_soak`. Every gate must stay healthy; one failed gate restarts the time. "
    "It waits in the triggerer and holds no worker. The time already soaked survives restarts of both.",
    "approve": "Shows the evidence and asks an operator to approve the **point of no return**. Answer under *Required Actions*. "
    "It changes nothing while it waits.\n\n**Stay in dual-write** fails this task and changes nothing. To be asked again with "
    "fresh evidence, start a new run.\n\n**Roll back** skips the finalization; `start_rollback` starts the "
    "rollback, which gets the lock of this run.",
    "start_rollback": "Starts `kmigrate_rollback__<cluster>` and hands the lock of this run over to it, if that was the answer to the request. "
    "It asks no second time, unless ZooKeeper is open to every client and the cluster file has no `approvers.signing_conn_id` (W22). While its DAG is paused, or another run of it is under way, nothing is handed over and this task fails.\n\n"
    "**Skipped:** the answer was another one.",
    "rollback_started": "Waits until the run of `kmigrate_rollback__<cluster>` has begun. It owns the cluster meanwhile, also while it is queued.\n\n"
    "**Skipped:** the answer was another one.",
    "leftovers": "Lists what migrations and rollbacks have left on the machines, in ZooKeeper and on Airflow's machines. It changes nothing.",
    "clean_up": "Removes what the request showed, for good. If anything is different by now, it removes nothing and fails (H06): run `leftovers` again.",
    "stop_after": "Waits until an approver lets the migration continue, as `stop_after` in the cluster file says. Answer under *Required "
    "Actions*; it changes nothing while it waits, and the run keeps the lock.\n\n**End this run** fails this task and changes nothing. A later "
    "run does what is left.",
    "controller": "Restarts this controller without the migration flag. The first such controller that is elected ends the migration "
    "for good.\n\n**Skipped:** this is the active controller; `active_last` restarts it, one election in all.",
    "active_last": "Restarts the controllers that still have the flag: the active one, if it was skipped.",
    "finalized": "Waits until every controller runs without the flag and nothing is written to ZooKeeper any more. Then this run "
    "releases the cluster. ZooKeeper may be switched off afterwards.",
    "spark_job_risks": "Checks how the rolls could harm the Spark jobs of the cluster file, and changes nothing. Fails if a job "
    "is not safe to roll.",
    "fingerprint_logs": "Takes a fingerprint with Spark: of the logs of `audit.topics`, or of the newest records of all topics, and of all commits. "
    "Every later audit of this run compares with it. It is taken once, before the first roll; afterwards it is too late.",
    "audit": "Submits the audit to Spark. If it is inconclusive it is repeated later with more evidence, up to `audit.retries` times. "
    "The task is *up for retry* meanwhile.",
    "verdict": "Continues the run if the audit says PASS. **FAIL:** records are missing or were delivered wrongly; the findings name "
    "them. Until the finalization `kmigrate_rollback__<cluster>` rolls the migration back. **INCONCLUSIVE**, after all extensions: there is "
    "too little evidence. To audit again, clear `audit` and its downstream tasks. To continue anyway, at your own risk, mark this task as success.",
    "hold_for": "Holds this Spark job between two batches before the roll begins, if its policy in the cluster file says so.\n\n"
    "**Skipped:** it needs no hold: every topic that it reads keeps a leader during the roll.",
    "progress_after": "Waits until this job's query makes progress after the roll. A query that lost its topic for too long has failed, and "
    "nothing else reports that. A held job is not checked here.",
    "resume_after": "Resumes this job, if it is held, at the offsets where it stopped, and waits for its progress. Before that it "
    "compares the logs' ends with the job's offsets: a log that ends earlier was truncated.",
}

_ROLLBACK = {
    "plan": "Lists each step of the rollback from the cluster's present phase, and checks the original of every broker that has another file. "
    "It changes nothing. **Failed** with P12: the migration is finalized; a rollback is not possible.",
    "approve": "Shows the plan and asks an operator. Answer under *Required Actions*; it changes nothing while it waits.\n\n"
    "**Leave as it is** fails this task and changes nothing. To be asked again with a fresh plan, start a new run.",
    "evidence.taken": "The evidence for the audit after the rollback was taken, or could not be. The rollback continues in both cases: it does not "
    "depend on Spark. Without evidence `audit_after_rollback` fails in the end.\n\n**No minute to lose:** mark this task as success, without its upstream "
    "tasks. The rollback begins at once.",
    "controller_failover.restore_flag": "Starts this controller if it is down during a migration. Restarts it with the migration flag if a finalization removed the flag: "
    "if it were elected without the flag, it would finalize.\n\n**Skipped:** the run was started with *Do not fail the "
    "controllers over*.",
    "controller_failover.failover": "Restarts the active controller once. A lost dual-write is never repeated, but a new leader writes all metadata to "
    "ZooKeeper again. Done when it has, and the dual-write makes progress.\n\n**Skipped:** the run was started with *Do not fail the controllers over*.",
    "controller_failover.equivalence": "Compares what ZooKeeper and KRaft store: what is missing in ZooKeeper would be lost in the rollback. It also runs with *Do not "
    "fail the controllers over*; then you may accept a loss that it names (`accept_loss`).",
    "to_migration.broker": "Rolls this broker back from KRaft mode to migration mode, as soon as every partition can spare it. It is a ZooKeeper "
    "broker again, under the KRaft controller. Done when it is registered, known to all others and back in every ISR. A broker that is "
    "down gets its file and is started.",
    "handover.transaction": "Stops the controllers, once no broker needs them and one more comparison shows that ZooKeeper holds all that KRaft holds: "
    "standbys one by one, then the last ones of the quorum together, and watches `/migration` for 2 s. Then it hands the cluster over to ZooKeeper in one transaction. "
    "`/controller_epoch` rises above every epoch that KRaft wrote; `/migration` and `/controller` are deleted, and saved into the backup before. If ZooKeeper "
    "owns the cluster already, the remains of an earlier attempt are deleted.\n\n**No controller** runs for about 10 s; clients continue. If a broker or a machine "
    "fails meanwhile, the controllers start again within seconds, and the handover begins again once all is well. **Behind this task the migration cannot continue before this rollback has ended.**",
    "handover.zookeeper_leads": "Waits until a ZooKeeper broker is controller and every broker names it, and elects leaders that are "
    "missing. A broker that is stopped before it names the controller would wait 300 s.",
    "to_zookeeper.broker": "Restarts this broker with its original file, byte for byte, as soon as every partition can spare it. Done when it "
    "is registered, known to all others and back in every ISR. A broker that is down gets its file and is started.\n\n**Skipped:** this "
    "broker is the ZooKeeper controller; `postponed` restarts it last.",
    "to_zookeeper.postponed": "Restarts the brokers that do not run with their original file yet: the ZooKeeper controller, if it was skipped.",
    "wipe.controller": "Moves the directories of this stopped controller out of the way: an old quorum that starts again would take the "
    "cluster over and delete topics. They are renamed; a mount point keeps its name, and its content moves into a folder in it.",
    "rolled_back": "Waits until all is as before the migration: brokers in ZooKeeper mode, controllers stopped, their directories empty, no trace "
    "in ZooKeeper. Then this run releases the cluster. A new migration may begin at any time.",
}

_GROUPS = {
    "plan": "Lists every group's members, their kinds and the mode, and what is left to do. It changes nothing.",
    "approve": "Shows the plan and asks an operator. Answer under *Required Actions*; it changes nothing while it waits.",
    "window": "Waits until the group's daily window (UTC) is open. A move may begin only in the window; it may end after it.\n\n"
    "**Skipped:** the group has left ZooKeeper.",
    "check": "Observes the group twice, `commit_within` apart, and lists what matters before the move: its assignor, where it commits, "
    "which of its topics ZooKeeper consumers cannot read. It changes nothing. **Failed:** something blocks the move (K30 to K46): an unreadable "
    "registration, an ambiguous wildcard, partitions without progress, ... "
    "**Failed** with K69: the group was rolled back before, and stays so until a run's conf names it in `release_groups`.",
    "to_migrating": "Restarts this instance as a migrating consumer, as soon as its group is stable: every partition owned, no rebalance, no instance "
    "missing. Done when it is stable again. The first instance bakes. If the group stops committing or does not become stable, "
    "only this instance becomes a ZooKeeper consumer again. This task then fails (K69).",
    "mode_kafka": "Writes `kafka` into the group's `migration/mode` and waits until every member reports that it is "
    "settled in that mode. **Failed** with K58: the log names a member whose kind cannot follow the mode. **Failed** with V30: the group "
    "does not become stable in that mode, and is rolled back.",
    "watch": "Watches the group for its `bake` and changes nothing. Every partition with waiting records must be committed within the "
    "group's `commit_within`. Owners alone prove nothing.",
    "to_kafka": "Restarts this instance as a Kafka consumer, as soon as its group is stable in Kafka mode. The first one bakes, and becomes "
    "a migrating consumer again if the group is worse with it (K69).",
    "audit": "Submits the audit of the clients' records to Spark. An audit that is inconclusive, or that failed in Spark, is repeated later. "
    "**Failed:** there is no result; the group stays as it is. Fix Spark, then clear this task.",
    "verdict": "Continues with the group at PASS only. **Failed** after a FAIL: the next task rolls the group back. **Failed** because it stayed "
    "INCONCLUSIVE: the group stays as it is, and an operator decides.",
    "rollback": "Rolls the group back, one instance or the mode at a time, to its last healthy state.\n\n**Skipped:** no step before it found the "
    "group worse, and no audit said FAIL.",
    "clean_up": "Deletes the mode and the empty folders of the group in ZooKeeper. Its last offsets stay: they cost nothing, and a rollback begins "
    "with them.",
    "done": "Releases the cluster, so that other runs of kmigrate may act.",
}

_EXPANSION = {
    "plan": "Checks whether the topic may be expanded to the run's `partitions`. Lists the groups that move and must stop, and each step. It changes "
    "nothing. **Failed:** the log names the obstacle, and the numbers that are allowed.",
    "approve": "Shows the plan and asks an operator. Answer under *Required Actions*; it changes nothing while it waits.\n\n"
    "**Leave as it is** fails this task and changes nothing. To be asked again with a fresh plan, start a new run.",
    "moving_groups.stopped": "Saves the brokers' original files, notes that the expansion begins, and waits until no broker has a member of a group that "
    "moves: **stop their consumers now**. The log names those that are left. All other groups continue.",
    "moving_groups.export": "Saves the offsets of every group that moves, with leader epochs, metadata and commit times, in two files of the backup, each with its "
    "SHA-256. The raw log of the topic must hold the same commits as brokers report.",
    "moving_groups.delete": "Deletes these groups while brokers still use the old count, so that no old commit is left in a partition where a later leader "
    "would find it. First it compares what each broker has with the export, and afterwards it reads the raw log until that holds nothing of "
    "them. From here on the export alone has their offsets.",
    "expand": "Gives the topic its new partitions, with replicas on every rack. Nothing changes for any group yet.",
    "restart.broker": "Sets `offsets.topic.num.partitions` in this broker's file and restarts it in its mode, as soon as every partition can spare it. "
    "The first restart also waits until nothing is left of any group that moves. **From then on it can only be completed.**\n\n"
    "**Skipped:** this broker is the ZooKeeper controller; `postponed` restarts it last.",
    "restart.postponed": "Restarts the ZooKeeper controller, if it was skipped, and completes what a killed task has left of the others.",
    "restart.one_coordinator": "Waits until every broker uses the new count, and each group has exactly one coordinator; then, until the groups "
    "that did not move continue.",
    "import.offsets": "Commits the exported offsets at each group's coordinator. A group that has committed something else meanwhile is not "
    "overwritten: this task fails and names it. In a run with `undo` it commits under the old count.",
    "import.verify": "Reads every imported offset back, three times, and then in the raw log, which must hold each of them once: no change of leaders "
    "can bring another one back. Ends the expansion. **The groups may start now.**",
    "repair": "Takes the newest commit of each group from all partitions of the raw log, imports it, and removes the other copies. It saves all values in the "
    "backup first. It waits until the groups that it names are stopped. **Afterwards restart every broker once.**",
    "progress": "Waits until the groups that had members before consume again. **Start them now.** It waits for a day. If some stay stopped on purpose, "
    "mark it as success: nothing else is left to do.",
}

#: Task -> codes that it most often waits for or fails with; their meaning comes from the registry.
_STOPS = {
    "preflight": ("U01", "U05"),
    "watch": ("G05", "G43", "G45", "H12", "P02", "T06", "T08", "G23", "R01", "G07", "E02", "K01", "O01", "O03", "O06"),
    "readiness": ("G07", "E02", "Z05", "O03", "O06", "O01", "G39"),
    "backup": ("O01", "O05", "U04"),
    "provision": ("G04", "M01", "R11", "R12"),
    "ready": ("G05", "G23", "G20"),
    "broker": ("G37", "S02", "S04", "T07", "R01", "R03", "R05", "G12", "G21", "G38", "G42", "K01", "V26"),
    "postponed": ("S02", "T07", "R01", "R05", "G38", "G42"),
    "registered": ("R01", "R03", "G38"),
    "copied": ("P11", "G13"),
    "dual_write_lag": ("G07",),
    "equivalence": ("E01", "E02", "E08"),
    "soak": ("T01", "G07", "G21", "K01", "O01", "O03", "O06", "O07"),
    "approve": ("H06", "H10", "H11"),
    "start_rollback": ("H11",),
    "rollback_started": ("H11",),
    "stop_after": ("H10",),
    "controller": ("G34", "H06", "T07", "R12"),
    "active_last": ("G34", "R12"),
    "finalized": ("T03", "G23", "O03", "O06", "P02"),
    "plan": ("P12", "P13", "O01"),
    "controller_failover.restore_flag": ("G23", "R12"),
    "controller_failover.failover": ("G07", "G20"),
    "controller_failover.equivalence": ("E02", "G33", "G35"),
    "to_migration.broker": ("S02", "R01", "R05", "G38", "K01"),
    "handover.transaction": ("U04", "G26", "G27", "G33", "P07"),
    "handover.zookeeper_leads": ("G02", "G28"),
    "to_zookeeper.broker": ("G26", "G28", "G30", "G38", "K01", "R05"),
    "wipe.controller": ("M01", "M03", "G26"),
    "rolled_back": ("G04", "G22", "G30"),
    "moving_groups.stopped": ("K79", "K02"),
    "moving_groups.export": ("K79", "K81", "K82", "K85"),
    "moving_groups.delete": ("K79", "K82", "K85", "O10"),
    "expand": ("K82", "K83", "S02"),
    "restart.broker": ("S02", "S04", "R01", "R05", "K82", "O03"),
    "restart.one_coordinator": ("K01", "K02"),
    "import.offsets": ("K82", "O10"),
    "import.verify": ("K82", "K85", "O10"),
    "progress": ("K84",),
    "repair": ("K90", "K79", "K01"),
    "check": ("K30", "K31", "K44", "K69"),
    "to_migrating": ("K52", "K55", "V30", "K69"),
    "mode_kafka": ("K58", "V30"),
    "to_kafka": ("K52", "K55", "V30", "K69"),
}


def group_doc(task_id: str) -> str:
    """Markdown for the page of a task that moves a consumer group. Raises KeyError for a task without a description."""
    name = task_id.rpartition(".")[2]
    (key,) = [key for key in _GROUPS if name == key or name.startswith(f"{key}_")] or [name]
    return _page(_GROUPS[key], key if key not in {"plan", "watch"} else "")


def doc(task_id: str) -> str:
    """Markdown for the page of a task of a migration or an audit. Raises KeyError for a task without a description."""
    name = _name(task_id)
    return _page(_DOCS[name], name)


def rollback_doc(task_id: str) -> str:
    """The same for a task of a rollback: its own text, or the one that fits both (`registered`, `leaders`, a Spark job's)."""
    name = _NODE.sub("", task_id)
    return _page(_ROLLBACK[name], name) if name in _ROLLBACK else doc(task_id)


def expansion_doc(task_id: str) -> str:
    """The same for a task of an expansion of `__consumer_offsets`."""
    name = _NODE.sub("", task_id)
    return _page(_EXPANSION[name], name if name != "plan" else "") if name in _EXPANSION else doc(task_id)


def _page(text: str, name: str) -> str:
    stops = "\n".join(f"* **{code}** {ENTRIES[code].title}: {ENTRIES[code].remedy}" for code in _STOPS.get(name, ()))
    return "\n\n".join(part for part in (text, _FAILED, f"**Often stops with:**\n\n{stops}" if stops else "") if part)


def _name(task_id: str) -> str:
    """The task's name without its group and its node; for a Spark job's task, the act on the job."""
    job = _JOB.match(task_id)
    return job[1] if job else "stop_after" if task_id.startswith("stop_after_") else _NODE.sub("", task_id.rpartition(".")[2])
