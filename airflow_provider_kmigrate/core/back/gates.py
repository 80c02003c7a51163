"""Named conditions of the way back, as `core.gates` has those of the way forward."""

from __future__ import annotations

from airflow_provider_kmigrate.core.decision import Decision, Refuse, Wait
from airflow_provider_kmigrate.core.files import directories
from airflow_provider_kmigrate.core.files.config_matrix import FileStage, stage_on_disk
from airflow_provider_kmigrate.core.forward import roll
from airflow_provider_kmigrate.core.forward.provision import unseen
from airflow_provider_kmigrate.core.gates import MET, Gate, never, not_yet, together
from airflow_provider_kmigrate.core.listing import join_ids
from airflow_provider_kmigrate.core.model import (
    BrokerMode,
    Cause,
    ClusterView,
    Controller,
    Malformed,
    NodeFiles,
    ProcessState,
    Reason,
)
from airflow_provider_kmigrate.core.phase import ended, kraft_owns, malformed, where
from airflow_provider_kmigrate.core.unread import could_not_read

STILL_FOR = 2.0  # seconds without a change of /migration; a leader writes every 0.5 s, and every process was seen stopped


def over(view: ClusterView) -> Decision | None:
    """The refusal once there is no way back, a wait where that cannot be told, None while there is one."""
    if ended(view):
        text = "The migration is finalized: there is no way back to ZooKeeper."
        return Refuse((Reason("P12", text, cause=Cause.FINALIZED), *where(view).reasons))
    if view.zk is None:
        return Wait((Reason("U01", "ZooKeeper could not be read."), *view.unknowns))
    if isinstance(view.zk.migration, Malformed):
        return Refuse((malformed("P04", "/migration", view.zk.migration.content),))
    if isinstance(view.zk.controller, Malformed):
        return Refuse((malformed("P05", "/controller", view.zk.controller.content),))
    return None


def names_the_controller(view: ClusterView) -> Gate:
    """G11: every broker that answers names the ZooKeeper controller of /controller."""
    controller = roll.zookeeper_controller(view)
    if controller is None or view.zk is None or controller not in view.zk.broker_ids:
        return not_yet(Reason("G28", "No ZooKeeper controller is elected yet."))
    others = {
        b.id: b.controller_id for b in view.running_brokers() if b.mode is not BrokerMode.KRAFT and b.controller_id != controller
    }
    if not others:
        return MET
    text = f"Not every broker names ZooKeeper controller {controller}: {', '.join(f'{b} names {c}' for b, c in sorted(others.items()))}."
    return not_yet(Reason("G28", text))


def with_mode(view: ClusterView, mode: BrokerMode) -> list[int]:
    """Ids of the brokers that answer in this mode."""
    return sorted(broker.id for broker in view.brokers.values() if broker.mode is mode)


def kraft_left(kraft: list[int]) -> Reason:
    """G27: brokers that are still in KRaft mode."""
    text = f"Brokers still run in KRaft mode: {join_ids(kraft)}."
    return Reason("G27", text)


def controllers_silent(view: ClusterView) -> Gate:
    """No controller answers. One that was started again would have written /migration, which is looked at too."""
    answering = sorted(c.id for c in view.controllers.values() if c.answers)
    if not answering:
        return MET
    return never(Reason("G26", f"Controllers answer: {join_ids(answering)}."))


def controllers_down(view: ClusterView) -> Gate:
    """G26: every controller is stopped."""
    return together(controller_down(view.controllers[controller]) for controller in sorted(view.controllers))


def controller_down(controller: Controller) -> Gate:
    """G26: this controller is stopped, and nobody answers in its place."""
    if controller.process.state is ProcessState.STOPPED and not controller.answers:
        return MET
    text = f"Controller {controller.id} is not stopped: its process is {controller.process.state}."
    reason = Reason("G26", text)
    return never(reason) if controller.answers else not_yet(reason)


def nothing_ended(view: ClusterView) -> Gate:
    """R12: no stopped controller has final properties. One that led with them has finalized, and nobody is left who could tell."""
    if not kraft_owns(view):
        return MET
    controllers = [controller for _, controller in sorted(view.controllers.items())]
    final = [c for c in controllers if stage_on_disk(c.files) is FileStage.CONTROLLER_FINAL]
    unread = [c.id for c in controllers if c.files == NodeFiles()]  # a file that is not there is no final one
    if final or not unread:
        return never(unseen(view, final[0])) if final else MET
    return not_yet(could_not_read(f"the files of controllers {join_ids(unread)}"))


def migration_still(view: ClusterView, first: ClusterView) -> Gate:
    """G29: nobody has written /migration for `STILL_FOR` seconds since `first`."""
    if view.zk is None or first.zk is None:
        return not_yet(could_not_read("ZooKeeper"))
    if view.zk.migration != first.zk.migration:
        text = "/migration still moves, although every controller of the cluster file is stopped."
        return never(Reason("G29", text))
    if view.taken_at - first.taken_at < STILL_FOR:
        return not_yet(
            Reason("T01", "Watching /migration for a moment: nobody may write it any more.", cause=Cause.HAND_OVER_OBSERVED)
        )
    return MET


def states_in_reach(view: ClusterView) -> Gate:
    """G2: what the metadata shows looks healthy even where no leader can move; the epochs tell."""
    epoch = view.zk.controller_epoch if view.zk else None
    if view.state_epoch is None or epoch is None or view.state_epoch <= epoch:
        return MET
    text = f"A partition's state has epoch {view.state_epoch}, /controller_epoch is {epoch}."
    return never(Reason("G02", text))


def others_answer(view: ClusterView, controller_id: int) -> Gate:
    """G23: every other controller answers, so the quorum can spare this one."""
    silent = sorted(c.id for c in view.controllers.values() if not c.answers and c.id != controller_id)
    if not silent:
        return MET
    return not_yet(Reason("G23", f"Controllers that do not answer: {join_ids(silent)}."))


def migration_left(view: ClusterView) -> bool:
    """/migration is there."""
    return view.zk is not None and view.zk.migration is not None


def empty(controller: Controller) -> bool:
    """A controller's own directories hold neither a format nor a metadata log; those of another node do not count."""
    if controller.files.meta is None:
        return not controller.files.has_metadata_log
    return not directories.in_use(controller)
