"""Entries of the migration and the rollback: gates, phases, restarts, who may act, nodes, originals, ZooKeeper."""

from __future__ import annotations

from airflow_provider_kmigrate.core.reasons.entry import Area, Entry

_RENDERED = "`python -m airflow_provider_kmigrate.steps.rendered` ([section 12](#12-a-machine-is-dead-for-good))"
_DATA_SAFE = "Yes. Nothing was changed."
_ONE_DOWN = "With one broker away, as safe as your replication. Clients are served if every partition has a leader."

AREAS = (
    Area(
        "E",
        "ZooKeeper and KRaft compared",
        "ZooKeeper and KRaft compared",
        "in dual-write",
        """\
In dual-write both sides must store the same metadata. A difference that two comparisons in a row show does not go away by itself: the
dual-write never repeats a write that it lost. In `soak` such a difference ends the run; the cluster stays in dual-write. If ZooKeeper
only lacks topics or leaders, the soak itself makes another controller lead, up to three times.

**The cure is the same for every kind:** a new active controller writes all metadata to ZooKeeper again.

1. Find the active controller: `kafka-metadata-quorum.sh --bootstrap-controller $C describe --status` (`LeaderId`).
2. Check that every controller's file has `zookeeper.metadata.migration.enable=true` ([G05](#g05)).
3. Restart the active controller with your own service command. If partitions have leader -1 in ZooKeeper, do not: clear `copy`, `soak`
   or `heal.failover` instead. kmigrate completes half-written topics first ([G07](#g07)).
4. Wait until G07 is gone. Clear the task; both sides are compared again.""",
    ),
    Area(
        "G",
        "Gates",
        "gates before and between steps",
        "all the way",
        "Conditions before and between steps. *Not yet* is a wait. *Never* is a refusal: an operator must remove the cause. Each gate"
        " prevents a failure that was observed on real brokers.",
    ),
    Area(
        "H",
        "Who owns the cluster",
        "who owns the cluster (the fence)",
        "all the way",
        "One DAG run owns a cluster at a time, by a record in ZooKeeper with a number that only grows. ZooKeeper and the nodes reject an older"
        " number. To see the owner: `zookeeper-shell.sh $ZK get /_kmigrate/<cluster id>/owner`.",
    ),
    Area("I", "Identity", "identity: is it the cluster that was named", "before every act"),
    Area("M", "The nodes' machines", "the nodes' machines", "when a node is formatted, started or stopped"),
    Area(
        "O",
        "Originals",
        "originals in the backup",
        "before a file is written",
        "Every later file of a node, and the rollback, is rendered from its original in the backup,"
        " `<folder>/backup/<cluster>_<cluster id>/`.",
    ),
    Area("P", "The phase", "the phase of the migration", "all the way"),
    Area(
        "Q",
        "Is it quiet",
        "is it quiet: may users' own jobs begin",
        "users' DAGs",
        "`ClusterQuietSensor`, in front of a job of a user's own DAG, waits. The job has not begun; nothing is wrong with it.",
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
        "S",
        "Safe to stop",
        "is it safe to stop a broker",
        "rolls",
        "Why no broker may be stopped now. kmigrate waits, and goes on by itself when it is safe.",
    ),
    Area("T", "Time", "time: soaking, baking, waiting", "soak, finalize"),
    Area(
        "U",
        "Unread",
        "what could not be read (unknown)",
        "all the way",
        "Something did not answer; the text ends with the cause. Unknown never counts as healthy: a step that needs it waits, preflight"
        " blocks.",
    ),
    Area("Z", "ZooKeeper's tree", "ZooKeeper's tree", "all the way"),
)

ENTRIES = (
    Entry(
        "E01",
        "Topics only in ZooKeeper",
        "ZooKeeper has topics that KRaft does not have.",
        True,
        "Yes. If the topic is in use, its partitions may be lost: see D05 at once.",
        (
            "Was the topic deleted just now? Then wait a minute.",
            "Ask the owner whether the topic is still needed.",
            "Not needed: make another controller lead (see the cure above). It removes the topic from ZooKeeper.",
        ),
        "Finalize while a topic in use is in ZooKeeper only.",
    ),
    Entry(
        "E02",
        "ZooKeeper lacks or contradicts what KRaft has",
        "A write to ZooKeeper was lost or is on its way. A rollback now would lose it, or bring back the old value.",
        True,
        "Yes. Clients see what KRaft has.",
        (
            "Wait a minute: a change made just now is copied by itself.",
            (
                "Stop what keeps changing it: a reassignment (`kafka-reassign-partitions.sh --bootstrap-server $B --list`), elections, a broker"
                " that comes and goes."
            ),
            "It stays: make another controller lead (see the cure above).",
        ),
        "Write the topic, id, partition, credential or producer id block into ZooKeeper by hand.",
    ),
    Entry(
        "E08",
        "Settings, quotas, access rules or tokens differ",
        "A dynamic broker setting, a quota, an ACL or a delegation token is not the same on both sides. A tool may have written to ZooKeeper"
        " directly.",
        True,
        "Yes. KRaft brokers use what KRaft has; brokers in migration mode use ZooKeeper's ACLs. Check whether the difference denies or allows"
        " a client.",
        (
            "Was it changed just now? Then wait a minute.",
            (
                "Stop the tool that writes to ZooKeeper: `kafka-configs --zookeeper`, `kafka-acls --authorizer-properties`, CMAK. A change that is"
                " wanted: make it with `--bootstrap-server $B`."
            ),
            "Tokens only in ZooKeeper: kmigrate's user may not see them. Grant it `Describe` on delegation tokens.",
            "It stays: make another controller lead (see the cure above). That also deletes a quota that Kafka left in ZooKeeper.",
        ),
        "Change or delete the znode by hand, remove the authorizer, or delete tokens.",
        source="measured",
    ),
    Entry(
        "G00",
        "A condition could not be checked",
        "Something that this step needs was not read. Unknown is not healthy.",
        True,
        "kmigrate changes nothing. Check [section 1](#1-is-the-cluster-serving): are clients served?",
        (
            "Find the U code in the same log: it names what did not answer, and why.",
            "Fix that. The step goes on by itself; a task that has failed must be cleared.",
            "A broker that knows no topic at all was never reached by a controller: start the controllers.",
        ),
        "Restart a broker by hand, or take unknown for healthy.",
    ),
    Entry(
        "G02",
        "Partition states above the controller's epoch",
        "A partition's state has a higher epoch than /controller_epoch: the ZooKeeper controller can neither move its leader nor shrink its"
        " ISR (KAFKA-20488). An earlier rollback did not raise the epoch.",
        False,
        "It serves, and other checks are green. **The next broker that fails stops all writes** to its partitions (measured).",
        (
            "Stop no broker.",
            (
                "Start `kmigrate_rollback__<cluster>` ([section 11](#11-going-back)): one transaction of its plan raises /controller_epoch and has"
                " a controller elected. ZooKeeper must own the cluster; every controller of the cluster file must be stopped."
            ),
            "In a rollback that failed with this code: clear `hand_over.transaction` with *Downstream*.",
        ),
        "Raise the epoch by hand, or while KRaft owns the cluster. Restart brokers as a cure: it cures only some partitions.",
        source="KAFKA-20488; measured",
    ),
    Entry(
        "G04",
        "An old metadata log",
        "A controller's directory has been in a quorum that is over. Started with it, the controllers take the cluster over within 5 s and"
        " delete topics created since (measured).",
        False,
        "Only as long as that controller is not started.",
        (
            "A rollback is under way, or stopped after `hand_over`: finish it. It moves the directory away.",
            "`rolled_back` failed with it: check the host (U04), then clear `wipe.controller_N` with *Downstream*.",
            "Otherwise make sure that the controller is stopped.",
            "On its host: `mv /var/lib/kraft /var/lib/kraft.old`. Create an empty directory with the same owner.",
            "Clear the task. Keep the old directory until the migration is over.",
        ),
        "Start the controller to see what is in the directory.",
        source="measured",
    ),
    Entry(
        "G05",
        "A controller runs without the migration flag",
        "The first controller elected without `zookeeper.metadata.migration.enable=true` finalizes the migration at once, without any check"
        " (KAFKA-20960).",
        False,
        "**No**, unless `finalize` is running. While it is a standby nothing has happened; any failover may elect it.",
        (
            "Is `finalize` running? Do nothing. Did it stop half-way? Clear its failed task, or start the rollback.",
            "Who leads? `kafka-metadata-quorum.sh --bootstrap-controller $C describe --status` (`LeaderId`).",
            "Another controller leads: give this one the flag back (its file: "
            + _RENDERED
            + "). Restart only this one. Clear the failed task.",
            "This one leads: read `/migration` twice. It grows: as in 3, now. It stands still: the cluster **is** finalized; go on with P02.",
            "Controllers that never had the flag: stop them, empty their directories (G04), clear `preflight`.",
        ),
        "Restart, stop or kill another controller or a broker before the flag is back: that is a failover.",
        source="KAFKA-20960",
    ),
    Entry(
        "G07",
        "The dual-write lags or does not move",
        "ZooKeeper does not receive what KRaft writes. What is missing there is lost by a rollback. Normal for seconds after a start or a"
        " failover.",
        True,
        "Yes. KRaft serves; ZooKeeper falls behind.",
        (
            (
                "Wait two minutes. `copy`, `soak`, the roll of a broker and a rollback's `heal` restart a stalled dual-write themselves, up to"
                " three times."
            ),
            "In another task: clear `copy` or `soak` with *Downstream*.",
            "Is ZooKeeper up, with a quorum? Are there client-metrics subscriptions (G09)?",
            (
                "Search the active controller's log. `BadVersion for /migration`: check every flag (G05), then restart that controller. `migration"
                " fault`: fix what it names. `Could not find partition state in ZK`: leave it to kmigrate; it needs write access below"
                " `/brokers/topics`."
            ),
            "`Completing the ZK migration` in any controller's log: the cluster is finalized; see P02.",
            "A rollback from a copy that never ends: tick *Do not fail the controllers over* ([section 11](#11-going-back)).",
        ),
        "Finalize meanwhile. Delete `/migration` or a topic's znodes.",
        source="measured",
    ),
    Entry(
        "G08",
        "Brokers not yet in migration mode",
        "All other brokers must be in migration mode before the last one enters it. Then KRaft takes over and cuts off every plain ZooKeeper"
        " broker: acknowledged records were lost (measured).",
        True,
        "Yes.",
        (
            "Roll the named brokers first: clear their `first_roll` tasks.",
            "A broker that is not in the cluster file: see B2c.",
        ),
        "Set the last broker to migration mode by hand.",
        source="measured",
    ),
    Entry(
        "G09",
        "Client-metrics subscriptions exist",
        "At the next controller failover the dual-write to ZooKeeper stops until they are deleted.",
        True,
        "Yes, until a controller fails over.",
        (
            "Note the settings: `kafka-client-metrics.sh --bootstrap-server $B --describe`.",
            "Delete each: `kafka-client-metrics.sh --bootstrap-server $B --delete --name <name>`.",
            "Clear the task. Create them again after the finalization.",
        ),
        "Create one before the cluster is finalized.",
        source="measured",
    ),
    Entry(
        "G12",
        "A stop left leaders behind",
        "The controller could not move the leaders of a broker that stopped slowly: its epoch is too low, or the broker is cut off from it."
        " kmigrate started the broker again and stopped there.",
        False,
        "The broker is back, but **the next broker that fails may stop all writes**, although every check is green.",
        (
            "Pause the DAG.",
            (
                "Compare `zookeeper-shell.sh $ZK get /controller_epoch` with `controller_epoch` in `get"
                " /brokers/topics/<topic>/partitions/<n>/state` of the named partitions."
            ),
            "The state is higher, and ZooKeeper owns the cluster: cure it as in G02.",
            "Otherwise search the brokers' logs for `already written by another controller`, and see P07.",
            "Clearing the task goes on without another check.",
        ),
        "Stop another broker. Write `/controller_epoch` while KRaft owns the cluster.",
        source="measured",
    ),
    Entry(
        "G13",
        "Partitions without a leader",
        "These partitions accept no write and no read.",
        False,
        "**Not for these partitions.** All others are served.",
        (
            "Wait 10 s: `copy.copied` and the roll of a broker elect leaders by themselves.",
            "`kafka-leader-election.sh --bootstrap-server $B --election-type preferred --all-topic-partitions`",
            "Still no leader: the broker of their last ISR is down. Start it.",
        ),
        "`--election-type unclean`: it discards acknowledged records.",
    ),
    Entry(
        "G20",
        "The quorum has no leader, or a controller lags",
        "No controller answers as the leader, or one is more than 1,000 records behind. Another restart could cost the majority.",
        True,
        "With a leader, yes. Without one, brokers serve but nothing can be created, elected or moved.",
        (
            (
                "`kafka-metadata-quorum.sh --bootstrap-controller $C describe --status`; add `--replication` for the lags. An election takes"
                " seconds, a lag falls by itself."
            ),
            "Longer: fewer than a majority run. Start the missing controllers, each with its own directory and the flag (G05).",
            "Read the controllers' logs.",
        ),
        "Start a controller with an empty directory to make up the number (R11).",
    ),
    Entry(
        "G21",
        "Groups still live on ZooKeeper",
        "These consumers coordinate through `/consumers`. Without a ZooKeeper-mode broker they stop consuming, although their owners still"
        " look perfect (measured).",
        True,
        "Before the second roll ends, yes: its last broker waits. In a soak or later the cluster is safe, but these consumers receive nothing.",
        (
            "List them: `python -m airflow_provider_kmigrate.groups scan`.",
            (
                "Move them with the DAG `kmigrate_consumers__<cluster>` (`groups` in the cluster file), or have their owner stop them. Clear the"
                " task."
            ),
            "In a soak or later: stop these consumers, or start them as Kafka consumers.",
            "If they must consume at once: install the `migration` file of one broker ("
            + _RENDERED
            + ") and restart it with every ISR full. Move the groups. Then clear `second_roll` with *Downstream*.",
        ),
        "Delete anything under `/consumers`, or forget them until the second roll.",
        source="measured",
    ),
    Entry(
        "G22",
        "Not every broker is in KRaft mode",
        "A broker that the finalization leaves behind can never come back; so soak and finalization wait for it.",
        True,
        "Yes.",
        (
            "Is it down? Start it.",
            "Is it in migration mode? Clear its `second_roll` task.",
            "Still under `/brokers/ids`? Its ZooKeeper session ends within 18 s.",
        ),
        "Finalize with it (P02).",
    ),
    Entry(
        "G23",
        "A controller does not answer",
        "It starts, it hangs, or it is unreachable. Its migration flag is unknown, and another restart could cost the quorum its majority.",
        True,
        "Yes, while a majority of the others is up. Before the migration no controller answers: that is normal.",
        (
            "Look at its process and log. Start it with its own directory and the flag in its file. kmigrate goes on by itself.",
            "Usual causes: a wrong `zookeeper.connect`, no identity for ZooKeeper or the brokers, a port in use. Fix it, clear the task.",
            (
                "The log ends with `KRaftMigrationDriver ... shutting down` and nothing follows for a minute: it waits forever for a closed"
                " ZooKeeper client. `kill -9` that process; the task starts it again."
            ),
            "The machine is dead for good: [section 12](#12-a-machine-is-dead-for-good).",
        ),
        "Restart another controller meanwhile, or format its directory again.",
    ),
    Entry(
        "G26",
        "A controller is not stopped",
        "The rollback needs every KRaft controller stopped here. A running one writes to ZooKeeper, or takes the cluster over again.",
        False,
        "Before `hand_over.transaction` yes, but no controller may be active. After it: **no**, stop that controller now.",
        (
            (
                "Find out what started it again: a service manager after a reboot, a `stop` command that only kills, a playbook. Stop and disable"
                " it there."
            ),
            (
                "Only its state is unknown: its `status` command must end with 3 and print `inactive` (U04). A dead machine:"
                " [section 12](#12-a-machine-is-dead-for-good)."
            ),
            "Clear `stop_controllers.active_last` with *Downstream*, or the task that failed.",
            "The text names a broker: this is a defect of kmigrate. Keep the log.",
        ),
        "Delete `/controller` or `/migration`. Move a directory away while its process runs.",
    ),
    Entry(
        "G27",
        "Brokers still in KRaft mode",
        "This step of the rollback needs a cluster without KRaft brokers: they know KRaft controllers only.",
        True,
        "While the controllers run. Without them these brokers serve, but nothing moves.",
        (
            (
                "Before `hand_over.transaction`: start a new run of the rollback once this one is over. It starts the controllers and rolls these"
                " brokers back first."
            ),
            (
                "After it: stop each of these brokers, then clear its `to_zookeeper.broker_N` with *Downstream*. It gets its original file and is"
                " started."
            ),
        ),
        "Stop the controllers by hand under a KRaft broker.",
    ),
    Entry(
        "G28",
        "No controller would let this broker go",
        "A stopping broker asks its controller first. None is known to it now, so the stop would take 300 s (measured).",
        True,
        "It serves. Without a controller nothing is elected.",
        (
            "Wait: after a hand-over it takes less than a second.",
            (
                "Longer than a minute: is ZooKeeper up (U01)? `zookeeper-shell.sh $ZK get /controller` names the controller. Read its log, and the"
                " log of a broker that names another one."
            ),
            "Beside R05: start the controllers that are down. Leaders missing at the same time: see G02.",
        ),
        "Stop a broker by hand meanwhile. One that hangs ends by itself after 300 s.",
        source="measured",
    ),
    Entry(
        "G29",
        "Another controller writes /migration",
        "Every controller of the cluster file is stopped, and `/migration` still changes: a controller that the file does not name runs. The"
        " hand-over was not made.",
        False,
        "It serves. But an unknown process is the controller.",
        (
            (
                "Look for it: `controller.quorum.voters` in a broker's file, hosts of earlier attempts, ZooKeeper's clients (`echo cons | nc zk1"
                " 2181`)."
            ),
            "Stop it. Clear the task.",
        ),
        "Delete `/migration` meanwhile.",
    ),
    Entry(
        "G30",
        "Not handed over to ZooKeeper",
        "`/controller` or `/migration` is still KRaft's. A plain ZooKeeper broker beside a KRaft controller is cut off and loses what it"
        " acknowledges (measured).",
        True,
        "Yes, nothing was done. If a KRaft controller runs: see G26.",
        (
            "Clear `stop_controllers.active_last` with *Downstream*: the steps run in their order. A task marked as success may be the cause.",
        ),
        "Delete the znodes by hand.",
        source="measured",
    ),
    Entry(
        "G31",
        "Not every broker is back",
        "At the end of a rollback these brokers do not answer in ZooKeeper mode.",
        True,
        _ONE_DOWN,
        (
            "Clear `to_zookeeper.broker_N` of each with *Downstream*. A broker that is down is started with its original file.",
            "It does not come up: read its log (R01).",
        ),
        "Mark `rolled_back` as success: the next migration would begin on this cluster.",
    ),
    Entry(
        "G32",
        "One broker alone cannot go back to ZooKeeper mode",
        "The controllers own the cluster, or will as soon as a broker registers. A plain ZooKeeper broker beside them loses what it"
        " acknowledges (measured).",
        True,
        "Yes, nothing was done. The broker is as slow as it was.",
        (
            "Fix the broker where it is, and clear its task.",
            "Or roll the whole cluster back: `kmigrate_rollback__<cluster>` stops the controllers first.",
        ),
        "Restart it with its original file by hand.",
        source="measured",
    ),
    Entry(
        "G33",
        "ZooKeeper may lack what KRaft holds",
        "The rollback is about to stop a controller or to hand over, and ZooKeeper is not known to hold everything. What it lacks would be lost"
        " for good. The codes behind this one say what.",
        True,
        "Yes; this act stopped and wrote nothing. If a majority of the controllers is stopped already, hurry: nothing can be elected.",
        (
            (
                "Mark the run as failed and start a new run of the rollback, or clear `heal` with *Downstream*: a new leader writes to ZooKeeper"
                " what is missing."
            ),
            "`heal` fails: follow the codes beside it. Controllers that cannot be started: [section 11](#11-going-back).",
            "With G00 beside it: start the controllers. If they are dead for good, only `accept_loss` goes on.",
        ),
        "Stop the controllers by hand, or delete the topic that differs.",
    ),
    Entry(
        "G34",
        "Not as it was approved",
        "A controller is about to lose its flag, and something that was approved has changed or could not be read again. The codes behind this"
        " one say what. With G07 alone it is normal for seconds.",
        True,
        "Yes while every controller has its flag. If one lacks it, any election finalizes: act now.",
        (
            "Fix what the codes behind it name. The task waits 180 s; then clear it.",
            "A stalled dual-write while every controller has its flag: clear `soak` with *Downstream*; approval is asked again.",
            "A stalled dual-write after one lost its flag: start the rollback ([section 11](#11-going-back)). Restart no controller by hand.",
            "R12 beside it: see there first.",
        ),
        "Mark the task as success: its controller keeps the flag.",
    ),
    Entry(
        "G35",
        "The loss is not accepted as it was asked",
        "The conf has an `accept_loss` that is not the cluster id, or one without `skip_failover`. It would have no effect, and the rollback"
        " would stop at the loss, perhaps hours from now.",
        True,
        _DATA_SAFE,
        (
            (
                "Start a new run with the conf that the text names, or without `accept_loss`: `heal.equivalence` then names what would be lost"
                " ([section 11](#11-going-back))."
            ),
        ),
        "Accept a loss before it is named.",
    ),
    Entry(
        "H01",
        "Another run owns the cluster",
        "Another run began a migration, a rollback or a move of groups here and is not over. Two runs on one cluster can lose data.",
        True,
        "Yes.",
        (
            (
                "A process of it is alive: wait until it ends, or pause its DAG and let its task finish. A killed process looks alive for about"
                " 10 s."
            ),
            "No process is alive: continue that run. Clear its failed task ([section 5](#5-how-to-go-on)).",
            "That run is over for good: mark it failed in Airflow and clear this task.",
            "Airflow does not know that run any more: free the cluster ([section 13](#13-free-a-cluster)).",
        ),
        "Break the lock of a run that works, or delete its znode.",
    ),
    Entry(
        "H03",
        "This process may not act",
        "A newer task or run owns the cluster, or this process is one that only observes. The fence works.",
        True,
        "Yes.",
        (
            "Nothing. Read the log of the newer task.",
            "No newer task exists: clear this one; it takes a new number. If it fails again, keep the log: it is a defect of kmigrate.",
        ),
        "Lower the number in a node's `token` file, or break a lock because of it.",
    ),
    Entry(
        "H05",
        "The kill switch is on",
        "The Airflow Variable `kmigrate_stop__<cluster>`, or `kmigrate_stop` for every cluster, is set. It is read before every act.",
        True,
        "As safe as the phase of the cluster; `max_hybrid` goes on counting.",
        (
            "Ask who set it: its text is in the message.",
            (
                "To go on: `airflow variables delete kmigrate_stop__<cluster>`, then clear the failed task. To roll back: delete it as well, then"
                " start the rollback."
            ),
        ),
        "Do the next step by hand.",
    ),
    Entry(
        "H06",
        "No valid approval",
        "The approval was skipped, was marked as success by hand, or rests on an audit that is older than a day.",
        True,
        "Yes: this act was not made. If G05 names a controller, fix that first.",
        (
            "Clear the skipped task, or `audit_before_approval`, with *Downstream*, and answer `approve`.",
            "Or start a new run whose conf has the approval: `approve_finalization` or `approve_rollback`, with the cluster id.",
        ),
        "Mark `approve` or `finalize.*` as success: it does not count as an answer.",
    ),
    Entry(
        "H07",
        "The kill switch could not be read",
        "Airflow did not say whether the Variable is set. It may be on, so nothing was changed.",
        True,
        "As safe as the phase of the cluster. A node that an earlier killed task left stopped stays down until the retry.",
        (
            "Check Airflow: `airflow jobs check`, the API server's log, the task's right to read Variables.",
            "The task retries by itself; after its last try, clear it.",
        ),
        "Take a Variable that cannot be read for one that is not set.",
    ),
    Entry(
        "H09",
        "The stored progress of a task cannot be read",
        "A newer kmigrate wrote it, or it is damaged. It may hold a verdict, or say that an instance was stopped for a restart.",
        True,
        "Yes: nothing was done. Check that every broker and instance runs.",
        (
            "A newer kmigrate wrote it: install that version here again, then clear the task.",
            "It is damaged: start a new run of the DAG. It observes the cluster and does what is left.",
        ),
        "Delete the stored progress to make the task go on.",
    ),
    Entry(
        "I01",
        "Another cluster",
        "What answered belongs to another cluster id than the one in the cluster file. Going on would change another cluster.",
        True,
        "Yes, both clusters. Nothing was done.",
        (
            (
                "Compare: `zookeeper-shell.sh $ZK get /cluster/id`, `kafka-cluster.sh cluster-id --bootstrap-server $B`, `cluster.id` in"
                " `meta.properties`."
            ),
            "Correct the connection, the host or the path that is wrong (`log_dir` for a controller). Clear the task.",
        ),
        "Change `cluster_id` in the cluster file before you know which is right.",
    ),
    Entry(
        "M01",
        "A file or directory of another node",
        "The cluster file gives a node a file or directory that belongs to another one or is unknown. The wrong node would be stopped, or its"
        " data moved away. kmigrate formats only empty directories and moves away only its own.",
        True,
        "Yes: nothing was formatted, written or moved.",
        (
            "Check what is in it. Correct `host`, `properties` or `log_dir` of this node in the cluster file.",
            (
                "A controller needs a `log_dir` and a file that nothing else uses, neither inside the other. Save what is needed, then empty the"
                " directory, or move an unused file of the package away."
            ),
            "Clear the task.",
        ),
        "Use `kafka-storage.sh format --ignore-formatted`. Change `broker.id` in the file to match. Move away the file of a running process.",
        source="reliability: every act is identified; measured: a rollback moved a running broker's data",
    ),
    Entry(
        "M02",
        "A command is missing or wrong",
        "The cluster file has no such command for the node, or one with a place in braces that has no meaning there. Nothing was run.",
        True,
        _DATA_SAFE,
        (
            (
                "Check the file: `python -m airflow_provider_kmigrate.spec CLUSTER.yaml`. Correct the node's commands; the message lists the known"
                " places."
            ),
            "`wipe` is needed by a rollback only: an old quorum that starts again deletes topics. `plan`, `soak` and the watch ask for it.",
        ),
        "Put `true` there: kmigrate would believe it.",
    ),
    Entry(
        "O01",
        "An original is missing or was altered",
        "Later stages of a node's file, and the rollback, are rendered from its original. It is not in the backup, is not the saved one, or is"
        " not an original.",
        True,
        "Yes; the node was not stopped. Without originals there is no rollback.",
        (
            (
                "Put `[kmigrate] folder` on storage that all workers and the triggerer share. Copy it from the worker that ran `backup`. Clear the"
                " task."
            ),
            "Lost, and no broker has moved: clear `backup`.",
            "Altered: restore it from your own backup or the node's `*.bak`; the SHA-256 is in `manifest.json`.",
            (
                "Lost, and a broker has moved: fetch the broker's `*.bak` files and store the ZooKeeper-mode one: `python -m"
                " airflow_provider_kmigrate.steps.originals <folder>/backup/<cluster>_<cluster id> N FILE --lost --metadata-version V`, as Airflow's"
                " user. `V`: `kafka-features.sh --bootstrap-controller $C describe`. Refused: try the next `*.bak`."
            ),
        ),
        "Back up files that kmigrate rendered, or write a new hash into `manifest.json`.",
    ),
    Entry(
        "O03",
        "A broker's file was edited",
        "The file on the broker is neither the original nor one that kmigrate wrote. Its changes (a password, a playbook's setting) would be"
        " lost at the next restart.",
        True,
        "Yes; the broker was not stopped. A rollback goes on, and keeps the edited file as `*.bak`.",
        (
            "Ask who changed the keys in the text. Stop playbooks until the migration is over.",
            "Not wanted: restore the file, from the node's newest `*.bak` or, before this stage, from the backup.",
            (
                "Wanted: make the same change in the original, as Airflow's user: `python -m airflow_provider_kmigrate.steps.originals"
                " <folder>/backup/<cluster>_<cluster id> N` opens an editor."
            ),
            "Clear the task.",
        ),
        "Delete the backup, or edit a file in it: its hash would be wrong (O01).",
    ),
    Entry(
        "O05",
        "The folder of backups and journals cannot be used",
        "A task or the triggerer cannot write or read `[kmigrate] folder` on its machine, or finds no journal of the owning run in it."
        " Every act is recorded there first.",
        True,
        "Yes; nothing was stopped or written. In `hand_over.transaction` no controller is active: hurry.",
        (
            "Put the folder on one storage that every worker and the triggerer share, with free space.",
            "Give it to Airflow's user: `chown -R airflow <folder>` ([section 9](#9-where-the-evidence-is)).",
            "Clear the task. A sensor goes on by itself: a run that has just begun writes its first line soon.",
        ),
        "Point `[kmigrate] folder` elsewhere in the middle of a migration (O01). Remove the sensor.",
    ),
    Entry(
        "P01",
        "Not in this phase",
        "A step in the wrong phase can cost metadata or the rollback. The reasons behind it say what was observed.",
        True,
        "Yes, unless an alarm stands behind it.",
        (
            "Act on the reason behind it first, if there is one.",
            (
                "Run the steps in their order: clear the first task of the run that is not green. In phase *unknown* kmigrate waits for the named"
                " nodes. In phase *finalized* there is nothing to do."
            ),
        ),
        "Mark a task as success to reach a later one.",
    ),
    Entry(
        "P02",
        "Brokers left behind after the finalization",
        "The cluster is finalized, and a broker still runs in a ZooKeeper mode. It receives no metadata; its leaders and ISRs cannot move.",
        False,
        "**No.** The next broker that stops makes its partitions unwritable. Other checks may all be green.",
        (
            "Roll it to KRaft now: clear `second_roll.broker_N` without *Downstream*.",
            "No such run, or several brokers: start a new run of `kmigrate_zk_to_kraft__<cluster>`.",
            "By hand: install its `kraft` file (" + _RENDERED + ") and restart it.",
        ),
        "Roll any broker back: no controller would accept it.",
    ),
    Entry(
        "P04",
        "/migration is malformed",
        "Its content is not what Kafka writes, so the owner of the cluster is unknown. Empty content stops the dual-write for ever"
        " (KAFKA-19480).",
        True,
        "Yes; nothing moves on.",
        (
            "`zookeeper-shell.sh $ZK get -s /migration`. Find out who wrote it (`zookeeper-security-migration.sh` does).",
            "A broker has moved: get help. The right content is only in the controllers. A rollback refuses.",
            "No broker has moved: delete it by hand, in the order of [section 14](#14-delete-migration-by-hand).",
        ),
        "Write a content that looks right.",
        source="KAFKA-19480",
    ),
    Entry(
        "P05",
        "/controller is malformed or absent",
        "The owner of the cluster is not known at this moment. Brokers elect a controller within seconds.",
        True,
        "Check [section 1](#1-is-the-cluster-serving). Can topics be created?",
        (
            "Wait a minute.",
            (
                "`zookeeper-shell.sh $ZK get -s /controller`. An `ephemeralOwner` other than `0x0` is a running broker: restart that broker."
                " Otherwise get help."
            ),
            (
                'It stays absent in a rollback: a new run with `"skip_failover": true` ([section 11](#11-going-back)) goes on if both sides are the'
                " same."
            ),
        ),
        "Delete it.",
    ),
    Entry(
        "P06",
        "/migration is left over from an earlier migration",
        "New KRaft controllers would take the copy as done, push their own older or empty metadata into ZooKeeper and delete topics (measured).",
        False,
        "Only as long as no KRaft controller runs. An alarm.",
        (
            "Pause the DAG. Stop every KRaft controller now (SIGTERM).",
            "Start the rollback ([section 11](#11-going-back)): it saves and deletes `/migration` and moves the controllers' directories away.",
            "The rollback refuses with P04: see there.",
        ),
        "Start a controller, or roll a broker into migration mode, before `/migration` is gone. Delete it by hand.",
        source="measured",
    ),
    Entry(
        "P07",
        "A plain ZooKeeper broker beside KRaft",
        "KRaft owns the cluster, and this broker is cut off without knowing it: what it acknowledges with acks=1 is lost (measured).",
        False,
        "**No.** An alarm.",
        (
            "Restart it in migration mode now: clear its `first_roll` task without *Downstream*.",
            "The log waits with S02, because this broker is cut off: do it by hand. Install its `migration` file ("
            + _RENDERED
            + "), stop the"
            " broker (10 s are normal), start it.",
            "When it is back in every ISR, clear the task.",
        ),
        "Stop another broker or a controller first.",
        source="measured",
    ),
    Entry(
        "P09",
        "A KRaft broker without a copy",
        "A broker runs in KRaft mode, but /migration shows no finished copy. It was deleted, or the chroot is wrong.",
        False,
        "Brokers serve. Whether the dual-write works is unknown.",
        (
            "Pause the DAG. Compare the chroot of the ZooKeeper connection with `zookeeper.connect` (Z01).",
            "`zookeeper-shell.sh $ZK get /migration` and `get /controller`.",
            "`/migration` was deleted while KRaft owns the cluster: get help before any controller restarts.",
        ),
        "Restart a controller: without `/migration` it does not know its position.",
    ),
    Entry(
        "P11",
        "Not yet in the phase waited for",
        "The controllers have not reached ZooKeeper yet, or the copy is under way or has not begun.",
        True,
        "Yes. Topics cannot be created while the copy runs.",
        (
            "Wait a minute.",
            (
                "`/migration` does not exist: check `zookeeper.connect` in the controllers' files, and whether their identity may write there."
                " Search their logs for `ZooKeeper`."
            ),
            (
                "Longer than `policy.copy_timeout`: search the active controller's log for `Still waiting for`; it names the missing node. A"
                " partition on a broker that is gone blocks the copy: reassign it (B4b)."
            ),
        ),
        "Restart the active controller during the copy: the copy begins again. Create the znode.",
    ),
    Entry(
        "P12",
        "There is no way back",
        "The migration is finalized: ZooKeeper gets no writes any more. A rollback would lose everything changed since.",
        True,
        "Yes, nothing was done. A P02 beside it is an alarm.",
        (
            "Go forward: start a run of `kmigrate_zk_to_kraft__<cluster>`; it does what is left. Brokers in a ZooKeeper mode go first (P02).",
        ),
        "Give controllers the flag back, or delete `/controller`: that rolls nothing back (measured).",
        source="measured",
    ),
    Entry(
        "P13",
        "Nothing has to be rolled back",
        "The cluster shows no trace of a migration, so the rollback would ask for approval and hold the cluster for nothing.",
        True,
        _DATA_SAFE,
        (
            "Was another cluster meant? Start `kmigrate_rollback__<its name>`.",
            "A rollback has just ended with failed tasks? Clear those tasks in that run.",
        ),
        "Start the migration to have something to roll back.",
    ),
    Entry(
        "Q01",
        "The cluster is not quiet",
        "A step of kmigrate is under way or a moment old, or partitions are not healthy. A job that starts now may wait or fail.",
        True,
        "Yes. The user's job starts later.",
        (
            "Wait: between two long steps, and in a soak, the sensor lets the job through.",
            "It stays: look at the task of the run that owns the cluster. It failed or was killed; clear it.",
            "Partitions without a leader or out of ISR for minutes: see S02. Partitions not read: the U codes of that run say why.",
        ),
        "Set `calm` to 0, or delete the journal, to let the job start.",
    ),
    Entry(
        "R01",
        "A broker does not respond",
        "It starts, it hangs, it is down or unreachable. No other broker may be stopped meanwhile, and the copy would not start.",
        True,
        _ONE_DOWN,
        (
            "Is its process down? Start it. Is it up? Read its log, and check the network between Airflow's workers and it.",
            "After an unclean stop it reads its logs for minutes (`Recovering`): wait.",
            "It exits again and again: the last lines say why. Put the file before the change (`*.bak`) back only if the new one is the cause.",
            "With G07 in the text: a broker in migration mode waits for the dual-write. The task restarts that after 20 s.",
            "The machine is dead for good: [section 12](#12-a-machine-is-dead-for-good).",
        ),
        "SIGKILL it while it recovers its logs. Take it out of the cluster file. Stop others to compare.",
        source="KRaftMigrationDriver, WAIT_FOR_BROKERS",
    ),
    Entry(
        "R02",
        "A broker is down, and kmigrate did not stop it",
        "Its file is not the new one: something else stopped it, and may stop it again.",
        True,
        _ONE_DOWN,
        ("Find out why: its log, the disk, the kernel's log (`Out of memory`). Start it. kmigrate goes on once it answers.",),
        "Install the new file by hand.",
    ),
    Entry(
        "R03",
        "Not yet registered",
        "Its registration or session in ZooKeeper, or its registration with the controllers, is not as it must be. Until then no other broker"
        " may be stopped.",
        True,
        _ONE_DOWN,
        (
            "Wait: a ZooKeeper session ends within 18 s, unfencing takes up to a minute, with large logs longer.",
            "Longer: search its log for `Unable to register` and `Recovering`, and compare versions (C04).",
            "Check that it reaches every controller's port. Search the active controller's log for its id.",
        ),
        "Delete its znode under `/brokers/ids`, or restart the others.",
    ),
    Entry(
        "R05",
        "Not yet back in every ISR",
        "It catches up. Until it is back, no other broker may be stopped.",
        True,
        "Yes.",
        (
            "Wait: with much traffic or large logs it takes minutes. `still catches up` in the task's log: it is only slow.",
            "The number does not fall: look for a full disk, an offline log directory, and a throttle (B14).",
            "With G07 beside it, or partitions without a leader: nothing. The task cures both.",
            (
                "One leader for all that is left: kmigrate restarts that leader after 20 s. If it does not, the codes behind R05 say why (R01, S02,"
                " G28); fix that."
            ),
            (
                "After ten minutes, and the leader's log has `alter-partition-channel-manager]: Error due to`: restart that leader with your own"
                " service command."
            ),
            "After a hand-over, `already at a newer partition epoch`: nothing. kmigrate raises the states after 8 s.",
        ),
        "Restart the follower again: it changes nothing. Raise `policy.start_timeout` without looking.",
        source="measured",
    ),
    Entry(
        "R11",
        "A controller lost its directory",
        "Brokers have moved already. A controller with an empty directory could be elected without the metadata.",
        True,
        "Yes, while a majority of the others is up. There is no spare.",
        (
            "Mount or restore its directory, start it, clear the task.",
            "The disk is lost for good: [section 12](#12-a-machine-is-dead-for-good), in daylight.",
        ),
        "Format an empty directory for it while another voter lags or is down.",
    ),
    Entry(
        "R12",
        "It is unknown whether the migration is finalized",
        "A controller lacks the flag, and no leader with the flag has written /migration since its election. One without it may have led, which"
        " finalizes.",
        False,
        "Brokers serve. Without a leader nothing can be created or elected.",
        (
            "Start the controllers that are down with the files that they have, those with the flag first.",
            "With a majority up: a leader with the flag that writes `/migration` proves that it is open. Clear the task.",
            "Otherwise search the log of each controller without the flag, since its start, for `Completing the ZK migration`.",
            "Found, or one without the flag leads: **finalized**. Restart the leader until one without the flag leads; clear `finalize`; see P02.",
            "Found in none, logs complete: open. Fix the leader's way to ZooKeeper. Its full sync fails (G07): give the flags back"
            " (" + _RENDERED + "), one by one, then clear `soak`.",
            "A log is missing: unknown. Restart no controller.",
        ),
        "Give the flag back without those logs: a finalized controller ignores it.",
    ),
    Entry(
        "S02",
        "Partitions have too few replicas in sync",
        "Another stop could make partitions unavailable, or take them below min.insync.replicas: acks=all would be refused.",
        True,
        "It serves; the next failure may hurt.",
        (
            "Wait until every replica is in its ISR. A roll goes on by itself; clear `preflight`.",
            "It stays: which broker is missing in the ISRs? Check its log, disk and network. An isolated broker: P07. No leader: G13.",
            "Every replica is in sync: fewer brokers may be stopped together.",
        ),
        "Lower `min.insync.replicas`, reassign replicas away, or run an unclean election to make the number fall.",
        source="safe-to-stop predicate",
    ),
    Entry(
        "S04",
        "Partitions are being reassigned",
        "Another tool moves partitions. A restart in the middle prolongs the move, undoes the copy or leaves stray replicas behind.",
        True,
        _DATA_SAFE,
        (
            "See what moves: `kafka-reassign-partitions.sh --bootstrap-server $B --list`. Let it finish.",
            "Or cancel it: `kafka-reassign-partitions.sh --bootstrap-server $B --cancel --reassignment-json-file f.json`.",
            "Stop what starts such moves (Cruise Control, a script) until the migration is over. A roll goes on by itself; clear `preflight`.",
        ),
        "Delete `/admin/reassign_partitions`.",
        source="KAFKA-16120, KAFKA-16121",
        ask="Run kafka-reassign-partitions.sh --list, and let our user DESCRIBE the cluster (ListPartitionReassignments).",
    ),
    Entry(
        "T01",
        "Waiting",
        "A condition must hold for a while before the next step.",
        True,
        "Yes.",
        ("Nothing: it goes on by itself.",),
        "Restart, switch, deploy or scale anything of it by hand meanwhile. Shorten the time at night.",
    ),
    Entry(
        "T03",
        "/migration still moves",
        "A controller with the flag still writes to ZooKeeper: the migration is not finalized.",
        True,
        "Yes.",
        (
            "Check every controller's file and process: one did not restart, or restarted with the old file. Clear its `finalize` task.",
        ),
        "Switch ZooKeeper off.",
    ),
    Entry(
        "T06",
        "Brokers of both modes for longer than planned",
        "Every election, and every tool that writes to ZooKeeper, is a chance for the two stores to differ.",
        True,
        "Yes; decide in the morning.",
        (
            "Find out what the run waits for: the last lines of its task's log.",
            "Let the second roll go on, or start the rollback.",
            "Many brokers need longer: raise `max_hybrid` in the cluster file. Twice the minutes of one restart, times the brokers.",
        ),
        "Leave it for the weekend.",
    ),
    Entry(
        "U01",
        "ZooKeeper could not be read",
        "ZooKeeper says who owns the cluster; without it kmigrate does nothing.",
        True,
        "If ZooKeeper is down: KRaft-mode brokers serve as usual; in ZooKeeper mode nothing can be elected.",
        (
            "Bring the ensemble back to a quorum: `echo srvr | nc zk1 2181` on each server. kmigrate goes on by itself.",
            "From Airflow's machine: `zookeeper-shell.sh $ZK ls /`. Is kmigrate's user still right?",
        ),
        "Stop a broker in a ZooKeeper mode meanwhile: it may never end. Restart more than one ZooKeeper server at a time.",
    ),
    Entry(
        "U04",
        "A node's host does not say what it runs",
        "Its `status` or `read` command failed, or gave no clear answer. Acting now could stop or change another process or another"
        " cluster's node.",
        True,
        "Yes; the node may run well. In the middle of a stop it is down: fix it now.",
        (
            "Run the node's `status` and `read` commands by hand, as Airflow's user, on the worker.",
            (
                "`status` must end with 0 while the node runs, and with 3 and the word `inactive` or `failed` once it is stopped (`systemctl"
                " is-active`, without `--quiet`)."
            ),
            "Check `host` and `properties`, and that `meta.properties` in each directory of `log.dirs` can be read.",
            "Correct the cluster file. The step goes on by itself, or after its task is cleared.",
        ),
        "Let the command always say 0 or `inactive`. Restart the node by hand instead.",
    ),
    Entry(
        "U05",
        "Metadata, files or settings could not be read",
        "Without them kmigrate cannot decide which broker may stop, whether both sides are the same, or whether the migration may begin.",
        True,
        "kmigrate changes nothing. In `hand_over` no controller is active: hurry.",
        (
            (
                "The text ends with the cause. Are the brokers up, does a controller answer, is ZooKeeper up (U01), does the `read` command print"
                " the file?"
            ),
            (
                "Grant kmigrate's user DESCRIBE and DESCRIBE_CONFIGS on the cluster and topics, DESCRIBE on groups. Delegation tokens need a TLS or"
                " SASL listener."
            ),
            "Very many topics may take longer than the 60 s that are allowed.",
            "A step goes on by itself; clear `preflight`.",
        ),
        "Restart a broker by hand, or delete `/controller`. Take what was not read for empty or equal.",
        source="architecture: unknown is not healthy",
    ),
    Entry(
        "Z01",
        "No readable Kafka cluster in that chroot",
        "The chroot does not exist, has no `/cluster/id`, or one that Kafka did not write. Controllers would create a wrong chroot silently.",
        True,
        "Yes. If `/cluster/id` is damaged: do not restart a broker, it reads it at its start.",
        (
            "Write servers and chroot into the ZooKeeper connection as a broker's `zookeeper.connect` has them.",
            (
                "`/cluster/id` is damaged: compare `zookeeper-shell.sh $ZK get /cluster/id` with `cluster.id` in a broker's `meta.properties`. Find"
                " out what changed it."
            ),
        ),
        "Create the chroot or the id: a controller would wait in an empty tree for ever.",
        source="ZkData.scala, createChrootIfNecessary",
    ),
    Entry(
        "Z04",
        "A write that is not allowed",
        "kmigrate was about to write a znode that is not on its list, or without owning the cluster. Nothing was sent.",
        True,
        _DATA_SAFE,
        ("Pause the DAG. Keep the log and report it: this is a defect of kmigrate.",),
        "Do that write by hand.",
    ),
)
