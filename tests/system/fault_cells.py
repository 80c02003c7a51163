"""Which troubles the steps of each phase meet. `faults` puts them on the way."""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

from airflow_provider_kmigrate.core.cluster_state.model import BrokerMode
from airflow_provider_kmigrate.core.cluster_state.spec import NodeSpec
from airflow_provider_kmigrate.exceptions import AuthenticationFailed, Refused, Unavailable
from airflow_provider_kmigrate.steps.prepare import run_preflight
from airflow_provider_kmigrate.steps.run import Step
from tests.kit.localcluster import clocks
from tests.kit.processes import NodeProcess
from tests.system import linked, proxy
from tests.system.journey import Journey
from tests.system.linked import OF_BROKERS, OF_CONTROLLERS, ZOOKEEPER, to, with_own_links
from tests.system.nodes import killed, of, starved
from tests.system.proxy import Fault
from tests.system.troubles import (
    NO_ZOOKEEPER,
    Trouble,
    active,
    controllers_cut_off,
    controllers_cut_off_midway,
    cut,
    cut_from_controllers,
    cut_from_zookeeper,
    data,
    disk_full,
    no_controller,
    stopped,
    zookeeper_disk_full,
    zookeeper_killed,
    zookeeper_stopped,
)

_MIDWAY_S = 1.0  # of a start that takes three
_TRIES = Step.max_acts + 2  # starts of a controller that has no ZooKeeper: the failover's, the tries, and the last
_RECOVERED_S = 10.0  # in which a stop that only waited for ZooKeeper would end


def _others(journey: Journey, node: int) -> list[NodeSpec]:
    return [broker for broker in journey.cluster.plan.brokers if broker.id != node]


def preflight(journey: Journey) -> None:
    """Each look by itself: what was not reached is named, and nothing begins."""
    one, another, _ = journey.shuffled(journey.cluster.plan.brokers)
    for trouble in (
        cut(journey, proxy.UNANSWERED, one),
        cut_from_zookeeper(journey, proxy.REFUSED),
        stopped(journey, another),
    ):
        preflight_refuses(journey, trouble)


def preflight_refuses(journey: Journey, trouble: Trouble) -> None:
    def made() -> str:
        with journey.diary.lasting(trouble.fault, trouble.made()):
            try:
                with linked.context(journey.cluster, "looking", acting=False) as context:
                    run_preflight(replace(context, say=lambda text: journey.diary.print(f"tool: {text}")))
            except (AuthenticationFailed, Refused, Unavailable) as error:
                found = re.search(trouble.named, " | ".join(map(str, (error, *error.reasons))))
                if found:
                    return f"refused: {found.group()[:200]}"
                raise
        raise AssertionError("it found nothing that blocks")

    journey.cell(trouble.fault, "refuses, and names it", made)


def controllers_ready(journey: Journey) -> None:
    first, second, third = journey.shuffled(journey.cluster.plan.controllers)
    troubles = (
        cut(journey, proxy.REFUSED, second),
        cut_from_zookeeper(journey, proxy.BLACK_HOLE),
        cut(journey, proxy.BLACK_HOLE, first),
        zookeeper_stopped(journey),
        stopped(journey, third),
    )
    journey.series("controllers ready", troubles)


def first_roll(journey: Journey) -> None:
    """Before the pass begins in earnest: nothing is restarted while anything of it lasts."""
    node = journey.to_roll(BrokerMode.MIGRATION)
    own, (other, another) = journey.cluster.plan.brokers[node], journey.shuffled(_others(journey, node))
    _, second, third = journey.shuffled(journey.cluster.plan.controllers)
    troubles = [
        cut(journey, proxy.BLACK_HOLE, other),
        cut(journey, proxy.RESET, second),
        cut_from_zookeeper(journey, proxy.UNANSWERED),
        cut(journey, proxy.UNDELIVERED, own),
        zookeeper_stopped(journey),
        stopped(journey, third),
        cut(journey, proxy.REFUSED, another),
    ]
    if full := [disk_full(journey, broker) for broker in (other, another) if data(broker).is_mount()]:
        troubles += [cut(journey, proxy.UNANSWERED, second), *full]
    journey.series("roll", troubles, node=node, target=BrokerMode.MIGRATION)


def brokers_cut_off(journey: Journey, target: BrokerMode) -> None:
    """All brokers from ZooKeeper, from the moment in which one is down for its restart."""
    name = "brokers cut off from ZooKeeper in a restart: black-holed"

    def made() -> str:
        fault = journey.broken(proxy.BLACK_HOLE, OF_BROKERS)
        return journey.meanwhile("roll", "stopped after", name, fault, 8.0, node=journey.to_roll(target), target=target)

    journey.cell(name, "goes on afterwards", made)


def restarted_broker_killed(journey: Journey, kind: str, target: BrokerMode, *, controllers: bool = True) -> None:
    """The very one that the step has just started, in the middle of its start: the step sees it stopped, with the new file."""
    name = "broker being restarted SIGKILLed"

    @contextmanager
    def midway(node: NodeSpec) -> Iterator[None]:
        time.sleep(_MIDWAY_S)
        with killed(node):
            yield

    def made() -> str:
        node = journey.to_roll(target)
        fault = midway(journey.cluster.plan.brokers[node])
        return journey.meanwhile(kind, r"Did 're", name, fault, 0.0, node=node, target=target)

    journey.cell(name, "goes on afterwards", made, most=2, controllers=controllers)


def under_delay(journey: Journey, target: BrokerMode, fault: Fault) -> None:
    """Each of the tool's links is poor, none is broken."""
    plan = journey.cluster.plan
    names = [ZOOKEEPER, *(to(node) for node in (*plan.brokers, *plan.controllers))]
    name = f"every link of the tool {fault.name}"

    def made() -> str:
        return journey.under("roll", name, journey.broken(fault, *names), node=journey.to_roll(target), target=target)

    journey.cell(name, "goes on", made)


def without_time(journey: Journey, node: NodeSpec, share: float, kind: str, /, **arguments: object) -> None:
    """A node that gets hardly any CPU: what it is asked for comes late, and comes."""
    name = f"{node.name} gets {share:.0%} of its CPU time"
    made = partial(journey.under, kind, name, starved(of(node), share), **arguments)
    journey.cell(name, "goes on", made)


def clock_jumps(journey: Journey, node: NodeSpec, by: int, kind: str, /, **arguments: object) -> None:
    """Forward or back by minutes, as a time service does that was away, and back again: a step that runs meanwhile goes on."""
    if clocks.has_own(of(node).folder):
        name = f"clock of {node.name} jumps by {by:+d} s, and back"
        made = partial(journey.under, kind, name, clocks.set_off(of(node).folder, by), **arguments)
        journey.cell(name, "goes on", made)


def copied(journey: Journey) -> None:
    first = journey.cluster.plan.controllers[0]
    everyone = [to(node) for node in journey.cluster.plan.controllers]
    troubles = (
        controllers_cut_off(journey, proxy.BLACK_HOLE),
        cut_from_zookeeper(journey, proxy.REFUSED),
        Trouble(
            "tool cut off from every controller: reset", no_controller(first), partial(journey.broken, proxy.RESET, *everyone)
        ),
        zookeeper_stopped(journey),
    )
    journey.series("copied", troubles)


def second_roll(journey: Journey) -> None:
    node = journey.to_roll(BrokerMode.KRAFT)
    own, (other, another) = journey.cluster.plan.brokers[node], journey.shuffled(_others(journey, node))
    first, second, third = journey.shuffled(journey.cluster.plan.controllers)
    troubles = [
        cut(journey, proxy.RESET, other),
        cut(journey, proxy.BLACK_HOLE, first),
        cut_from_zookeeper(journey, proxy.BLACK_HOLE),
        cut(journey, proxy.UNANSWERED, own),
        stopped(journey, second),
        zookeeper_killed(journey),
        cut(journey, proxy.REFUSED, third),
        stopped(journey, another),
    ]
    journey.series("roll", troubles, node=node, target=BrokerMode.KRAFT)


def soak(journey: Journey) -> None:
    broker, another, _ = journey.shuffled(journey.cluster.plan.brokers)
    troubles = (
        controllers_cut_off(journey, proxy.UNDELIVERED),
        cut(journey, proxy.UNDELIVERED, broker),
        controllers_cut_off_midway(journey),
        cut(journey, proxy.REFUSED, active(journey)),
        *(cut_from_controllers(journey, one, proxy.BLACK_HOLE) for one in with_own_links(journey.cluster.plan)),
        cut_from_zookeeper(journey, proxy.RESET),
        stopped(journey, another),
        zookeeper_killed(journey),
    )
    journey.series("soak", troubles, seconds=8.0)
    clock_jumps(journey, journey.cluster.plan.controllers[0], -600, "soak", seconds=8.0)


def soak_with_disks(journey: Journey, disk: NodeSpec, controller: NodeSpec) -> None:
    """A broker's, ZooKeeper's and a controller's, each with another trouble in between: the end of each starts what it stopped."""
    if not (journey.cluster.plan.zookeeper_folder / "transactions").is_mount():
        return
    full = Trouble("ZooKeeper's disk full", NO_ZOOKEEPER, partial(zookeeper_disk_full, journey))
    troubles = [disk_full(journey, disk), cut(journey, proxy.RESET, disk), full]
    if data(controller).is_mount():
        troubles += [cut(journey, proxy.BLACK_HOLE, disk), disk_full(journey, controller)]
    journey.series("soak", troubles, seconds=5.0)


def never_stops(journey: Journey) -> None:
    """The leader that the soak stops for a new one has no way to ZooKeeper, and Kafka's stop of it never ends; or it does, and its start fails."""
    name = "controllers cut off from ZooKeeper until one is stopped"

    def made() -> str:
        stuck, before = of(active(journey)), journey.starts()
        with journey.diary.lasting(name, journey.broken(proxy.REFUSED, OF_CONTROLLERS)):
            code, words = journey.run("soak", {"seconds": 2.0})
        said = re.search(
            r"not stopped \d+ s after its stop[\s\S]*?kill -9 its process|did 'start controller' \d times without effect", words
        )
        if code == 0 or said is None:
            raise AssertionError(f"exit code {code}: {words[-600:]}")
        time.sleep(_RECOVERED_S)
        if "kill -9" in said.group():
            _killed(stuck)
        # as the task remembers: a controller that is down is its own
        code, words = journey.run("soak", {"seconds": 2.0}, "--recoveries", "1")
        if code != 0:
            raise AssertionError(f"afterwards, exit code {code}: {words[-600:]}")
        again = [one for one, count in journey.started_since(before).items() if count > 1]
        if "kill -9" in said.group() and again:
            raise AssertionError(f"started more than once: {again}")
        return f"{said.group()[-300:]}; afterwards done"

    required = "gives up within a minute, says what to do, and goes on when it is done"
    journey.cell(name, required, made, controllers=True, most=_TRIES)


def _killed(stuck: NodeProcess) -> None:
    pid = stuck.signal(signal.SIGKILL)
    if pid is None or not stuck.wait_gone(pid, 30.0):
        raise AssertionError("it stopped by itself when its links were mended" if pid is None else f"pid {pid} outlived SIGKILL")


def back_to_migration(journey: Journey, node: NodeSpec) -> None:
    other, another = journey.shuffled(_others(journey, node.id))
    troubles = (
        controllers_cut_off(journey, proxy.REFUSED),
        cut(journey, proxy.BLACK_HOLE, other),
        controllers_cut_off_midway(journey),
        cut(journey, proxy.REFUSED, active(journey)),
        cut_from_zookeeper(journey, proxy.RESET),
        stopped(journey, another),
        zookeeper_stopped(journey),
    )
    journey.series("roll back broker", troubles, node=node.id, target=BrokerMode.MIGRATION)
    clock_jumps(journey, journey.cluster.plan.brokers[0], -600, "controller failover")


def controllers_keep_running(journey: Journey) -> None:
    """None is stopped while a broker is out of reach."""
    one, another, _ = journey.shuffled(journey.cluster.plan.brokers)
    troubles = (cut_from_zookeeper(journey, proxy.UNDELIVERED), stopped(journey, another), cut(journey, proxy.BLACK_HOLE, one))
    journey.series("handover", troubles, left=True)


def new_controller(journey: Journey) -> None:
    """After the handover; no KRaft controller may be started from now on."""
    journey.series("zookeeper leads", [zookeeper_stopped(journey)], controllers=False)


def rolled_back(journey: Journey) -> None:
    broker, another, _ = journey.shuffled(journey.cluster.plan.brokers)
    troubles = (cut(journey, proxy.RESET, broker), cut_from_zookeeper(journey, proxy.BLACK_HOLE), stopped(journey, another))
    journey.series("rolled back", troubles, controllers=False)


def back_to_zookeeper(journey: Journey) -> None:
    node = journey.to_roll(BrokerMode.ZOOKEEPER)
    other, another = journey.shuffled(_others(journey, node))
    troubles = (
        cut(journey, proxy.UNANSWERED, other),
        cut_from_zookeeper(journey, proxy.BLACK_HOLE),
        stopped(journey, another),
        zookeeper_stopped(journey),
    )
    journey.series("roll back broker", troubles, controllers=False, node=node, target=BrokerMode.ZOOKEEPER)


def finalization(journey: Journey) -> None:
    """No controller loses its flag while anything is unknown."""
    leader = active(journey)
    standby, other = journey.shuffled([node for node in journey.cluster.plan.controllers if node != leader])
    broker, another, _ = journey.shuffled(journey.cluster.plan.brokers)
    troubles = (
        cut(journey, proxy.BLACK_HOLE, broker),
        cut(journey, proxy.REFUSED, other),
        cut_from_zookeeper(journey, proxy.BLACK_HOLE),
        cut(journey, proxy.RESET, leader),
        stopped(journey, another),
        zookeeper_stopped(journey),
        stopped(journey, other),
    )
    journey.series("finalize", troubles, node=standby.id)
