"""Checks of a cluster file across its keys; its problems, one `Problem` a finding, and the `SpecError` that lists them all.

F00: unreadable or no YAML; F04: a key is unknown, missing or wrong, or something unique is there twice; F06: a secret.
pydantic's findings are put in the words of the fields they are about. The checks work on raw data, so that one wrong key hides no
other finding.
"""

from __future__ import annotations

import difflib
import posixpath
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import permutations
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from airflow_provider_kmigrate.core.cluster import GroupSpec, NodeRole, machine
from airflow_provider_kmigrate.core.files.config_matrix import MATRIX, FileStage, may_be_added
from airflow_provider_kmigrate.core.model import Reason
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
    seconds,
    with_defaults,
)
from airflow_provider_kmigrate.spec.model import section as section_of

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

    def reason(self, path: str) -> Reason:
        """The same as a value for logs and the UI."""
        return Reason(self.code, f"{self._said(path)}.")

    def text(self, path: str) -> str:
        """One line that editors can follow."""
        return f"{self._said(path)}. [{self.code}]"

    def _said(self, path: str) -> str:
        where = f"{path}:{self.line}: {dotted(self.loc)}" if self.loc else f"{path}:{self.line}"
        return f"{where}: found {self.found}; expected {self.expected}. Fix: {self.fix}"


def spec_error(path: str, problems: Iterable[Problem]) -> SpecError:
    """All problems in the order of the file, each once."""
    ordered = sorted(set(problems), key=lambda problem: (problem.line, dotted(problem.loc), problem.found))
    title = f"{path}: 1 problem" if len(ordered) == 1 else f"{path}: {len(ordered)} problems"
    lines = (title, *(problem.text(path) for problem in ordered))
    return SpecError("\n  ".join(lines), (problem.reason(path) for problem in ordered))


def dotted(loc: Loc) -> str:
    """A location as text: `brokers[1].port`."""
    text = ""
    for part in loc:
        text += f"[{part}]" if isinstance(part, int) else f".{part}"
    return text.removeprefix(".")


def shown(value: object) -> str:
    """A value as the message shows it: scalars shortened, everything else by its kind only."""
    if value is None:
        return "nothing"
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list | tuple):
        return "a list" if value else "an empty list"
    if isinstance(value, bool):
        return str(value).lower()
    text = repr(value) if isinstance(value, str) else str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def mappings(data: object, section: str, loc: Loc = ()) -> list[Item]:
    """The items of a list of `data` that are mappings, each with its location."""
    items = _under(data, section)
    places = enumerate(items) if isinstance(items, list) else ()
    return [((*loc, section, index), item) for index, item in places if isinstance(item, dict)]


def _under(section: object, key: str) -> Any:
    """What a section has under a key; None if it is no mapping."""
    return section.get(key) if isinstance(section, dict) else None


def _repeats(values: Iterable[tuple[T, object]]) -> Iterator[tuple[T, T, Any]]:
    """Each owner of a value that an earlier one has too, with that one and the value."""
    first: dict[object, T] = {}
    for owner, value in values:
        if (other := first.setdefault(value, owner)) is not owner:
            yield owner, other, value


def _same(items: Iterable[Item], key: str, fix: str) -> Iterator[Problem]:
    """Problems of keys whose text an earlier item has too."""
    given = ((place, item[key]) for place, item in items if isinstance(item.get(key), str))
    for place, other, value in _repeats(given):
        found = f"{value}, which {dotted(other)} also has"
        yield Problem("F04", (*place, key), found, expected=f"a {key} that no other has", fix=fix)


_AGENT_SECTION = f'hosts: {{driver: agent, connect: "{CONNECT}", properties: /etc/kafka/server.properties}}'
_USE_AGENT = f"write `{_AGENT_SECTION}` instead of all commands, and install kmigrate-node on each machine (operator's guide)"


def problems_of(error: ValidationError) -> list[Problem]:
    """All findings of pydantic; a list whose items are all wrong is not also called empty."""
    found = error.errors(include_url=False)
    return [_problem(details) for details in found if details["type"] != "too_short" or not details["input"]]


def _problem(details: ErrorDetails) -> Problem:
    loc: Loc = details["loc"]
    section, field = _field(loc)
    if details["type"] == "extra_forbidden":
        return _unknown(loc, section)
    ours: Mapping[str, Any] = details.get("ctx", {}) if details["type"] == COMMAND_ERROR else {}
    missing = details["type"] == "missing"
    is_old = loc[-1:] == ("driver",) and details["input"] in ("command", "ssh", "local")
    return Problem(
        "F04",
        loc,
        found=ours.get("found") or ("nothing" if missing else _found(loc, details["input"])),
        expected=ours.get("expected") or (field.description if field else None) or "a mapping",
        fix=_USE_AGENT if is_old else _fix("add" if missing else "write for example", loc, field),
    )


def _fix(verb: str, loc: Loc, field: FieldInfo | None) -> str:
    if field is None or not field.examples:
        return "write keys and values here" if field is None else "write text"
    pair = yaml.safe_dump({loc[-1]: field.examples[0]}, default_flow_style=True, width=1000, sort_keys=False)
    return f"{verb} `{pair.strip()[1:-1]}`"


_FREE = ((("spark_jobs",), ("options",)), (("notify",), ("arguments",)))


def _found(loc: Loc, value: object) -> str:
    """The value as shown; values below `quorum.properties`, a job's `options` and a notifier's `arguments` may be secrets and are hidden."""
    hidden = loc[:2] == ("quorum", "properties") or (loc[:1], loc[2:3]) in _FREE
    return "a value of another kind" if hidden else shown(value)


def _unknown(loc: Loc, model: type[BaseModel] | None) -> Problem:
    if new := RENAMED.get(".".join(part for part in loc if isinstance(part, str))):
        return Problem("F04", loc, "the old name of a key", expected=f"its name `{new}`", fix=f"rename `{loc[-1]}` to `{new}`")
    if loc[-1] in REMOVED_HOST_KEYS and model and issubclass(model, Hosts):
        return Problem("F04", loc, "a key of a removed driver", expected="driver agent", fix=_USE_AGENT)
    known = sorted(model.model_fields) if model else []
    near = difflib.get_close_matches(str(loc[-1]), known, n=1)
    fix = f"write `{near[0]}`" if near else "remove it"
    return Problem("F04", loc, "a key that kmigrate does not know", expected=f"one of {', '.join(known)}", fix=fix)


def _field(loc: Loc) -> tuple[type[BaseModel] | None, FieldInfo | None]:
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

    def scalars(self, *names: str) -> tuple[Any, ...] | None:
        """The values of these keys, or None if one is missing or no scalar, which another check reports."""
        values = tuple(self.keys.get(name) for name in names)
        usable = all(isinstance(value, str | int) and not isinstance(value, bool) for value in values)
        return values if usable else None

    def agent(self) -> tuple[NodeRole, str] | None:
        """The role and what leads to one agent: the filled words of `connect`, or an SSH connection and a machine; None if unusable."""
        words, values = self.keys.get("connect"), self.scalars("id", "host", "properties")
        if (ssh := self.keys.get("ssh_conn_id")) and not words and values is not None and _driver(self) == DEFAULT_DRIVER:
            return self.role, f"{ssh} {machine(str(values[1]))}"
        text = " ".join(map(str, words)) if isinstance(words, list) else words
        if not (text and isinstance(text, str)) or values is None or _driver(self) != DEFAULT_DRIVER:
            return None
        number, host, properties = map(str, values)
        places = {"id": number, "host": machine(host), "properties": properties}
        known = set(PLACEHOLDER.findall(text)) <= places.keys()
        return (self.role, PLACEHOLDER.sub(lambda place: places[place[1]], text)) if known else None


def entries(data: object) -> list[NodeEntry]:
    """Every node of the file that is a mapping."""
    hosts = _under(data, "hosts")
    defaults = hosts if isinstance(hosts, dict) else {}
    return [
        NodeEntry(loc, role, {"port": DEFAULT_PORTS[role], **with_defaults(defaults, _given(item))})
        for section, role in _SECTIONS.items()
        for loc, item in mappings(data, section)
    ]


def _given(item: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in item.items() if value is not None}


def check(data: object, line: Line) -> Iterator[Problem]:
    """Repeated ids, addresses, files and folders; drivers without what they need; secrets. `line`: of a location in the file."""
    nodes = entries(data)
    for names, what, fix in _UNIQUE:
        yield from _repeated(nodes, line, names, what, fix)
    yield from _one_agent(nodes, line)
    yield from _needs(nodes)
    yield from _one_way(data)
    yield from _each_gone(data)
    yield from _secrets(data)
    yield from _quorum(data)
    yield from _groups(data)
    yield from _jobs(data)
    yield from _audit(data)
    yield from _approvers(data)


def _repeated(
    nodes: list[NodeEntry], line: Line, names: tuple[str, ...], what: str, fix: Callable[[NodeEntry, NodeEntry], str]
) -> Iterator[Problem]:
    given = ((node, values) for node in nodes if (values := node.scalars(*names)) is not None)
    for node, other, values in _repeats((node, _folded(names, values)) for node, values in given):
        found = f"{':'.join(map(str, values))}, which {dotted(other.loc)} in line {line(other.loc)} also has"
        yield Problem("F04", (*node.loc, names[-1]), found, expected=f"{what} that no other node has", fix=fix(node, other))


def _folded(names: tuple[str, ...], values: tuple[Any, ...]) -> tuple[Any, ...]:
    """The values with hosts as machines, and paths without what does not change them."""
    folds = {"host": machine} | dict.fromkeys(("properties", "log_dir"), posixpath.normpath)
    return tuple(folds[name](str(value)) if name in folds else value for name, value in zip(names, values, strict=True))


def _one_agent(nodes: list[NodeEntry], line: Line) -> Iterator[Problem]:
    """An agent has one unit, file and directory for each role: two nodes of a role behind it would be one."""
    given = ((node, agent) for node in nodes if (agent := node.agent()) is not None)
    for node, other, (role, _) in _repeats(given):
        if _file(node) == _file(other):
            continue  # found already
        found = f"the agent of {dotted(other.loc)} in line {line(other.loc)}, whose role {role} is one node"
        way = "connect" if node.keys.get("connect") else "ssh_conn_id"
        fix = f"put {dotted(node.loc)} on a machine of its own, or give it a {way} that leads to an agent of its own"
        yield Problem("F04", (*node.loc, way), found, expected=f"an agent that has no other {role}", fix=fix)


def _file(node: NodeEntry) -> tuple[Any, ...]:
    return _folded(("host", "properties"), node.scalars("host", "properties") or ("", ""))


def _id_fix(node: NodeEntry, other: NodeEntry) -> str:
    if node.role is not other.role:
        return "give the controller an id that no broker has, such as 3000: brokers and controllers share one id space"
    return f"write each {node.role}'s own id"


def _port_fix(_: NodeEntry, __: NodeEntry) -> str:
    return "give each node its own port"


def _path_fix(node: NodeEntry, _: NodeEntry) -> str:
    return f"write {dotted(node.loc)}'s own path; nodes on one machine share nothing"


_UNIQUE: tuple[tuple[tuple[str, ...], str, Callable[[NodeEntry, NodeEntry], str]], ...] = (
    (("id",), "an id", _id_fix),
    (("host", "port"), "an address", _port_fix),
    (("host", "properties"), "a file", _path_fix),
    (("host", "log_dir"), "a directory", _path_fix),
)


_NEEDS = (
    (("properties",), "every node needs it", "add `properties`"),
    (WAYS, "the driver agent needs it", "add `ssh_conn_id` with the id of an Airflow SSH connection, or `connect`"),
)
"""What a node with an agent needs: the keys of which it must have one, why, and the fix."""


def _needs(nodes: list[NodeEntry]) -> Iterator[Problem]:
    """One problem for a key that every node misses, else one for each such node."""
    for names, why, fix in _NEEDS:
        those = [node for node in nodes if _driver(node) == DEFAULT_DRIVER and all(node.keys.get(name) is None for name in names)]
        for loc in [("hosts",)] if len(those) == len(nodes) > 1 else [node.loc for node in those]:
            expected = f"the key here or, as a default for all nodes, in `hosts`: {why}"
            yield Problem("F04", (*loc, names[0]), "nothing", expected, fix)


def _driver(node: NodeEntry) -> object:
    return node.keys.get("driver") or DEFAULT_DRIVER


def _one_way(data: object) -> Iterator[Problem]:
    """A command, or its environment, beside an SSH connection in one place: which of them counts?"""
    hosts = _under(data, "hosts")
    given: list[Item] = [(("hosts",), hosts)] if isinstance(hosts, dict) else []
    for loc, keys in [*given, *(item for section in _SECTIONS for item in mappings(data, section))]:
        for other in ("connect", "conn_id"):
            if keys.get("ssh_conn_id") and keys.get(other):
                found, expected = f"`{other}` beside `ssh_conn_id`", "one way to the agent"
                yield Problem("F04", (*loc, other), found, expected, fix="remove one of the two")


def _each_gone(data: object) -> Iterator[Problem]:
    """`driver: gone` for all nodes: each of them would count as stopped while it runs."""
    hosts = _under(data, "hosts")
    if isinstance(hosts, dict) and hosts.get("driver") == "gone":
        fix = "write it into the entry of each node whose machine is dead for good"
        yield Problem("F04", ("hosts", "driver"), "gone, for every node", expected="agent", fix=fix)


def _secrets(data: object) -> Iterator[Problem]:
    """Cluster files are read by many and logged; Kafka resolves references itself (KIP-421)."""
    for place, properties in _property_maps(data):
        for key, value in properties.items():
            if _is_secret(str(key), str(value)):
                yield Problem(
                    "F06",
                    (*place, str(key)),
                    found="a secret",
                    expected="a reference that Kafka resolves on the host (config.providers, KIP-421)",
                    fix=f"write `{key}: ${{file:/path/on/the/host:key}}`" if place[0] == "quorum" else "remove it",
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
_KNOWN = [key for key in MATRIX if key.islower() and "*" not in key]
_NEARLY = 0.93  # of 1: one letter of ten


def _quorum(data: object) -> Iterator[Problem]:
    """Keys of `quorum.properties` that rendering ignores, and keys with a typo."""
    properties = _under(_under(data, "quorum"), "properties")
    for key in map(str, properties if isinstance(properties, dict) else ()):
        loc = ("quorum", "properties", key)
        near = [] if key in MATRIX else difflib.get_close_matches(key, _KNOWN, 1, _NEARLY)
        if not any(may_be_added(key, stage) for stage in _CONTROLLERS) and key not in _PLACES:
            found = "a key that kmigrate sets itself, or that no controller may have: it would be ignored"
            yield Problem("F04", loc, found, expected="what controllers need beside the brokers' keys", fix="remove it")
        elif near:
            yield Problem(
                "F04", loc, "a key that Kafka does not know", expected=f"its name `{near[0]}`", fix=f"write `{near[0]}`"
            )


def _property_maps(data: object) -> Iterator[tuple[Loc, Mapping[Any, Any]]]:
    """The parts of a file with free keys and values."""
    places: list[tuple[Loc, Any]] = [(("quorum", "properties"), _under(_under(data, "quorum"), "properties"))]
    places += [((*loc, "options"), job.get("options")) for loc, job in mappings(data, "spark_jobs")]
    places += [((*loc, "arguments"), notifier.get("arguments")) for loc, notifier in mappings(data, "notify")]
    yield from ((place, values) for place, values in places if isinstance(values, dict))


def _jobs(data: object) -> Iterator[Problem]:
    """Jobs with the same name, checkpoint or hold folder, and jobs that could not be held."""
    jobs = mappings(data, "spark_jobs")
    for key in ("name", "checkpoint", "hold_folder"):
        yield from _same(jobs, key, "list each query once, with its own checkpoint")
    for loc, job in jobs:
        if job.get("checkpoint") is None and job.get("hold") != "never":
            yield Problem(
                "F04",
                (*loc, "checkpoint"),
                found="nothing",
                expected="the checkpoint of a job that may be held: it shows whether a batch is unfinished",
                fix="add `checkpoint`, or write `hold: never`",
            )


def _audit(data: object) -> Iterator[Problem]:
    """An audit without sources, which would stay INCONCLUSIVE."""
    section = _under(data, "audit")
    sources = ("events", "ledgers", "events_topic", "topics", "probe", "offsets_history")
    if isinstance(section, dict) and not any(section.get(key, key in {"probe", "topics"}) for key in sources):
        yield Problem(
            "F04",
            ("audit", "events"),
            found="nothing",
            expected="where the clients' events are (`events`, `ledgers`, `events_topic`), `topics` whose logs are compared, the `probe`, or `offsets_history`",
            fix="add `events: [/var/lib/kmigrate/events]`",
        )


def _approvers(data: object) -> Iterator[Problem]:
    """More required approvers than different users: no finalization could be approved."""
    users, required = (_under(_under(data, "approvers"), key) for key in ("users", "required"))
    if isinstance(users, list) and isinstance(required, int) and required > len(found := set(map(str, users))) > 0:
        seen, expected = f"{required}, with {len(found)} different user", "at most as many as there are different users"
        yield Problem("F04", ("approvers", "required"), seen, expected, fix="add a user, or write `required: 1`")


_HOWS = ("switch", "webhook")
_GROUP = GroupSpec("", ())
_DEFAULTS = {"bake": _GROUP.bake, "commit_within": _GROUP.commit_within}
_TASKS = ("plan", "done")  # of the DAG itself


def _groups(data: object) -> Iterator[Problem]:
    """Ambiguous groups and instances, and instances without a way to restart them."""
    groups = mappings(data, "groups")
    yield from _same(groups, "name", "list each group once")
    yield from _one_task(groups, "move one of them, then list the other in its place", _TASKS)
    for loc, group in groups:
        instances = mappings(group, "instances", loc)
        yield from _same(instances, "name", "give each instance its own name")
        yield from _one_task(instances, "give one of them another consumer.id and client.id")
        yield from _confusable(instances, group.get("name"))
        yield from _sees_nothing(loc, group)
        for place, item in [(loc, group), *instances]:
            yield from _how(place, item)
        for place, instance in instances:
            yield from _unswitched(place, instance, group)


def _sees_nothing(loc: Loc, group: Mapping[str, Any]) -> Iterator[Problem]:
    """A bake that is no longer than `commit_within`: it ends before starvation could be observed. 0: no bake."""
    bake, within = (seconds(group.get(name, default)) for name, default in _DEFAULTS.items())
    if isinstance(bake, int | float) and isinstance(within, int | float) and 0 < bake <= within:
        yield Problem(
            "F04",
            (*loc, next(name for name in _DEFAULTS if name in group)),
            found=f"a bake of {bake:g} s beside a commit_within of {within:g} s, too short to notice a partition without progress",
            expected="a bake longer than commit_within, or 0 for none",
            fix=f"write bake: {2 * within:g}s, or the seconds between two commits of these consumers as commit_within",
        )


def _one_task(items: list[Item], fix: str, taken: Collection[str] = ()) -> Iterator[Problem]:
    """Names whose tasks would have one id; with two of an id there is no DAG. Task ids have `_` for a dot."""
    first = {name: f"the task {name}" for name in taken}
    for place, name in _names(items):
        other = first.setdefault(name.replace(".", "_"), name)
        if other != name:
            found = f"{name}, whose tasks would have the names of those of {other}"
            yield Problem("F04", place, found, expected="a name that differs from others in more than a dot for `_`", fix=fix)


def _names(items: list[Item]) -> list[tuple[Loc, str]]:
    return [((*place, "name"), name) for place, item in items if isinstance(name := item.get("name"), str)]


def _confusable(instances: list[Item], group: object) -> Iterator[Problem]:
    """Names of which one begins another: `app` would be taken for `app-1`, since a member's name begins with its instance's.

    And ids that fit two instances: `billing_app0` is the id of instance `app0` in group `billing`, and of an instance
    `billing_app0` that is listed by the whole id.
    """
    prefix, expected = f"{group}_", "a name that no other instance's members match"
    for (place, name), (other, longer) in permutations(_names(instances), 2):
        if longer.startswith(f"{name}-"):
            found = f"{name}, with which the name of {dotted(other[:-1])}, {longer}, begins"
            yield Problem(
                "F04", place, found, expected, "give the instances consumer.id and client.id that are no prefix of another"
            )
        if longer.startswith(prefix) and f"{longer.removeprefix(prefix)}-".startswith(f"{name}-"):
            found = f"{longer}, which is also the consumer id of a member of {name} in group {group}"
            yield Problem("F04", other, found, expected, "give one of them another consumer.id and client.id")


def _how(place: Loc, item: Mapping[str, Any]) -> Iterator[Problem]:
    if all(item.get(how) for how in _HOWS):
        found, expected = "a webhook beside a command", "one of `switch` and `webhook`"
        yield Problem("F04", (*place, "webhook"), found, expected, fix="remove one")
    command = item.get("switch")
    words = " ".join(map(str, command)) if isinstance(command, list) else str(command or "")
    if words and "{kind}" not in words:
        found, expected = "a command without {kind}", "a command with {kind}, the kind to restart the instance as"
        yield Problem("F04", (*place, "switch"), found, expected, fix="write {kind} where the command expects it")


def _unswitched(place: Loc, instance: Mapping[str, Any], group: Mapping[str, Any]) -> Iterator[Problem]:
    if not any(item.get(how) for item in (instance, group) for how in _HOWS):
        expected = "how to restart the instance, here or at the group"
        fix = "add `switch: ssh {host} sudo billing-as {kind}`, or `webhook` with the id of an HTTP connection"
        yield Problem("F04", (*place, "switch"), "nothing", expected, fix)
