"""What tests of several files share: one road, walked once."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.kit.localcluster.cluster import LocalCluster
from tests.system.road import Road, walk


@pytest.fixture(scope="session")
def road(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Road]:
    folder = tmp_path_factory.mktemp("road")
    try:
        yield walk(folder)
    finally:
        LocalCluster(folder / "cluster").clean()
