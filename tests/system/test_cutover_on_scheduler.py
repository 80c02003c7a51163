"""Canaries of cutovers on a real scheduler: each bakes in the triggerer, which is killed meanwhile; one goes on, and one goes back alone."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import yaml

from tests.kit.load import TopicPlan, create_topics
from tests.kit.localcluster.cluster import LocalCluster, lent
from tests.kit.localcluster.plan import Shape
from tests.old_consumer.cutover import OLD, PLAIN, Running
from tests.old_consumer.jvm_application import JvmApplication, Load
from tests.system.on_scheduler import Airflow, Run, is_in, scheduled
from tests.waiting import wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.long, pytest.mark.slow(seconds=300), pytest.mark.timeout(900)]
PARTITIONS = 8
BAKE_S = 90  # a task waits by itself for 30 s, then in the triggerer


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with lent(tmp_path_factory.mktemp("cutover"), Shape(name="cutover", brokers=1, controllers=1)) as there:
        yield there


@pytest.fixture(scope="module")
def applications(cluster: LocalCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Running]]:
    """Two under load, in the cluster file, each in a wave of its own."""
    folder = tmp_path_factory.mktemp("applications")
    with ExitStack() as ends:
        running = [start(cluster, folder, group, ends) for group in ("right-canary", "ill-canary")]
        entries = [
            there.application.entry(bake=f"{BAKE_S}s", side_by_side=True, wave=wave) for wave, there in enumerate(running, 1)
        ]
        with cluster.spec_path.open("a") as file:
            file.write(yaml.safe_dump({"groups": entries}))
        yield running


def start(cluster: LocalCluster, folder: Path, group: str, ends: ExitStack) -> Running:
    create_topics({"bootstrap.servers": cluster.bootstrap}, [TopicPlan(group, PARTITIONS, 1)])
    application = JvmApplication(folder / group, cluster.bootstrap, cluster.zookeeper, group, group, side_by_side=True)
    application.prepare()
    ends.callback(application.end)
    application.switch_all("zookeeper")
    there = Running(cluster, application, ends.enter_context(Load(cluster.bootstrap, group, PARTITIONS)))
    wait_until(lambda: there.kinds() == [OLD] * application.instances and bool(application.processed()), "it consumes")
    return there


@pytest.fixture(scope="module")
def airflow(cluster: LocalCluster, applications: list[Running], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Airflow]:
    with scheduled(tmp_path_factory.mktemp("scheduled"), cluster) as there:
        yield there


def bake(airflow: Airflow, cluster: LocalCluster, wave: int, group: str) -> Run:
    """A run of one wave, whose canary bakes in the triggerer; the triggerer is killed and another one is started."""
    run = Run(airflow, f"kmigrate_consumers__{cluster.plan.shape.name}", group, {"wave": wave})
    task = f"{group}.cutover"
    run.wait_for(lambda tasks: is_in(tasks, "deferred", task) or run.state() == "failed", f"{task} is deferred")
    assert run.state() == "running", run.tasks()
    airflow.kill("triggerer")
    time.sleep(5.0)
    airflow.begin("triggerer")
    return run


def test_a_canary_bakes_in_the_triggerer_and_its_group_is_cut_over(
    airflow: Airflow, cluster: LocalCluster, applications: list[Running]
) -> None:
    there, _ = applications
    run = bake(airflow, cluster, 1, "right-canary")
    assert OLD in there.kinds(), "the old version goes on beside the canary"
    run.wait_until_over("success", 500.0)
    assert there.kinds() == [PLAIN, PLAIN]
    account = there.settle()
    assert account.acked > 0
    assert (account.lost, account.skipped) == (0, 0), account


def test_a_canary_that_falls_ill_in_the_triggerers_hands_goes_back_alone(
    airflow: Airflow, cluster: LocalCluster, applications: list[Running]
) -> None:
    _, there = applications
    canary, other = there.application.names
    others_pid = there.application.pid(other)
    run = bake(airflow, cluster, 2, "ill-canary")
    os.kill(there.application.pid(canary), signal.SIGSTOP)
    run.wait_until_over("failed", 500.0)
    assert there.kinds() == [OLD, OLD]
    assert there.application.pid(other) == others_pid, "the other instance was never stopped"
    log = "".join(path.read_text(errors="replace") for path in airflow.home.glob("logs/**/*cutover*/*.log"))
    assert "V30" in log
    account = there.settle()
    assert (account.lost, account.skipped) == (0, 0), account
