"""A real cluster on this machine that outlives the process that started it."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from airflow_provider_kmigrate.clients.atomic import locked
from airflow_provider_kmigrate.core.cluster_state.model import Process, ProcessState
from airflow_provider_kmigrate.core.cluster_state.spec import NodeSpec
from airflow_provider_kmigrate.core.shared.text import summarize
from airflow_provider_kmigrate.exceptions import Refused
from tests.kit.localcluster import config, export, members, plan, ready, reaper, runtime, snapshots
from tests.kit.localcluster.plan import Plan, Shape, folder_of
from tests.kit.processes import NodeProcess

DEFAULT_FOLDER = Path("build/localcluster")
_PORT_TRIES = 3
_LOCK_TIMEOUT = 180.0
SHORT_SESSION = {"zookeeper.session.timeout.ms": "6000"}  # instead of 18 s: for tests that kill brokers, and suspend none


@dataclass(frozen=True, slots=True)
class Member:
    """One process of the cluster, as it is now."""

    name: str
    process: Process
    port: int | None
    log: Path

    @property
    def runs(self) -> bool:
        """Whether the process runs."""
        return self.process.state is ProcessState.RUNNING


class LocalCluster:
    """The cluster that lives in `folder`. Every verb may be repeated, from any state, by any process."""

    def __init__(self, folder: Path | str = DEFAULT_FOLDER) -> None:
        self.folder = Path(folder).absolute()

    @property
    def plan(self) -> Plan:
        """What the cluster consists of; raises `Refused` before the first `up`."""
        found = plan.load(self.folder)
        if found is None:
            raise Refused(f"there is no local cluster in {self.folder}: run `up` first")
        return found

    @property
    def spec_path(self) -> Path:
        """The path of the cluster file."""
        return self.plan.spec_path

    @property
    def bootstrap(self) -> str:
        """The brokers' bootstrap servers."""
        return self.plan.bootstrap

    @property
    def zookeeper(self) -> str:
        """ZooKeeper's connect string, with chroot."""
        return f"{self.plan.zookeeper}{self.plan.shape.chroot}"

    def data_of(self, node: NodeSpec) -> Path:
        """Where the node keeps its logs, as this process reads them."""
        return folder_of(node) / "data"

    def log_dirs_of(self, node: NodeSpec) -> tuple[Path, ...]:
        """All directories of the node's logs, as this process reads them."""
        data = self.data_of(node)
        return (data, *(data.with_name(path.name) for path in plan.log_dirs_of(self.plan, node)[1:]))

    def up(self, shape: Shape | None = None, timeout: float = 120.0) -> Plan:
        """Start whatever does not run and wait, at most `timeout` seconds, until it serves; write the files for kmigrate.

        ZooKeeper and the brokers run afterwards. A controller runs only where a migration has given it properties and a format.
        Raises `Refused` where something must be installed first or the folder holds a cluster of another shape, and `Failed` or
        `TimedOut` with the end of the log where a node does not serve; what was started then stays up, to be looked at.
        """
        if reaper.ties_all:
            self.end_with_this_process()
        with locked(self.folder, _LOCK_TIMEOUT):
            current = self._planned(shape)
            for _ in range(_PORT_TRIES - 1):
                try:
                    return self._start(current, time.monotonic() + timeout)
                except ready.PortTaken:
                    if current.cluster_id:
                        raise
                    current = self._moved(current)
            return self._start(current, time.monotonic() + timeout)

    def end_with_this_process(self) -> None:
        """Whatever runs of it ends with this process, also where that is killed."""
        reaper.tie(self.folder, plan.agents_of(self.folder))

    def plan_with(self, shape: Shape, more: Mapping[str, str]) -> Plan:
        """Plan a new cluster with these keys more in every broker's file; `up` starts it."""
        planned = plan.make(self.folder, shape)
        planned.save()
        for node in planned.brokers:
            path = Path(node.hosts.properties)
            path.parent.mkdir(parents=True)
            path.write_text(config.render({**config.broker_properties(planned, node), **more}))
        return planned

    def _planned(self, shape: Shape | None) -> Plan:
        found = plan.load(self.folder)
        if found is None:
            self._refuse_strange_folder()
            return plan.make(self.folder, shape or Shape())
        if shape not in (None, found.shape):
            raise Refused(f"{self.folder} holds another cluster, {found.shape}; `clean` it or choose another --dir for {shape}")
        return found

    def _refuse_strange_folder(self) -> None:
        held = sorted(path.name for path in self.folder.iterdir() if path.name != "lock")
        if held:
            raise Refused(f"{self.folder} is no local cluster but holds {summarize(held)}; choose another --dir")

    def _start(self, current: Plan, deadline: float) -> Plan:
        current.save()
        config.write(current, runtime.find(current.shape.kafka_release))
        ready.zookeeper_serves(current, deadline)
        with ready.registry(current) as registry:
            for node in (*filter(_is_provisioned, current.controllers), *current.brokers):
                ready.wait_expired(node, registry, deadline)
                members.start(folder_of(node))
            ready.wait_registered(current, registry, deadline)
            ready.wait_serving(current, deadline)
            current = current.identified(current.cluster_id or registry.cluster_id())
        current.save()
        export.write(current)
        return current

    def status(self) -> tuple[Member, ...]:
        """Every process there is or should be; empty before the first `up`."""
        found = plan.load(self.folder)
        if found is None:
            return ()
        processes = {name: NodeProcess(self.folder / name) for name in found.shape.members()}
        return tuple(Member(name, process.find(), found.ports[name], process.log) for name, process in processes.items())

    def down(self, grace: float = 20.0) -> None:
        """Stop everything of this folder: clients, brokers, controllers, ZooKeeper. After `grace` seconds a kind gets SIGKILL.

        Works whatever state the folder is in; a cluster that a migration left half-way stops too.
        """
        if plan.exists(self.folder):
            with locked(self.folder, _LOCK_TIMEOUT):
                members.stop_all(self.folder, grace)

    def snapshot(self, name: str, grace: float = 20.0) -> None:
        """Stop everything and keep a copy of it by this name; `up` goes on. Raises `Refused` for what is no plain name."""
        snapshots.check_name(name)
        self.down(grace)
        with locked(self.folder, _LOCK_TIMEOUT):
            self.plan.save()
            snapshots.take(self.folder, name)

    def restore(self, name: str) -> None:
        """End everything at once, and be what the snapshot kept; `up` starts it. Raises `Refused` where there is none of that name."""
        snapshots.check(self.folder, name)
        with locked(self.folder, _LOCK_TIMEOUT):
            members.stop_all(self.folder, 0.0)
            snapshots.put_back(self.folder, name)

    def clean(self) -> None:
        """`down` at once, and remove the folder with all data and logs. Raises `Refused` for a folder that `up` did not make."""
        if not self.folder.exists():
            return
        with locked(self.folder, _LOCK_TIMEOUT):
            if not plan.exists(self.folder):
                self._refuse_strange_folder()
            members.stop_all(self.folder, 0.0)
            shutil.rmtree(plan.agents_of(self.folder), ignore_errors=True)
            shutil.rmtree(self.folder)

    def _moved(self, current: Plan) -> Plan:
        """The same shape on other ports; only for a cluster that never served, so that there is nothing to lose."""
        members.stop_all(self.folder, 0.0)
        for path in self.folder.glob("*/launch.json"):
            shutil.rmtree(path.parent)
        return plan.make(self.folder, current.shape)


def _is_provisioned(controller: NodeSpec) -> bool:
    """Whether a migration has rendered its file and formatted its directory."""
    return Path(controller.hosts.properties).exists() and Path(f"{controller.log_dir}/meta.properties").exists()


@contextmanager
def lent(folder: Path, shape: Shape, more: Mapping[str, str] | None = None) -> Iterator[LocalCluster]:
    """A cluster that is up; afterwards it is stopped and its folder removed, also where it did not come up. `more`: as of `plan_with`.

    It ends with this process, however that ends.
    """
    cluster = LocalCluster(folder)
    cluster.end_with_this_process()
    try:
        if more:
            cluster.plan_with(shape, more)
        cluster.up(shape)
        yield cluster
    finally:
        cluster.clean()


@contextmanager
def lent_zookeeper(
    folder: Path, timeout: float = 60.0, release: str = "", prepare: Callable[[Plan], object] = lambda _: None
) -> Iterator[str]:
    """A ZooKeeper alone, as `host:port`; afterwards as of `lent`. `release`: as of `Shape`; `prepare` may change its files before it starts."""
    cluster = LocalCluster(folder)
    cluster.end_with_this_process()
    try:
        planned = plan.make(cluster.folder, Shape(name="zookeeper", brokers=1, controllers=1, zookeeper_release=release))
        planned.save()
        config.write(planned, runtime.find())
        prepare(planned)
        ready.zookeeper_serves(planned, time.monotonic() + timeout)
        yield planned.zookeeper
    finally:
        cluster.clean()
