"""Named conditions of the way back, as `core.gates` has those of the way forward."""

from __future__ import annotations

from airflow_provider_kmigrate.core.decision import Decision, Refuse, Wait
from airflow_provider_kmigrate.core.files import directories
from airflow_provider_kmigrate.core.files.config_matrix import Stage, stage_on_disk
from airflow_provider_kmigrate.core.forward import roll
from airflow_provider_kmigrate.core.forward.provision import unseen
from airflow_provider_kmigrate.core.gates import BRING_BACK, MET, Gate, never, not_yet, together
from airflow_provider_kmigrate.core.listing import listed
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
from airflow_provider_kmigrate.core.unread import not_read

STILL_FOR = 2.0  # seconds without a change of /migration; a leader writes every 0.5 s, and every process was seen stopped


def over(view: ClusterView) -> Decision | None:
    """The refusal once there is no way back, a wait where that cannot be told, None while there is one."""
    if ended(view):
        text = "The migration is finalized: there is no way back to ZooKeeper."
        why = "ZooKeeper gets no writes any more; whatever was changed since would be lost."
        remedy = f"Go forward: a broker left in a ZooKeeper mode is rolled to KRaft at once: clear its `second_roll` task of kmigrate_zk_to_kraft__{view.name} (P02 in the runbook)."
        return Refuse((Reason("P12", text, why, remedy, Cause.FINALIZED), *where(view).reasons))
    if view.zk is None:
        why = "Who owns the cluster stands there; without ZooKeeper there is no way back."
        return Wait((Reason("P03", "ZooKeeper could not be read.", why, "Bring the ensemble back."), *view.unknowns))
    if isinstance(view.zk.migration, Malformed):
        return Refuse((malformed("P04", "/migration", view.zk.migration.content),))
    if isinstance(view.zk.controller, Malformed):
        return Refuse((malformed("P05", "/controller", view.zk.controller.content),))
    return None


def names_the_controller(view: ClusterView) -> Gate:
    """G11: every broker that answers names the ZooKeeper controller of /controller."""
    controller = roll.zookeeper_controller(view)
    if controller is None or view.zk is None or controller not in view.zk.broker_ids:
        why = "Without one no leader moves, and a broker that is stopped now waits 300 s."
        return not_yet(Reason("G28", "No ZooKeeper controller is elected yet.", why))
    others = {
        b.id: b.controller_id for b in view.running_brokers() if b.mode is not BrokerMode.KRAFT and b.controller_id != controller
    }
    if not others:
        return MET
    text = f"Not every broker names ZooKeeper controller {controller}: {', '.join(f'{b} names {c}' for b, c in sorted(others.items()))}."
    return not_yet(Reason("G28", text, "A broker that is stopped before it does waits 300 s for a KRaft controller (measured)."))


def with_mode(view: ClusterView, mode: BrokerMode) -> list[int]:
    """Ids of the brokers that answer in this mode."""
    return sorted(broker.id for broker in view.brokers.values() if broker.mode is mode)


def kraft_left(kraft: list[int]) -> Reason:
    """G27: brokers that are still in KRaft mode."""
    text = f"Brokers still run in KRaft mode: {listed(kraft)}."
    return Reason("G27", text, "Without KRaft controllers they have none.", "Roll them back to migration mode first.")


def controllers_silent(view: ClusterView) -> Gate:
    """No controller answers. One that was started again would have written /migration, which is looked at too."""
    answering = sorted(c.id for c in view.controllers.values() if c.answers)
    if not answering:
        return MET
    why = "Once every broker has registered with them, they would take the cluster over again."
    return never(
        Reason("G26", f"Controllers answer: {listed(answering)}.", why, "Stop them; the step for it comes before this one.")
    )


def controllers_down(view: ClusterView) -> Gate:
    """G26: every controller is stopped."""
    return together(controller_down(view.controllers[controller]) for controller in sorted(view.controllers))


def controller_down(controller: Controller) -> Gate:
    """G26: this controller is stopped, and nobody answers in its place."""
    if controller.process.state is ProcessState.STOPPED and not controller.answers:
        return MET
    text = f"Controller {controller.id} is not stopped: its process is {controller.process.state}."
    reason = Reason("G26", text, "It would go on writing to ZooKeeper.", "Stop it; the step for it comes before this one.")
    return never(reason) if controller.answers else not_yet(reason)


def nothing_ended(view: ClusterView) -> Gate:
    """R12: no stopped controller has final properties. One that led with them has finalized, and nobody is left who could tell."""
    if not kraft_owns(view):
        return MET
    controllers = [controller for _, controller in sorted(view.controllers.items())]
    final = [c for c in controllers if stage_on_disk(c.files) is Stage.CONTROLLER_FINAL]
    unread = [c.id for c in controllers if c.files == NodeFiles()]  # a file that is not there is no final one
    if final or not unread:
        return never(unseen(view, final[0])) if final else MET
    return not_yet(not_read(f"the files of controllers {listed(unread)}"))


def migration_still(view: ClusterView, first: ClusterView) -> Gate:
    """G29: nobody has written /migration for `STILL_FOR` seconds since `first`."""
    if view.zk is None or first.zk is None:
        return not_yet(not_read("ZooKeeper"))
    if view.zk.migration != first.zk.migration:
        text = "/migration still moves, although every controller of the cluster file is stopped."
        return never(
            Reason("G29", text, "Somebody else writes to this cluster.", "Find the controller that the file does not name.")
        )
    if view.taken_at - first.taken_at < STILL_FOR:
        return not_yet(
            Reason("T05", "Watching /migration for a moment: nobody may write it any more.", cause=Cause.HAND_OVER_OBSERVED)
        )
    return MET


def states_in_reach(view: ClusterView) -> Gate:
    """G2: what the metadata shows looks healthy even where no leader can move; the epochs tell."""
    epoch = view.zk.controller_epoch if view.zk else None
    if view.state_epoch is None or epoch is None or view.state_epoch <= epoch:
        return MET
    text = f"A partition's state has epoch {view.state_epoch}, /controller_epoch is {epoch}."
    why = "The ZooKeeper controller cannot move its leader or shrink its ISR: it freezes when a broker fails (KAFKA-20488)."
    remedy = (
        f"Stop no broker. Run kmigrate_rollback__{view.name}: one step of its plan raises /controller_epoch and has a controller elected;"
        " in a rollback that is red with this clear hand_over.transaction. Not by hand: it has to be one transaction."
    )
    return never(Reason("G02", text, why, remedy))


def others_answer(view: ClusterView, controller_id: int) -> Gate:
    """G23: every other controller answers, so the quorum can spare this one."""
    silent = sorted(c.id for c in view.controllers.values() if not c.answers and c.id != controller_id)
    if not silent:
        return MET
    return not_yet(
        Reason("G23", f"Controllers that do not answer: {listed(silent)}.", "The quorum could lose its majority.", BRING_BACK)
    )


def migration_left(view: ClusterView) -> bool:
    """/migration is there."""
    return view.zk is not None and view.zk.migration is not None


def empty(controller: Controller) -> bool:
    """A controller's own directories hold neither a format nor a metadata log; those of another node do not count."""
    if controller.files.meta is None:
        return not controller.files.has_metadata_log
    return not directories.in_use(controller)
