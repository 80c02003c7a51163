"""What `kmigrate evidence` collects: files of kmigrate's folder, of the cluster file and of the audits, with secrets hidden or left out."""

from __future__ import annotations

import argparse
import json
import platform
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

from airflow_provider_kmigrate import __version__
from airflow_provider_kmigrate.approvals import Journal, read_journals
from airflow_provider_kmigrate.clients import atomic
from airflow_provider_kmigrate.clients.connections import is_secret_name, named_connections, secrets_of
from airflow_provider_kmigrate.clients.foreign_files import MOST_ENTRIES, NotRead, list_files_below, open_regular_file
from airflow_provider_kmigrate.core.cluster_state.spec import ClusterSpec, NodeRole, NodeSpec
from airflow_provider_kmigrate.core.monitoring.journal_lines import parse_lines
from airflow_provider_kmigrate.core.monitoring.run_evidence import (
    INDEX,
    MOST_BYTES,
    SHORTEST_KEY,
    EvidenceAbout,
    mask_cluster_file,
    pack_archive,
    render_index,
    select_gate_lines,
)
from airflow_provider_kmigrate.core.monitoring.run_history import describe_history
from airflow_provider_kmigrate.core.monitoring.secret_search import find_secrets
from airflow_provider_kmigrate.core.node_files.config_matrix import FileStage
from airflow_provider_kmigrate.core.node_files.kafka_keys import find_key, is_secret, list_url_passwords, visible_value
from airflow_provider_kmigrate.core.node_files.properties import parse_properties
from airflow_provider_kmigrate.core.shared.text import count_of
from airflow_provider_kmigrate.exceptions import Failed, KMigrateError
from airflow_provider_kmigrate.node.command import make_lookup
from airflow_provider_kmigrate.spec import load
from airflow_provider_kmigrate.spec.load import Document
from airflow_provider_kmigrate.steps.backup import BackupStore, render_file
from airflow_provider_kmigrate.steps.journal import journal_file_name

_PAGES: Final = ("preflight.json", "preflight.html", "plan.json", "plan.html")
_AUDITED: Final = ("verdict.json", "facts.json", "report.json", "report.html")
_PACKAGES: Final = ("apache-airflow", "confluent-kafka", "kafka-python", "kazoo", "pydantic")
_STAGES: Final = {
    NodeRole.BROKER: {"before": FileStage.ZOOKEEPER, "migration": FileStage.MIGRATION, "after": FileStage.KRAFT},
    NodeRole.CONTROLLER: {"migration": FileStage.CONTROLLER_MIGRATION, "after": FileStage.CONTROLLER_FINAL},
}
_TOO_LARGE: Final = (
    f"The evidence is larger than {MOST_BYTES >> 20} MiB, and no larger archive is verified. Name one run with --run."
)
#: An option of a login module, in a value such as that of `sasl.jaas.config`.
_LOGIN_OPTION: Final = re.compile(r"""(?<![\w.-])([\w.-]+)\s*=\s*(?:"((?:\\.|[^"\\])*)"|'([^']*)'|([^\s;"']+))""")


class NotWritten(Failed):
    """What was asked for cannot be written; everything was read, and nothing was written."""


class Collection:
    """The files of one archive, the values that must not be in it, and what is not in it."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.secrets: dict[str, tuple[str, ...]] = {}
        self.left_out: list[str] = []

    def add_secrets(self, owner: str, values: Iterable[str]) -> None:
        """Values that no file may hold; those of an owner add up."""
        self.secrets[owner] = (*self.secrets.get(owner, ()), *values)

    def add_json(self, path: str, value: Any) -> None:
        """Add a value as JSON; keys keep their order."""
        self.files[path] = (json.dumps(value, ensure_ascii=False, indent=1, default=str) + "\n").encode()

    def add_file(self, path: str, source: Path) -> bool:
        """Add a file as it is; false if there is none."""
        try:
            content = source.read_bytes()
        except FileNotFoundError:
            return False
        except OSError as error:
            raise Failed(f"cannot read {source}: {error.strerror}") from error
        self.add_content(path, content)
        return True

    def add_content(self, path: str, content: bytes) -> None:
        """Add bytes. Raises `NotWritten` if no archive may be so large."""
        self.files[path] = content
        if sum(map(len, self.files.values())) > MOST_BYTES:
            raise NotWritten(_TOO_LARGE)


def write_evidence(options: argparse.Namespace) -> Iterator[str]:
    """Write the archive; yields what was written and what is not in it. Raises ours: nothing is written then."""
    if options.out.exists():
        raise NotWritten(f"{options.out} exists already. Nothing was written.")
    spec, key = load(options.cluster), read_key(options.key)
    folder = options.folder or find_airflow_folder()
    collection = collect_files(spec, folder, options.run)
    for conn_id, values in _read_connection_secrets(spec, options.connections).items():
        collection.add_secrets(f"connection {conn_id}", values)
    collection.add_secrets("--key", [key.decode(errors="replace")])
    journals = read_journals(folder / "journal" / spec.name)
    approvals = _add_records(collection, spec, _select_run(journals, options.run))
    about = EvidenceAbout(spec.name, spec.cluster_id, round(1000 * time.time()), __version__, tuple(collection.left_out))
    history = json.loads(collection.files["timings.json"])
    collection.files[INDEX] = render_index(about, collection.files, history, approvals, signed=bool(key)).encode()
    if leaks := find_secrets(collection.files, collection.secrets):
        raise NotWritten(" ".join(("Nothing was written.", *leaks)))
    archive = pack_archive(about, collection.files, key)
    if len(archive) > MOST_BYTES:
        raise NotWritten(_TOO_LARGE)
    atomic.create(options.out, archive)
    yield f"{options.out}: {count_of(len(collection.files), 'file')}, {len(archive)} bytes, {'signed' if key else 'not signed'}."
    yield from (f"Not in it: {text}" for text in collection.left_out)


def find_airflow_folder() -> Path:
    """Kmigrate's folder, as Airflow's configuration names it."""
    from airflow_provider_kmigrate.utils.step_context import refresh_state  # noqa: PLC0415  # Airflow takes seconds to import

    return refresh_state()


def collect_files(spec: ClusterSpec, folder: Path, run: str) -> Collection:
    """Everything but the journals and what is made of them."""
    collection = Collection()
    collection.add_json("cluster-file.json", mask_cluster_file(Document(Path(spec.path).read_text(encoding="utf-8")).data))
    for name in _PAGES:
        part = name.partition(".")[0]
        if not collection.add_file(f"{part}/{name}", folder / "preflight" / spec.name / name):
            collection.left_out.append(f"{name}: no run has left one in {folder / 'preflight' / spec.name}.")
    _add_node_files(collection, spec, BackupStore(folder / "backup", spec.name, spec.cluster_id))
    _add_audits(collection, spec, run)
    collection.add_json("versions.json", _list_versions(spec))
    return collection


def _add_node_files(collection: Collection, spec: ClusterSpec, backup: BackupStore) -> None:
    """Each node's file of each stage, by the originals in the backup, with values hidden that may be secrets."""
    for node in spec.nodes():
        for name, stage in _STAGES[node.role].items():
            try:
                keys = parse_properties(render_file(spec, backup, node, stage))
            except KMigrateError as error:
                collection.left_out.append(f"The file of {node.name}, {name}: {error}")
                continue
            collection.add_secrets(f"the file of {node.name}", _list_secret_values(keys))
            lines = [f"{key}={visible_value(key, value)}" for key, value in sorted(keys.items())]
            collection.files[f"files/{_folder_name(node)}/{name}.properties"] = ("\n".join(lines) + "\n").encode()


def _folder_name(node: NodeSpec) -> str:
    return f"{node.role}-{node.id}"


def _list_secret_values(keys: Mapping[str, str]) -> tuple[str, ...]:
    """Values that no file of the archive may hold; a reference that Kafka resolves is no secret, and words are in every text."""
    named = [value for key, value in keys.items() if is_secret(key) and (find_key(key) or is_secret_name(key))]
    named += [
        double or single or plain
        for value in keys.values()
        for option, double, single, plain in _LOGIN_OPTION.findall(value)
        if is_secret_name(option) or option.startswith("user_")
    ]
    named += [password for value in keys.values() for password in list_url_passwords(value)]
    return tuple(value for value in named if len(value) >= 6 and not value.startswith("${"))


def _add_audits(collection: Collection, spec: ClusterSpec, run: str) -> None:
    if spec.audit is None:
        collection.left_out.append("Audits: the cluster file has no `audit`.")
        return
    root = Path(spec.audit.result) / spec.name
    try:
        paths, is_all = list_files_below(root) if root.is_dir() else ([], True)
    except OSError as error:
        collection.left_out.append(f"Audits: {root} could not be listed: {error.strerror}.")
        return
    if not is_all:
        collection.left_out.append(f"Audits: {root} holds more than {MOST_ENTRIES} files and folders; the others were not read.")
    found = [path for path in paths if Path(path).name in _AUDITED and (not run or _is_of_run(Path(path), run))]
    for path in found:
        try:
            with open_regular_file(root, path, MOST_BYTES) as opened:  # Spark's user writes there: a link may lead to any secret
                collection.add_content(f"audits/{path}", opened.file.read(opened.size))
        except (NotRead, OSError) as error:
            collection.left_out.append(f"Audits: {error}.")
    if not found:
        collection.left_out.append(f"Audits: there is no result below {root}.")


def _is_of_run(path: Path, run: str) -> bool:
    return run.rpartition("/")[2].replace(":", "_").replace("+", "_") in path.parts


def _select_run(journals: Mapping[str, Journal], run: str) -> dict[str, Journal]:
    """The journals of one run, by the end of its name; all without one. Raises `NotWritten` if there is none."""
    chosen = {name: journal for name, journal in journals.items() if not run or name.endswith(journal_file_name(run))}
    if not chosen:
        raise NotWritten(f"There is no journal{f' of run {run}' if run else ''}. Nothing was written.")
    return chosen


def _add_records(collection: Collection, spec: ClusterSpec, journals: Mapping[str, Journal]) -> int:
    """The journals and what is made of them; returns how many approvals they name."""
    texts = [line.decode(errors="replace") for journal in journals.values() for line in journal.lines]
    for name, journal in journals.items():
        collection.files[f"journals/{name}"] = b"".join(line + b"\n" for line in journal.lines)
    approvals = [approval.to_json() for journal in journals.values() for approval in journal.approvals()]
    collection.add_json("approvals.json", approvals)
    collection.add_json("gates.json", select_gate_lines(texts))
    collection.add_json("timings.json", describe_history(spec.name, spec.cluster_id, parse_lines(texts)))
    collection.left_out.append(
        "The records of approvals in ZooKeeper: `kmigrate approvals verify` compares the journals with them."
    )
    return len(approvals)


def _list_versions(spec: ClusterSpec) -> dict[str, str]:
    versions = {"kmigrate": __version__, "python": platform.python_version(), "kafka_release": spec.kafka_release}
    for name in _PACKAGES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            versions[name] = "not installed here"
    return versions


def _read_connection_secrets(spec: ClusterSpec, connections: Path | None) -> dict[str, tuple[str, ...]]:
    lookup = make_lookup(spec, connections)
    return {conn_id: secrets_of(lookup(conn_id)) for conn_id in named_connections(spec)}


def read_key(path: Path | None) -> bytes:
    """The secret of a key file without the end of its line; empty without a file. Raises `NotWritten` for a short one."""
    if path is None:
        return b""
    try:
        key = path.read_bytes().strip()
    except OSError as error:
        raise Failed(f"cannot read {path}: {error.strerror}") from error
    if len(key) < SHORTEST_KEY:
        raise NotWritten(
            f"The key in {path} has {len(key)} bytes; {SHORTEST_KEY} are the least. `openssl rand -hex 32` makes one."
        )
    return key


def read_archive(path: Path) -> bytes:
    """The bytes of an archive. Raises `Failed`; a file that is larger than any archive is not read."""
    try:
        with path.open("rb") as file:  # the size that a file says it has may be none, as a device's
            archive = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise Failed(f"cannot read {path}: {error.strerror}") from error
    if len(archive) > MOST_BYTES:
        raise Failed(f"{path} is larger than any archive that kmigrate writes.")
    return archive
