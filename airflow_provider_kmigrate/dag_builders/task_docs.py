"""Each task's page in Airflow: what the task does, when it is done, what a failure means."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from airflow_provider_kmigrate.core.migration.plan import Plan
from airflow_provider_kmigrate.core.reasons import ENTRIES

_FAILED = (
    "**Failed:** the log ends with a code, what was observed, what it means and what to do next. `kmigrate runbook CODE` "
    "prints the whole entry. Fix the cause, then clear this task: it observes the cluster and does only what is left."
)
_NODE = re.compile(r"_\d+$")
_JOB = re.compile(r"(hold_for|progress_after|resume_after)_\w+\.")  # a Spark job's name follows, which may be anything


class TaskPage(NamedTuple):
    """What a task does, as Markdown, and the codes that it most often waits for or fails with."""

    doc: str
    stops: tuple[str, ...] = ()


# fmt: off
#: Task -> its page, for tasks that run no step of a plan.
OTHERS: Mapping[str, TaskPage] = {
    "watch": TaskPage(
        "Observes the cluster once, takes no lock and changes nothing. A success reports the cluster's phase and whether a "
        "rollback is assured; the XCom `readiness` has that as a document. A failure means that an operator must act: an alarm, "
        "hybrid mode for longer than `policy.max_hybrid`, or a rollback that is not possible any more. It also fails if, in "
        "all retries, nodes do not respond or are out of their ISRs, a rollback is not assured, or a finalization stays "
        "incomplete. Nodes that kmigrate itself is restarting do not count for `policy.start_timeout`.", ("G05", "G43", "G45", "H12", "P02", "T06", "T08", "G23", "R01", "G07", "E02", "K01", "O01", "O03", "O06")
    ),
    "probe": TaskPage(
        "Sends a small stream of numbered records through every broker (topic `kmigrate-probe`) and reads them, until `stop_probe`, "
        "or until no task before that one is left to do. Every audit of this run checks their acknowledgements and deliveries. It "
        "takes one slot of a worker all the time; a retry goes on with the same run.\n\n**Ended although the run goes on:** clear it "
        "alone. Until it runs again, no broker restarts.", ("Y05", "Y09")
    ),
    "probe_ended": TaskPage(
        "Nothing: it is behind `probe`, so that the run's outcome does not depend on it."
    ),
    "check_probe": TaskPage(
        "Waits until the probe's records are acknowledged and read, as its files say. **Failed:** `probe` has no slot of a worker, or "
        "has failed, or `audit.result` is not the same folder on all workers. No broker has been restarted yet.", ("Y09",)
    ),
    "stop_probe": TaskPage(
        "Ends the probe, and waits until all its records are read, at most five minutes. It never fails because of a probe that does "
        "not end: the audit behind it says what is missing."
    ),
    "start_rollback": TaskPage(
        "Starts `kmigrate_rollback__<cluster>` and hands the lock of this run over to it, if that was the answer to the "
        "request. It asks no second time, unless ZooKeeper is open to every client and the cluster file has no "
        "`approvers.signing_conn_id` (W22). While its DAG is paused, or another run of it is under way, nothing is handed "
        "over and this task fails.\n\n**Skipped:** the answer was another one.", ("H11",)
    ),
    "rollback_started": TaskPage(
        "Waits until the run of `kmigrate_rollback__<cluster>` has begun. It owns the cluster meanwhile, also while it is "
        "queued.\n\n**Skipped:** the answer was another one.", ("H11",)
    ),
    "leftovers": TaskPage(
        "Lists what migrations and rollbacks have left on the machines, in ZooKeeper and on Airflow's machines. It changes "
        "nothing."
    ),
    "approve": TaskPage(
        "Shows the list and asks an operator. Answer under *Required Actions*; it changes nothing while it waits.\n\n"
        "**Keep everything** fails this task and removes nothing. To be asked again with a fresh list, start a new run.",
        ("H06", "H10", "H11"),
    ),
    "clean_up": TaskPage(
        "Removes what the request showed, for good. If anything is different by now, it removes nothing and fails (H06): run "
        "`leftovers` again."
    ),
    "stop_after": TaskPage(
        "Waits until an approver lets the migration continue, as `stop_after` in the cluster file says. Answer under "
        "*Required Actions*; it changes nothing while it waits, and the run keeps the lock.\n\n**End this run** fails this "
        "task and changes nothing. A later run does what is left.", ("H10",)
    ),
    "spark_job_risks": TaskPage(
        "Checks how the rolls could harm the Spark jobs of the cluster file, and changes nothing. Fails if a job is not safe "
        "to roll."
    ),
    "fingerprint_logs": TaskPage(
        "Takes a fingerprint with Spark: of the logs of `audit.topics`, or of the newest records of all topics, and of all "
        "commits. Every later audit of this run compares with it. It is taken once, before the first roll; afterwards it is "
        "too late."
    ),
    "check_spark": TaskPage(
        "Has Spark do a small audit whose result is known, with the settings, the connection and the folders of the audits. It reads "
        "nothing of the cluster. **Failed:** the log names what is missing: master, memory, python, jar, java or store. A migration would stop "
        "at its first audit."
    ),
    "check_spark_logs": TaskPage(
        "Has Spark read the newest records of the cluster's logs, as `fingerprint_logs` will. **Failed:** the log names what is missing: a jar, "
        "or access to Kafka from Spark's driver and executors."
    ),
    "audit_session": TaskPage(
        "Keeps one Spark application for all audits of this run, which reads events all the time and answers each audit in "
        "seconds. It runs beside the steps until no other task of the run is left to do, and takes a slot of a worker. It only "
        "saves time: while it does not run, each audit submits a job of its own, with the same verdict.\n\n**Failed:** the run "
        "continues. To have it back, clear it. `audit.session: false` in the cluster file leaves it out."
    ),
    "audit_session_ended": TaskPage(
        "The audit session has ended, whatever became of it: the outcome of the run does not depend on it."
    ),
    "audit": TaskPage(
        "Submits the audit to Spark, or asks the run's audit session. If it is inconclusive it is repeated later with more evidence, up to `audit.retries` "
        "times. The task is *up for retry* meanwhile."
    ),
    "verdict": TaskPage(
        "Continues the run if the audit says PASS. **FAIL:** records are missing or were delivered wrongly; the findings name "
        "them. Until the finalization `kmigrate_rollback__<cluster>` rolls the migration back. **INCONCLUSIVE**, after all "
        "extensions: there is too little evidence. To audit again, clear `audit` and its downstream tasks. To continue "
        "anyway, at your own risk, mark this task as success."
    ),
    "hold_for": TaskPage(
        "Holds this Spark job between two batches before the roll begins, if its policy in the cluster file says "
        "so.\n\n**Skipped:** it needs no hold: every topic that it reads keeps a leader during the roll."
    ),
    "progress_after": TaskPage(
        "Waits until this job's query makes progress after the roll. A query that lost its topic for too long has failed, and "
        "nothing else reports that. A held job is not checked here."
    ),
    "resume_after": TaskPage(
        "Resumes this job, if it is held, at the offsets where it stopped, and waits for its progress. Before that it "
        "compares the logs' ends with the job's offsets: a log that ends earlier was truncated."
    ),
    "taken": TaskPage(
        "The evidence for the audit after the rollback was taken, or could not be. The rollback continues in both cases: it "
        "does not depend on Spark. Without evidence `audit_after_rollback` fails in the end.\n\n**No minute to lose:** mark "
        "this task as success, without its upstream tasks. The rollback begins at once."
    ),
}

#: The same, for tasks of the DAGs of consumer groups.
GROUPS: Mapping[str, TaskPage] = {
    "plan": TaskPage(
        "Lists every group's members, their kinds and the mode, and what is left to do. It changes nothing."
    ),
    "approve": TaskPage(
        "Shows the plan and asks an operator. Answer under *Required Actions*; it changes nothing while it waits.", ("H06", "H10", "H11")
    ),
    "window": TaskPage(
        "Waits until the group's daily window (UTC) is open. A move may begin only in the window; it may end after "
        "it.\n\n**Skipped:** the group has left ZooKeeper."
    ),
    "check": TaskPage(
        "Observes the group twice, `commit_within` apart, and lists what matters before the move: its assignor, where it "
        "commits, which of its topics ZooKeeper consumers cannot read. It changes nothing. **Failed:** something blocks the "
        "move (K30 to K46): an unreadable registration, an ambiguous wildcard, partitions without progress, ... **Failed** "
        "with K69: the group was rolled back before, and stays so until a run's conf names it in `release_groups`.", ("K30", "K31", "K44", "K69")
    ),
    "to_migrating": TaskPage(
        "Restarts this instance as a migrating consumer, as soon as its group is stable: every partition owned, no rebalance, "
        "no instance missing. Done when it is stable again. The first instance bakes. If the group stops committing or does "
        "not become stable, only this instance becomes a ZooKeeper consumer again. This task then fails (K69).", ("K52", "K55", "V30", "K69")
    ),
    "mode_kafka": TaskPage(
        "Writes `kafka` into the group's `migration/mode` and waits until every member reports that it is settled in that "
        "mode. **Failed** with K58: the log names a member whose kind cannot follow the mode. **Failed** with V30: the group "
        "does not become stable in that mode, and is rolled back.", ("K58", "V30")
    ),
    "cutover": TaskPage(
        "With `side_by_side` the first instance runs the new version beside the others for the group's `bake`, and ends. Stops all instances at once, waits until no client has owned, committed or been registered on either side for `quiet`, copies the "
        "offsets to Kafka, reads them back, and starts the new version. Done when every instance has joined and every partition makes "
        "progress; the log has the pause. Whatever fails, the new version stops, what it processed is copied back, and the old "
        "version starts: then this task fails with K69 and the reason.", ("K91", "K92", "K93", "K42", "K64", "K69")
    ),
    "watch": TaskPage(
        "Watches the group for its `bake` and changes nothing. Every partition with waiting records must be committed within "
        "the group's `commit_within`. Owners alone prove nothing."
    ),
    "to_kafka": TaskPage(
        "Restarts this instance as a Kafka consumer, as soon as its group is stable in Kafka mode. The first one bakes, and "
        "becomes a migrating consumer again if the group is worse with it (K69).", ("K52", "K55", "V30", "K69")
    ),
    "audit": TaskPage(
        "Submits the audit of the clients' records to Spark. An audit that is inconclusive, or that failed in Spark, is "
        "repeated later. **Failed:** there is no result; the group stays as it is. Fix Spark, then clear this task."
    ),
    "verdict": TaskPage(
        "Continues with the group at PASS only. **Failed** after a FAIL: the next task rolls the group back. **Failed** "
        "because it stayed INCONCLUSIVE: the group stays as it is, and an operator decides."
    ),
    "rollback": TaskPage(
        "Rolls the group back, one instance or the mode at a time, to its last healthy state.\n\n**Skipped:** no step before "
        "it found the group worse, and no audit said FAIL."
    ),
    "clean_up": TaskPage(
        "Deletes the mode and the empty folders of the group in ZooKeeper. Its last offsets stay: they cost nothing, and a "
        "rollback begins with them."
    ),
    "done": TaskPage(
        "Releases the cluster, so that other runs of kmigrate may act."
    ),
    "groups_moved": TaskPage(
        "Updates an asset once no consumer group keeps the cluster's migration from its first roll: each group of the file has left ZooKeeper or is in "
        "mode kafka, and no other one uses ZooKeeper but those in `later_groups`. It starts nothing by itself.\n\n**Skipped:** its log names the groups that are left.", ("G21",)
    ),
}
# fmt: on


def render_group_task_page(task_id: str) -> str:
    """Markdown for the page of a task that moves a consumer group. Raises KeyError for a task without a description."""
    name = task_id.rpartition(".")[2]
    (key,) = [key for key in GROUPS if name == key or name.startswith(f"{key}_")] or [name]
    return _render_page(GROUPS[key])


def render_task_page(task_id: str, plan: Plan = ()) -> str:
    """Markdown for a task's page: of its row in the plan, or of what it does beside a plan. Raises KeyError for a task without one."""
    name = _NODE.sub("", task_id)
    for row in plan:
        if name == row.full_id():
            return _render_page(TaskPage(row.doc, row.stops))
        if row.last and name == f"{row.group}.{row.last.task}":
            return _render_page(TaskPage(row.last.doc, row.last.stops))
    return _render_page(OTHERS[_page_key(task_id)])


def _render_page(page: TaskPage) -> str:
    stops = "\n".join(f"* **{code}** {ENTRIES[code].title}: {ENTRIES[code].remedy}" for code in page.stops)
    return "\n\n".join(part for part in (page.doc, _FAILED, f"**Often stops with:**\n\n{stops}" if stops else "") if part)


def _page_key(task_id: str) -> str:
    """The task's name without its group and its node; for a Spark job's task, the act on the job."""
    job = _JOB.match(task_id)
    return job[1] if job else "stop_after" if task_id.startswith("stop_after_") else _NODE.sub("", task_id.rpartition(".")[2])
