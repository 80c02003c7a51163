"""Every step as one row, and the order of the migration, of the rollback and of an expansion of `__consumer_offsets`, written once.

Whatever needs a fact about a step reads its row: `steps.catalog` builds it, operators and sensors run it, `dag_builders.chaining` makes
its task, `dag_builders.task_docs` its page, `core.monitoring.gauges` its estimate. Why each step must come where it does is tested in
`tests/core/test_plan.py`, pair by pair.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import groupby
from typing import Any, Self

from airflow_provider_kmigrate.core.cluster_state.model import BrokerMode, ClusterView
from airflow_provider_kmigrate.core.cluster_state.spec import ClusterSpec, NodeRole, NodeSpec
from airflow_provider_kmigrate.core.migration.controllers import why_restarted_last
from airflow_provider_kmigrate.core.migration.roll import why_broker_restarts_last

APPROVE = "approve"
"""The kind of the step at which an administrator decides; a plan that runs in one task does not ask."""

# What an administrator may answer.
FINALIZE, STAY = "Finalize (irreversible)", "Stay in dual-write"
ROLL_BACK, LEAVE = "Roll back", "Leave as it is"
CONTINUE, END = "Continue", "End this run"
REMOVE, KEEP = "Remove", "Keep everything"
EXPAND = "Run this plan"


class Access(StrEnum):
    """What a task may do to the cluster, and what it does if another run owns it."""

    WATCH = "watch"
    """Reads, beside any other run."""
    ASK = "ask"
    """Reads, and is refused if another run owns the cluster: an administrator is asked next."""
    ASK_OVER_WAITING = "ask over waiting"
    """As `ASK`; a run that only waits counts as over."""
    ACT = "act"
    """Owns the cluster; refused if another run does."""
    ACT_OVER_WAITING = "act over waiting"
    """As `ACT`; takes the lock of a run that only waits."""

    @property
    def is_over_waiting(self) -> bool:
        """True if a run that only waits, for an answer or for time, counts as over."""
        return self in {Access.ASK_OVER_WAITING, Access.ACT_OVER_WAITING}


class Estimate(StrEnum):
    """How the seconds that are left are computed while a step runs (`core.monitoring.gauges.estimate_seconds_left`)."""

    MIGRATION = "migration"
    """Until the request for approval, with the whole soak."""
    COMPARISON = "comparison"
    """As `MIGRATION`; without the soak if every broker is in KRaft mode: the step comes before the soak and after it."""
    SOAK = "soak"
    """As `MIGRATION`, with the rest of the soak."""
    FINALIZATION = "finalization"
    ROLLBACK = "rollback"


@dataclass(frozen=True, slots=True)
class LastTask:
    """The task of a step behind those of its nodes: it runs the node that was skipped, because an election depends on it.

    `why`: why a node is skipped in its place, empty if it is not; None: as `roll.why_postponed`, by the step's target.
    `doc`, `stops`: as a row's.
    """

    task: str
    doc: str
    stops: tuple[str, ...] = ()
    why: Callable[[ClusterView, int], str] | None = None


@dataclass(frozen=True, slots=True)
class StepRow:
    """All facts about one step in one place of a plan. A step with several places has one row, placed `at` each.

    Its place:

    * `group`: empty outside a group. `task`: its id, or the beginning of the ids of the tasks of its nodes.
    * `each`: one task for each node of that role; None: one for the whole cluster. `target`: the mode that brokers are brought into.
    * `last`: the task of nodes that are skipped in their places. `skip_if`: left out if the run sets this param.
    * `answer`: what an administrator must answer before the steps behind; of a row of kind `APPROVE` only.

    What runs it, and how:

    * `kind`: its name. `step`: the class below `steps`, or the function that makes one. `takes`: its arguments in order, by their
      names in `steps.catalog`. `run`: instead of a step, a function of the context below `steps`.
    * `follows_plan`: its task compares what the run's plan rests on before it acts. Not of what only waits, and not of what must be
      completed once it has begun: an import of offsets that were deleted.
    * `operator`: its operator or sensor below the package; empty: `MigrationStepOperator`, or `StepSensor` if it only watches.
    * `access`. `deferrable`: false if the process that begins it must end it. It remembers what no observation shows, no time must
      pass while no controller is active, or the triggerer's machine need not have what it reads.

    What it shows:

    * `estimate`: how the seconds that are left are computed; None: they are not known.
    * `doc`: the task's page in Markdown: what it does, when it is done, why it may be skipped. `stops`: the codes that its task
      most often waits for or fails with.
    """

    group: str
    task: str
    kind: str
    step: str = ""
    takes: tuple[str, ...] = ()
    run: str = ""
    operator: str = ""
    each: NodeRole | None = None
    target: BrokerMode | None = None
    last: LastTask | None = None
    skip_if: str = ""
    answer: str = ""
    access: Access = Access.ACT
    follows_plan: bool = False
    deferrable: bool = True
    estimate: Estimate | None = None
    doc: str = ""
    stops: tuple[str, ...] = ()

    def at(self, group: str, **changes: Any) -> Self:
        """The same step in another place of a plan."""
        return replace(self, group=group, **changes)

    def task_id(self, node: int | None = None) -> str:
        """The task's id inside its group; `node`: whose, if there is one for each."""
        return self.task if node is None else f"{self.task}_{node}"

    def full_id(self, node: int | None = None) -> str:
        """The task's id in the DAG."""
        return f"{self.group}.{self.task_id(node)}" if self.group else self.task_id(node)

    @property
    def summary(self) -> str:
        """The first sentence of its page."""
        return f"{self.doc.partition('. ')[0].removesuffix('.')}."

    def nodes(self, spec: ClusterSpec) -> tuple[NodeSpec, ...]:
        """The nodes that have a task each, in order; none for a step of the whole cluster."""
        return tuple(node for node in spec.nodes() if node.role is self.each)


Plan = tuple[StepRow, ...]
_ROLLED = ("broker", "target", "policy", "group_progress")

# One row has its facts first, then its page: the formatter would give each of them a line.
# fmt: off
_ROLL = StepRow("first_roll", "broker", "roll",
    step="brokers.RollBroker", takes=_ROLLED, each=NodeRole.BROKER, target=BrokerMode.MIGRATION, follows_plan=True,
    operator="operators.migration.RollBrokerOperator", estimate=Estimate.MIGRATION,
    last=LastTask("postponed", doc="Restarts the brokers of this pass that were skipped.",
        stops=("S02", "T07", "R01", "R05", "G38", "G42")),
    doc="Writes this broker's next properties file and restarts it, as soon as every partition can spare it. Done when it is "
        "registered, known to all others and back in every ISR, in several observations in a row. The first broker of a pass "
        "then bakes for `policy.canary_bake`. If it is worse than before and than the others, only this broker is rolled "
        "back. The task then fails with the figures (V26).\n\n**Skipped:** this broker is the ZooKeeper controller; "
        "`postponed` restarts it last, so that the controller moves only once. Or brokers that were rolled back come first. "
        "The log says which.",
    stops=("G37", "S02", "S04", "T07", "R01", "R03", "R05", "G12", "G21", "G38", "G42", "K01", "V26"),
)

_LEADERS = StepRow("first_roll", "leaders", "leaders", step="waits.PreferredLeaders", takes=("elect_batch",),
    doc="Elects the preferred replicas again, so that leadership is spread as before the roll.",
)

_REGISTERED = StepRow("first_roll", "registered", "registered",
    step="waits.brokers_registered", takes=("broker_ids", "group_progress"), access=Access.WATCH,
    operator="sensors.step.WaitAllBrokersRegisteredSensor",
    doc="Waits until every broker of the cluster file answers and is known to all others, and every consumer group that made "
        "progress before the last restart makes progress again.",
    stops=("R01", "R03", "G38"),
)

_LAG = StepRow("copy", "dual_write_lag", "lag",
    step="waits.lag_small", takes=("limit", "copy_timeout"), access=Access.WATCH, estimate=Estimate.COMPARISON,
    operator="sensors.step.VerifyDualWriteLagSensor",
    doc="Waits until ZooKeeper is at most a few records behind KRaft and the dual-write makes progress.",
    stops=("G07",),
)

_EQUIVALENT = StepRow("copy", "equivalence", "equivalent",
    step="waits.equivalent", takes=("copy_timeout",), access=Access.WATCH, estimate=Estimate.COMPARISON,
    doc="Compares what ZooKeeper and KRaft store: topics with their ids, replicas, leaders and configs, broker settings, "
        "quotas, SCRAM credentials, ACLs, delegation tokens. Zero lag does not prove that nothing is missing. What KRaft does "
        "not report is listed as not compared.",
    stops=("E01", "E02", "E08"),
)

MIGRATION: Plan = (
    StepRow("", "preflight", "preflight",
        run="prepare.run_preflight", access=Access.WATCH, deferrable=False, operator="operators.migration.PreflightOperator",
        doc="Checks whether this cluster may be migrated, and changes nothing. Lists every finding with its remedy: blockers, "
            "unknowns, warnings. The log names the page with all of them. If the cluster is finalized already, all later tasks "
            "are skipped and the run succeeds.",
        stops=("U01", "U05"),
    ),
    StepRow("", "backup", "backup", run="prepare.run_backup", deferrable=False, operator="operators.migration.BackupOperator",
        doc="Saves every broker's original properties file and ZooKeeper's tree, and reads them back by hash. Every later file is "
            "rendered from these originals; a rollback restores them byte for byte. Notes the partition counts of "
            "`__consumer_offsets` and `__transaction_state` in ZooKeeper: a later expansion is detected, whatever brokers answer.",
        stops=("O01", "O05", "U04"),
    ),
    StepRow("controllers", "provision", "provision",
        step="controllers.ProvisionController", takes=("controller", "cluster_id"), each=NodeRole.CONTROLLER, follows_plan=True,
        operator="operators.migration.ProvisionControllersOperator", estimate=Estimate.MIGRATION,
        doc="Writes this controller's properties file, formats its empty directory with the pinned cluster id and the brokers' "
            "version, and starts it with the migration flag. No broker is touched.",
        stops=("G04", "M01", "R11", "R12"),
    ),
    StepRow("controllers", "ready", "controllers ready",
        step="waits.controllers_ready", access=Access.WATCH, estimate=Estimate.MIGRATION,
        doc="Waits until every controller answers with the migration flag and all follow one leader. A controller without the "
            "flag would end the migration before it began.",
        stops=("G05", "G23", "G20"),
    ),
    _ROLL,
    _LEADERS,
    _REGISTERED,
    StepRow("copy", "copied", "copied", step="waits.Copied", takes=("copy_timeout",), estimate=Estimate.MIGRATION,
        doc="Waits until the controllers have copied all metadata from ZooKeeper and write every change to both sides.",
        stops=("P11", "G13"),
    ),
    StepRow("copy", "phase", "phase",
        step="waits.phase_reached", takes=("patience",), access=Access.WATCH, estimate=Estimate.MIGRATION,
        doc="Waits until the cluster is observed in the dual-write phase.",
    ),
    _LAG,
    _EQUIVALENT,
    _ROLL.at("second_roll", target=BrokerMode.KRAFT),
    _LEADERS.at("second_roll"),
    _REGISTERED.at("second_roll"),
    StepRow("", "soak", "soak",
        step="waits.Soak", takes=("seconds",), operator="operators.migration.SoakOperator", estimate=Estimate.SOAK,
        doc="Watches dual-write for `policy.min_soak`. Every gate must stay healthy; one failed gate restarts the time. It waits "
            "in the triggerer and holds no worker. The time already soaked survives restarts of both.",
        stops=("T01", "G07", "G21", "K01", "O01", "O03", "O06", "O07"),
    ),
    _LAG.at("before_approval"),
    _EQUIVALENT.at("before_approval"),
    StepRow("before_approval", "rollback_plan", "rollback plan",
        run="rollback.planned_in_migration", access=Access.ASK, deferrable=False,
        operator="operators.migration.RollbackPlanOperator",
        doc="Plans a rollback without executing it, to show that it is still possible. The next step makes it impossible forever. "
            "Every broker's original must be in the backup, unaltered.",
    ),
    StepRow("before_approval", "readiness", "readiness",
        run="waits.require_rollback_assured", access=Access.WATCH, deferrable=False,
        operator="operators.migration.ReadinessOperator",
        doc="Judges from one observation whether a rollback is assured: dual-write, both sides, epochs, files and originals, the "
            'ensemble, space, brokers that the cluster file does not name. Its result is the answer to "is a rollback possible?", '
            "with the time that a rollback would take and what it would lose; the request for approval shows it. Its XCom "
            "`fingerprint` is the hash of that verdict and its evidence.",
        stops=("G07", "E02", "Z05", "O03", "O06", "O01", "G39"),
    ),
    StepRow("", "approve", APPROVE, access=Access.ASK, deferrable=False, answer=FINALIZE,
        doc="Shows the evidence and asks an operator to approve the **point of no return**. Answer under *Required Actions*. It "
            "changes nothing while it waits.\n\n**Stay in dual-write** fails this task and changes nothing. To be asked again "
            "with fresh evidence, start a new run.\n\n**Roll back** skips the finalization; `start_rollback` starts the rollback, "
            "which gets the lock of this run.",
        stops=("H06", "H10", "H11"),
    ),
    StepRow("finalize", "controller", "finalize",
        step="controllers.FinalizeController", takes=("controller", "approved_state"), each=NodeRole.CONTROLLER, follows_plan=True,
        operator="operators.migration.FinalizeControllerOperator", deferrable=False, estimate=Estimate.FINALIZATION,
        last=LastTask("active_last", why=why_restarted_last, stops=("G34", "R12"),
            doc="Restarts the controllers that still have the flag: the active one, if it was skipped."),
        doc="Restarts this controller without the migration flag. The first such controller that is elected ends the migration "
            "for good.\n\n**Skipped:** this is the active controller; `active_last` restarts it, one election in all.",
        stops=("G34", "H06", "T07", "R12"),
    ),
    StepRow("finalize", "finalized", "finalized", step="waits.Finalized", estimate=Estimate.FINALIZATION,
        doc="Waits until every controller runs without the flag and nothing is written to ZooKeeper any more. Then this run "
            "releases the cluster. ZooKeeper may be switched off afterwards.",
        stops=("T03", "G23", "O03", "O06", "P02"),
    ),
)

_ROLL_BACK_BROKER = StepRow("to_migration", "broker", "roll back broker",
    step="brokers.RollBackBroker", takes=(*_ROLLED, "terms"), each=NodeRole.BROKER, target=BrokerMode.MIGRATION,
    follows_plan=True, access=Access.ACT_OVER_WAITING, estimate=Estimate.ROLLBACK,
    doc="Rolls this broker back from KRaft mode to migration mode, as soon as every partition can spare it. It is a ZooKeeper "
        "broker again, under the KRaft controller. Done when it is registered, known to all others and back in every ISR. A "
        "broker that is down gets its file and is started.",
    stops=("S02", "R01", "R05", "G38", "K01"),
)

ROLLBACK: Plan = (
    StepRow("", "plan", "plan",
        run="rollback.planned", access=Access.ASK_OVER_WAITING, deferrable=False,
        operator="operators.migration.RollbackPlanOperator",
        doc="Lists each step of the rollback from the cluster's present phase, and checks the original of every broker that has "
            "another file. It changes nothing. **Failed** with P12: the migration is finalized; a rollback is not possible.",
        stops=("P12", "P13", "O01"),
    ),
    StepRow("", "approve", APPROVE, access=Access.ASK_OVER_WAITING, deferrable=False, answer=ROLL_BACK,
        doc="Shows the plan and asks an operator. Answer under *Required Actions*; it changes nothing while it waits.\n\n**Leave "
            "as it is** fails this task and changes nothing. To be asked again with a fresh plan, start a new run.",
        stops=("H06", "H10", "H11"),
    ),
    StepRow("controller_failover", "restore_flag", "restore flag",
        step="rollback.RestoreFlag", takes=("controller",), each=NodeRole.CONTROLLER, skip_if="skip_failover",
        follows_plan=True, access=Access.ACT_OVER_WAITING, deferrable=False, estimate=Estimate.ROLLBACK,
        doc="Starts this controller if it is down during a migration. Restarts it with the migration flag if a finalization "
            "removed the flag: if it were elected without the flag, it would finalize.\n\n**Skipped:** the run was started with "
            "*Do not fail the controllers over*.",
        stops=("G23", "R12"),
    ),
    StepRow("controller_failover", "failover", "controller failover",
        step="rollback.ControllerFailover", takes=("controllers",), skip_if="skip_failover",
        follows_plan=True, access=Access.ACT_OVER_WAITING, deferrable=False, estimate=Estimate.ROLLBACK,
        doc="Restarts the active controller once. A lost dual-write is never repeated, but a new leader writes all metadata to "
            "ZooKeeper again. Done when it has, and the dual-write makes progress.\n\n**Skipped:** the run was started with *Do "
            "not fail the controllers over*.",
        stops=("G07", "G20"),
    ),
    StepRow("controller_failover", "equivalence", "equivalent after failover",
        step="rollback.equivalent_after_failover", takes=("copy_timeout", "terms"),
        access=Access.ACT_OVER_WAITING, deferrable=False, estimate=Estimate.ROLLBACK,
        doc="Compares what ZooKeeper and KRaft store: what is missing in ZooKeeper would be lost in the rollback. It also runs "
            "with *Do not fail the controllers over*; then you may accept a loss that it names (`accept_loss`).",
        stops=("E02", "G33", "G35"),
    ),
    # Without a wait behind it: a broker that fails in migration mode may be the reason for the rollback.
    _ROLL_BACK_BROKER,
    StepRow("handover", "transaction", "handover",
        step="rollback.Handover", takes=("controllers", "terms"), access=Access.ACT_OVER_WAITING, deferrable=False,
        follows_plan=True, estimate=Estimate.ROLLBACK,
        doc="Stops the controllers, once no broker needs them and one more comparison shows that ZooKeeper holds all that KRaft "
            "holds: standbys one by one, then the last ones of the quorum together, and watches `/migration` for 2 s. Then it "
            "hands the cluster over to ZooKeeper in one transaction. `/controller_epoch` rises above every epoch that KRaft "
            "wrote; `/migration` and `/controller` are deleted, and saved into the backup before. If ZooKeeper owns the cluster "
            "already, the remains of an earlier attempt are deleted.\n\n**No controller** runs for about 10 s; clients continue. "
            "If a broker or a machine fails meanwhile, the handover goes on without that broker, which comes back "
            "as a follower. **Behind this task the migration cannot continue before this rollback has ended.**",
        stops=("U04", "G26", "G27", "G33", "P07"),
    ),
    StepRow("handover", "zookeeper_leads", "zookeeper leads",
        step="rollback.ZooKeeperLeads", access=Access.ACT_OVER_WAITING, deferrable=False, estimate=Estimate.ROLLBACK,
        doc="Waits until a ZooKeeper broker is controller and every broker names it, and elects leaders that are missing. A "
            "broker that is stopped before it names the controller would wait 300 s.",
        stops=("G02", "G28"),
    ),
    # Before any broker forgets the controllers: a controller that starts with all of them registered takes the cluster over at once.
    StepRow("wipe", "controller", "wipe",
        step="rollback.WipeController", takes=("controller",), each=NodeRole.CONTROLLER, access=Access.ACT_OVER_WAITING,
        follows_plan=True, deferrable=False, estimate=Estimate.ROLLBACK,
        doc="Moves the directories of this stopped controller out of the way: an old quorum that starts again would take the "
            "cluster over and delete topics. They are renamed; a mount point keeps its name, and its content moves into a folder "
            "in it.",
        stops=("M01", "M03", "G26"),
    ),
    _ROLL_BACK_BROKER.at(
        "to_zookeeper", target=BrokerMode.ZOOKEEPER, last=LastTask("postponed",
            doc="Restarts the brokers that do not run with their original file yet: the ZooKeeper controller, if it was skipped."),
        doc="Restarts this broker with its original file, byte for byte, as soon as every partition can spare it. Done when it is "
            "registered, known to all others and back in every ISR. A broker that is down gets its file and is "
            "started.\n\n**Skipped:** this broker is the ZooKeeper controller; `postponed` restarts it last.",
        stops=("G26", "G28", "G30", "G38", "K01", "R05"),
    ),
    _LEADERS.at("to_zookeeper"),
    _REGISTERED.at("to_zookeeper"),
    StepRow("", "rolled_back", "rolled back",
        step="rollback.rolled_back", access=Access.ACT_OVER_WAITING, estimate=Estimate.ROLLBACK,
        doc="Waits until all is as before the migration: brokers in ZooKeeper mode, controllers stopped, their directories empty, "
            "no trace in ZooKeeper. Then this run releases the cluster. A new migration may begin at any time.",
        stops=("G04", "G22", "G30"),
    ),
)

EXPANSION: Plan = (
    StepRow("", "plan", "expansion plan",
        step="expansion.PlanExpansion", takes=("partitions", "undo"), access=Access.ASK, deferrable=False,
        operator="operators.migration.ExpansionPlanOperator",
        doc="Checks whether the topic may be expanded to the run's `partitions`. Lists the groups that move and must stop, and "
            "each step. It changes nothing. **Failed:** the log names the obstacle, and the numbers that are allowed.",
    ),
    StepRow("", "approve", APPROVE, access=Access.ASK, deferrable=False, answer=EXPAND,
        doc="Shows the plan and asks an operator. Answer under *Required Actions*; it changes nothing while it waits.\n\n**Leave "
            "as it is** fails this task and changes nothing. To be asked again with a fresh plan, start a new run.",
        stops=("H06", "H10", "H11"),
    ),
    StepRow("moving_groups", "stopped", "groups stopped", step="expansion.StopGroups", takes=("partitions",), skip_if="undo",
        follows_plan=True,
        doc="Saves the brokers' original files, notes that the expansion begins, and waits until no broker has a member of a "
            "group that moves: **stop their consumers now**. The log names those that are left. All other groups continue.",
        stops=("K79", "K02"),
    ),
    StepRow("moving_groups", "export", "export offsets",
        step="expansion.ExportOffsets", takes=("partitions",), skip_if="undo", follows_plan=True, deferrable=False,
        doc="Saves the offsets of every group that moves, with leader epochs, metadata and commit times, in two files of the "
            "backup, each with its SHA-256. The raw log of the topic must hold the same commits as brokers report.",
        stops=("K79", "K81", "K82", "K85"),
    ),
    StepRow("moving_groups", "delete", "delete groups",
        step="expansion.DeleteGroups", takes=("partitions",), skip_if="undo", follows_plan=True, deferrable=False,
        doc="Deletes these groups while brokers still use the old count, so that no old commit is left in a partition where a "
            "later leader would find it. First it compares what each broker has with the export, and afterwards it reads the raw "
            "log until that holds nothing of them. From here on the export alone has their offsets.",
        stops=("K79", "K82", "K85", "O10"),
    ),
    StepRow("", "expand", "expand", step="expansion.ExpandTopic", takes=("partitions",), skip_if="undo", follows_plan=True,
        doc="Gives the topic its new partitions, with replicas on every rack. Nothing changes for any group yet.",
        stops=("K82", "K83", "S02"),
    ),
    # From the first restart on it can only be completed.
    StepRow("restart", "broker", "restart broker",
        step="expansion.RestartBroker", takes=("broker", "partitions", "policy", "group_progress"), skip_if="undo",
        each=NodeRole.BROKER, follows_plan=True,
        last=LastTask("postponed", why=why_broker_restarts_last,
            doc="Restarts the ZooKeeper controller, if it was skipped, and completes what a killed task has left of the others."),
        doc="Sets `offsets.topic.num.partitions` in this broker's file and restarts it in its mode, as soon as every partition "
            "can spare it. The first restart also waits until nothing is left of any group that moves. **From then on it can only "
            "be completed.**\n\n**Skipped:** this broker is the ZooKeeper controller; `postponed` restarts it last.",
        stops=("S02", "S04", "R01", "R05", "K82", "O03"),
    ),
    _LEADERS.at("restart", skip_if="undo"),
    StepRow("restart", "one_coordinator", "one coordinator",
        step="expansion.one_coordinator", takes=("partitions", "group_progress"), skip_if="undo",
        doc="Waits until every broker uses the new count, and each group has exactly one coordinator; then, until the groups that "
            "did not move continue.",
        stops=("K01", "K02"),
    ),
    StepRow("import", "offsets", "import offsets", step="expansion.ImportOffsets", takes=("partitions", "undo"), deferrable=False,
        doc="Commits the exported offsets at each group's coordinator. A group that has committed something else meanwhile is not "
            "overwritten: this task fails and names it. In a run with `undo` it commits under the old count.",
        stops=("K82", "O10"),
    ),
    StepRow("import", "verify", "verify offsets", step="expansion.VerifyOffsets", takes=("partitions", "undo"), deferrable=False,
        doc="Reads every imported offset back, three times, and then in the raw log, which must hold each of them once: no change "
            "of leaders can bring another one back. Ends the expansion. **The groups may start now.**",
        stops=("K82", "K85", "O10"),
    ),
    StepRow("", "progress", "groups progress", step="expansion.GroupsProgress", takes=("partitions", "groups"), skip_if="undo",
        doc="Waits until the groups that had members before consume again. **Start them now.** It waits for a day. If some stay "
            "stopped on purpose, mark it as success: nothing else is left to do.",
        stops=("K84",),
    ),
)
"""Of `__consumer_offsets`. A run that sets `undo` imports the offsets under the old count instead."""

SINGLE: Plan = (
    StepRow("", "repair", "repair offsets", step="offsets_repair.RepairOffsets", takes=("decisions",), deferrable=False,
        doc="Takes the newest commit of each group from all partitions of the raw log, imports it, and removes the other copies. "
            "It saves all values in the backup first. It waits until the groups that it names are stopped. **Afterwards restart "
            "every broker once.**",
        stops=("K90", "K79", "K01"),
    ),
    StepRow("", "coordinators", "coordinators", step="waits.coordinators_agree", takes=("patience",), access=Access.WATCH),
    StepRow("", "", "switch", step="groups.SwitchInstance", takes=("group", "instance", "member_kind", "bake")),
    StepRow("", "", "mode", step="groups.SetMode", takes=("group", "mode"), deferrable=False),
    StepRow("", "", "watch group", step="groups.WatchGroup", takes=("group",)),
    StepRow("", "", "cutover", step="cutover.CutOver", takes=("group",)),
    StepRow("", "", "roll back group", step="cutover.make_group_rollback", takes=("group", "goal"), deferrable=False),
    StepRow("", "", "clean up", step="groups.CleanUp", takes=("group",)),
)
"""Steps of no plan: each is a task of a DAG of its own, or of the DAGs of consumer groups."""
# fmt: on

PLANS: tuple[Plan, ...] = (MIGRATION, ROLLBACK, EXPANSION)


def rows_by_kind() -> Mapping[str, StepRow]:
    """Kind -> its row; of several places the first."""
    return {row.kind: row for plan in reversed((*PLANS, SINGLE)) for row in reversed(plan)}


def row_of(kind: str) -> StepRow:
    """The row of a step that a task may run by its name. Raises ValueError, which names them all, for another one."""
    steps = {row.kind: row for row in rows_by_kind().values() if row.step}
    if kind not in steps:
        raise ValueError(f"There is no step {kind!r}; there are {', '.join(sorted(steps))}.")
    return steps[kind]


def split_into_stages(plan: Iterable[StepRow]) -> tuple[tuple[str, Plan], ...]:
    """The plan cut into its groups, in order: (name, steps). A step outside a group is a stage of its own, named by its task."""
    return tuple((name, tuple(steps)) for name, steps in groupby(plan, lambda step: step.group or step.task))


def list_step_tasks(spec: ClusterSpec, step: StepRow) -> Iterator[tuple[StepRow, str, int | None]]:
    """Each task of a step: (step, task id in its group, node); a step with postponed nodes has one more, without a node."""
    for node in step.nodes(spec):
        yield step, step.task_id(node.id), node.id
    if step.each is None:
        yield step, step.task_id(), None
    if step.last:
        yield step, step.last.task, None


def find_step(plan: Iterable[StepRow], kind: str, group: str = "") -> StepRow:
    """The first step of a kind, of one group if it is given. Raises StopIteration if there is none."""
    return next(step for step in plan if step.kind == kind and group in ("", step.group))


def steps_after_approval(plan: Plan) -> Plan:
    """What an administrator approves: every step behind the approval."""
    return plan[plan.index(find_step(plan, APPROVE)) + 1 :]


def required_answer_before(kind: str) -> str:
    """What an administrator must have answered before a step, in the first plan that has it behind its approval. Empty: nothing."""
    return next(
        (find_step(plan, APPROVE).answer for plan in PLANS if any(row.kind == kind for row in steps_after_approval(plan))), ""
    )


def is_last_of_plan(kind: str) -> bool:
    """True if a step is the last one of a plan."""
    return kind in {plan[-1].kind for plan in PLANS}
