"""A few cells of `make faults` on a small real cluster: a step that waits says what cannot be reached, restarts nothing, and goes on."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from airflow_provider_kmigrate.core.cluster_state.model import BrokerMode
from benchmarks import direct
from tests.kit.load import TopicPlan, create_topics
from tests.kit.localcluster.cluster import lent
from tests.kit.localcluster.plan import Shape
from tests.system import disks, proxy
from tests.system.journey import Journey
from tests.system.linked import links_of, put_between
from tests.system.troubles import Trouble, cut, cut_from_zookeeper, stopped

pytestmark = [pytest.mark.cluster, pytest.mark.long, pytest.mark.slow(seconds=90), pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def journey(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Journey]:
    """In the controllers' phase, with one controller."""
    with (
        lent(tmp_path_factory.mktemp("faults") / "cluster", Shape(name="faults", controllers=1)) as cluster,
        links_of(cluster.plan) as links,
    ):
        create_topics({"bootstrap.servers": cluster.bootstrap}, [TopicPlan("orders", 12)])
        cluster.down()
        put_between(cluster, links)
        cluster.up()
        journey = Journey(cluster, links)
        assert not journey.whole(start=False)
        journey.steps(direct.prepare)
        journey.steps(direct.provision)
        yield journey
        cluster.clean()  # before its links end


def check_all_passed(journey: Journey, count: int) -> None:
    cells = journey.cells[-count:]
    assert len(cells) == count
    assert all(cell.passed for cell in cells), [cell for cell in cells if not cell.passed]


def test_a_roll_holds_while_links_are_broken(journey: Journey) -> None:
    node = journey.to_roll(BrokerMode.MIGRATION)
    other = next(broker for broker in journey.cluster.plan.brokers if broker.id != node)
    (controller,) = journey.cluster.plan.controllers
    troubles = (
        cut(journey, proxy.BLACK_HOLE, other),
        cut(journey, proxy.RESET, controller),
        cut_from_zookeeper(journey, proxy.UNANSWERED),
        stopped(journey, other),
    )
    journey.series("roll", troubles, node=node, target=BrokerMode.MIGRATION)
    check_all_passed(journey, len(troubles))


def test_a_step_that_goes_on_under_a_fault_fails_its_cell(journey: Journey) -> None:
    """The harness itself: a cell whose fault has no effect does not pass."""
    nothing = Trouble("none", r"answer", partial(journey.broken, proxy.HEALTHY, "brokers to ZooKeeper"))
    journey.series("roll", [nothing], node=journey.to_roll(BrokerMode.MIGRATION), target=BrokerMode.MIGRATION)
    assert not journey.cells[-1].passed
    seen = journey.cells[-1].seen  # the end of what it said
    assert any(word in seen for word in ("restart", "R01", "R05")), seen


def test_a_full_disk_takes_nothing_until_it_has_room(tmp_path: Path) -> None:
    if reason := disks.why_not(tmp_path / "try"):
        pytest.skip(reason)
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "kept").write_text("before")
    with disks.on_a_disk(folder, 2):
        assert (folder / "kept").read_text() == "before"
        with disks.full(folder), pytest.raises(OSError, match="No space left"):
            (folder / "new").write_bytes(b"x" * 100_000)
        (folder / "new").write_bytes(b"x" * 100_000)
    assert not list(folder.iterdir())
