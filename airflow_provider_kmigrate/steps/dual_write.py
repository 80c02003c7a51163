"""Partition states raised above what brokers remember of KRaft; `clients.partition_states` says why.

The cures of a dual-write that has ended, and the failover that a way back begins with.
"""

from __future__ import annotations

from airflow_provider_kmigrate.clients.partition_states import half_made, make_whole, raise_versions
from airflow_provider_kmigrate.clients.znode_writes import Delete
from airflow_provider_kmigrate.clients.zookeeper_session import Changed
from airflow_provider_kmigrate.core.decision import Act, Decision, Refuse, Verb
from airflow_provider_kmigrate.core.dual_write import DOWN_LOOKS, recover_dual_write
from airflow_provider_kmigrate.core.files.config_matrix import FileStage
from airflow_provider_kmigrate.core.gates import unidentified
from airflow_provider_kmigrate.core.migration.recovery import StalledDualWrite, may_recover
from airflow_provider_kmigrate.core.model import ClusterView, Fields
from airflow_provider_kmigrate.core.rollback import rollback
from airflow_provider_kmigrate.core.text import summarize
from airflow_provider_kmigrate.exceptions import AuthenticationFailed, Failed
from airflow_provider_kmigrate.steps.files import install
from airflow_provider_kmigrate.steps.journal import format_reasons
from airflow_provider_kmigrate.steps.restarts import apply, ours, start
from airflow_provider_kmigrate.steps.run import StepContext, refuse_if_stopped, refuse_strangers


def raise_states(world: StepContext) -> None:
    """Without the right to it one goes on: a leader that is not heard can be restarted."""
    try:
        count, times = raise_versions(world.tools.zk, world.fence)
    except (AuthenticationFailed, Changed) as error:
        world.say(f"Partition states could not all be raised above KRaft's partition epochs: {error}")
        return
    world.say(f"{count} partition states written again as they are, {times} times: above KRaft's partition epochs.")


def elect_anew(world: StepContext) -> None:
    """Raise them under a ZooKeeper controller that works, and have one elected that reads them anew and tells every broker.

    An election costs less than a second, in which no leader can move (measured). It comes also where not all could be raised: the
    controller goes by the versions that it has read, and could not change a partition whose state was raised any more.
    """
    owner = world.tools.zk.read("/controller")
    raise_states(world)
    if owner is None:
        return
    try:
        world.tools.zk.commit([Delete("/controller", owner[1])], holding=world.fence)
    except AuthenticationFailed as error:
        world.say(f"No controller was elected: {error}")
    except Changed:
        world.say("Another controller was elected meanwhile; it has read the states.")


CURES = frozenset({Verb.START_CONTROLLER, Verb.MEND, Verb.FAIL_OVER})
"""Verbs of `Reviving`."""
_BEING_MADE = 5.0  # seconds, in which a topic that is just being made is whole


class Reviving:
    """`core.dual_write`, over the looks of one life, and what its acts do."""

    def __init__(self, renewed: int = 0) -> None:
        self._standstill = StalledDualWrite(renewed)
        self.wants = Fields(0)  # what the next look is to tell beside the step's own

    @property
    def renewed(self) -> int:
        """How often it was cured."""
        return self._standstill.times

    @property
    def sees_to_the_end(self) -> bool:
        """A cure comes, if it goes on so: only a task makes it, so none defers before."""
        return self._standstill.pending

    def cured(self, view: ClusterView, decision: Decision) -> Decision:
        """The decision, or the cure."""
        found = recover_dual_write(view, decision, self._standstill)
        self._standstill, self.wants = found.standstill, found.wants
        return found.decision

    def found(self, view: ClusterView, refusal: Refuse) -> Decision:
        """The refusal of a difference that lasts, or its cure."""
        self._standstill, decision = self._standstill.found(view, refusal)
        return decision

    def undo(self) -> None:
        """The cure that was decided on last is left to another process."""
        self._standstill = self._standstill.undone()

    @property
    def asks_controllers(self) -> bool:
        """Whether the next look is to tell of the controllers' processes."""
        return bool(self.wants & Fields.PROCESSES)

    def acted(self, world: StepContext, name: str, act: Act) -> bool:
        """Whether this act was one of its own. `name`: the step's."""
        match act.verb:
            case Verb.START_CONTROLLER:
                start_what_is_down(world, name)
            case Verb.MEND | Verb.FAIL_OVER:
                cure(world, name, act.verb)
            case _:
                return False
        return True


def cure(world: StepContext, name: str, verb: Verb) -> None:
    """Complete what ZooKeeper holds in part, and where that is not all, have another controller lead. `name`: the step's.

    Raises `Failed` where something stays incomplete: a failover would end a dual-write that still moves, and cure none.
    """
    _complete(world, name)
    if verb is Verb.FAIL_OVER:
        fail_over(world, name)


def _complete(world: StepContext, name: str) -> None:
    found = half_made(world.tools.zk)
    if found:
        world.clock.sleep(_BEING_MADE)
        found = tuple(path for path in half_made(world.tools.zk) if path in found)
    if not found:
        world.say("ZooKeeper holds every topic with all its partitions.")
        return
    made = sum(_made(world, path) for path in found)
    left = tuple(path for path in half_made(world.tools.zk) if path in found)
    text = f"{made} partitions had no state in ZooKeeper, at which every controller fails: made, to be written over"
    world.say(f"{text} ({summarize(found)}).")
    if left:
        text = f"{len(left)} partitions have no state in ZooKeeper, and it could not be made: {summarize(left)}."
        raise Failed(f"{name}: {text} No failover was made: each controller that is elected fails at them, for ever.")


def _made(world: StepContext, path: str) -> int:
    try:
        return make_whole(world.tools.zk, (path,), world.fence)
    except Changed:  # somebody else made it, or deleted the topic
        return 0


def fail_over(world: StepContext, name: str) -> None:
    """Restart the active controller with the migration flag in its file; another one is elected.

    What speaks against it is looked at once more: since the decision every state may have been read. Then nothing is done.
    """
    view = world.observer.look(Fields.CONTROLLERS | Fields.QUORUM | Fields.CLIENT_METRICS)
    leader = next((node for node in world.spec.controllers if view.quorum and node.id == view.quorum.leader_id), None)
    gate = may_recover(view)
    gate = ours(world, name, leader) if gate.met and leader is not None else gate
    if not gate.met or leader is None:
        world.say(
            f"No failover now: {format_reasons(gate.reasons) or 'the quorum names no leader of the cluster file.'} It is looked at again."
        )
        return
    world.fence.check()
    refuse_if_stopped(name, world)
    apply(world, leader, FileStage.CONTROLLER_MIGRATION, Verb.RESTART)


def start_what_is_down(world: StepContext, name: str) -> None:
    """A controller of this migration that is down, as a failover leaves one that was killed between stop and start. `name`: the step's.

    None whose flag may be over (R12): since the decision something may have shown it.
    """
    view = world.observer.look(DOWN_LOOKS, world.spec.controllers)
    refuse_strangers(name, world, view)
    found = rollback.still_down(view)
    for node in world.spec.controllers:
        if (
            found is not None
            and node.id == found[0]
            and isinstance(found[1], Act)
            and not unidentified(view.controllers[node.id])
        ):
            install(world, node, FileStage.CONTROLLER_MIGRATION)
            start(world, node)
