"""The probe's task on a real scheduler, with real brokers: it ends with its run, is tried again, and goes on beside a cleared step."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.kit.localcluster.cluster import lent
from tests.kit.localcluster.plan import Shape
from tests.system.on_scheduler import SCENES, ProbedRuns, scheduled

pytestmark = [pytest.mark.cluster, pytest.mark.long, pytest.mark.slow(seconds=240), pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProbedRuns]:
    folder = tmp_path_factory.mktemp("scheduled")
    with lent(folder / "cluster", Shape("scheduled", brokers=3, controllers=1)) as cluster, scheduled(folder, cluster) as airflow:
        yield ProbedRuns(airflow, folder)


@pytest.mark.parametrize("scene", SCENES)
def test_the_probes_task_on_a_scheduler(scene: Callable[[ProbedRuns], str], runs: ProbedRuns) -> None:
    scene(runs)
