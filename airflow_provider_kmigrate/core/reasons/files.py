"""Entries of the cluster file, Airflow connections, the probe."""

from __future__ import annotations

from airflow_provider_kmigrate.core.reasons.entry import read

AREAS, ENTRIES = read("""
F the cluster file
about: the cluster file
when: when DAGs are read
intro: A broken file is an import error in Airflow, with file, line and fix; its DAG disappears until the file is fixed. Check it with `python -m airflow_provider_kmigrate.spec <file or folder>`. The cluster is not affected. A run under way fails at its next task and is cleared afterwards; other clusters' DAGs are not touched.

F00 The cluster file cannot be read
means: There is no such file, no right to read it, or it is no UTF-8 or no YAML.
meanwhile: Yes.
do: Not YAML: fix the named line or the one above it, on every machine.
do: Check the path (`airflow config get-value kmigrate clusters_folder`) and its rights on every worker, the triggerer and the DAG processor.
never: Delete it while a run is under way: its tasks load it.

F04 A key of the cluster file is unknown, missing, wrong or there twice
means: kmigrate uses no part of a file with such a key: a setting with a typo would silently not apply. Two keys or nodes may not claim one name, id, address or file. Of two files for one cluster neither is used.
meanwhile: Yes: nothing was run.
do: Change the key as the text says; `cluster.schema.json` says where each key belongs. There twice: remove or rename the copy.
do: Not in this release: remove it. A key of the old driver `command` (`start`, `stop`, `status`, `read`, `write`, `format`, `wipe`, `kill_after`): the text has the section to write instead. Install `kmigrate-node` on each machine.
do: Check the file: `python -m airflow_provider_kmigrate.spec CLUSTER.yaml`.
never: Change `cluster_id` to make it fit: it protects against the wrong cluster. Copy another node's path. Write `true` as a command: kmigrate would take it for success.

F06 A secret in the cluster file
means: A key that holds a secret has its value written out. Cluster files are read by many and logged.
meanwhile: The cluster is; the secret may have been read.
do: Write a reference that Kafka resolves on the host: `${file:/path:key}`. Of a login only the secret options: `... username="ctl" password="${file:/path:key}";`.
do: Change the secret.
never: Put it into a comment.

F08 Software that the file needs is not installed
means: The audits need the Spark provider, and where they run Java and Spark's Kafka jars; a notifier needs its class. The audits would fail, and with them the migration; no message would be sent.
meanwhile: Yes.
do: A notifier: correct its import path, or install its provider on scheduler, workers and triggerer.
do: Audits: `pip install 'airflow-provider-kmigrate[spark]'` on scheduler and workers, or take the section out.
do: Java: install a Java 17 runtime on the machine that runs the audit, or set `JAVA_HOME`.
do: Jars: `python -m airflow_provider_kmigrate.audit.connector` fetches them with Maven (Debian, Ubuntu: `apt-get install maven`) and prints their paths; or name your own.
never: Install the full `pyspark` beside Airflow: it and the thin client overwrite each other. Mix versions of connector and Spark.
causes: JARS_MISSING, JAVA_MISSING

F09 A name or argument that does not exist
means: A task or command names a broker, controller, group, wave, instance, Spark job or value that the cluster file, ZooKeeper or Kafka does not have. The run would do nothing and look finished.
meanwhile: Yes: nothing was changed. What was meant is as it was.
do: Correct the argument of the task, the template that fills it, the command or the cluster file. The text lists what exists.
do: A group: `python -m airflow_provider_kmigrate.groups scan` lists them. A job: add it to `spark_jobs`.
do: Clear the task.
never: Mark the task as success, or repeat a command with `--force`.

N Airflow connections
about: Airflow connections
when: when a task begins
intro: Addresses and secrets live in Airflow connections. They are read strictly, and everything that is wrong is listed at once; nothing was done. *Test* under *Admin, Connections* tries them. A run under way fails at its next task and is cleared afterwards.

N03 A connection is missing or wrong
means: Addresses and secrets of a cluster are in Airflow connections, or without Airflow in a JSON file of them. There is none, or a field is unknown, missing, contradicts another, or is something that kmigrate's own client cannot use. Secrets are never shown.
meanwhile: Yes.
do: Change the field as the text says, or complete and run its `airflow connections add` command. User and password belong in *Login* and *Password*.
do: Write each thing in one place; `zookeeper.connect` of a broker has the right chroot.
do: TLS: PEM files. SASL: a user with PLAIN or SCRAM. Another type: name or create a connection of the type in the text.
do: Without Airflow: `airflow connections export --file-format json FILE`. It holds secrets: remove it afterwards.
never: Point the cluster file at another cluster's connection. Disable certificate checks, or fall back to PLAINTEXT. Put a secret into an extra of your own naming. Change the type of a connection in use. Leave the file where others can read it.

Y the probe
about: the probe: records of our own
when: during a migration
intro: Records that kmigrate itself sends and receives to check whether anything is lost. None of these codes concerns the cluster.

Y01 The probe cannot be used like this
means: The folder has none, has one already, or a plan of another release; or the brokers are not known.
meanwhile: Yes.
do: None there: name the folder of the one that runs, or start one.
do: One is there: give each its own folder.
do: Its plan cannot be read: stop its processes with the release that started them, start a new one in another folder.
do: No brokers: give `--bootstrap`, or `--properties` with a JSON file.
never: Delete the folder of one whose verdict is still needed, or edit its plan.

Y05 The probe has ended
means: What it did not observe since then is missing: the gates of this run stay INCONCLUSIVE (L05, L14).
meanwhile: Yes; only the evidence is thinner.
do: In a migration: mark this run as failed and start a new one. It finds what is done, soaks again, and has its own probe.
do: Or, if clients or logs are audited too (`events`, `topics`): write `probe: false` and clear `audit` of the gate with *Downstream*.
do: Without Airflow: start the next one in another folder.
never: Start it again in the same folder.

Y06 A setting that a migrating consumer cannot have
means: An application configured or subscribed its `MigratingConsumer` in a way in which no member of such a group can work.
meanwhile: Yes: it has not joined; the rest of the group has its partitions.
do: Change in the application what the text says, and start it again. The assignment strategy must be that of the ZooKeeper consumers; for Kafka 0.10.2 or 0.11 with round-robin, `roundrobin-0.10`.
do: A wildcard: one expression of plain letters, dots, bars, brackets and stars, or name the topics.
do: A second `subscribe`: close the consumer and create another one with all topics.
never: Try another strategy: the members would wait for each other.

Y09 The probe is not usable from here
means: It runs on another worker, or its files show nothing new: the audits would have no evidence.
meanwhile: Yes; the probe continues, and no broker was restarted because of it.
do: Give `start_probe` and `stop_probe` one worker (an Airflow queue). It ends by itself after two weeks.
do: Every worker and Spark's driver must see the same folder `audit.result`.
do: A pod of its own for each task ends the probe: run it elsewhere, name its events in `events` with `level: probe`, and write `probe: false`.
never: Skip the task, or delete its folder before the last audit.
""")
