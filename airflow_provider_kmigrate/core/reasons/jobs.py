"""Entries of users' Spark jobs."""

from __future__ import annotations

from airflow_provider_kmigrate.core.reasons.entry import read

AREAS, ENTRIES = read("""
J users' Spark jobs
about: users' Spark jobs: what could hurt them, and holding them
when: around risky steps
intro: J01 to J13: a user's Spark job is held, should be held, or makes no progress. J20 to J24: a roll could hurt it; `spark_job_risks` reports these before anything is changed, fails if a job must not be rolled like this, and otherwise warns. The cluster is not concerned.

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
