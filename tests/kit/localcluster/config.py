"""What each process of a local cluster runs and reads: JVM arguments, zoo.cfg, server.properties, logging, and its agent's node.json."""

from __future__ import annotations

import json
import os
import pwd
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from airflow_provider_kmigrate.clients import atomic
from airflow_provider_kmigrate.clients.commands import program_environment
from airflow_provider_kmigrate.clients.hosts import files
from airflow_provider_kmigrate.core.cluster_state.spec import NodeRole, NodeSpec
from airflow_provider_kmigrate.core.node_files import properties
from tests.kit.localcluster import clocks, jaas, jars
from tests.kit.localcluster.plan import ENSEMBLE_PORTS, HOST, Plan, agents_of, folder_of, log_dirs_of
from tests.kit.localcluster.runtime import Runtime
from tests.kit.processes import Launch, NodeProcess

ZOOKEEPER_MAIN = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
_LOGGING = """\
log4j.rootLogger=INFO, stdout
log4j.appender.stdout=org.apache.log4j.ConsoleAppender
log4j.appender.stdout.layout=org.apache.log4j.PatternLayout
log4j.appender.stdout.layout.ConversionPattern=[%d] %p %m (%c)%n
log4j.logger.org.apache.zookeeper=WARN
log4j.logger.org.apache.kafka.metadata.migration=TRACE
"""


def write(plan: Plan, runtime: Runtime) -> None:
    """Lay out every node's folder. Files that a migration has changed since are left as they are."""
    agents = agents_of(plan.folder)
    for path in (agents.parent, agents):
        path.mkdir(mode=0o700, exist_ok=True)
    for number, folder in enumerate(plan.zookeeper_folders, 1):
        _write_zookeeper(plan, number, folder, runtime)
    for node in (*plan.brokers, *plan.controllers):
        folder = folder_of(node)
        _put(folder / "log4j.properties", _LOGGING)
        if node.role is NodeRole.BROKER and not Path(node.hosts.properties).exists():
            _put(Path(node.hosts.properties), render(broker_properties(plan, node)))
        launch = _kafka_launch(plan, node, runtime)
        NodeProcess(folder).define(launch)
        _put(Path(plan.agent_config(node.id)), json.dumps(node_json(node, launch, runtime), indent=1))


def _put(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    atomic.replace(path, text.encode())


def render(keys: Mapping[str, str]) -> str:
    """A properties file; the values here need no escapes."""
    return "".join(f"{key}={value}\n" for key, value in keys.items())


def _write_zookeeper(plan: Plan, number: int, folder: Path, runtime: Runtime) -> None:
    _put(folder / "log4j.properties", _LOGGING.replace("org.apache.zookeeper=WARN", "org.apache.zookeeper=INFO"))
    _put(folder / "zoo.cfg", render(zookeeper_properties(plan, folder)))
    if plan.shape.zookeepers > 1:
        _put(folder / "snapshots" / "myid", f"{number}\n")
    if release := plan.shape.zookeeper_release:
        runtime = replace(runtime, class_path=":".join(str(path) for path in jars.zookeeper_jars(release)))
    start = runtime.command(ZOOKEEPER_MAIN, [f"{folder}/zoo.cfg"], kind="zookeeper", heap="128m", folder=folder)
    NodeProcess(folder).define(Launch(_with_switches(start, jaas.server_switches(plan, folder)), env=runtime.env))


def zookeeper_properties(plan: Plan, folder: Path) -> dict[str, str]:
    """A real ZooKeeper server, alone or of an ensemble; no limit on connections, since all clients share one address."""
    return {
        "tickTime": "2000",
        "dataDir": f"{folder}/snapshots",
        "dataLogDir": f"{folder}/transactions",
        "clientPort": str(plan.ports[folder.name]),
        "clientPortAddress": HOST,
        "maxClientCnxns": "0",
        "admin.enableServer": "false",
        "4lw.commands.whitelist": "*",
        "preAllocSize": "1024",
        "forceSync": "no",  # survives kill -9, not a power cut
        **(_ensemble(plan) if plan.shape.zookeepers > 1 else {}),
        **(jaas.SASL_ONLY if plan.shape.zookeeper_login else {}),
    }


def _ensemble(plan: Plan) -> dict[str, str]:
    servers = {
        f"server.{number}": ":".join((HOST, *(str(plan.ports[f"{name} {use}"]) for use in ENSEMBLE_PORTS)))
        for number, name in enumerate(plan.shape.zookeeper_names(), 1)
    }
    return {"initLimit": "10", "syncLimit": "5", **servers}


def _kafka_launch(plan: Plan, node: NodeSpec, runtime: Runtime) -> Launch:
    folder = folder_of(node)
    heap = "256m" if node.role is NodeRole.BROKER else "192m"
    start = runtime.command("kafka.Kafka", [node.hosts.properties], kind=node.role, heap=heap, folder=folder)
    start = _with_switches(start, jaas.client_switches(plan))
    return Launch(start, env={**runtime.env, **clocks.env(folder), **_jmx(plan.ports.get(f"{folder.name} jmx"))})


def _with_switches(start: tuple[str, ...], switches: tuple[str, ...]) -> tuple[str, ...]:
    return (start[0], *switches, *start[1:])


def _jmx(port: int | None) -> dict[str, str]:
    """The environment of a JVM that offers JMX on this port of the loopback interface."""
    keys = {"port": port, "rmi.port": port, "host": HOST, "authenticate": "false", "ssl": "false"}
    options = [f"-Dcom.sun.management.jmxremote.{key}={value}" for key, value in keys.items()]
    return {"JAVA_TOOL_OPTIONS": " ".join([*options, f"-Djava.rmi.server.hostname={HOST}"])} if port else {}


def node_json(node: NodeSpec, launch: Launch, runtime: Runtime) -> dict[str, object]:
    """The configuration of a node's agent: it finds the process that `up` started, and starts the same one itself."""
    folder, text = folder_of(node), files.read(node.hosts.properties)
    tool = runtime.command("kafka.tools.StorageTool", [], kind="storage", heap="64m", folder=folder)
    role = {
        "process": {"start": launch.start, "env": program_environment(launch.env)},
        "properties": node.hosts.properties,
        "log_dirs": files.log_dirs(node, None if text is None else properties.parse_properties(text)),
        "user": pwd.getpwuid(os.geteuid()).pw_name,
        "storage_tool": ["/usr/bin/env", *(f"{name}={value}" for name, value in runtime.env.items()), *tool],
        "stop_timeout": node.stop_timeout,
        "state": str(folder),
        "log": str(NodeProcess(folder).log),
    }
    return {"version": 1, "roles": {node.role: role}}


def broker_properties(plan: Plan, node: NodeSpec) -> dict[str, str]:
    """A broker in ZooKeeper mode, as its operator would have written it, with buffers cut to a small heap."""
    replicas = min(3, plan.shape.brokers)
    in_sync = max(1, replicas - 1)
    return {
        "broker.id": str(node.id),
        "broker.id.generation.enable": "false",
        **({"broker.rack": node.rack} if node.rack else {}),
        "listeners": f"PLAINTEXT://{node.endpoint}",
        "inter.broker.listener.name": "PLAINTEXT",
        "inter.broker.protocol.version": jars.release_line(plan.shape.kafka_release),
        "zookeeper.connect": f"{plan.zookeeper}{plan.shape.chroot}",
        **({"zookeeper.set.acl": "true"} if plan.shape.zookeeper_login else {}),  # closed to all but the user
        "log.dirs": ",".join(str(path) for path in log_dirs_of(plan, node)),
        "auto.create.topics.enable": "false",
        "default.replication.factor": str(replicas),
        "min.insync.replicas": str(in_sync),
        "offsets.topic.num.partitions": "10",  # each costs at every restart; a count other than the default 50 is worth rehearsing
        "offsets.topic.replication.factor": str(replicas),
        "transaction.state.log.replication.factor": str(replicas),
        "transaction.state.log.min.isr": str(in_sync),
        "group.initial.rebalance.delay.ms": "200",
        "log.cleaner.dedupe.buffer.size": "4194304",  # Kafka's default takes half of this heap
        "log.index.size.max.bytes": "1048576",
        "num.network.threads": "2",
        "num.io.threads": "4",
        "background.threads": "4",
    }
