"""From a file or a folder to `ClusterSpec`s, by way of YAML as plain data with line numbers.

Only null, true, false and whole numbers are anything but text (YAML 1.2's core, without its floats): `on`, `1_000`, `0x10` and a
cluster id of 22 digits stay what the user wrote. Merge keys and aliases work; duplicate keys are problems, because YAML would
silently keep the last one. Nothing in the file can name Python objects.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple
from unicodedata import category
from unicodedata import name as name_of

import yaml
from pydantic import ValidationError

from airflow_provider_kmigrate.core.cluster_state.model import Reason
from airflow_provider_kmigrate.core.cluster_state.spec import (
    ApproverSpec,
    AuditSpec,
    CanarySpec,
    ClusterSpec,
    GroupProgressSpec,
    GroupSpec,
    GroupWay,
    HostSpec,
    InstanceSpec,
    NodeRole,
    NodeSpec,
    NotifierSpec,
    Policy,
    SparkJobSpec,
    SparkSpec,
    UnitSpec,
    simplify_path,
)
from airflow_provider_kmigrate.core.preflight.first_file import MARK, MARKED_VALUES, find_marks
from airflow_provider_kmigrate.core.shared.text import count_of, summarize
from airflow_provider_kmigrate.exceptions import SpecError
from airflow_provider_kmigrate.spec.checks import (
    Loc,
    Problem,
    find_problems,
    format_location,
    list_problems,
    spec_error,
    without_consequences,
)
from airflow_provider_kmigrate.spec.model import (
    DEFAULT_DRIVER,
    Audit,
    BrokerSection,
    ClusterFile,
    ControllerSection,
    GroupSection,
    Hosts,
    Instance,
    Spark,
    SparkJob,
    Units,
    with_defaults,
)
from airflow_provider_kmigrate.spec.yaml_nodes import MOST_BYTES, check_extent

_KEPT = 32  # texts of cluster files that a process keeps parsed
_TAG = "tag:yaml.org,2002:"
_WHOLE_NUMBER = re.compile(r"^-?(?:0|[1-9][0-9]{0,17})$")  # longer digit strings are names, and may not fit the machine


class _Loader(yaml.SafeLoader):
    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012 - as PyYAML declares it

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.repeated: list[tuple[yaml.Node, yaml.Node]] = []

    def construct_mapping(self, node: yaml.Node, deep: bool = False) -> dict[Any, Any]:  # noqa: ARG002 - always deep
        """Keys are text, as written; repeated ones are kept for `Document`."""
        if not isinstance(node, yaml.MappingNode):
            raise yaml.MarkedYAMLError(problem="a tag of a mapping at something else", problem_mark=node.start_mark)
        first_keys: dict[str, yaml.Node] = {}
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.tag != f"{_TAG}merge":
                key.tag = f"{_TAG}str"
                if first_keys.setdefault(key.value, key) is not key:
                    self.repeated.append((key, first_keys[key.value]))
        return super().construct_mapping(node, deep=True)

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        """A tag that its value does not fit is a YAML error with its place, and not whatever PyYAML stumbles over."""
        try:
            return super().construct_object(node, deep)
        except (AttributeError, LookupError, TypeError, ValueError, OverflowError):
            problem = f"a value that is none of its tag {node.tag}"
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark) from None


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
            check_extent(self._root)
            self.data: Any = None if self._root is None else loader.construct_document(self._root)
            self.problems = [_duplicate_key_problem(key, first_key) for key, first_key in loader.repeated]
        finally:
            loader.dispose()

    def find_line(self, loc: Loc) -> int:
        """The line (from 1) of the key or list item at `loc`, or of its nearest parent that exists."""
        node, line = self._root, 1
        for part in loc:
            key, node = _find_child(node, part)
            if key is None:
                break
            line = key.start_mark.line + 1
        return line


def _find_child(node: yaml.Node | None, part: str | int) -> tuple[yaml.Node | None, yaml.Node | None]:
    if isinstance(node, yaml.MappingNode):
        for key, value in reversed(node.value):  # merged keys come first, the file's own win
            if key.value == part:
                return key, value
    if isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
        return node.value[part], node.value[part]
    return None, None


def _duplicate_key_problem(key: yaml.Node, first_key: yaml.Node) -> Problem:
    loc, line = (key.value,), key.start_mark.line + 1
    found = f"the key {format_location(loc)} for the second time (first in line {first_key.start_mark.line + 1})"
    return Problem("F04", loc, found, expected="each key once", fix="remove one of the two", line=line)


def _syntax_problem(error: Exception, text: str) -> Problem:
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    before = mark.line if mark else text.count("\n", 0, getattr(error, "position", None) or 0)
    what = getattr(error, "problem", None) or getattr(error, "reason", None) or f"a {type(error).__name__}"
    is_template = any(sign in line for line in text.splitlines()[max(0, before - 1) : before + 1] for sign in ("{{", "{%"))
    fix = "write the value itself: the file is no template" if is_template else "fix the syntax there or in the line above"
    return Problem("F00", (), f"text that is not YAML ({what})", expected="one YAML mapping", fix=fix, line=before + 1)


def _odd_blank_problem(text: str) -> Problem | None:
    """A blank that only looks like one, as pages and word processors have it, outside of comments: the cause of all else that is wrong."""
    lines = [re.sub(r"(?:^|\s)#.*", "", line) for line in text.removeprefix("\ufeff").splitlines()]
    odd = {
        number: character
        for number, line in enumerate(lines, 1)
        for character in line
        if category(character) in {"Zs", "Cf"} and character != " "
    }
    if not odd:
        return None
    first = min(odd)
    places = f"line {first}" if len(odd) == 1 else f"lines {summarize(sorted(odd))}"
    found = f"U+{ord(odd[first]):04X} ({name_of(odd[first], 'no name').lower()}) in {places}"
    return Problem("F00", (), found, expected="ordinary blanks", fix="type the blanks of these lines again", line=first)


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
    return _read_file(Path(path)).spec


def loads(text: str, path: str = "") -> ClusterSpec:
    """The same from text; `path` names the source in messages and in the result."""
    return _parse_text(text, path).spec


def load_folder(folder: str | Path) -> Folder:
    """Every `*.yaml` and `*.yml` directly in `folder`, by name; files that claim one cluster are all errors, none of them is chosen."""
    if not Path(folder).is_dir():
        return Folder((), (spec_error(str(folder), [_unreadable_file_problem(NotADirectoryError("no such folder"))]),))
    loaded: list[_Loaded] = []
    errors: list[SpecError] = []
    for path in cluster_files(folder):
        try:
            loaded.append(_read_file(path))
        except SpecError as error:
            errors.append(error)
    clashes = {
        loaded_file.spec.path: problems for loaded_file in loaded if (problems := list(_find_clashes(loaded_file, loaded)))
    }
    errors += [spec_error(path, problems) for path, problems in clashes.items()]
    return Folder(tuple(loaded_file.spec for loaded_file in loaded if loaded_file.spec.path not in clashes), tuple(errors))


def cluster_files(folder: str | Path) -> list[Path]:
    """The cluster files directly in `folder`, sorted by name. Raises OSError."""
    return sorted(path for path in Path(folder).iterdir() if path.suffix in {".yaml", ".yml"} and path.name[0] != ".")


def advice(spec: ClusterSpec) -> tuple[Reason, ...]:
    """Warnings about what is allowed but unwise."""
    return tuple(Reason(code, f"{spec.path}: {text}") for code, text in _unwise(spec))


_SHORT_SOAK = 60.0  # seconds
_MILLISECONDS = 300  # times the usual value: a number that was meant as milliseconds is some thousand times too large


def _unwise(spec: ClusterSpec) -> Iterator[tuple[str, str]]:
    count = len(spec.controllers)
    if count == 1:
        yield "W3", "1 controller. While it restarts, or if its disk is lost, there is no controller."
    elif count % 2 == 0:
        yield (
            "W3",
            f"{count_of(count, 'controller')}. They survive {count_of((count - 1) // 2, 'failure')}, as {count - 1} would (a quorum is a majority).",
        )
    if spec.policy.min_soak < _SHORT_SOAK and not spec.rehearsal:
        yield "W28", f"policy.min_soak is {spec.policy.min_soak:g} s."
    if long := dict.fromkeys(
        f"{name} is {seconds:.0f} s" for name, seconds, usual in _list_times(spec) if seconds > usual * _MILLISECONDS
    ):
        yield "W28", f"{summarize(long)}. A number without a unit is seconds here, and milliseconds in Kafka's own settings."


def _list_times(spec: ClusterSpec) -> Iterator[tuple[str, float, float]]:
    """Each time of the file with its usual length."""
    sections: list[tuple[str, Any, Any]] = [("policy", spec.policy, Policy())]
    sections += [("hosts", node.hosts, HostSpec("")) for node in spec.nodes()]
    sections += [(f"group {group.name}", group, GroupSpec("", ())) for group in spec.groups]
    for section, written, usual in sections:
        for field in fields(usual):
            if isinstance(length := getattr(usual, field.name), float) and length:
                yield f"{section}.{field.name}", getattr(written, field.name), length


def _read_file(path: Path) -> _Loaded:
    try:
        with path.open(encoding="utf-8") as file:
            text = file.read(MOST_BYTES + 1)  # a device may have no end
    except (OSError, UnicodeDecodeError) as error:
        raise spec_error(str(path), [_unreadable_file_problem(error)]) from error
    if len(text) > MOST_BYTES:
        raise spec_error(str(path), [_unreadable_file_problem(ValueError(f"more than {MOST_BYTES >> 20} MiB"))])
    return _parse_text(text, str(path))


@lru_cache(_KEPT)
def _parse_text(text: str, path: str) -> _Loaded:
    """Parse one text, once in each process: nothing else decides, and a task asks for its cluster file several times. Errors are not kept."""
    name = path or "cluster file"
    try:
        document = Document(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise spec_error(
            name, [_odd_blank_problem(text) or _syntax_problem(error, text)]
        ) from None  # PyYAML's own text quotes the file, which may hold secrets
    file, own_problems = None, list[Problem]()
    try:
        file = ClusterFile.model_validate(document.data)
    except ValidationError as error:
        own_problems = list_problems(error, document.data)
    new_problems = own_problems + without_consequences(find_problems(document.data, document.find_line), own_problems)
    marks = list(_find_mark_problems(document.data))
    marked = {problem.loc for problem in marks}
    new_problems = [  # what follows from a mark, such as two nodes with the same one, is none
        *marks,
        *(problem for problem in new_problems if problem.loc not in marked and MARK not in problem.found),
    ]
    problems = [*document.problems, *(replace(problem, line=document.find_line(problem.loc)) for problem in new_problems)]
    if problems or file is None:
        raise spec_error(name, [odd] if (odd := _odd_blank_problem(text)) else problems)
    return _Loaded(_build_spec(file, path), document)


def _find_mark_problems(data: Any) -> Iterator[Problem]:
    """What `kmigrate init` could not know and the operator has not written yet."""
    for loc in find_marks(data):
        expected = MARKED_VALUES.get(str(loc[-1]), "a value")
        yield Problem("F04", loc, f"the mark {MARK} of `kmigrate init`", expected=expected, fix=f"write {expected} in its place")


def _unreadable_file_problem(error: Exception) -> Problem:
    found = f"{getattr(error, 'strerror', None) or error}"
    fix = "check the path and its permissions"
    if isinstance(error, UnicodeError):
        fix = "save it as UTF-8"
    elif isinstance(error, FileNotFoundError):
        fix = "check the path: it is that of a cluster file, such as clusters/prod.yaml, and not the name of a cluster"
    return Problem("F00", (), found, expected="a readable UTF-8 file", fix=fix)


def _find_clashes(loaded_file: _Loaded, loaded: list[_Loaded]) -> Iterator[Problem]:
    for key in ("name", "cluster_id"):
        value = getattr(loaded_file.spec, key)
        others = [other.spec.path for other in loaded if other is not loaded_file and getattr(other.spec, key) == value]
        if others:
            found = f"{value}, which {', '.join(others)} also has"
            fix = "remove or rename the copy; until then kmigrate uses none of these files"
            yield Problem(
                "F04", (key,), found, expected="one file for each cluster", fix=fix, line=loaded_file.document.find_line((key,))
            )


def _build_spec(file: ClusterFile, path: str) -> ClusterSpec:
    hosts = _build_hosts(_explicit_host_keys(file.hosts))
    return ClusterSpec(
        name=file.name,
        cluster_id=file.cluster_id,
        zookeeper_conn_id=file.zookeeper.conn_id,
        kafka_conn_id=file.kafka.conn_id,
        brokers=tuple(_build_node(file.hosts, broker, NodeRole.BROKER) for broker in file.brokers),
        controllers=tuple(_build_node(file.hosts, controller, NodeRole.CONTROLLER) for controller in file.controllers),
        policy=Policy(**file.policy.model_dump()),
        controller_listener=file.quorum.listener.upper(),  # as Kafka takes the names of listeners
        controller_security=file.quorum.security_protocol,
        controller_security_written="security_protocol" in file.quorum.model_fields_set,
        controller_conn_id=file.quorum.conn_id or "",
        unverified=frozenset(name for name in ("zookeeper", "kafka", "quorum") if not getattr(file, name).verify_hostname),
        controller_properties=file.quorum.properties,
        stage_properties={section: keys for section, keys in file.stage_properties.model_dump().items() if keys},
        kafka_release=file.kafka_release or "",
        path=path,
        groups=tuple(_build_group(group, hosts) for group in file.groups),
        later_groups=file.later_groups,
        groups_schedule=file.groups_schedule or "",
        group_progress=GroupProgressSpec(**file.group_progress.model_dump()),
        spark_jobs=tuple(SparkJobSpec(**_keys_with_values(job)) for job in file.spark_jobs),
        audit=_build_audit(file.audit) if file.audit else None,
        approvers=ApproverSpec(**file.approvers.model_dump()) if file.approvers else None,
        notify=tuple(NotifierSpec(notifier.notifier, notifier.arguments) for notifier in file.notify),
        runbook_url=(file.runbook_url or "").rstrip("/"),
        controller_metrics=file.controller_metrics or "",
        rehearsal=file.rehearsal,
        windows=file.windows,
        stop_after=file.stop_after,
        deadlines={str(phase): seconds for phase, seconds in file.deadlines.items()},
    )


def _build_group(group: GroupSection, hosts: HostSpec) -> GroupSpec:
    group_keys = _keys_with_values(group)
    group_keys.setdefault("way", GroupWay.CUTOVER if group.by_hand or group.side_by_side else GroupWay.MIGRATING)
    ways = {way: value for way in ("switch", "webhook", "units") if (value := group_keys.pop(way, None))}
    instances = tuple(_build_instance(instance, ways, hosts, group.switch_timeout) for instance in group_keys.pop("instances"))
    return GroupSpec(instances=instances, **group_keys)


def _build_instance(instance: Instance, ways: Mapping[str, Any], hosts: HostSpec, stop_timeout: float) -> InstanceSpec:
    """An instance's own setting replaces the group's as a whole: its webhook does not join the group's command."""
    own_keys = _keys_with_values(instance)
    if not (instance.switch or instance.webhook or instance.units):
        own_keys |= ways
    names: Units | None = own_keys.pop("units", None)
    units = {kind: UnitSpec(name, instance.host, hosts, stop_timeout) for kind, name in names or () if name}
    return InstanceSpec(**own_keys, units=units)


def _build_audit(audit: Audit) -> AuditSpec:
    canary = CanarySpec(**audit.canary.model_dump()) if audit.canary else None
    return AuditSpec(**{**_keys_with_values(audit), "canary": canary, "spark": SparkSpec(**_keys_with_values(audit.spark))})


def _keys_with_values(section: SparkJob | Audit | Spark | GroupSection | Instance) -> dict[str, Any]:
    """The keys that have a value; the others keep the defaults of the core."""
    return {key: value for key in type(section).model_fields if (value := getattr(section, key)) is not None}


def _build_node(defaults: Hosts, node: BrokerSection | ControllerSection, role: NodeRole) -> NodeSpec:
    hosts = _build_hosts(with_defaults(_explicit_host_keys(defaults), _explicit_host_keys(node)))
    return NodeSpec(node.id, role, node.host, node.port, hosts, node.rack, node.log_dir and simplify_path(node.log_dir))


def _build_hosts(explicit_keys: Mapping[str, Any]) -> HostSpec:
    host_keys = {"driver": DEFAULT_DRIVER, **explicit_keys}
    return HostSpec(**host_keys | ({"properties": simplify_path(host_keys["properties"])} if "properties" in host_keys else {}))


def _explicit_host_keys(hosts: Hosts) -> dict[str, Any]:
    """The host keys that the user wrote here."""
    keys = hosts.model_fields_set & Hosts.model_fields.keys()
    return {key: value for key in keys if (value := getattr(hosts, key)) is not None}
