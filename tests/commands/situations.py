"""The situations of an on-call engineer on the simulated cluster, for the tests of the commands and of the pages."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from airflow_provider_kmigrate.commands.explaining import find_first_unfinished_step
from airflow_provider_kmigrate.commands.status import read_status
from airflow_provider_kmigrate.core.cluster_state.spec import NodeRole
from airflow_provider_kmigrate.core.monitoring.explanation import NextStep, explain_hold
from airflow_provider_kmigrate.steps.run import StepContext
from tests.steps import phases
from tests.steps.sim import SimCluster
from tests.steps.sim_nodes import Health, original_of

Play = Callable[[SimCluster, StepContext], None]
OWNER = {"run": "kmigrate_zk_to_kraft__sim/manual__1", "is_alive": True}
FLAG = "zookeeper.metadata.migration.enable=true\n"


def stop_broker(cluster: SimCluster, context: StepContext) -> None:
    phases.some_kraft(cluster, context)
    cluster.nodes[NodeRole.BROKER, 1].running = None


def end_dual_write(cluster: SimCluster, context: StepContext) -> None:
    phases.all_kraft(cluster, context)
    cluster.ended = cluster.epoch


def lose_original(cluster: SimCluster, context: StepContext) -> None:
    phases.some_kraft(cluster, context)
    (context.backup.folder / "broker-1.properties").unlink()


def take_flag(cluster: SimCluster, context: StepContext) -> None:
    phases.some_kraft(cluster, context)
    node = cluster.nodes[NodeRole.CONTROLLER, 3001]
    node.text = node.running = str(node.running).replace(FLAG, "")


def put_older_file_back(cluster: SimCluster, context: StepContext) -> None:
    phases.forward(cluster, context)
    node = cluster.nodes[NodeRole.BROKER, 1]
    node.text = node.running = original_of(1)


def lag_behind(cluster: SimCluster, context: StepContext) -> None:
    """A broker that the roll has restarted catches up, so that the next one waits."""
    phases.some_kraft(cluster, context)
    slow = next(number for number, mode in cluster.observe(None).modes().items() if mode == "kraft")
    cluster.health = lambda broker, _mode, _nth: Health(in_sync=broker != slow)


def catch_up_under_way(cluster: SimCluster, context: StepContext) -> None:
    """The run has just restarted a broker, which catches up: until then no partition can spare the next one."""
    lag_behind(cluster, context)
    now = context.clock.now()
    act = {"at": now - 5.0, "run": OWNER["run"], "kind": "act", "step": "broker 0 to kraft", "text": "restart: it"}
    journal = journals_of(context) / "run.jsonl"
    journal.parent.mkdir(parents=True)
    journal.write_text(json.dumps(act) + "\n")


def journals_of(context: StepContext) -> Path:
    return context.backup.folder / "journals"


@dataclass(frozen=True)
class Situation:
    """`state`: as `kmigrate why` has it. `is_certain`: an operator must act now; else it passes, or may pass, by itself."""

    play: Play
    code: str
    says: str
    state: str = "alarm"
    is_certain: bool = True


SITUATIONS: Mapping[str, Situation] = {
    "a broker is down": Situation(stop_broker, "R01", "Broker 1 does not answer.", is_certain=False),
    "the dual-write stands still": Situation(end_dual_write, "G07", "/migration has not advanced", is_certain=False),
    "an original is gone": Situation(lose_original, "O01", "The backup "),
    "a controller lost its flag": Situation(take_flag, "G05", "Controllers without the migration flag: 3001."),
    "a broker was left behind": Situation(
        put_older_file_back, "P02", "The cluster is finalized, and these brokers were left behind: broker 1"
    ),
    "a broker catches up": Situation(lag_behind, "R05", "Broker 0 is out of the ISR", is_certain=False),
    "no partition can spare the next broker yet": Situation(
        catch_up_under_way, "S02", "6 partitions are under-replicated", "working", is_certain=False
    ),
    "the soak, then an approval": Situation(phases.all_kraft, "", "", "ready", is_certain=False),
}


@dataclass(frozen=True)
class Seen:
    """What is seen of a situation: `status` and `document` of `kmigrate status` and `kmigrate why`, and the `step` that is next."""

    context: StepContext
    status: dict[str, Any]
    document: dict[str, Any]
    step: NextStep | None


def observe(situation: Situation, folder: Path) -> Seen:
    """A situation is played; a run owns the cluster."""
    cluster = SimCluster()
    situation.play(cluster, cluster.context(folder))
    context = cluster.context(folder)
    context = replace(context, journals=journals_of(context))
    status = read_status(context) | {"owner": OWNER}
    step = find_first_unfinished_step(context, status)
    has_begun = status["phase"] not in {"zookeeper", "finalized"}
    return Seen(context, status, explain_hold(status, step, has_begun=has_begun), step)
