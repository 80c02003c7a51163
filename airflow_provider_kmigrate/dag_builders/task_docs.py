"""Each task's page in Airflow: what the task does, when it is done, what a failure means."""

from __future__ import annotations

import re

from airflow_provider_kmigrate.core.reasons.registry import entry

_RED = (
    "**Failed:** the log ends with a code, what was observed, what it means and what to do next. `python -m airflow_provider_kmigrate.runbook CODE` "
    "prints the whole entry. Fix the cause, then clear this task: it observes the cluster and does only what is left."
)
_NODE = re.compile(r"_\d+$")
_JOB = re.compile(r"(hold_for|progress_after|resume_after)_\w+\.")  # a Spark job's name follows, which may be anything

_DOCS = {
    "preflight": "Reads everything that decides whether this cluster may be migrated, and changes nothing. Every finding is "
    "told at once, with its remedy: what blocks, what could not be seen from here, what a person should know of. The same is written "
    "as a page; the log says where. A cluster that is finalized already: everything behind this task is skipped, and the run ends well.",
    "watch": "Looks once, takes no lock and changes nothing. Green says where the cluster stands. Red is for a person: an alarm, a hybrid that lasts "
    "longer than `policy.max_hybrid`, something that the way back needs and that is gone; nodes that stay silent, or a finalization that stays half-way, for all retries.",
    "backup": "Saves every broker's original properties file and ZooKeeper's tree, and reads them back by hash. Every later file is "
    "rendered from these originals; the way back is the original, byte for byte.",
    "provision": "Writes this controller's properties file, formats its empty directory with the pinned cluster id and the brokers' "
    "version, and starts it with the migration flag. No broker is touched.",
    "ready": "Waits until every controller answers with the migration flag and all follow one leader. A controller without the flag "
    "would end the migration before it began.",
    "broker": "Writes this broker's next properties file and restarts it, as soon as every partition can spare it. Over when it is "
    "registered, known to all others and back in every ISR, several looks in a row. The first broker of a pass then bakes for "
    "`policy.canary_bake`: if it is worse than before and than the others, it is taken back alone and this task fails with the figures "
    "(V26).\n\n**Skipped:** this broker is the ZooKeeper controller and is restarted last, by `postponed`, so that the "
    "controller moves once and not several times; or brokers that were taken back have their turn first. The log says which.",
    "postponed": "Restarts whatever broker of this pass is left: those that were skipped.",
    "leaders": "Elects the preferred replicas again, so that leadership is spread as before the roll.",
    "registered": "Waits until every broker of the cluster file answers and is known to all others.",
    "copied": "Waits until the controllers have copied all metadata from ZooKeeper and write every change to both sides.",
    "phase": "Waits until the cluster, seen from outside, is in dual-write.",
    "dual_write_lag": "Waits until ZooKeeper is at most a few records behind KRaft, while it moves.",
    "equivalence": "Compares what ZooKeeper and KRaft store: topics with their ids, replicas, leaders and configs, broker settings, quotas, "
    "SCRAM credentials, ACLs, delegation tokens. No lag is no proof that nothing is missing. What nobody can tell of KRaft's side is named as "
    "not compared.",
    "way_back": "Plans a rollback without doing it: is the way back, which the next step closes for ever, open until then? Every broker's "
    "original must be in the backup, unaltered.",
    "start_probe": "Starts kmigrate's own small stream of numbered records through every broker (topic `kmigrate-probe`), whose "
    "acknowledgements and deliveries every audit of this run judges. Its processes stay on the worker that started them.",
    "probe_flows": "Sees on the probe's files that its records are acknowledged and read. Red: the worker that started it is gone, or "
    "`audit.result` is not the same folder everywhere; nothing has been restarted yet.",
    "stop_probe": "Ends the probes of this cluster on this worker, once all their records were read.",
    "soak": "Watches dual-write for `policy.min_soak`. Every gate must stay green; one red look and the time begins again. Most of "
    "it waits in the triggerer, without a worker; what has been soaked survives restarts of both.",
    "approve": "Asks a person, with the evidence, whether to go past the **point of no return**. Answer under *Required Actions*. "
    "Nothing is changed while it waits, however long.\n\n**Stay in dual-write** turns this task red and changes nothing. To be asked again with "
    "fresh evidence, clear `before_approval` and what follows.",
    "controller": "Restarts this controller without the migration flag. The first such controller that is elected ends the migration "
    "for good.\n\n**Skipped:** this is the active controller; `active_last` restarts it, one election in all.",
    "active_last": "Restarts whatever controller still has the flag: the active one, if it was skipped.",
    "finalized": "Waits until every controller runs without the flag and nothing is written to ZooKeeper any more; then this run "
    "lets go of the cluster. ZooKeeper may be switched off afterwards.",
    "spark_job_risks": "Looks what could hurt the Spark jobs of the cluster file in the rolls, and changes nothing. Red where a job must "
    "not be rolled like this.",
    "look_at_logs": "Has Spark take a fingerprint of the logs of `audit.topics`, or of the newest records of all topics, and of all commits, with which every later audit of this "
    "run compares. It is taken once: after the first roll it is too late.",
    "audit": "Submits the audit to Spark. Where it is inconclusive it is made again later, with more evidence: the task is *up for "
    "retry* meanwhile, as often as `audit.extensions` says.",
    "verdict": "Lets the run go on when the audit says PASS. **FAIL:** records are missing or were delivered wrongly; the findings name "
    "them, and until the finalization `kmigrate_rollback__<cluster>` takes the migration back. **INCONCLUSIVE**, after all extensions: the evidence is too thin. To audit again, clear `audit` with what is downstream; "
    "to go on in spite of it, which is your decision, mark this task as success.",
    "hold_for": "Holds this Spark job between two batches before the roll begins, where its policy in the cluster file says so.\n\n"
    "**Skipped:** it needs no hold: every topic that it reads keeps a leader all through the roll.",
    "progress_after": "Waits until this job's query has got on after the roll: one that lost its topic for too long has failed, and "
    "nothing else tells. A job that is held is left alone here.",
    "resume_after": "Lets this job go on, if it is held, from exactly where it stopped, and waits for its progress. Before that it "
    "compares where the logs end with the job's place: a log that ends earlier was truncated.",
}

_ROLLBACK = {
    "plan": "Reads where the cluster is, says each step that leads back, and checks the original of every broker that has another file; "
    "changes nothing. **Red** with P12: the migration is finalized, there is no way back.",
    "approve": "Shows the plan and asks a person. Answer under *Required Actions*; nothing is changed while it waits.\n\n"
    "**Leave as it is** turns this task red and changes nothing. To be asked again with a fresh plan, clear `plan` and what follows.",
    "heal.flag": "Starts this controller if it is down in the middle of a migration, and restarts it with the migration flag if it lost that "
    "in a finalization that began: elected without it, it would finalize.\n\n**Skipped:** the run was started with *Do not fail the "
    "controllers over*.",
    "heal.failover": "Restarts the active controller once. A dual-write that was lost is never repeated, but a new leader writes ZooKeeper "
    "anew. Over when it has, and the dual-write moves.\n\n**Skipped:** the run was started with *Do not fail the controllers over*.",
    "heal.equivalence": "Compares what ZooKeeper and KRaft store: what is missing in ZooKeeper would be lost on the way back. Also with *Do not "
    "fail the controllers over*; a loss that it names then may be accepted (`accept_loss`).",
    "to_migration.broker": "Takes this broker from KRaft mode back to migration mode, as soon as every partition can spare it: a ZooKeeper "
    "broker again, under the KRaft controller. Over when it is registered, known to all others and back in every ISR. A broker that is "
    "down gets its file and is started.",
    "stop_controllers.controller": "Stops this controller, once no broker needs it and one more look shows that ZooKeeper holds all that "
    "KRaft does. It stays down: nothing may start it again.\n\n"
    "**Skipped:** this is the active controller; `active_last` stops it.",
    "stop_controllers.active_last": "Stops whatever controller is left, the active one last: it is the last to write epochs. From here until "
    "`hand_over.zookeeper_leads` nobody is controller; clients go on. Do not pause the DAG between the two.",
    "hand_over.transaction": "Watches `/migration` for 2 s, saves what it deletes into the backup, and gives the cluster to ZooKeeper in one "
    "transaction: `/controller_epoch` above every epoch that KRaft wrote, `/migration` and `/controller` deleted. Where ZooKeeper owns it already, what an earlier attempt left goes. **From here on the "
    "migration cannot go forward again before this rollback is over.**",
    "hand_over.zookeeper_leads": "Waits until a ZooKeeper broker is controller and every broker names it, and elects leaders that are "
    "missing. A broker that is stopped before it names the controller would wait 300 s.",
    "to_zookeeper.broker": "Restarts this broker with its original file, byte for byte, as soon as every partition can spare it. Over when it "
    "is registered, known to all others and back in every ISR. A broker that is down gets its file and is started.\n\n**Skipped:** this "
    "broker is the ZooKeeper controller and goes back last, by `postponed`.",
    "to_zookeeper.postponed": "Restarts whatever broker is not yet back with its original file: the ZooKeeper controller, if it was skipped.",
    "wipe.controller": "Moves the directories of this stopped controller out of the way: an old quorum that starts again would take the "
    "cluster over and delete topics. Driver `local` renames them, driver `command` runs the `wipe` command of the cluster file.",
    "rolled_back": "Waits until all is as before the migration: brokers in ZooKeeper mode, controllers stopped, their directories empty, no trace "
    "in ZooKeeper; then this run lets go of the cluster. A new migration may begin at any time.",
}

_GROUPS = {
    "plan": "Looks at every group: who is in it, as what, under which mode, and says what is left to do; changes nothing.",
    "approve": "Shows the plan and asks a person. Answer under *Required Actions*; nothing is changed while it waits.",
    "window": "Waits until the group's daily window (UTC) is open. It says when the group may be begun: what was begun goes on after it.\n\n"
    "**Skipped:** the group has left ZooKeeper.",
    "check": "Looks at the group twice, as far apart as its `commit_within`, and says what a person should know before it is moved: how it "
    "shares out, where it commits, which of its topics old consumers cannot read. Changes nothing. **Red:** something blocks the move (K30 "
    "to K46), such as a registration that nobody can read, a wildcard that Python may read otherwise than Java, or partitions that starve. "
    "**Red** with K69: the group was taken back before, by itself or by a person, and stays so until a run's conf names it in `go_on`.",
    "to_migrating": "Has this instance restarted as a migrating member, as soon as its group is at rest: every partition held, nothing being "
    "shared out, no instance missing. Over when it is so again. The first instance bakes: if the group stops committing, or does not come to "
    "rest, it alone becomes an old consumer again, and this task fails (V33).",
    "mode_kafka": "Writes exactly `kafka` into the group's `migration/mode`, reads it back, and waits until every member has reported that it is "
    "at rest in that mode. **Red** with K58: a member is of a kind that cannot follow; its name is in the log. **Red** with V30: it "
    "does not come to rest in that mode, and is taken back.",
    "watch": "Watches the group for its `bake`, while nobody touches it: every partition with records that wait must be committed within the "
    "group's `commit_within`. Owners that look perfect prove nothing.",
    "to_plain": "Has this instance restarted as a plain Kafka consumer, as soon as its group is at rest in Kafka mode. The first one bakes, and goes "
    "back to being a migrating member if the group is worse for it (V33).",
    "audit": "Submits the audit of the clients' records to Spark. Inconclusive ones, and those that Spark did not make, are made again later. "
    "**Red:** nothing is known; the group stays as it is. Mend Spark, then clear this task.",
    "verdict": "Lets the group go on at PASS only. **Red** after a FAIL: the task behind it takes the group back. **Red** because it stayed "
    "INCONCLUSIVE: the group stays as it is, and a person decides.",
    "back": "Takes the group back, one instance or the mode at a time, to where it was sound.\n\n**Skipped:** no step before it found the "
    "group worse, and no audit said FAIL.",
    "clean_up": "Deletes the mode and the empty folders of the group in ZooKeeper. Its last offsets stay: they cost nothing, and a way back begins "
    "with them.",
    "done": "Lets go of the cluster, so that other runs of kmigrate may act.",
}

#: Task -> codes that it most often waits for or fails with; their meaning comes from the registry.
_STOPS = {
    "preflight": ("B0", "U01", "U05"),
    "watch": ("G05", "P02", "T06", "G23", "O01"),
    "backup": ("O01", "O05", "U04"),
    "provision": ("G04", "M01", "R11", "R12"),
    "ready": ("G05", "G23", "G20"),
    "broker": ("S02", "S04", "R01", "R03", "R05", "G12", "G21", "V26"),
    "postponed": ("S02", "R01", "R05"),
    "registered": ("R01", "R03"),
    "copied": ("P11", "G13"),
    "dual_write_lag": ("G07",),
    "equivalence": ("E01", "E02", "E08", "E12"),
    "soak": ("T01", "G07", "G21", "O01"),
    "controller": ("G34", "H06", "H08", "R12"),
    "active_last": ("G34", "R12"),
    "finalized": ("T03", "G23"),
    "plan": ("P12", "P13", "O01", "M02"),
    "heal.flag": ("G23", "R12"),
    "heal.failover": ("G07", "G20"),
    "heal.equivalence": ("E02", "G33", "G35"),
    "to_migration.broker": ("S02", "R01", "R05"),
    "stop_controllers.controller": ("G27", "G33", "P07"),
    "stop_controllers.active_last": ("G27", "G33", "P07"),
    "hand_over.transaction": ("G26", "G27", "G29", "G33"),
    "hand_over.zookeeper_leads": ("G02", "G28"),
    "to_zookeeper.broker": ("G26", "G28", "G30", "R05"),
    "wipe.controller": ("M01", "M02", "G26"),
    "rolled_back": ("G04", "G30", "G31"),
    "check": ("K30", "K31", "K41", "K69"),
    "to_migrating": ("K52", "K55", "V30", "V33"),
    "mode_kafka": ("K58", "V30"),
    "to_plain": ("K52", "K55", "V30", "V33"),
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


def _page(text: str, name: str) -> str:
    stops = "\n".join(f"* **{code}** {entry(code).title}: {entry(code).remedy}" for code in _STOPS.get(name, ()))
    return "\n\n".join(part for part in (text, _RED, f"**Often stops with:**\n\n{stops}" if stops else "") if part)


def _name(task_id: str) -> str:
    """The task's name without its group and its node; for a Spark job's task, the act on the job."""
    job = _JOB.match(task_id)
    return job[1] if job else _NODE.sub("", task_id.rpartition(".")[2])
