"""Entries of the cluster file, Airflow connections, the workload and the probe."""

from __future__ import annotations

from airflow_provider_kmigrate.core.reasons.entry import Area, RunbookEntry

AREAS = (
    Area(
        "F",
        "the cluster file",
        "the cluster file",
        "when DAGs are read",
        "A broken file is an import error in Airflow, with file, line and fix; its DAG disappears until the file is fixed. Check it with `python -m airflow_provider_kmigrate.spec <file or folder>`. The cluster is not affected. A run under way fails at its next task and is cleared afterwards; other clusters' DAGs are not touched.",
    ),
    Area(
        "N",
        "Airflow connections",
        "Airflow connections",
        "when a task begins",
        "Addresses and secrets live in Airflow connections. They are read strictly, and everything that is wrong is listed at once; nothing was done. *Test* under *Admin, Connections* tries them. A run under way fails at its next task and is cleared afterwards.",
    ),
    Area(
        "Y",
        "the workload and the probe",
        "the workload and the probe: records of our own",
        "around a migration, and on test clusters",
        "Records that kmigrate itself sends and receives to check whether anything is lost. None of these codes concerns the cluster.",
    ),
)

ENTRIES = (
    RunbookEntry(
        "F00",
        "The cluster file cannot be read",
        "There is no such file, no right to read it, or it is no UTF-8 or no YAML.",
        "Yes.",
        (
            "Not YAML: fix the named line or the one above it, on every machine.",
            "Check the path (`airflow config get-value kmigrate clusters_folder`) and its rights on every worker, the triggerer and the DAG processor.",
        ),
        "Delete it while a run is under way: its tasks load it.",
    ),
    RunbookEntry(
        "F04",
        "A key of the cluster file is unknown, missing or wrong",
        "kmigrate uses no part of a file with such a key: a setting with a typo would silently not apply.",
        "Yes.",
        (
            "Change the key as the text says; `cluster.schema.json` says where each key belongs.",
            "Not in this release: remove it. For SSH use `driver: command` with commands such as `ssh {host} ...`.",
        ),
        "Change `cluster_id` to make it fit: it protects against the wrong cluster. Copy another node's path.",
    ),
    RunbookEntry(
        "F05",
        "Something is there twice",
        "Two keys, nodes or files claim the same name, id, address, file or cluster. Of two files for one cluster neither is used.",
        "Yes.",
        ("Remove or rename the copy.",),
        "Keep two files for one cluster, even in different folders.",
    ),
    RunbookEntry(
        "F06",
        "A secret in the cluster file",
        "A key that holds a secret has its value written out. Cluster files are read by many and logged.",
        "The cluster is; the secret may have been read.",
        (
            'Write a reference that Kafka resolves on the host: `${file:/path:key}`. Of a login only the secret options: `... username="ctl" password="${file:/path:key}";`.',
            "Change the secret.",
        ),
        "Put it into a comment.",
    ),
    RunbookEntry(
        "F08",
        "The Spark provider is not installed",
        "The file has a section `audit`, and this Airflow cannot submit Spark jobs: the audits would fail, and with them the migration.",
        "Yes.",
        ("`pip install 'airflow-provider-kmigrate[spark]'` on scheduler and workers, or take the section out.",),
        "Install the full `pyspark` beside Airflow: it and the thin client overwrite each other.",
    ),
    RunbookEntry(
        "F09",
        "A name or argument that does not exist",
        "A task or command names a broker, controller, group, wave, instance, Spark job or value that the cluster file, ZooKeeper or Kafka does not have. The run would do nothing and look finished.",
        "Yes: nothing was changed. What was meant is as it was.",
        (
            "Correct the argument of the task, the template that fills it, the command or the cluster file. The text lists what exists.",
            "A group: `python -m airflow_provider_kmigrate.groups scan` lists them. A job: add it to `spark_jobs`.",
            "Clear the task.",
        ),
        "Mark the task as success, or repeat a command with `--force`.",
    ),
    RunbookEntry(
        "N01",
        "A connection is missing",
        "Addresses and secrets of a cluster are in Airflow connections, or without Airflow in a JSON file of them. There is none.",
        "Yes.",
        (
            "Complete and run the `airflow connections add` command in the text.",
            "Without Airflow: `airflow connections export --file-format json FILE`. It holds secrets: remove it afterwards.",
        ),
        "Point the cluster file at another cluster's connection. Leave the file where others can read it.",
    ),
    RunbookEntry(
        "N03",
        "A field of a connection is wrong",
        "A field is unknown, missing, contradicts another, or is something that kmigrate's own client cannot use. Secrets are never shown.",
        "Yes.",
        (
            "Change the field as the text says. User and password belong in *Login* and *Password*.",
            "Write each thing in one place; `zookeeper.connect` of a broker has the right chroot.",
            "TLS: PEM files. SASL: a user with PLAIN or SCRAM. Another type: name or create a connection of the type in the text.",
        ),
        "Disable certificate checks, or fall back to PLAINTEXT. Put a secret into an extra of your own naming. Change the type of a connection in use.",
    ),
    RunbookEntry(
        "Y01",
        "The workload or probe cannot be used like this",
        "The folder has none, has one already, or a plan of another release; or the brokers are not known.",
        "Yes.",
        (
            "None there: name the folder of the one that runs, or start one.",
            "One is there: give each its own folder.",
            "Its plan cannot be read: stop its processes with the release that started them, start a new one in another folder.",
            "No brokers: give `--bootstrap`, or `--properties` with a JSON file.",
        ),
        "Delete the folder of one whose verdict is still needed, or edit its plan.",
    ),
    RunbookEntry(
        "Y05",
        "The probe has ended",
        "What it did not observe since then is missing: the gates of this run stay INCONCLUSIVE (L05, L14).",
        "Yes; only the evidence is thinner.",
        (
            "In a migration: mark this run as failed and start a new one. It finds what is done, soaks again, and has its own probe.",
            "Or, if clients or logs are audited too (`events`, `topics`): write `probe: false` and clear `audit` of the gate with *Downstream*.",
            "Without Airflow: start the next one in another folder.",
        ),
        "Start it again in the same folder.",
    ),
    RunbookEntry(
        "Y06",
        "A setting that a migrating consumer cannot have",
        "An application configured or subscribed its `MigratingConsumer` in a way in which no member of such a group can work.",
        "Yes: it has not joined; the rest of the group has its partitions.",
        (
            "Change in the application what the text says, and start it again. The assignment strategy must be that of the ZooKeeper consumers; for Kafka 0.10.2 or 0.11 with round-robin, `roundrobin-0.10`.",
            "A wildcard: one expression of plain letters, dots, bars, brackets and stars, or name the topics.",
            "A second `subscribe`: close the consumer and create another one with all topics.",
        ),
        "Try another strategy: the members would wait for each other.",
    ),
    RunbookEntry(
        "Y09",
        "The probe is not usable from here",
        "It runs on another worker, or its files show nothing new: the audits would have no evidence.",
        "Yes; the probe goes on, and no broker was restarted because of it.",
        (
            "Give `start_probe` and `stop_probe` one worker (an Airflow queue). It ends by itself after two weeks.",
            "Every worker and Spark's driver must see the same folder `audit.result`.",
            "A pod of its own for each task ends the probe: run it elsewhere, name its events in `events` with `level: probe`, and write `probe: false`.",
        ),
        "Skip the task, or delete its folder before the last audit.",
    ),
)
