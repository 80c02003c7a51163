"""Entries of single nodes and of ZooKeeper: restarts, machines, files, and what could not be read."""

from __future__ import annotations

from airflow_provider_kmigrate.core.reasons.entry import Area, RunbookEntry

_RENDERED = "`python -m airflow_provider_kmigrate.steps.rendered` ([section 12](#12-a-machine-is-dead-for-good))"
_DATA_SAFE = "Yes. Nothing was changed."
_ONE_DOWN = "With one broker away, as safe as your replication. Clients are served if every partition has a leader."

AREAS = (
    Area("I", "Identity", "identity: is it the cluster that was named", "before every act"),
    Area("M", "The nodes' machines", "the nodes' machines", "when a node is formatted, started or stopped"),
    Area(
        "O",
        "Originals",
        "originals in the backup",
        "before a file is written",
        "Every later file of a node, and the rollback, is rendered from its original in the backup, `<folder>/backup/<cluster>_<cluster id>/`.",
    ),
    Area(
        "R",
        "The restart of a node",
        "the restart of one node",
        "rolls, controllers",
        'A broker\'s new file is written before it is stopped. So "stopped, with the new file" is a restart of kmigrate that was interrupted;'
        " it goes on by itself.",
    ),
    Area(
        "U",
        "Unread",
        "what could not be read (unknown)",
        "all the way",
        "Something did not answer; the text ends with the cause. Unknown never counts as healthy: a step that needs it waits, preflight blocks.",
    ),
    Area("Z", "ZooKeeper's tree", "ZooKeeper's tree", "all the way"),
)

ENTRIES = (
    RunbookEntry(
        "I01",
        "Another cluster",
        "What answered belongs to another cluster id than the one in the cluster file. Going on would change another cluster.",
        "Yes, both clusters. Nothing was done.",
        (
            "Compare: `zookeeper-shell.sh $ZK get /cluster/id`, `kafka-cluster.sh cluster-id --bootstrap-server $B`, `cluster.id` in `meta.properties`.",
            "Correct the connection, the host or the path that is wrong (`log_dir` for a controller). Clear the task.",
        ),
        "Change `cluster_id` in the cluster file before you know which is right.",
    ),
    RunbookEntry(
        "M01",
        "A file or directory of another node",
        "The cluster file gives a node a file or directory that belongs to another one or is unknown. The wrong node would be stopped, or its data moved away. kmigrate formats only empty directories and moves away only its own.",
        "Yes: nothing was formatted, written or moved.",
        (
            "Check what is in it. Correct `host`, `properties` or `log_dir` of this node in the cluster file.",
            "A controller needs a `log_dir` and a file that nothing else uses, neither inside the other. Save what is needed, then empty the directory, or move an unused file of the package away.",
            "Clear the task.",
        ),
        "Use `kafka-storage.sh format --ignore-formatted`. Change `broker.id` in the file to match. Move away the file of a running process.",
        source="reliability: every act is identified; measured: a rollback moved a running broker's data",
    ),
    RunbookEntry(
        "M02",
        "A command is missing or wrong",
        "The cluster file has no such command for the node, or one with an unknown placeholder in braces. Nothing was run.",
        _DATA_SAFE,
        (
            "Check the file: `python -m airflow_provider_kmigrate.spec CLUSTER.yaml`. Correct the node's commands; the message lists the known placeholders.",
            "`wipe` is needed by a rollback only: an old quorum that starts again deletes topics. `plan`, `soak` and the watch ask for it.",
        ),
        "Write `true` as the command: kmigrate would take it for success.",
    ),
    RunbookEntry(
        "O01",
        "An original is missing or was altered",
        "Later stages of a node's file, and the rollback, are rendered from its original. It is not in the backup, is not the saved one, or is not an original.",
        "Yes; the node was not stopped. Without originals there is no rollback.",
        (
            "Put `[kmigrate] folder` on storage that all workers and the triggerer share. Copy it from the worker that ran `backup`. Clear the task.",
            "Lost, and no broker has moved: clear `backup`.",
            "Altered: restore it from your own backup or the node's `*.bak`; the SHA-256 is in `manifest.json`.",
            "Lost, and a broker has moved: fetch the broker's `*.bak` files and store the ZooKeeper-mode one: `python -m airflow_provider_kmigrate.steps.originals <folder>/backup/<cluster>_<cluster id> N FILE --lost --metadata-version V`, as Airflow's user. `V`: `kafka-features.sh --bootstrap-controller $C describe`. Refused: try the next `*.bak`.",
        ),
        "Back up files that kmigrate rendered, or write a new hash into `manifest.json`.",
    ),
    RunbookEntry(
        "O03",
        "A broker's file was edited",
        "The file on the broker is neither the original nor one that kmigrate wrote. Its changes (a password, a playbook's setting) would be lost at the next restart.",
        "Yes; the broker was not stopped. A rollback goes on, and keeps the edited file as `*.bak`.",
        (
            "Ask who changed the keys in the text. Stop playbooks until the migration is over.",
            "Not wanted: restore the file, from the node's newest `*.bak` or, before this stage, from the backup.",
            "Wanted: make the same change in the original, as Airflow's user: `python -m airflow_provider_kmigrate.steps.originals <folder>/backup/<cluster>_<cluster id> N` opens an editor.",
            "Clear the task.",
        ),
        "Delete the backup, or edit a file in it: its hash would be wrong (O01).",
    ),
    RunbookEntry(
        "O05",
        "The folder of backups and journals cannot be used",
        "A task or the triggerer cannot write or read `[kmigrate] folder` on its machine, or finds no journal of the owning run in it. Every act is recorded there first.",
        "Yes; nothing was stopped or written. In `handover.transaction` no controller is active: hurry.",
        (
            "Put the folder on one storage that every worker and the triggerer share, with free space.",
            "Give it to Airflow's user: `chown -R airflow <folder>` ([section 9](#9-where-the-evidence-is)).",
            "Clear the task. A sensor goes on by itself: a run that has just begun writes its first line soon.",
        ),
        "Point `[kmigrate] folder` elsewhere in the middle of a migration (O01). Remove the sensor.",
    ),
    RunbookEntry(
        "R01",
        "A broker does not respond",
        "It starts, it hangs, it is down or unreachable. No other broker may be stopped meanwhile, and the copy would not start.",
        _ONE_DOWN,
        (
            "Is its process down? Start it. Is it up? Read its log, and check the network between Airflow's workers and it.",
            "After an unclean stop it reads its logs for minutes (`Recovering`): wait.",
            "It exits again and again: the last lines say why. Put the previous file (`*.bak`) back only if the new one is the cause.",
            "With G07 in the text: a broker in migration mode waits for the dual-write. The task restarts that after 20 s.",
            "The machine is dead for good: [section 12](#12-a-machine-is-dead-for-good).",
        ),
        "SIGKILL it while it recovers its logs. Take it out of the cluster file. Stop others to compare.",
        source="KRaftMigrationDriver, WAIT_FOR_BROKERS",
    ),
    RunbookEntry(
        "R02",
        "A broker is down, and kmigrate did not stop it",
        "Its file is not the new one: something else stopped it, and may stop it again.",
        _ONE_DOWN,
        ("Find out why: its log, the disk, the kernel's log (`Out of memory`). Start it. kmigrate goes on once it answers.",),
        "Install the new file by hand.",
    ),
    RunbookEntry(
        "R03",
        "Not yet registered",
        "Its registration or session in ZooKeeper, or its registration with the controllers, is not as it must be. Until then no other broker may be stopped.",
        _ONE_DOWN,
        (
            "Wait: a ZooKeeper session ends within 18 s, unfencing takes up to a minute, with large logs longer.",
            "Longer: search its log for `Unable to register` and `Recovering`, and compare versions (C04).",
            "Check that it reaches every controller's port. Search the active controller's log for its id.",
        ),
        "Delete its znode under `/brokers/ids`, or restart the others.",
    ),
    RunbookEntry(
        "R05",
        "Not yet back in every ISR",
        "It catches up. Until it is back, no other broker may be stopped.",
        "Yes.",
        (
            "Wait: with much traffic or large logs it takes minutes. `still catches up` in the task's log: it is only slow.",
            "The number does not fall: look for a full disk, an offline log directory, and a throttle (B14).",
            "With G07 beside it, or partitions without a leader: nothing. The task repairs both.",
            "One leader for all that is left: kmigrate restarts that leader after 20 s. If it does not, the codes beside R05 say why (R01, S02, G28); fix that.",
            "After ten minutes, and the leader's log has `alter-partition-channel-manager]: Error due to`: restart that leader with your own service command.",
            "After a handover, `already at a newer partition epoch`: nothing. kmigrate raises the states after 8 s.",
        ),
        "Restart the follower again: it changes nothing. Raise `policy.start_timeout` without looking.",
        source="measured",
    ),
    RunbookEntry(
        "R11",
        "A controller lost its directory",
        "Brokers have moved already. A controller with an empty directory could be elected without the metadata.",
        "Yes, while a majority of the others is up. There is no spare.",
        (
            "Mount or restore its directory, start it, clear the task.",
            "The disk is lost for good: [section 12](#12-a-machine-is-dead-for-good), in daylight.",
        ),
        "Format an empty directory for it while another voter lags or is down.",
    ),
    RunbookEntry(
        "R12",
        "It is unknown whether the migration is finalized",
        "A controller does not have the flag, and no leader with the flag has written /migration since its election. One without it may have led, which finalizes.",
        "Unknown. Brokers serve; without a leader nothing can be created or elected.",
        (
            "Start the controllers that are down with the files that they have, those with the flag first.",
            "With a majority up: a leader with the flag that writes `/migration` proves that it is open. Clear the task.",
            "Otherwise search the log of each controller without the flag, since its start, for `Completing the ZK migration`.",
            "Found, or one without the flag leads: **finalized**. Restart the leader until one without the flag leads; clear `finalize`; see P02.",
            "Found in none, logs complete: open. Fix the leader's way to ZooKeeper. Its full sync fails (G07): give the flags back ("
            + _RENDERED
            + "), one by one, then clear `soak`.",
            "A log is missing: unknown. Restart no controller.",
        ),
        "Give the flag back without those logs: a finalized controller ignores it.",
    ),
    RunbookEntry(
        "U01",
        "ZooKeeper could not be read",
        "ZooKeeper says who owns the cluster; without it kmigrate does nothing.",
        "If ZooKeeper is down: KRaft-mode brokers serve as usual; in ZooKeeper mode nothing can be elected.",
        (
            "Bring the ensemble back to a quorum: `echo srvr | nc zk1 2181` on each server. kmigrate goes on by itself.",
            "From Airflow's machine: `zookeeper-shell.sh $ZK ls /`. Is kmigrate's user still right?",
        ),
        "Stop a broker in a ZooKeeper mode meanwhile: it may never end. Restart more than one ZooKeeper server at a time.",
    ),
    RunbookEntry(
        "U04",
        "A node's host does not report what it runs",
        "Its `status` or `read` command failed, or gave no clear answer. Acting now could stop or change another process or another cluster's node.",
        "Yes; the node may run well. In the middle of a stop it is down: fix it now.",
        (
            "Run the node's `status` and `read` commands by hand, as Airflow's user, on the worker.",
            "`status` must end with 0 while the node runs, and with 3 and the word `inactive` or `failed` once it is stopped (`systemctl is-active`, without `--quiet`).",
            "Check `host` and `properties`, and that `meta.properties` in each directory of `log.dirs` can be read.",
            "Correct the cluster file. The step goes on by itself, or after its task is cleared.",
        ),
        "Let the command always say 0 or `inactive`. Restart the node by hand instead.",
    ),
    RunbookEntry(
        "U05",
        "Metadata, files or settings could not be read",
        "Without them kmigrate cannot decide which broker may stop, whether both sides are the same, or whether the migration may begin.",
        "kmigrate changes nothing. In `handover` no controller is active: hurry.",
        (
            "The text ends with the cause. Are the brokers up, does a controller answer, is ZooKeeper up (U01), does the `read` command print the file?",
            "Grant kmigrate's user DESCRIBE and DESCRIBE_CONFIGS on the cluster and topics, DESCRIBE on groups. Delegation tokens need a TLS or SASL listener.",
            "Very many topics may take longer than the 60 s that are allowed.",
            "A step goes on by itself; clear `preflight`.",
        ),
        "Restart a broker by hand, or delete `/controller`. Take what was not read for empty or equal.",
        source="architecture: unknown is not healthy",
    ),
    RunbookEntry(
        "Z01",
        "No readable Kafka cluster in that chroot",
        "The chroot does not exist, has no `/cluster/id`, or one that Kafka did not write. Controllers would create a wrong chroot silently.",
        "Yes. If `/cluster/id` is damaged: do not restart a broker, it reads it at its start.",
        (
            "Write servers and chroot into the ZooKeeper connection as a broker's `zookeeper.connect` has them.",
            "`/cluster/id` is damaged: compare `zookeeper-shell.sh $ZK get /cluster/id` with `cluster.id` in a broker's `meta.properties`. Find out what changed it.",
        ),
        "Create the chroot or the id: a controller would wait in an empty tree for ever.",
        source="ZkData.scala, createChrootIfNecessary",
    ),
    RunbookEntry(
        "Z04",
        "A write that is not allowed",
        "kmigrate was about to write a znode that is not on its list, or without owning the cluster. Nothing was sent.",
        _DATA_SAFE,
        ("Pause the DAG. Keep the log and report it: this is a defect of kmigrate.",),
        "Do that write by hand.",
    ),
)
