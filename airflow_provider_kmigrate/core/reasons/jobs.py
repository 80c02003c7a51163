"""Entries of users' Spark jobs."""

from __future__ import annotations

from airflow_provider_kmigrate.core.reasons.entry import Area, RunbookEntry

AREAS = (
    Area(
        "J",
        "users' Spark jobs",
        "users' Spark jobs: what could hurt them, and holding them",
        "around risky steps",
        "J01 to J14: a user's Spark job is held, is to be held, or makes no progress. J20 to J24: a roll could hurt it; `spark_job_risks` reports these before anything is changed, fails if a job must not be rolled like this, and otherwise warns. The cluster is not concerned.",
    ),
)

ENTRIES = (
    RunbookEntry(
        "J01",
        "The job still runs",
        "The hold is set; the job stops as soon as the batch under way is committed.",
        "Yes. It goes on reading.",
        (
            "Wait: it stops between two batches. Spark's page shows a long batch. The limit is `hold_timeout`.",
            "The cluster cannot wait, as in a rollback: mark the task as success. The job may then repeat its batch, or fail if a partition loses its leader.",
        ),
        "Kill the application: its batch would be done again.",
    ),
    RunbookEntry(
        "J02",
        "A batch is half done",
        "The checkpoint has planned a batch that is not committed. The job would do it again from its beginning.",
        "Yes, while the job is stopped.",
        (
            "The sink takes a repeated batch only once: write `idempotent_sink: true` into the cluster file.",
            "Otherwise check the sink, and remove what that batch wrote.",
        ),
        "Delete files of the checkpoint.",
    ),
    RunbookEntry(
        "J03",
        "A log ends before the job's place",
        "The log was truncated after the job had read it: its sink holds records that are no longer in the log.",
        "**No.** Treat it as lost data.",
        (
            "Do not start the job.",
            "Find the leader change that truncated the log (an unclean election?).",
            "Save what the sink holds before those offsets are written again.",
        ),
        "Set `failOnDataLoss=false` to start the job.",
    ),
    RunbookEntry(
        "J04",
        "Records or partitions of the job are gone",
        "A topic was deleted or created again, or records that the job had not read were removed while it was held.",
        "Yes, for the cluster. The job stays held.",
        (
            "Decide with the job's owner: go on behind the gap with a new checkpoint, or read the missing records from elsewhere.",
            "Keep holds shorter than retention.ms.",
        ),
        "Start it with the old checkpoint of another topic, or set `failOnDataLoss=false`.",
    ),
    RunbookEntry(
        "J05",
        "The job does not report its state",
        "Its hold folder or checkpoint does not answer, is of another release, or has no recent state. Such a job cannot be held.",
        "Yes. Nothing was started or stopped.",
        (
            "Check that it runs, uses `spark_hold.keep_running`, and has the hold folder and checkpoint that the cluster file names.",
            "Check that job and Airflow run the same release of kmigrate.",
            "An application that is meant to be stopped: set `hold: never`. A rollback goes on without it after a minute.",
        ),
        "Go on as if it were held.",
    ),
    RunbookEntry(
        "J08",
        "The ends of its logs are unknown",
        "The brokers did not say where the job's partitions end. It could fail, or go on past truncated records.",
        "Yes. The job stays held.",
        ("Wait; start the brokers that do not answer. It goes on by itself.",),
        "Resume the job by hand.",
    ),
    RunbookEntry(
        "J09",
        "Another query used the checkpoint",
        "A query ran with the job's checkpoint while the job was held. With two at a time records are written twice.",
        "Yes, while the job is stopped.",
        ("Find that query and stop it: one checkpoint belongs to one running query.", "Clear the task."),
        "Start the job beside it.",
    ),
    RunbookEntry(
        "J11",
        "The job makes no progress",
        "It has failed, or its query has not asked the brokers since the roll. A living application proves nothing.",
        "Yes, for the cluster. The job's readers wait.",
        (
            "Check Spark's page and the job's log.",
            "The query failed or hangs: fix it, start the job again, clear the task.",
            "It lives on topics without new records: only a job under `spark_hold.keep_running` can show progress. Mark the task as success.",
        ),
        "Roll on before you know. Delete its checkpoint.",
    ),
    RunbookEntry(
        "J12",
        "The job went on from elsewhere",
        "It runs from other offsets than it had stopped at: records were skipped or are done again.",
        "**Not for the job's output.**",
        ("Stop the job. Compare its checkpoint with the record of the hold. Repair the sink.",),
        "Let it run on.",
    ),
    RunbookEntry(
        "J13",
        "Another run holds the job",
        "Only the run that holds it releases it; that run does not know of this one.",
        "Yes.",
        ("Wait for that run, or end it: the next run takes over what an ended run holds.",),
        "Remove the marker of another run's hold.",
    ),
    RunbookEntry(
        "J14",
        "The checkpoint's file system is not reachable",
        "This machine, worker or session has no access to the storage with the checkpoint and the hold folder.",
        "Yes; nothing was held or released.",
        (
            "Airflow: install the provider of that storage on the workers, and name its connection as `conn_id` of the job.",
            "In an application: give `keep_running` its session, or its own `files` (Spark Connect does not reach it).",
            "Or use a folder that this machine mounts.",
        ),
        "Point `checkpoint` at a copy.",
    ),
    RunbookEntry(
        "J20",
        "Options that hurt the job in a roll",
        "It skips truncated records silently, gives up early, learns of partitions late, or shares a group with another job.",
        "Yes, until the rolls begin.",
        (
            "Take the named options out for the time of the migration. Add no partitions meanwhile.",
            "Give each query its own `kafka.group.id`, or none.",
            "Or hold the job: `hold: always`.",
        ),
        "Set `failOnDataLoss=false`, or lower limits further, during a migration.",
        source="measured",
    ),
    RunbookEntry(
        "J22",
        "A receiver that coordinates in ZooKeeper",
        "The job is a ZooKeeper consumer: when the last broker leaves ZooKeeper mode its partitions stop (measured).",
        "Yes, until the second roll ends.",
        ("Rewrite it with Structured Streaming, from the offsets in ZooKeeper, before the second roll.",),
        "Roll the last broker while it runs.",
        source="measured",
    ),
    RunbookEntry(
        "J24",
        "The job may lose a leader",
        "A topic has one replica, or its topics are not known. Without a leader the job may fail. It blocks if the job may never be held.",
        "Yes, until the rolls begin.",
        (
            "List its topics under `spark_jobs` in the cluster file. May kmigrate's user describe them?",
            "Raise the replication factor, or let the job be held: `hold: risky`, under `spark_hold.keep_running`.",
        ),
        "Set `hold: never` for such a job.",
        source="measured",
    ),
)
