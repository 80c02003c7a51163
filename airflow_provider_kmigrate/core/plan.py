"""The order of the migration, of the rollback and of an expansion of `__consumer_offsets`, written once: all that runs them reads it.

Why each step must come where it does is tested in `tests/core/test_plan.py`, pair by pair.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby

from airflow_provider_kmigrate.core.cluster import NodeRole
from airflow_provider_kmigrate.core.model import BrokerMode

APPROVE = "approve"
"""The kind of the step at which an administrator decides; a plan that runs in one task does not ask."""


@dataclass(frozen=True, slots=True)
class PlanStep:
    """One row of a plan: the kind of a step, and the task, or the task of each node, that runs it.

    `group` is empty for tasks outside a group. `each`: one task for each node of that role; None: one for the whole cluster. `target`:
    the mode that brokers are brought into. `last`: a node that an election depends on is postponed, and this task runs it after the others.
    `skip_if`: left out if the run sets this param.
    """

    group: str
    task: str
    kind: str
    each: NodeRole | None = None
    target: BrokerMode | None = None
    last: str = ""
    skip_if: str = ""

    def task_id(self, node: int | None = None) -> str:
        """The task's id inside its group; `node`: whose, if there is one for each."""
        return self.task if node is None else f"{self.task}_{node}"

    def full_id(self, node: int | None = None) -> str:
        """The task's id in the DAG."""
        return f"{self.group}.{self.task_id(node)}" if self.group else self.task_id(node)


Plan = tuple[PlanStep, ...]

MIGRATION: Plan = (
    PlanStep("", "preflight", "preflight"),
    PlanStep("", "backup", "backup"),
    PlanStep("controllers", "provision", "provision", NodeRole.CONTROLLER),
    PlanStep("controllers", "ready", "controllers ready"),
    PlanStep("first_roll", "broker", "roll", NodeRole.BROKER, BrokerMode.MIGRATION, last="postponed"),
    PlanStep("first_roll", "leaders", "leaders"),
    PlanStep("first_roll", "registered", "registered"),
    PlanStep("copy", "copied", "copied"),
    PlanStep("copy", "phase", "phase"),
    PlanStep("copy", "dual_write_lag", "lag"),
    PlanStep("copy", "equivalence", "equivalent"),
    PlanStep("second_roll", "broker", "roll", NodeRole.BROKER, BrokerMode.KRAFT, last="postponed"),
    PlanStep("second_roll", "leaders", "leaders"),
    PlanStep("second_roll", "registered", "registered"),
    PlanStep("", "soak", "soak"),
    PlanStep("before_approval", "dual_write_lag", "lag"),
    PlanStep("before_approval", "equivalence", "equivalent"),
    PlanStep("before_approval", "rollback_plan", "rollback plan"),
    PlanStep("before_approval", "readiness", "readiness"),
    PlanStep("", "approve", APPROVE),
    PlanStep("finalize", "controller", "finalize", NodeRole.CONTROLLER, last="active_last"),
    PlanStep("finalize", "finalized", "finalized"),
)

ROLLBACK: Plan = (
    PlanStep("", "plan", "plan"),
    PlanStep("", "approve", APPROVE),
    PlanStep("controller_failover", "restore_flag", "restore flag", NodeRole.CONTROLLER, skip_if="skip_failover"),
    PlanStep("controller_failover", "failover", "controller failover", skip_if="skip_failover"),
    PlanStep("controller_failover", "equivalence", "equivalent after failover"),
    # Without a wait behind it: a broker that fails in migration mode may be the reason for the rollback.
    PlanStep("to_migration", "broker", "roll back broker", NodeRole.BROKER, BrokerMode.MIGRATION),
    PlanStep("handover", "transaction", "handover"),
    PlanStep("handover", "zookeeper_leads", "zookeeper leads"),
    # Before any broker forgets the controllers: a controller that starts with all of them registered takes the cluster over at once.
    PlanStep("wipe", "controller", "wipe", NodeRole.CONTROLLER),
    PlanStep("to_zookeeper", "broker", "roll back broker", NodeRole.BROKER, BrokerMode.ZOOKEEPER, last="postponed"),
    PlanStep("to_zookeeper", "leaders", "leaders"),
    PlanStep("to_zookeeper", "registered", "registered"),
    PlanStep("", "rolled_back", "rolled back"),
)

EXPANSION: Plan = (
    PlanStep("", "plan", "expansion plan"),
    PlanStep("", "approve", APPROVE),
    PlanStep("moving_groups", "stopped", "groups stopped", skip_if="undo"),
    PlanStep("moving_groups", "export", "export offsets", skip_if="undo"),
    PlanStep("moving_groups", "delete", "delete groups", skip_if="undo"),
    PlanStep("", "expand", "expand", skip_if="undo"),
    # From the first restart on it can only be completed.
    PlanStep("restart", "broker", "restart broker", NodeRole.BROKER, last="postponed", skip_if="undo"),
    PlanStep("restart", "leaders", "leaders", skip_if="undo"),
    PlanStep("restart", "one_coordinator", "one coordinator", skip_if="undo"),
    PlanStep("import", "offsets", "import offsets"),
    PlanStep("import", "verify", "verify offsets"),
    PlanStep("", "progress", "groups progress", skip_if="undo"),
)
"""Of `__consumer_offsets`. A run that sets `undo` imports the offsets under the old count instead."""


def stages(plan: Iterable[PlanStep]) -> tuple[tuple[str, Plan], ...]:
    """The plan cut into its groups, in order: (name, steps). A step outside a group is a stage of its own, named by its task."""
    return tuple((name, tuple(steps)) for name, steps in groupby(plan, lambda step: step.group or step.task))


def find(plan: Iterable[PlanStep], kind: str, group: str = "") -> PlanStep:
    """The first step of a kind, of one group if it is given. Raises StopIteration if there is none."""
    return next(step for step in plan if step.kind == kind and group in ("", step.group))


def after_approval(plan: Plan) -> Plan:
    """What an administrator approves: every step behind the approval."""
    return plan[plan.index(find(plan, APPROVE)) + 1 :]
