"""A cluster from which single members can be cut off."""

from __future__ import annotations

from pathlib import Path
from typing import Final, Self

from tests.kit.localcluster.cluster import LocalCluster
from tests.kit.localcluster.plan import HOST, Shape, free_ports
from tests.system.proxy import Links

ZOOKEEPER: Final = "zookeeper"
BROKER: Final = "broker"


class Cut:
    """A cluster of one broker, which has a second listener: behind the proxy, as is a second way to ZooKeeper.

    `properties` lead there, for the members that are to be cut off. `folder` is the caller's to clean, also where this fails.
    """

    def __init__(self, folder: Path) -> None:
        self.cluster = LocalCluster(folder)
        plan = self.cluster.up(Shape(name="cut", brokers=1, controllers=1))
        self.cluster.down()
        inner, *outer = free_ports(3)
        self._listen(Path(plan.brokers[0].hosts.properties or ""), plan.brokers[0].endpoint, inner, outer[1])
        self.cluster.up()
        self.links = Links({ZOOKEEPER: outer[0], BROKER: outer[1]}, {ZOOKEEPER: plan.ports["zookeeper"], BROKER: inner})
        self.properties = {"bootstrap.servers": f"{HOST}:{outer[1]}", "zookeeper.connect": f"{HOST}:{outer[0]}"}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.links.close()

    @staticmethod
    def _listen(path: Path, endpoint: str, inner: int, outer: int) -> None:
        both = (f"PLAINTEXT://{endpoint},CUT://{HOST}:{port}" for port in (inner, outer))
        more = "listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CUT:PLAINTEXT"
        lines = "listeners={}\nadvertised.listeners={}\n".format(*both) + more
        path.write_text(path.read_text().replace(f"listeners=PLAINTEXT://{endpoint}", lines))
