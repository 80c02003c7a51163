"""Property files of strangers as a whole cluster has them, what preflight blocks of each, and which of those blocks are right.

The cluster is healthy, has a controller's machine of its own for each controller, and a ZooKeeper connection that names the machine of
the first broker if the file says `localhost`. What is right is decided from the file alone, by rules that share no code with preflight.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from airflow_provider_kmigrate.core.cluster_state.model import BrokerMode, LogDir, NodeFiles, Taken, ZooKeeperServer
from airflow_provider_kmigrate.core.node_files.properties import parse_properties
from airflow_provider_kmigrate.core.preflight.checks import blocking_findings, run_checks
from airflow_provider_kmigrate.core.preflight.findings import PreflightFinding
from tests.core.preflight_views import CLUSTER_ID, Case, healthy

FILES = Path(__file__).parent / "door" / "files"
_EFFECTIVE = {"inter.broker.protocol.version": "3.9-IV0", "offsets.topic.num.partitions": "50"}


@dataclass(frozen=True, slots=True)
class JudgedFile:
    """The blocks of one file; `wrong` are those that nothing in it justifies."""

    name: str
    blocks: tuple[PreflightFinding, ...]
    wrong: tuple[PreflightFinding, ...]


def cluster_with(text: str) -> Case:
    """Three brokers with this file, each with its own id if the file has one; ZooKeeper's tree is where the file says."""
    keys = parse_properties(text)
    connect = keys.get("zookeeper.connect", "").strip()
    servers, slash, chroot = connect.partition("/")
    chroot = (slash + chroot).rstrip("/")
    view, facts = healthy()
    files = {i: keys | ({"broker.id": str(i)} if keys.get("broker.id", "").strip().isdecimal() else {}) for i in view.brokers}
    folders = [folder.strip() for folder in keys.get("log.dirs", keys.get("log.dir", "/tmp/kafka-logs")).split(",")]
    meta = {folder: {"version": "0", "cluster.id": CLUSTER_ID} for folder in folders if folder}
    brokers = {
        i: replace(
            broker,
            mode=BrokerMode.KRAFT if "process.roles" in keys else broker.mode,
            files=NodeFiles(files[i], meta, has_metadata_log=False),
        )
        for i, broker in view.brokers.items()
    }
    named = [re.sub(r"^(?:localhost|127\.0\.0\.1)(?=:|$)", "node0", server.strip()) for server in servers.split(",")]
    environment = replace(
        facts.environment,
        servers=tuple(ZooKeeperServer(server, "3.8.4") for server in named if server),
        log_dirs={i: tuple(map(LogDir, meta)) for i in files},
        taken={i: Taken(file) for i, file in files.items()},
    )
    configs = {i: {**_EFFECTIVE, "broker.id": str(i), **file} for i, file in files.items()}
    return replace(view, brokers=brokers), replace(facts, chroot=chroot, configs=configs, environment=environment)


def judge_file(name: str, text: str) -> JudgedFile:
    found = blocking_findings(run_checks(*cluster_with(text)))
    expected = right_blocks(read_plain(text))
    wrong = () if expected is None else tuple(finding for finding in found if finding.code not in expected)
    return JudgedFile(name, found, wrong)


def read_plain(text: str) -> dict[str, str]:
    """Keys and values of lines `key=value`, for the rules below alone: read by other code than preflight's."""
    joined = re.sub(r"\\\r?\n\s*", "", text)
    pairs = (re.match(r"\s*([^#!\s=:]+)\s*[=:\s]\s*(.*)$", line) for line in joined.splitlines())
    return {match[1]: match[2].strip() for match in pairs if match}


def right_blocks(keys: Mapping[str, str]) -> frozenset[str] | None:
    """The codes that may block a cluster whose brokers have these keys. None: any, since no ZooKeeper-mode broker could run with them."""
    if "process.roles" in keys or not re.search(
        r"[\w.-]", keys.get("zookeeper.connect", "").partition("/")[0].replace(":2181", "")
    ):
        return None
    if re.search(r"<[^>]*>", "".join(keys.values())):
        return None  # a template that nothing has filled in
    codes = set[str]()
    if not keys.get("broker.id", "").isdecimal():
        codes |= {"C04"}
    release = re.match(r"(\d+)\.(\d+)", keys.get("inter.broker.protocol.version", ""))
    if release and (int(release[1]), int(release[2])) < (3, 6):
        codes |= {"B1a", "B1b"}
    if "listeners=" in keys.get("zookeeper.connect", ""):
        codes |= {"C04"}
    if re.search(r"(?:^|,)\s*CONTROLLER:", keys.get("listeners", "")):
        codes |= {"C04"}  # of its control plane; the cluster file around it has no name of its own for the controllers' listener
    if "authorizer.class.name" in keys:
        codes |= {"B13b"}  # of no file here does super.users have the name of the controllers' listener
    if not keys.get("authorizer.class.name", "kafka.").startswith(("kafka.", "org.apache.kafka.")):
        codes |= {"B8a"}  # its class for KRaft nodes must be named
    return frozenset(codes)
