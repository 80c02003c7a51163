"""Class archives are recorded: without them every node of every test takes twice the processor to start, and nothing else tells."""

import pytest

from tests.kit.localcluster import classes


@pytest.mark.cluster
def test_every_kind_of_node_has_its_archive() -> None:
    archives = classes.prepare().archives
    assert {path.stem for path in archives.glob("*.jsa")} >= {"broker", "controller", "zookeeper", "storage"}
