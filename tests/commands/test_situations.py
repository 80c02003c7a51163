"""Nine situations of an on-call engineer, played on the simulated cluster: `kmigrate why`, `kmigrate status` and `kmigrate runbook CODE` alone.

Each shows the condition in words first; before an alarm how long it usually takes and when it becomes one, and nothing to do; then one next move, read within
a minute at 130 words a minute, and an entry of the runbook for the rest. The pages show the same documents (`tests/provider/test_pages.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_kmigrate.cli import main
from airflow_provider_kmigrate.commands.explaining import find_first_unfinished_step
from airflow_provider_kmigrate.commands.status import read_status
from airflow_provider_kmigrate.core.cluster_state.spec import NodeRole
from airflow_provider_kmigrate.core.monitoring.explanation import explain_hold, render_explanation
from airflow_provider_kmigrate.core.monitoring.status import render_status
from airflow_provider_kmigrate.core.reasons import ENTRIES
from airflow_provider_kmigrate.steps.run import StepContext
from tests.core.next_moves import WORDS, count_words_to_next_move
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
    "the soak, then an approval": Situation(phases.all_kraft, "", "", "ready", is_certain=False),
}


def observe(situation: Situation, folder: Path) -> tuple[dict[str, Any], str, str]:
    """The document of `kmigrate why`, what it prints, and what `kmigrate status` prints; a run owns the cluster."""
    cluster = SimCluster()
    situation.play(cluster, cluster.context(folder))
    context = cluster.context(folder)
    status = read_status(context) | {"owner": OWNER}
    has_begun = status["phase"] not in {"zookeeper", "finalized"}
    document = explain_hold(status, find_first_unfinished_step(context, status), has_begun=has_begun)
    return document, render_explanation(document), render_status(status)


@pytest.mark.parametrize("name", SITUATIONS)
def test_the_condition_is_read_first_and_the_next_move_within_a_minute(name: str, tmp_path: Path) -> None:
    situation = SITUATIONS[name]
    document, why, status = observe(situation, tmp_path)
    assert document["state"] == situation.state
    shown = f"[{situation.code}] " if situation.code else ""
    for text in (why, status) if situation.code else (why,):
        assert f"{shown}{situation.says}" in text
        assert count_words_to_next_move(text) <= WORDS
    assert ("An operator must act." in why) is situation.is_certain
    assert ("  Next: " in why) is situation.is_certain, "nothing to do is said before it is an alarm"
    assert ("  If it does not pass: " in why) is (situation.state == "alarm" and not situation.is_certain)
    if situation.state == "alarm":
        assert f"More: {situation.code} in the runbook." in why
    else:
        assert "It becomes an alarm after " in why


@pytest.mark.parametrize("code", ["R01", "H01", "G07", "O01", "R05", "S02", "P02", "G05"])
def test_the_runbook_says_the_rest_in_a_minute_and_a_half(code: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["runbook", code]) == 0
    text = capsys.readouterr().out
    assert text.startswith(f"### {code} {ENTRIES[code].title}")
    assert len(text.split()) <= 1.5 * WORDS
