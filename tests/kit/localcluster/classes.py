"""Class archives: parsed and verified classes of every kind of node, mapped into memory instead of loaded at each start.

They halve a broker's start (measured: 1.9 s to 1.0 s on 2 cores) and are made once for a Java and a class path, by a small cluster
that goes as far into a migration as is needed to load what any later node loads. Java checks an archive against itself and the
class path, and goes on without one that does not fit.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

from airflow_provider_kmigrate.clients.atomic import locked
from airflow_provider_kmigrate.clients.commands import command_environment, run_command
from airflow_provider_kmigrate.clients.hosts import files
from airflow_provider_kmigrate.clients.wire import Wire
from airflow_provider_kmigrate.core.cluster_state.spec import NodeSpec
from airflow_provider_kmigrate.core.node_files.config_matrix import FileStage
from airflow_provider_kmigrate.core.node_files.properties import RenderFacts, render_broker_file, render_controller_file
from airflow_provider_kmigrate.exceptions import Failed, KMigrateError
from tests.kit.localcluster import config, jars, members, plan, ready, runtime
from tests.kit.localcluster.agents import agent_of
from tests.kit.localcluster.plan import Plan, Shape, folder_of
from tests.kit.localcluster.runtime import Runtime

_TIMEOUT = 120.0
_DUMP_TIMEOUT = 60.0
_TOKEN = 1


def prepare() -> Runtime:
    """Everything that the first `up` would miss: the jars and the class archives. Quick where they are there.

    Raises as `runtime.find`. Nodes run without archives too, so that one which cannot be made is only said.
    """
    found = runtime.find()
    try:
        with locked(jars.cache_folder(), timeout=_TIMEOUT * 2):
            if not found.archives.is_dir():
                _make(found)
    except KMigrateError as error:
        print(f"no class archives, nodes will start more slowly: {error}", flush=True)
    return found


def _make(found: Runtime) -> None:
    print("recording class archives for quicker starts, once ...", flush=True)
    with (
        tempfile.TemporaryDirectory(dir=jars.cache_folder(), prefix=".training.") as recorded,
        tempfile.TemporaryDirectory(
            prefix="kmigrate-training-"
        ) as scratch,  # the cache may lie below /root, which the agent refuses
    ):
        made, cluster = Path(recorded) / "classes", Path(scratch) / "cluster"
        made.mkdir()
        try:
            _train(cluster, replace(found, recorded_in=made))
        finally:
            members.stop_all(cluster, 0.0)
            shutil.rmtree(plan.agents_of(cluster), ignore_errors=True)
        for archive in made.iterdir():
            _check(found, archive)
        made.rename(found.archives)


def _train(folder: Path, recording: Runtime) -> None:
    current = plan.make(folder, Shape("training", brokers=1, controllers=1, racks=0))
    current.save()
    config.write(current, recording)
    deadline = time.monotonic() + _TIMEOUT
    ready.zookeeper_serves(current, deadline)
    _migrate(current, deadline)
    members.stop_all(folder, _DUMP_TIMEOUT)  # each writes its archive as it ends


def _migrate(current: Plan, deadline: float) -> None:
    """As far as the copy, which makes broker and controller load the code of both worlds."""
    (broker,), (controller,) = current.brokers, current.controllers
    original = files.read(broker.hosts.properties) or ""
    facts = RenderFacts(f"{controller.id}@{controller.endpoint}", jars.release_line())
    Path(broker.hosts.properties).write_text(render_broker_file(original, FileStage.MIGRATION, facts))
    members.start(folder_of(broker))
    with ready.registry(current) as registry:
        ready.wait_registered(current, registry, deadline)
        cluster_id = registry.cluster_id()
    with agent_of(controller, cluster_id) as host:
        text = render_controller_file(original, controller, FileStage.CONTROLLER_MIGRATION, facts)
        host.put_properties(controller, text, _TOKEN)
        host.format_storage(controller, cluster_id, jars.release_line(), _TOKEN)
        host.start(controller, _TOKEN)
    ready.wait_for(folder_of(controller), partial(_has_observer, controller), deadline, "a broker that follows it")


def _has_observer(controller: NodeSpec) -> bool:
    try:
        with Wire(controller.host, controller.port) as wire:
            return bool(wire.describe_quorum().observers)
    except KMigrateError:
        return False


def _check(found: Runtime, archive: Path) -> None:
    """A truncated archive would crash every JVM that maps it: one that Java does not verify is thrown away."""
    argv = [
        found.java,
        "-XX:+UseSerialGC",
        "-Xshare:on",
        "-XX:+VerifySharedSpaces",
        f"-XX:SharedArchiveFile={archive}",
        "-version",
    ]
    code, said = run_command(argv, command_environment(found.env), _TIMEOUT)
    if code != 0:
        raise Failed(f"Java does not accept its own class archive {archive.name}: {said}")
