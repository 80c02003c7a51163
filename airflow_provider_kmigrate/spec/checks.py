"""Checks of a cluster file across its keys; its problems, one `Problem` a finding, and the `SpecError` that lists them all.

F00: unreadable or no YAML; F04: a key is unknown, missing or wrong, or something unique is there twice; F06: a secret.
pydantic's findings are put in the words of the fields they are about. The checks work on raw data, so that one wrong key hides no
other finding.
"""

from __future__ import annotations

import difflib
import posixpath
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import combinations, count, permutations
from typing import Annotated, Any, Final, TypeVar

import yaml
from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from airflow_provider_kmigrate.core.cluster_state.model import Reason
from airflow_provider_kmigrate.core.cluster_state.spec import GroupSpec, GroupWay, NodeRole, normalize_host
from airflow_provider_kmigrate.core.node_files.config_matrix import STAGE_SECTIONS, FileStage, may_be_added
from airflow_provider_kmigrate.core.node_files.kafka_keys import find_key, kafka_rules
from airflow_provider_kmigrate.core.shared.text import count_of
from airflow_provider_kmigrate.exceptions import SpecError
from airflow_provider_kmigrate.spec.model import (
    COMMAND_ERROR,
    CONNECT,
    DEFAULT_DRIVER,
    DEFAULT_PORTS,
    PLACEHOLDER,
    REMOVED_HOST_KEYS,
    RENAMED,
    WAYS,
    ClusterFile,
    Hosts,
    parse_seconds,
    with_defaults,
)
from airflow_provider_kmigrate.spec.model import find_section_model as section_of

Loc = tuple[str | int, ...]
Line = Callable[[Loc], int]
Item = tuple[Loc, Mapping[str, Any]]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Problem:
    """One finding. `loc` is the path of keys and list positions (from 0); its `line`, from 1, is set by the reader of the text."""

    code: str
    loc: Loc
    found: str
    expected: str
    fix: str
    line: int = 1

    def as_reason(self, path: str) -> Reason:
        """The same as a value for logs and the UI."""
        return Reason(self.code, f"{self._describe(path)}.")

    def as_text(self, path: str) -> str:
        """One line that editors can follow."""
        return f"{self._describe(path)}. [{self.code}]"

    def _describe(self, path: str) -> str:
        location = f"{path}:{self.line}: {format_location(self.loc)}" if self.loc else f"{path}:{self.line}"
        return f"{location}: found {self.found}; expected {self.expected}. Fix: {self.fix}"


def spec_error(path: str, problems: Iterable[Problem]) -> SpecError:
    """All problems in the order of the file, each once."""
    ordered = sorted(set(problems), key=lambda problem: (problem.line, format_location(problem.loc), problem.found))
    title = f"{path}: 1 problem" if len(ordered) == 1 else f"{path}: {count_of(len(ordered), 'problem')}"
    lines = (title, *(problem.as_text(path) for problem in ordered))
    return SpecError("\n  ".join(lines), (problem.as_reason(path) for problem in ordered))


def format_location(loc: Loc) -> str:
    """A location as text: `brokers[1].port`."""
    text = ""
    for part in loc:
        text += f"[{part}]" if isinstance(part, int) else f".{part}"
    return text.removeprefix(".")


def describe_value(value: object) -> str:
    """A value as the message shows it: scalars shortened and without the login of an address, everything else by its kind only."""
    if value is None:
        return "nothing"
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list | tuple):
        return "a list" if value else "an empty list"
    if isinstance(value, bool):
        return str(value).lower()
    text = re.sub(r"://[^/@\s]*@", "://***@", repr(value)) if isinstance(value, str) else str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def list_mappings(data: object, section: str, loc: Loc = ()) -> list[Item]:
    """The items of a list of `data` that are mappings, each with its location."""
    items = _read_key(data, section)
    indexed_items = enumerate(items) if isinstance(items, list) else ()
    return [((*loc, section, index), item) for index, item in indexed_items if isinstance(item, dict)]


def _read_key(section: object, key: str) -> Any:
    """What a section has under a key; None if it is no mapping."""
    return section.get(key) if isinstance(section, dict) else None


def _find_repeats(values: Iterable[tuple[T, object]]) -> Iterator[tuple[T, T, Any]]:
    """Each owner of a value that an earlier one has too, with that one and the value."""
    first_owner: dict[object, T] = {}
    for owner, value in values:
        if (other := first_owner.setdefault(value, owner)) is not owner:
            yield owner, other, value


def _check_unique_key(items: Iterable[Item], key: str, fix: str) -> Iterator[Problem]:
    """Problems of keys whose text an earlier item has too."""
    located_texts = ((loc, item[key]) for loc, item in items if isinstance(item.get(key), str))
    for loc, other_loc, value in _find_repeats(located_texts):
        found = f"{value}, which {format_location(other_loc)} also has"
        yield Problem("F04", (*loc, key), found, expected=f"a {key} that no other has", fix=fix)


_AGENT_SECTION = f'hosts: {{driver: agent, connect: "{CONNECT}", properties: /etc/kafka/server.properties}}'
_USE_AGENT = f"write `{_AGENT_SECTION}` instead of all commands, and install kmigrate-node on each machine (operator's guide)"


def list_problems(error: ValidationError, data: object = None) -> list[Problem]:
    """All findings of pydantic, one for each place; a list whose items are all wrong is not also called empty.

    `data`: the document, for fixes that must not repeat what another node has.
    """
    error_details = sorted(error.errors(include_url=False), key=lambda details: "[key]" not in details["loc"])
    problems = dict[Loc, Problem]()
    for details in error_details:
        if details["type"] != "too_short" or not details["input"]:
            problem = _build_problem(details, data)
            problems.setdefault(problem.loc, problem)
    return list(problems.values())


def without_consequences(found: Iterable[Problem], causes: Iterable[Problem]) -> list[Problem]:
    """The problems across keys that do not follow from a value that is wrong itself, in the same place or around it."""
    wrong_places = {problem.loc for problem in causes}
    return [
        problem for problem in found if not any(problem.loc[:size] in wrong_places for size in range(1, len(problem.loc) + 1))
    ]


def _build_problem(details: ErrorDetails, data: object) -> Problem:
    loc = _strip_words(details["loc"])
    section, field = _find_field(loc)
    if details["type"] == "extra_forbidden":
        return _unknown_key_problem(loc, section, data)
    command_error: Mapping[str, Any] = details.get("ctx", {}) if details["type"] == COMMAND_ERROR else {}
    missing = details["type"] == "missing"
    if (container := _find_container(loc)) is not None and not command_error and not missing:
        return _item_problem(details, container)
    is_old = loc[-1:] == ("driver",) and details["input"] in ("command", "ssh", "local")
    return Problem(
        "F04",
        loc,
        found=command_error.get("found") or ("nothing" if missing else _describe_found(loc, details["input"])),
        expected=command_error.get("expected") or (field.description if field else None) or "a mapping",
        fix=_USE_AGENT
        if is_old
        else _suggest_number(loc, field, details["input"])
        or _suggest_fix("add" if missing else "write for example", loc, field, data),
    )


def _suggest_number(loc: Loc, field: FieldInfo | None, value: object) -> str:
    """`write `port: 9094`` for `"9094"`, `9_094` or `9094.0`: an example would be another node's port, or id. Empty if none is meant."""
    digits = re.fullmatch(r"0*([0-9][0-9_]*)(?:\.0+)?", value) if isinstance(value, str) else None
    if digits is None or field is None or field.annotation is not int:
        return ""
    with suppress(ValueError):  # also of more digits than Python reads
        return f"write `{_as_yaml({loc[-1]: TypeAdapter(Annotated[int, field]).validate_python(int(digits[1]))})}`"
    return ""


def _strip_words(loc: Loc) -> Loc:
    """The key of a command, if `loc` is one of its words."""
    _, field = _find_field(loc[:-1])
    is_command = (
        isinstance(next(reversed(loc), None), int) and field is not None and field.examples and isinstance(field.examples[0], str)
    )
    return loc[:-1] if is_command else loc


def _suggest_fix(verb: str, loc: Loc, field: FieldInfo | None, data: object = None) -> str:
    if not loc:
        return "write keys and values here"
    if field is None:
        return f"{verb} `{_as_yaml(_example_item(loc))}`"
    if not field.examples:
        return "write text"
    example = _example_of_section(loc[:-1]).get(loc[-1], field.examples[0]) if verb == "add" else field.examples[0]
    if loc[-1] == "id":
        example = _free_id(data, NodeRole.CONTROLLER if loc[0] == "controllers" else NodeRole.BROKER)
    return f"{verb} `{_as_yaml({loc[-1]: example})}`"


def _example_of_section(loc: Loc) -> Mapping[str | int, Any]:
    """The example of a section that is a mapping: that of `kafka` has another `conn_id` than that of `zookeeper`."""
    _, field = _find_field(loc)
    example = field.examples[0] if field and field.examples else None
    return example if isinstance(example, dict) else {}


def _as_yaml(value: object) -> str:
    """A value as it would stand in a file: a mapping's keys without braces, a plain value quoted if it must be."""
    text = yaml.safe_dump([value] if not isinstance(value, dict) else value, default_flow_style=True, width=1000, sort_keys=False)
    inner = text.strip()[1:-1]
    return f"{{{inner}}}" if isinstance(value, dict) and len(value) > 1 else inner


def _example_item(loc: Loc) -> object:
    """An item of the list of sections that has one at `loc`, by the list's example."""
    _, field = _find_field(loc[:-1])
    example = field.examples[0] if field and field.examples else None
    return example[0] if isinstance(example, list) else example


_FIRST_ID = {NodeRole.BROKER: 0, NodeRole.CONTROLLER: 3000}


def _free_id(data: object, role: NodeRole) -> int:
    """The first id from the role's usual ones on that no node of the file has."""
    taken = {str(item.get("id")) for section in _SECTIONS for _, item in list_mappings(data, section)}
    return next(number for number in count(_FIRST_ID[role]) if str(number) not in taken)


def _find_container(loc: Loc) -> FieldInfo | None:
    """The field whose list or mapping of plain values has an item at `loc`; None if `loc` is a field, or an item is a section."""
    inner: type[BaseModel] | None = ClusterFile
    for number, part in enumerate(loc):
        field = inner.model_fields.get(part) if inner is not None and isinstance(part, str) else None
        if isinstance(part, str) and field is None:
            return None
        inner = section_of(field.annotation) if field else inner
        if field is not None and inner is None:
            return field if number + 1 < len(loc) and field.examples and isinstance(field.examples[0], list | dict) else None
    return None


def _item_problem(details: ErrorDetails, container: FieldInfo) -> Problem:
    """A wrong item: the words that are allowed and the nearest of them, or the form of an item by the container's example."""
    loc: Loc = tuple(part for part in details["loc"] if part != "[key]")
    is_key = "[key]" in details["loc"]
    words = re.findall(r"'([^']*)'", str(details.get("ctx", {}).get("expected", "")))
    example = container.examples[0] if container.examples else None
    if words:
        nearest = difflib.get_close_matches(str(details["input"]), words, n=1)
        fix = (
            f"{f'rename `{loc[-1]}` to' if is_key else 'write'} `{nearest[0]}`" if nearest else "remove it, or write one of them"
        )
    elif isinstance(example, dict):
        fix = f"write for example `{_as_yaml({loc[-1]: next(iter(example.values()))})}`"
    else:
        fix = f"write for example `{_as_yaml(example[0])}`" if isinstance(example, list) else "remove it"
    expected = f"one of {', '.join(words)}" if words else f"an item of {container.description}"
    return Problem("F04", loc, found=_describe_found(loc, details["input"]), expected=expected, fix=fix)


_SPARK_MAPS = ("properties", "kafka_options")
_FREE = ((("spark_jobs",), ("options",)), (("notify",), ("arguments",)))


def _describe_found(loc: Loc, value: object) -> str:
    """The value as shown; a file that is one value may be a password's; values below `quorum.properties`, `stage_properties` and `audit.spark`, a job's `options` and a notifier's `arguments` may be secrets and are hidden."""
    if not loc and isinstance(value, str | int):
        return "a single value"
    hidden = (
        loc[:2] == ("quorum", "properties")
        or loc[:1] == ("stage_properties",)
        or (loc[:1], loc[2:3]) in _FREE
        or loc[:2] == ("audit", "spark")
    )
    return "a value of another kind" if hidden else describe_value(value)


def _unknown_key_problem(loc: Loc, model: type[BaseModel] | None, data: object) -> Problem:
    if new_name := RENAMED.get(".".join(part for part in loc if isinstance(part, str))):
        return Problem(
            "F04", loc, "the old name of a key", expected=f"its name `{new_name}`", fix=f"rename `{loc[-1]}` to `{new_name}`"
        )
    if loc[-1] in REMOVED_HOST_KEYS and model and issubclass(model, Hosts):
        return Problem("F04", loc, "a key of a removed driver", expected="driver agent", fix=_USE_AGENT)
    found = "a key that kmigrate does not know"
    if len(homes := _find_homes(str(loc[-1]))) == 1 and not any(isinstance(part, int) for part in loc):
        section = data if homes == [""] else _read_key(data, homes[0])
        home = f"`{homes[0]}`" if homes[0] else "the top of the file"
        fix = f"remove it, or the one in {home}" if _read_key(section, str(loc[-1])) is not None else f"move it to {home}"
        return Problem("F04", loc, f"{found} in this place", expected=f"it in {home}" if homes[0] else f"it at {home}", fix=fix)
    known_keys = sorted(model.model_fields) if model else []
    similar_keys = difflib.get_close_matches(str(loc[-1]), known_keys, n=1)
    fix = f"rename `{loc[-1]}` to `{similar_keys[0]}`" if similar_keys else "remove it"
    return Problem("F04", loc, found, expected=f"one of {', '.join(known_keys)}", fix=fix)


def _find_homes(name: str) -> list[str]:
    """The sections in which a key of this name may stand, of those that a file has once; empty text is the top of the file."""
    sections = {
        section: section_of(field.annotation)
        for section, field in ClusterFile.model_fields.items()
        if field.examples and isinstance(field.examples[0], dict)
    }
    top: dict[str, type[BaseModel] | None] = {"": ClusterFile}
    return [section for section, model in (top | sections).items() if model is not None and name in model.model_fields]


def _find_field(loc: Loc) -> tuple[type[BaseModel] | None, FieldInfo | None]:
    """The section of `loc`, and the field that it names, if it names one."""
    section: type[BaseModel] | None = None
    inner: type[BaseModel] | None = ClusterFile
    field: FieldInfo | None = None
    for part in loc:
        if isinstance(part, int):
            field = None
        elif inner is not None:
            section, field = inner, inner.model_fields.get(part)
            inner = section_of(field.annotation) if field else None
        else:
            field = FieldInfo(description="text")
    return section, field


_SECRET_KEY = re.compile(r"password|jaas|secret|\.key$|\.pem$|token", re.IGNORECASE)
#: Named like a secret, but none: sasl.oauthbearer.token.endpoint.url, delegation.token.max.lifetime.ms, password.encoder.iterations.
_NO_SECRET = re.compile(
    r"\.(?:url|uri|ms|seconds|location|class|class\.name|type|path|file|length|iterations|algorithm|enabled?)$", re.IGNORECASE
)
_LOGIN = re.compile(r"jaas\.config$", re.IGNORECASE)
_SECRET_OPTION = re.compile(
    r"""\b(?:user_\w+|\w*(?:password|secret|token|privatekey|accesskey)\w*)\s*=\s*(?:"([^"]*)"|'([^']*)'|([^\s;"']+))""",
    re.IGNORECASE,
)
_REFERENCE = re.compile(r"\$\{[^}:]+:[^}]*\}")
_SWITCH = re.compile(r"true|false", re.IGNORECASE)  # tokenauth="true"
_CONTROLLERS = (FileStage.CONTROLLER_MIGRATION, FileStage.CONTROLLER_FINAL)
_SECTIONS = {"brokers": NodeRole.BROKER, "controllers": NodeRole.CONTROLLER}


@dataclass(frozen=True, slots=True)
class NodeEntry:
    """One item of `brokers` or `controllers` with the defaults of `hosts` below its own keys."""

    loc: Loc
    role: NodeRole
    keys: Mapping[str, Any]

    def read_scalars(self, *names: str) -> tuple[Any, ...] | None:
        """The values of these keys, or None if one is missing or no scalar, which another check reports."""
        values = tuple(self.keys.get(name) for name in names)
        usable = all(isinstance(value, str | int) and not isinstance(value, bool) for value in values)
        return values if usable else None

    def identify_agent(self) -> tuple[NodeRole, str] | None:
        """The role and what leads to one agent: the filled words of `connect`, or an SSH connection and a machine; None if unusable."""
        words, values = self.keys.get("connect"), self.read_scalars("id", "host", "properties")
        if (ssh := self.keys.get("ssh_conn_id")) and not words and values is not None and _driver(self) == DEFAULT_DRIVER:
            return self.role, f"{ssh} {normalize_host(str(values[1]))}"
        text = " ".join(map(str, words)) if isinstance(words, list) else words
        if not (text and isinstance(text, str)) or values is None or _driver(self) != DEFAULT_DRIVER:
            return None
        number, host, properties = map(str, values)
        placeholders = {"id": number, "host": normalize_host(host), "properties": properties}
        are_placeholders_known = set(PLACEHOLDER.findall(text)) <= placeholders.keys()
        return (self.role, PLACEHOLDER.sub(lambda match: placeholders[match[1]], text)) if are_placeholders_known else None


def list_nodes(data: object) -> list[NodeEntry]:
    """Every node of the file that is a mapping."""
    hosts = _read_key(data, "hosts")
    defaults = hosts if isinstance(hosts, dict) else {}
    return [
        NodeEntry(loc, role, {"port": DEFAULT_PORTS[role], **with_defaults(defaults, _drop_nulls(item))})
        for section, role in _SECTIONS.items()
        for loc, item in list_mappings(data, section)
    ]


def _drop_nulls(item: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in item.items() if value is not None}


def find_problems(data: object, line: Line) -> Iterator[Problem]:
    """Repeated ids, addresses, files and folders; drivers without what they need; secrets. `line`: of a location in the file."""
    nodes = list_nodes(data)
    for names, what, fix in _UNIQUE:
        yield from _check_unique_nodes(data, line, names, what, fix)
    yield from _check_one_node_per_agent(nodes, line)
    yield from _check_needed_keys(nodes)
    yield from _check_one_way_to_agent(data)
    yield from _check_hosts(data)
    yield from _check_terminals(data)
    yield from _check_not_all_gone(data)
    yield from _check_secrets(data)
    yield from _check_node_properties(data)
    yield from _check_groups(data)
    yield from _check_spark_jobs(data)
    yield from _check_audit_sources(data)
    yield from _check_spark_settings(data)
    yield from _check_approvers(data)


def _check_unique_nodes(
    data: object, line: Line, names: tuple[str, ...], what: str, fix: Callable[[object, NodeEntry], str]
) -> Iterator[Problem]:
    node_values = ((node, values) for node in list_nodes(data) if (values := node.read_scalars(*names)) is not None)
    for node, other, values in _find_repeats((node, _normalize_scalars(names, values)) for node, values in node_values):
        found = f"{':'.join(map(str, values))}, which {format_location(other.loc)} in line {line(other.loc)} also has"
        yield Problem("F04", (*node.loc, names[-1]), found, expected=f"{what} that no other node has", fix=fix(data, node))


def _normalize_scalars(names: tuple[str, ...], values: tuple[Any, ...]) -> tuple[Any, ...]:
    """The values with hosts as machines, and paths without what does not change them."""
    normalizers = {"host": normalize_host} | dict.fromkeys(("properties", "log_dir"), posixpath.normpath)
    return tuple(
        normalizers[name](str(value)) if name in normalizers else value for name, value in zip(names, values, strict=True)
    )


def _check_one_node_per_agent(nodes: list[NodeEntry], line: Line) -> Iterator[Problem]:
    """An agent has one unit, file and directory for each role: two nodes of a role behind it would be one."""
    node_agents = ((node, agent) for node in nodes if (agent := node.identify_agent()) is not None)
    for node, other, (role, _) in _find_repeats(node_agents):
        if _file_identity(node) == _file_identity(other):
            continue  # found already
        found = f"the agent of {format_location(other.loc)} in line {line(other.loc)}, whose role {role} is one node"
        agent_key = "connect" if node.keys.get("connect") else "ssh_conn_id"
        fix = (
            f"put {format_location(node.loc)} on a machine of its own, or give it a {agent_key} that leads to an agent of its own"
        )
        yield Problem("F04", (*node.loc, agent_key), found, expected=f"an agent that has no other {role}", fix=fix)


def _file_identity(node: NodeEntry) -> tuple[Any, ...]:
    return _normalize_scalars(("host", "properties"), node.read_scalars("host", "properties") or ("", ""))


def _suggest_id_fix(data: object, node: NodeEntry) -> str:
    free = _free_id(data, node.role)
    if node.role is NodeRole.CONTROLLER:
        return (
            f"give the controller an id that no other node has, such as `id: {free}`: brokers and controllers share one id space"
        )
    return f"write the broker.id of its file, such as `id: {free}`"


def _suggest_port_fix(data: object, node: NodeEntry) -> str:
    taken = {other.keys.get("port") for other in list_nodes(data)}
    free = next(port for port in count(DEFAULT_PORTS[node.role]) if port not in taken)
    return f"give each node of a machine its own port, such as `port: {free}`"


def _suggest_path_fix(name: str) -> Callable[[object, NodeEntry], str]:
    def suggest(_: object, node: NodeEntry) -> str:
        root, suffix = posixpath.splitext(posixpath.normpath(str(node.keys[name])))
        own = _as_yaml({name: f"{root}-{node.keys.get('id', 'own')}{suffix}"})
        return f"write {format_location(node.loc)}'s own path, such as `{own}`; nodes on one machine share nothing"

    return suggest


_UNIQUE: tuple[tuple[tuple[str, ...], str, Callable[[object, NodeEntry], str]], ...] = (
    (("id",), "an id", _suggest_id_fix),
    (("host", "port"), "an address", _suggest_port_fix),
    (("host", "properties"), "a file", _suggest_path_fix("properties")),
    (("host", "log_dir"), "a directory", _suggest_path_fix("log_dir")),
)


_NEEDS = (
    (("properties",), "every node needs it", "add for example `properties: /etc/kafka/server.properties`"),
    (
        WAYS,
        "the driver agent needs it",
        "add for example `ssh_conn_id: prod_ssh`, the id of an Airflow SSH connection, or `connect`",
    ),
)
"""What a node with an agent needs: the keys of which it must have one, why, and the fix."""


def _check_needed_keys(nodes: list[NodeEntry]) -> Iterator[Problem]:
    """One problem for a key that every node misses, else one for each such node."""
    for names, why, fix in _NEEDS:
        incomplete_nodes = [
            node for node in nodes if _driver(node) == DEFAULT_DRIVER and all(node.keys.get(name) is None for name in names)
        ]
        for loc in [("hosts",)] if len(incomplete_nodes) == len(nodes) > 1 else [node.loc for node in incomplete_nodes]:
            expected = f"the key here or, as a default for all nodes, in `hosts`: {why}"
            yield Problem("F04", (*loc, names[0]), "nothing", expected, fix)


def _driver(node: NodeEntry) -> object:
    return node.keys.get("driver") or DEFAULT_DRIVER


def _check_one_way_to_agent(data: object) -> Iterator[Problem]:
    """A command, or its environment, beside an SSH connection in one place: which of them counts?"""
    hosts = _read_key(data, "hosts")
    hosts_items: list[Item] = [(("hosts",), hosts)] if isinstance(hosts, dict) else []
    for loc, keys in [*hosts_items, *(item for section in _SECTIONS for item in list_mappings(data, section))]:
        for other in ("connect", "conn_id"):
            if keys.get("ssh_conn_id") and keys.get(other):
                found, expected = f"`{other}` beside `ssh_conn_id`", "one way to the agent"
                yield Problem("F04", (*loc, other), found, expected, fix="remove it, or remove `ssh_conn_id`")


def _check_hosts(data: object) -> Iterator[Problem]:
    """`0.0.0.0` of a line `listeners=`: a node listens there, and a client that connects to it reaches the client's own machine."""
    for section in _SECTIONS:
        for loc, item in list_mappings(data, section):
            if item.get("host") == "0.0.0.0":  # noqa: S104 # nothing is bound to it
                expected = "the name or address by which others reach the machine"
                fix = f"write for example `host: {section[:-1]}{item.get('id', 0)}.example.org`"
                yield Problem("F04", (*loc, "host"), "0.0.0.0, at which nodes only listen", expected, fix)


_SSH_WITH_VALUE: Final = frozenset(f"-{letter}" for letter in "BbcDEeFIiJLlmOopQRSWw")
_TERMINAL = re.compile(
    r"-[46AaCfGgKkMNnqsTtVvXxYy]*t[46AaCfGgKkMNnqsTtVvXxYy]*t[A-Za-z0-9]*|(?:-o)?RequestTTY[= ]force", re.IGNORECASE
)


def _check_terminals(data: object) -> Iterator[Problem]:
    """`ssh -tt`: a terminal sends back what the agent is asked, and the pipe has more than its answers (measured)."""
    hosts = _read_key(data, "hosts")
    places: list[Item] = [(("hosts",), hosts)] if isinstance(hosts, dict) else []
    for loc, keys in [*places, *(item for section in _SECTIONS for item in list_mappings(data, section))]:
        command = keys.get("connect")
        words = [str(word) for word in command] if isinstance(command, list) else str(command or "").split()
        if words and posixpath.basename(words[0]) == "ssh" and (option := _find_terminal(words[1:])):
            expected = "a pipe: a terminal changes what the agent reads and answers"
            yield Problem("F04", (*loc, "connect"), f"{option}, a terminal for the agent", expected, "write `-T` in its place")


def _find_terminal(words: Sequence[str]) -> str:
    """The option of ssh that forces a terminal; empty if none of those before the host does."""
    options = iter(words)
    for word in options:
        if word[:1] != "-":
            return ""
        value = f"{word} {next(options, '')}" if word in _SSH_WITH_VALUE else word
        if _TERMINAL.fullmatch(value.removeprefix("-o ")):
            return f"`{value}`"
    return ""


def _check_not_all_gone(data: object) -> Iterator[Problem]:
    """`driver: gone` for all nodes: each of them would count as stopped while it runs."""
    hosts = _read_key(data, "hosts")
    if isinstance(hosts, dict) and hosts.get("driver") == "gone":
        fix = "write `driver: agent` here, and `driver: gone` only into the entry of a node whose machine is dead for good"
        yield Problem("F04", ("hosts", "driver"), "gone, for every node", expected="agent", fix=fix)


def _check_secrets(data: object) -> Iterator[Problem]:
    """Cluster files are read by many and logged; Kafka resolves references itself (KIP-421)."""
    for loc, properties in _list_property_maps(data):
        for key, value in properties.items():
            if _is_secret(str(key), str(value)):
                yield Problem(
                    "F06",
                    (*loc, str(key)),
                    found="a secret",
                    expected="a reference that Kafka resolves on the host (config.providers, KIP-421)",
                    fix=f"write `{key}: ${{file:/path/on/the/host:key}}`"
                    if loc[0] in {"quorum", "stage_properties", "audit"}
                    else "remove it",
                )


def _is_secret(key: str, value: str) -> bool:
    """True if a key holds a secret that is written out; of a login only the options that Kafka keeps secret count."""
    if not _SECRET_KEY.search(key) or _NO_SECRET.search(key) or value.startswith("${"):
        return False
    if not (_LOGIN.search(key) and "=" in value):
        return True
    options = ("".join(match) for match in _SECRET_OPTION.findall(value))
    return any(not _REFERENCE.fullmatch(option) and not _SWITCH.fullmatch(option) for option in options)


_PLACES = frozenset({"listeners", "log.dirs", "metadata.log.dir"})  # rendering takes these from `quorum.properties`
_NEARLY = 0.93  # of 1: one letter of ten


def _check_node_properties(data: object) -> Iterator[Problem]:
    """Keys of `quorum.properties` and `stage_properties` that rendering ignores, and keys with a typo."""
    stages_by_loc: dict[Loc, tuple[FileStage, ...]] = {("quorum", "properties"): _CONTROLLERS}
    stages_by_loc |= {("stage_properties", section): (stage,) for section, stage in STAGE_SECTIONS.items()}
    for loc, stages in stages_by_loc.items():
        properties = _read_key(_read_key(data, str(loc[0])), str(loc[1]))
        for key in map(str, properties if isinstance(properties, dict) else ()):
            yield from _check_node_property((*loc, key), key, stages)


def _check_node_property(loc: Loc, key: str, stages: tuple[FileStage, ...]) -> Iterator[Problem]:
    similar_keys = [] if find_key(key) else difflib.get_close_matches(key, kafka_rules().keys, 1, _NEARLY)
    is_place = loc[0] == "quorum" and key in _PLACES
    if not any(may_be_added(key, stage) for stage in stages) and not is_place:
        found = "a key that kmigrate sets itself, or that no such node may have: it would be ignored"
        yield Problem("F04", loc, found, expected="what these nodes need beside the brokers' keys", fix="remove it")
    elif similar_keys:
        yield Problem(
            "F04",
            loc,
            "a key that Kafka does not know",
            expected=f"its name `{similar_keys[0]}`",
            fix=f"rename `{key}` to `{similar_keys[0]}`",
        )


def _list_property_maps(data: object) -> Iterator[tuple[Loc, Mapping[Any, Any]]]:
    """The parts of a file with free keys and values."""
    property_maps: list[tuple[Loc, Any]] = [(("quorum", "properties"), _read_key(_read_key(data, "quorum"), "properties"))]
    stages = _read_key(data, "stage_properties")
    property_maps += [(("stage_properties", section), _read_key(stages, section)) for section in STAGE_SECTIONS]
    spark = _read_key(_read_key(data, "audit"), "spark")
    property_maps += [(("audit", "spark", name), _read_key(spark, name)) for name in _SPARK_MAPS]
    property_maps += [((*loc, "options"), job.get("options")) for loc, job in list_mappings(data, "spark_jobs")]
    property_maps += [((*loc, "arguments"), notifier.get("arguments")) for loc, notifier in list_mappings(data, "notify")]
    yield from ((map_loc, values) for map_loc, values in property_maps if isinstance(values, dict))


def _check_spark_jobs(data: object) -> Iterator[Problem]:
    """Jobs with the same name, checkpoint or hold folder, and jobs that could not be held."""
    jobs = list_mappings(data, "spark_jobs")
    for key in ("name", "checkpoint", "hold_folder"):
        yield from _check_unique_key(jobs, key, "remove it, or give it the values of another query")
    for loc, job in jobs:
        yield from _check_job_commands(loc, job)
        shows_itself = bool(job.get("hold_command") and job.get("group") and job.get("hold_folder"))
        if job.get("checkpoint") is None and job.get("hold") != "never" and not shows_itself:
            yield Problem(
                "F04",
                (*loc, "checkpoint"),
                found="nothing",
                expected="the checkpoint of a job that may be held: it shows whether a batch is unfinished",
                fix="add for example `checkpoint: /lake/checkpoints/orders`, the one that the query writes, or write `hold: never`",
            )


def _check_job_commands(loc: Loc, job: Mapping[str, Any]) -> Iterator[Problem]:
    """A job that could be held and not released, or the other way round; and a group that no command belongs to."""
    for name, other in (("hold_command", "release_command"), ("release_command", "hold_command"), ("group", "hold_command")):
        if job.get(name) and not job.get(other):
            fix = f"add `{other}: jobctl {'resume' if other == 'release_command' else 'pause'} {{job}}`, or remove `{name}`"
            yield Problem("F04", (*loc, other), "nothing", f"the command that belongs to `{name}`", fix)


def _check_audit_sources(data: object) -> Iterator[Problem]:
    """An audit without sources, which would stay INCONCLUSIVE."""
    section = _read_key(data, "audit")
    sources = ("events", "ledgers", "events_topic", "topics", "probe", "offsets_history")
    if isinstance(section, dict) and not any(section.get(key, key in {"probe", "topics"}) for key in sources):
        yield Problem(
            "F04",
            ("audit", "events"),
            found="nothing",
            expected="where the clients' events are (`events`, `ledgers`, `events_topic`), `topics` whose logs are compared, the `probe`, or `offsets_history`",
            fix="add `events: [/var/lib/kmigrate/events]`",
        )


_OTHERS: Final = {
    "spark.driver.memory": "driver_memory",
    "spark.executor.memory": "executor_memory",
    "spark.submit.deployMode": "deploy_mode",
    "spark.kubernetes.container.image": "image",
}


def _check_spark_settings(data: object) -> Iterator[Problem]:
    """Settings of the audits' Spark jobs that another key has, or that would never take effect."""
    spark = _read_key(_read_key(data, "audit"), "spark")
    properties, options = (_read_key(spark, name) for name in _SPARK_MAPS)
    for name in map(str, properties if isinstance(properties, dict) else ()):
        loc = ("audit", "spark", "properties", name)
        if name in _OTHERS:
            yield Problem(
                "F04",
                loc,
                "a property that has a key of its own",
                f"`{_OTHERS[name]}`",
                fix=f"remove it, and write `{_OTHERS[name]}` in audit.spark",
            )
        elif not name.startswith("spark."):
            yield Problem(
                "F04",
                loc,
                "no property of Spark: spark-submit ignores it",
                "a name that begins with `spark.`",
                fix="remove it, or write the name that Spark's documentation has",
            )
    for name in map(str, options if isinstance(options, dict) else ()):
        if name in _EXACT or not name.startswith("kafka."):
            loc = ("audit", "spark", "kafka_options", name)
            yield Problem(
                "F04",
                loc,
                "an option that kmigrate sets itself, or none of Kafka's client",
                "a name that begins with `kafka.`",
                fix="remove it",
            )
    if _read_key(spark, "deploy_mode") == "cluster" and not _read_key(spark, "archives") and not _read_key(spark, "image"):
        yield Problem(
            "F04",
            ("audit", "spark", "deploy_mode"),
            found="cluster, without Python for the driver",
            expected="`archives` (YARN) or `image` (Kubernetes) with Python 3.11, pyspark and pyarrow",
            fix="write `deploy_mode: client`, or add one of them",
        )


_EXACT: Final = frozenset({"kafka.bootstrap.servers", "kafka.group.id", "kafka.isolation.level"})


def _check_approvers(data: object) -> Iterator[Problem]:
    """More required approvers than different users: no finalization could be approved."""
    users, required = (_read_key(_read_key(data, "approvers"), key) for key in ("users", "required"))
    plain_users = [user for user in users if isinstance(user, str | int)] if isinstance(users, list) else []
    if (
        plain_users == users
        and isinstance(required, int)
        and required in {1, 2}
        and required > len(different_users := set(map(str, users))) > 0
    ):
        found = f"{len(different_users)} user, beside `required: {required}`"
        example = _as_yaml({"users": [*dict.fromkeys(map(str, users)), "another-user"]})
        expected = "at least as many different users as must approve"
        yield Problem("F04", ("approvers", "users"), found, expected, fix=f"write another user, too, such as `{example}`")


_HOWS = ("switch", "webhook", "units")
_GROUP = GroupSpec("", ())
_DEFAULTS = {"bake": _GROUP.bake, "commit_within": _GROUP.commit_within}
_TASKS = ("plan", "done")  # of the DAG itself


def _check_groups(data: object) -> Iterator[Problem]:
    """Ambiguous groups and instances, and instances without a way to restart them."""
    groups = list_mappings(data, "groups")
    yield from _check_unique_key(groups, "name", "write another group's id, such as `name: billing-2`, or remove this entry")
    yield from _check_unique_task_names(groups, "move one of them, then list the other in its place", _TASKS)
    for loc, group in groups:
        instances = list_mappings(group, "instances", loc)
        yield from _check_unique_key(
            instances, "name", "write the instance's own name, such as `name: billing-1`, or remove this entry"
        )
        yield from _check_unique_task_names(instances, "give one of them another consumer.id and client.id")
        yield from _check_confusable_names(instances, group.get("name"))
        yield from _check_group_name(loc, group)
        yield from _check_bake(loc, group)
        for item_loc, item in [(loc, group), *instances]:
            yield from _check_switch_command(item_loc, item)
        if group.get("side_by_side") is True:
            yield from _check_side_by_side(loc, group, instances)
        if group.get("by_hand") is True:
            yield from _check_by_hand(loc, group, [(loc, group), *instances])
            continue
        for item_loc, instance in instances:
            yield from _check_has_switch(item_loc, instance, group)
            yield from _check_units(item_loc, instance, group)
    yield from _check_shared_commands(groups)
    yield from _check_agent_of_units(data)


_NO_ZNODE: Final = (".", "..")


def _check_group_name(loc: Loc, group: Mapping[str, Any]) -> Iterator[Problem]:
    """A name that is no znode of its own, so no group on ZooKeeper has it."""
    if group.get("name") in _NO_ZNODE:
        expected = "the id of a group that ZooKeeper can have"
        yield Problem("F04", (*loc, "name"), str(group["name"]), expected, "write the group's id, or remove this entry")


def _check_shared_commands(groups: list[Item]) -> Iterator[Problem]:
    """One command for two instances: what stops or restarts one of them does it to the other, too.

    A cutover stops and starts all instances of its group at once, so these may share one.
    """
    owners = dict[str, tuple[Loc, str]]()
    for loc, group in groups:
        is_at_once = group.get("way") == str(GroupWay.CUTOVER) and group.get("side_by_side") is not True
        for item_loc, instance in list_mappings(group, "instances", loc):
            has_own = any(instance.get(how) for how in _HOWS)
            command = (instance if has_own else group).get("switch")
            if not isinstance(command, str | list) or not command:
                continue
            places = {
                "group": group.get("name"),
                "instance": instance.get("name"),
                "host": normalize_host(str(instance.get("host") or "")),
            }
            filled = command if isinstance(command, str) else " ".join(map(str, command))
            for place, value in places.items():
                filled = filled.replace(f"{{{place}}}", str(value))
            name = f"{instance.get('name')} of group {group.get('name')}"
            owner_loc, owner = owners.setdefault(filled, (loc, name))
            if owner != name and not (is_at_once and owner_loc == loc):
                yield Problem(
                    "F04",
                    (*(item_loc if has_own else loc), "switch"),
                    f"a command that is also that of {owner}: what it does to {name}, it does to both",
                    "a command of its own for each instance",
                    "write `{instance}`, `{group}` or `{host}` where the command expects it",
                )


def _check_bake(loc: Loc, group: Mapping[str, Any]) -> Iterator[Problem]:
    """A bake that is no longer than `commit_within`: it ends before starvation could be observed. 0: no bake."""
    bake, within = (parse_seconds(group.get(name, default)) for name, default in _DEFAULTS.items())
    if isinstance(bake, int | float) and isinstance(within, int | float) and 0 < bake <= within:
        yield Problem(
            "F04",
            (*loc, next(name for name in _DEFAULTS if name in group)),
            found=f"a bake of {bake:g} s beside a commit_within of {within:g} s, too short to notice a partition without progress",
            expected="a bake longer than commit_within, or 0 for none",
            fix=f"write `bake: {2 * within:.0f}s`, or the seconds between two commits of these consumers as commit_within",
        )


def _check_unique_task_names(items: list[Item], fix: str, reserved_names: Collection[str] = ()) -> Iterator[Problem]:
    """Names whose tasks would have one id; with two of an id there is no DAG. Task ids have `_` for a dot."""
    names_by_task = {name: f"the task {name}" for name in reserved_names}
    for loc, name in _list_names(items):
        other = names_by_task.setdefault(name.replace(".", "_"), name)
        if other != name:
            found = f"{name}, whose tasks would have the names of those of {other}"
            yield Problem("F04", loc, found, expected="a name that differs from others in more than a dot for `_`", fix=fix)


def _list_names(items: list[Item]) -> list[tuple[Loc, str]]:
    return [((*loc, "name"), name) for loc, item in items if isinstance(name := item.get("name"), str)]


def _check_confusable_names(instances: list[Item], group: object) -> Iterator[Problem]:
    """Names of which one begins another: `app` would be taken for `app-1`, since a member's name begins with its instance's.

    And ids that fit two instances: `billing_app0` is the id of instance `app0` in group `billing`, and of an instance
    `billing_app0` that is listed by the whole id.
    """
    prefix, expected = f"{group}_", "a name that no other instance's members match"
    for (loc, name), (other_loc, longer) in permutations(_list_names(instances), 2):
        if longer.startswith(f"{name}-"):
            found = f"{name}, with which the name of {format_location(other_loc[:-1])}, {longer}, begins"
            yield Problem(
                "F04", loc, found, expected, "give the instances consumer.id and client.id that are no prefix of another"
            )
        if longer.startswith(prefix) and f"{longer.removeprefix(prefix)}-".startswith(f"{name}-"):
            found = f"{longer}, which is also the consumer id of a member of {name} in group {group}"
            yield Problem("F04", other_loc, found, expected, "give one of them another consumer.id and client.id")


def _check_switch_command(loc: Loc, item: Mapping[str, Any]) -> Iterator[Problem]:
    for how, other in [(how, other) for how, other in combinations(_HOWS, 2) if item.get(how) and item.get(other)]:
        found, expected = f"`{other}` beside `{how}`", "one of `switch`, `webhook` and `units`"
        yield Problem("F04", (*loc, other), found, expected, fix=f"remove it, or remove `{how}`")
    command = item.get("switch")
    words = " ".join(map(str, command)) if isinstance(command, list) else str(command or "")
    if words and "{kind}" not in words:
        found, expected = "a command without {kind}", "a command with {kind}, the kind to restart the instance as"
        fix = f"write {{kind}} where the command expects it, for example `{_as_yaml({'switch': f'{words} {{kind}}'})}`"
        yield Problem("F04", (*loc, "switch"), found, expected, fix)


def _check_by_hand(loc: Loc, group: Mapping[str, Any], items: list[Item]) -> Iterator[Problem]:
    """People at work: only a cutover can wait for them, and nothing else may restart the instances."""
    if group.get("way") == str(GroupWay.MIGRATING):
        fix = "write `way: cutover`, or remove it and add a `switch`"
        yield Problem("F04", (*loc, "by_hand"), "true in a group with `way: migrating`", "a cutover", fix)
    for item_loc, item in items:
        for how in _HOWS:
            if item.get(how):
                expected = "either people or a command or webhook"
                yield Problem(
                    "F04", (*item_loc, how), "a way to restart beside `by_hand`", expected, "remove it, or remove `by_hand`"
                )


def _check_side_by_side(loc: Loc, group: Mapping[str, Any], instances: list[Item]) -> Iterator[Problem]:
    """A canary beside the old version: only a cutover has one, and one old instance must stay beside it."""
    where = (*loc, "side_by_side")
    if group.get("way") == str(GroupWay.MIGRATING):
        yield Problem("F04", where, "true in a group with `way: migrating`", "a cutover", "write `way: cutover`, or remove it")
    elif len(instances) == 1:
        yield Problem(
            "F04", where, "true in a group of one instance", "a second instance, which goes on as the old version", "remove it"
        )


def _check_has_switch(loc: Loc, instance: Mapping[str, Any], group: Mapping[str, Any]) -> Iterator[Problem]:
    if not any(item.get(how) for item in (instance, group) for how in _HOWS):
        expected = "how to restart the instance, here or at the group"
        fix = "add `switch: ssh {host} sudo billing-as {kind}`, `webhook` with the id of an HTTP connection, or `units`"
        yield Problem("F04", (*loc, "switch"), "nothing", expected, fix)


def _check_units(loc: Loc, instance: Mapping[str, Any], group: Mapping[str, Any]) -> Iterator[Problem]:
    """Units without a machine, kinds of consumer without a unit, and one unit for two kinds, which could not be distinguished."""
    units, where = _find_units(instance, group), (*(loc if instance.get("units") else loc[:2]), "units")
    if units is None:
        return
    if not instance.get("host"):
        yield Problem("F04", (*loc, "host"), "nothing", "the machine of its units", "add for example `host: app0.example.org`")
    is_cutover = group.get("way") == str(GroupWay.CUTOVER) or group.get("side_by_side") is True
    if bool(units.get("migrating")) is is_cutover:
        found = "a unit for migrating in a cutover" if is_cutover else "no unit for migrating with `way: migrating`"
        fix = "remove it" if is_cutover else "add for example `migrating: billing-both.service`, or write `way: cutover`"
        yield Problem("F04", (*where, "migrating"), found, "a unit for each kind of the group's way", fix)
    names = [name for name in units.values() if isinstance(name, str)]
    if len(names) != len(set(names)):
        fix = "name a unit for each, such as `billing@old.service` and `billing@new.service` of one template"
        yield Problem("F04", where, "one unit for two kinds", "another unit for each kind", fix)


def _find_units(instance: Mapping[str, Any], group: Mapping[str, Any]) -> dict[str, Any] | None:
    """The units of an instance: its own, or those of its group if it has no way to restart it of its own."""
    units = (instance if any(instance.get(how) for how in _HOWS) else group).get("units")
    return units if isinstance(units, dict) else None


def _check_agent_of_units(data: object) -> Iterator[Problem]:
    """Units whose machine is not reached as `hosts` says, or that two instances share."""
    owners = dict[tuple[str, str], str]()
    for loc, group in list_mappings(data, "groups"):
        for item_loc, instance in list_mappings(group, "instances", loc):
            name, host = f"{instance.get('name')} of group {group.get('name')}", normalize_host(str(instance.get("host")))
            for unit in sorted({*map(str, (_find_units(instance, group) or {}).values())}):
                if (owner := owners.setdefault((host, unit), name)) != name:
                    found, expected = f"{unit}, which is also that of {owner}", "a unit of its own for each instance of a machine"
                    yield Problem("F04", item_loc, found, expected, "name its own units in the instance's entry")
    hosts = _read_key(data, "hosts")
    connect = str(_read_key(hosts, "connect") or "")
    if owners and (not any(_read_key(hosts, way) for way in WAYS) or re.search(r"\{(id|properties)\}", connect)):
        expected = "a way to the agents on the machines of `units`, by {host} alone"
        fix = "add for example `ssh_conn_id: prod_ssh`, the id of an Airflow SSH connection, or `connect`"
        yield Problem("F04", ("hosts", WAYS[0]), connect or "nothing", expected, fix)
