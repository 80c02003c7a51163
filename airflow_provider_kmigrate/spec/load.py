"""From a file or a folder to `ClusterSpec`s, by way of YAML as plain data with line numbers.

Only null, true, false and whole numbers are anything but text (YAML 1.2's core, without its floats): `on`, `1_000`, `0x10` and a
cluster id of 22 digits stay what the user wrote. Merge keys and aliases work; duplicate keys are problems, because YAML would
silently keep the last one. Nothing in the file can name Python objects.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from pydantic import ValidationError

from airflow_provider_kmigrate.core.cluster import (
    ApproverSpec,
    AuditSpec,
    CanarySpec,
    ClusterSpec,
    GroupProgressSpec,
    GroupSpec,
    HostSpec,
    InstanceSpec,
    NodeRole,
    NodeSpec,
    NotifierSpec,
    Policy,
    SparkJobSpec,
)
from airflow_provider_kmigrate.core.model import Reason
from airflow_provider_kmigrate.exceptions import SpecError
from airflow_provider_kmigrate.spec.checks import Loc, Problem, check, dotted, problems_of, spec_error
from airflow_provider_kmigrate.spec.model import (
    DEFAULT_DRIVER,
    Audit,
    BrokerSection,
    ClusterFile,
    ControllerSection,
    GroupSection,
    Hosts,
    Instance,
    SparkJob,
    with_defaults,
)

_TAG = "tag:yaml.org,2002:"
_WHOLE_NUMBER = re.compile(r"^-?(?:0|[1-9][0-9]{0,17})$")  # longer digit strings are names, and may not fit the machine


class _Loader(yaml.SafeLoader):
    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012 - as PyYAML declares it

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.repeated: list[tuple[yaml.Node, yaml.Node]] = []

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:  # noqa: ARG002 - always deep
        """Keys are text, as written; repeated ones are kept for `Document`."""
        seen: dict[str, yaml.Node] = {}
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.tag != f"{_TAG}merge":
                key.tag = f"{_TAG}str"
                if seen.setdefault(key.value, key) is not key:
                    self.repeated.append((key, seen[key.value]))
        return super().construct_mapping(node, deep=True)


_Loader.add_implicit_resolver(f"{_TAG}null", re.compile(r"^(?:~|null|Null|NULL|)$"), ["~", "n", "N", ""])
_Loader.add_implicit_resolver(f"{_TAG}bool", re.compile(r"^(?:true|True|TRUE|false|False|FALSE)$"), list("tTfF"))
_Loader.add_implicit_resolver(f"{_TAG}int", _WHOLE_NUMBER, list("-0123456789"))
_Loader.add_implicit_resolver(f"{_TAG}merge", re.compile(r"^<<$"), ["<"])


class Document:
    """One text as YAML: `data`, the line of each key, and as `problems` the keys that are there twice. Raises as PyYAML does."""

    def __init__(self, text: str) -> None:
        loader = _Loader(text)
        try:
            self._root: yaml.Node | None = loader.get_single_node()
            self.data: Any = None if self._root is None else loader.construct_document(self._root)
            self.problems = [_duplicate(key, first) for key, first in loader.repeated]
        finally:
            loader.dispose()

    def line(self, loc: Loc) -> int:
        """The line (from 1) of the key or list item at `loc`, or of its nearest parent that exists."""
        node, line = self._root, 1
        for part in loc:
            key, node = _child(node, part)
            if key is None:
                break
            line = key.start_mark.line + 1
        return line


def _child(node: yaml.Node | None, part: str | int) -> tuple[yaml.Node | None, yaml.Node | None]:
    if isinstance(node, yaml.MappingNode):
        for key, value in reversed(node.value):  # merged keys come first, the file's own win
            if key.value == part:
                return key, value
    if isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
        return node.value[part], node.value[part]
    return None, None


def _duplicate(key: yaml.Node, first: yaml.Node) -> Problem:
    loc, line = (key.value,), key.start_mark.line + 1
    found = f"the key {dotted(loc)} for the second time (first in line {first.start_mark.line + 1})"
    return Problem("F04", loc, found, expected="each key once", fix="remove one of the two", line=line)


def _syntax(error: Exception, text: str) -> Problem:
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    before = mark.line if mark else text.count("\n", 0, getattr(error, "position", None) or 0)
    what = getattr(error, "problem", None) or getattr(error, "reason", None) or f"a {type(error).__name__}"
    fix = "fix the syntax there or in the line above"
    return Problem("F00", (), f"text that is not YAML ({what})", expected="one YAML mapping", fix=fix, line=before + 1)


class Folder(NamedTuple):
    """The content of a folder of cluster files; a file is either good or an error, never both."""

    specs: tuple[ClusterSpec, ...]
    errors: tuple[SpecError, ...]


@dataclass(frozen=True, slots=True)
class _Loaded:
    spec: ClusterSpec
    document: Document


def load(path: str | Path) -> ClusterSpec:
    """One cluster file; raises `SpecError` with all its problems."""
    return _read(Path(path)).spec


def loads(text: str, path: str = "") -> ClusterSpec:
    """The same from text; `path` names the source in messages and in the result."""
    return _parse(text, path).spec


def load_folder(folder: str | Path) -> Folder:
    """Every `*.yaml` and `*.yml` directly in `folder`, by name; files that claim one cluster are all errors, none of them is chosen."""
    if not Path(folder).is_dir():
        return Folder((), (spec_error(str(folder), [_unreadable(NotADirectoryError("no such folder"))]),))
    loaded: list[_Loaded] = []
    errors: list[SpecError] = []
    for path in cluster_files(folder):
        try:
            loaded.append(_read(path))
        except SpecError as error:
            errors.append(error)
    clashes = {each.spec.path: found for each in loaded if (found := list(_clashes(each, loaded)))}
    errors += [spec_error(path, found) for path, found in clashes.items()]
    return Folder(tuple(each.spec for each in loaded if each.spec.path not in clashes), tuple(errors))


def cluster_files(folder: str | Path) -> list[Path]:
    """The cluster files directly in `folder`, sorted by name. Raises OSError."""
    return sorted(path for path in Path(folder).iterdir() if path.suffix in {".yaml", ".yml"} and path.name[0] != ".")


def advice(spec: ClusterSpec) -> tuple[Reason, ...]:
    """Warnings about what is allowed but unwise."""
    count = len(spec.controllers)
    if count == 1:
        why = "While it restarts, or if its disk is lost, there is no controller."
    elif count % 2 == 0:
        why = f"They survive {(count - 1) // 2} failures, as {count - 1} would (a quorum is a majority)."
    else:
        return ()
    return (Reason("W3", f"{spec.path}: {count} controller{'s' if count > 1 else ''}. {why}"),)


def _read(path: Path) -> _Loaded:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise spec_error(str(path), [_unreadable(error)]) from error
    return _parse(text, str(path))


def _parse(text: str, path: str) -> _Loaded:
    name = path or "cluster file"
    try:
        document = Document(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise spec_error(name, [_syntax(error, text)]) from None  # PyYAML's own text quotes the file, which may hold secrets
    found = [*check(document.data, document.line)]
    file = None
    try:
        file = ClusterFile.model_validate(document.data)
    except ValidationError as error:
        found += problems_of(error)
    problems = [*document.problems, *(replace(each, line=document.line(each.loc)) for each in found)]
    if problems or file is None:
        raise spec_error(name, problems)
    return _Loaded(_spec(file, path), document)


def _unreadable(error: Exception) -> Problem:
    found = f"{getattr(error, 'strerror', None) or error}"
    return Problem("F00", (), found, expected="a readable UTF-8 file", fix="check the path and its permissions")


def _clashes(one: _Loaded, loaded: list[_Loaded]) -> Iterator[Problem]:
    for key in ("name", "cluster_id"):
        value = getattr(one.spec, key)
        others = [other.spec.path for other in loaded if other is not one and getattr(other.spec, key) == value]
        if others:
            found = f"{value}, which {', '.join(others)} also has"
            fix = "remove or rename the copy; until then kmigrate uses none of these files"
            yield Problem("F04", (key,), found, expected="one file for each cluster", fix=fix, line=one.document.line((key,)))


def _spec(file: ClusterFile, path: str) -> ClusterSpec:
    return ClusterSpec(
        name=file.name,
        cluster_id=file.cluster_id,
        zookeeper_conn_id=file.zookeeper.conn_id,
        kafka_conn_id=file.kafka.conn_id,
        brokers=tuple(_node(file.hosts, broker, NodeRole.BROKER) for broker in file.brokers),
        controllers=tuple(_node(file.hosts, controller, NodeRole.CONTROLLER) for controller in file.controllers),
        policy=Policy(**file.policy.model_dump()),
        controller_listener=file.quorum.listener.upper(),  # as Kafka takes the names of listeners
        controller_security=file.quorum.security_protocol,
        controller_security_written="security_protocol" in file.quorum.model_fields_set,
        controller_conn_id=file.quorum.conn_id or "",
        unverified=frozenset(name for name in ("zookeeper", "kafka", "quorum") if not getattr(file, name).verify_hostname),
        controller_properties=file.quorum.properties,
        kafka_release=file.kafka_release or "",
        path=path,
        groups=tuple(map(_group, file.groups)),
        groups_schedule=file.groups_schedule or "",
        group_progress=GroupProgressSpec(**file.group_progress.model_dump()),
        spark_jobs=tuple(SparkJobSpec(**_written(job)) for job in file.spark_jobs),
        audit=_audit(file.audit) if file.audit else None,
        approvers=ApproverSpec(**file.approvers.model_dump()) if file.approvers else None,
        notify=tuple(NotifierSpec(each.notifier, each.arguments) for each in file.notify),
        runbook_url=(file.runbook_url or "").rstrip("/"),
        controller_metrics=file.controller_metrics or "",
        rehearsal=file.rehearsal,
        windows=file.windows,
        stop_after=file.stop_after,
        deadlines={str(phase): seconds for phase, seconds in file.deadlines.items()},
    )


def _group(group: GroupSection) -> GroupSpec:
    given = _written(group)
    switch, webhook = given.pop("switch"), given.pop("webhook", "")
    instances = tuple(_instance(instance, switch, webhook) for instance in given.pop("instances"))
    return GroupSpec(instances=instances, **given)


def _instance(instance: Instance, switch: tuple[str, ...], webhook: str) -> InstanceSpec:
    """An instance's own setting replaces the group's as a whole: its webhook does not join the group's command."""
    own = _written(instance)
    if not (instance.switch or instance.webhook):
        own |= {"switch": switch, "webhook": webhook}
    return InstanceSpec(**own)


def _audit(audit: Audit) -> AuditSpec:
    canary = CanarySpec(**audit.canary.model_dump()) if audit.canary else None
    return AuditSpec(**{**_written(audit), "canary": canary})


def _written(section: SparkJob | Audit | GroupSection | Instance) -> dict[str, Any]:
    """The keys that have a value; the others keep the defaults of the core."""
    return {key: value for key in type(section).model_fields if (value := getattr(section, key)) is not None}


def _node(defaults: Hosts, node: BrokerSection | ControllerSection, role: NodeRole) -> NodeSpec:
    hosts = HostSpec(**{"driver": DEFAULT_DRIVER, **with_defaults(_given(defaults), _given(node))})
    return NodeSpec(node.id, role, node.host, node.port, hosts, node.rack, node.log_dir)


def _given(hosts: Hosts) -> dict[str, Any]:
    """The host keys that the user wrote here."""
    keys = hosts.model_fields_set & Hosts.model_fields.keys()
    return {key: value for key in keys if (value := getattr(hosts, key)) is not None}
