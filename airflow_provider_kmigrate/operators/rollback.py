"""The way back to ZooKeeper: one operator a step, and `RollbackOperator` for all of them in one task."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from airflow.sdk import Context
from airflow.sdk.exceptions import AirflowSkipException

from airflow_provider_kmigrate.core.back.plan import NOTHING
from airflow_provider_kmigrate.core.back.rollback import postponed_stop
from airflow_provider_kmigrate.core.decision import Done
from airflow_provider_kmigrate.core.forward.roll import postponed
from airflow_provider_kmigrate.core.model import BrokerMode, Look
from airflow_provider_kmigrate.exceptions import Refused
from airflow_provider_kmigrate.hooks.world import asking
from airflow_provider_kmigrate.operators.brokers import BrokerStepOperator
from airflow_provider_kmigrate.operators.step import StepOperator
from airflow_provider_kmigrate.steps.brokers import BringBack
from airflow_provider_kmigrate.steps.catalog import build
from airflow_provider_kmigrate.steps.rollback import bring_back_the_rest, planned, stop_controllers, terms_of
from airflow_provider_kmigrate.steps.run import World, run_step
from airflow_provider_kmigrate.steps.whole_way_back import run_rollback


def _asked(context: Context) -> dict[str, Any]:
    return {name: context["params"].get(name) for name in ("skip_failover", "accept_loss")}


_OPEN = "Open: every original that it needs is in the backup, with its hash. What it would do now:"


class RollbackPlanOperator(StepOperator):
    """Say what a rollback would do now, and check that it could; changes nothing. Returns the steps as a Markdown list, and what is kept and lost.

    Refused where there is nothing to take back, or another run holds the cluster.
    `forward`: it is asked on the way forward, where a finalization that has happened already is no refusal.
    """

    kind = "plan"
    ui_color = "#e6e6fa"

    def __init__(self, *, forward: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.forward = forward

    def world(self, context: Context) -> AbstractContextManager[World]:
        """To look at only: nothing is written to the cluster, not even who holds it; refused where another run does."""
        return asking(self.cluster_file, context, self.log.info)

    def arguments(self, context: Context) -> dict[str, Any]:
        return {} if self.forward else _asked(context)

    def run_in(self, world: World, arguments: dict[str, Any]) -> object:
        terms_of(world.spec, arguments)  # refuses what would not be followed
        try:
            steps, kept = planned(world)
        except Refused as refused:
            if not self.forward or all(reason.code != "P12" for reason in refused.reasons):
                raise
            return "The finalization has happened already: there is no way back any more, and only the rest of it is left to do."
        if not steps and not self.forward:
            raise Refused.because(NOTHING)
        listed = "\n".join(f"{number}. {text}" for number, text in enumerate(steps, 1))
        opened = (_OPEN,) if self.forward else ()
        return "\n\n".join((*opened, listed, *kept))


class RollbackOperator(StepOperator):
    """Bring a cluster back to ZooKeeper from any phase before finalization, all in one task, for DAGs of one's own.

    `failover` false leaves out the failover that heals lost dual-writes: only for clusters whose controllers cannot be started any
    more. Both sides are compared all the same, before any controller is stopped and before the hand-over; `accept_loss`, the cluster id, goes on
    without what ZooKeeper lacks then. Killed and run again it looks, and goes on.
    """

    kind = "rollback"
    ui_color = "#fdf0cd"

    def __init__(self, *, failover: bool = True, accept_loss: str = "", **kwargs: Any) -> None:
        super().__init__(**{"deferrable": False, **kwargs})
        self.failover, self.accept_loss = failover, accept_loss

    def run_in(self, world: World, arguments: dict[str, Any]) -> object:
        del arguments
        return run_rollback(world, terms_of(world.spec, {"skip_failover": not self.failover, "accept_loss": self.accept_loss}))


class _ControllerStep(StepOperator):
    """A step of one controller; those with `heals` are skipped where the run's conf asks for no failover."""

    heals = False

    def __init__(self, *, controller: int | None = None, **kwargs: Any) -> None:
        super().__init__(**{"deferrable": False, **kwargs})
        self.controller = controller

    def execute(self, context: Context) -> str:
        if self.heals and context["params"].get("skip_failover"):
            raise AirflowSkipException("The run's conf asks for no failover of the controllers.")
        return super().execute(context)

    def arguments(self, context: Context) -> dict[str, Any]:
        asked = _asked(context)
        return asked if self.controller is None else {**asked, "node": self.controller}


class RestoreFlagOperator(_ControllerStep):
    """A controller of a migration under way up and with its flag."""

    kind = "restore flag"
    heals = True


class ReconcileOperator(_ControllerStep):
    """One failover of the active controller, so that ZooKeeper holds all that KRaft does. Not deferrable: it remembers its epoch."""

    kind = "reconcile"
    heals = True


class HealedOperator(_ControllerStep):
    """Wait until ZooKeeper and KRaft store the same metadata: what is missing in ZooKeeper would be lost on the way back.

    Never skipped: without a failover nothing is healed, and all the more has to be seen.
    """

    kind = "healed"


class StopControllerOperator(_ControllerStep):
    """Stop one controller, once no broker needs it; the active one is skipped here. `controller` None: whatever is left."""

    kind = "stop controller"

    def run_in(self, world: World, arguments: dict[str, Any]) -> object:
        if self.controller is None:
            return stop_controllers(world, terms_of(world.spec, arguments))
        if why := postponed_stop(world.observer.look(Look.CONTROLLERS | Look.QUORUM), self.controller):
            raise AirflowSkipException(why)
        return super().run_in(world, arguments)


class HandOverOperator(_ControllerStep):
    """The one transaction that gives the cluster to ZooKeeper. Not deferrable: no time must pass while nobody is controller."""

    kind = "give back"
    ui_color = "#f4d7d7"


class ZooKeeperLeadsOperator(_ControllerStep):
    """Wait until a ZooKeeper broker is controller and every broker names it; elect leaders that are missing."""

    kind = "zookeeper leads"


class WipeControllerOperator(_ControllerStep):
    """A stopped controller's directories out of the way, so that an old quorum can never take the cluster over."""

    kind = "wipe"


class BringBackOperator(BrokerStepOperator):
    """Restart one broker in its earlier mode, when every partition can spare it. `broker` None: whatever is left."""

    kind = "back"

    def run_in(self, world: World, arguments: dict[str, Any]) -> object:
        if self.broker is None:
            return bring_back_the_rest(world)
        order = [node.id for node in world.spec.brokers]
        back = BrokerMode(self.target)
        if back is BrokerMode.ZOOKEEPER and (why := postponed(world.observer.look(BringBack.looks), self.broker, order, back)):
            raise AirflowSkipException(why)
        return super().run_in(world, arguments)


class RolledBackOperator(StepOperator):
    """Wait until all is as before the migration; then let go of the cluster."""

    kind = "rolled back"

    def run_in(self, world: World, arguments: dict[str, Any]) -> object:
        decision = run_step(build(world.spec, self.kind, arguments), world)
        if isinstance(decision, Done):
            world.fence.release()
        return decision
