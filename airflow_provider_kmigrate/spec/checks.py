"""Checks of a cluster file across its keys; its problems, one `Problem` a finding, and the `SpecError` that lists them all.

F00: unreadable or no YAML; F04: a key is unknown, missing or wrong; F05: something unique is there twice; F06: a secret. `advice`
uses F5x. pydantic's findings are put in the words of the fields they are about. The checks work on raw data, so that one wrong key
hides no other finding.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import permutations
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from airflow_provider_kmigrate.core.cluster import GroupSpec, NodeRole
from airflow_provider_kmigrate.core.model import Reason
from airflow_provider_kmigrate.exceptions import SpecError
from airflow_provider_kmigrate.spec.model import COMMAND_ERROR, DEFAULT_PORTS, RENAMED, ClusterFile, seconds
from airflow_provider_kmigrate.spec.model import section as section_of

Loc = tuple[str | int, ...]
Line = Callable[[Loc], int]
Item = tuple[Loc, Mapping[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One finding; `line` counts from 1, `loc` is the path of keys and list positions (from 0)."""

    code: str
    loc: Loc
    line: int
    found: str
    expected: str
    fix: str

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
    items = data.get(section) if isinstance(data, Mapping) else None
    places = enumerate(items) if isinstance(items, list) else ()
    return [((*loc, section, index), item) for index, item in places if isinstance(item, Mapping)]


def same(items: Iterable[Item], key: str, line: Line, fix: str) -> Iterator[Problem]:
    """Problems of keys whose text an earlier item has too."""
    first: dict[str, Loc] = {}
    for place, item in items:
        value = item.get(key)
        if not isinstance(value, str) or first.setdefault(value, place) == place:
            continue
        loc = (*place, key)
        yield Problem(
            code="F05",
            loc=loc,
            line=line(loc),
            found=f"{value}, which {dotted(first[value])} also has",
            expected=f"a {key} that no other has",
            fix=fix,
        )


_SSH = "use `driver: command` with commands such as `ssh {host} ...`; a driver of its own for SSH comes later"


def problems_of(error: ValidationError, line: Callable[[Loc], int]) -> list[Problem]:
    """All findings of pydantic; a list whose items are all wrong is not also called empty."""
    found = (details for details in error.errors(include_url=False) if details["type"] != "too_short" or not details["input"])
    return [_problem(details, line) for details in found]


def _problem(details: ErrorDetails, line: Callable[[Loc], int]) -> Problem:
    loc: Loc = details["loc"]
    section, field = _field(loc)
    if details["type"] == "extra_forbidden":
        return _unknown(loc, line(loc), section)
    ours: Mapping[str, Any] = details.get("ctx", {}) if details["type"] == COMMAND_ERROR else {}
    missing = details["type"] == "missing"
    return Problem(
        code="F04",
        loc=loc,
        line=line(loc),
        found=ours.get("found") or ("nothing" if missing else _found(loc, details["input"])),
        expected=ours.get("expected") or (field.description if field else None) or "a mapping",
        fix=_SSH if _is_ssh(details) else _fix("add" if missing else "write for example", loc, field),
    )


def _fix(verb: str, loc: Loc, field: FieldInfo | None) -> str:
    if field is None or not field.examples:
        return "write keys and values here" if field is None else "write text"
    pair = yaml.safe_dump({loc[-1]: field.examples[0]}, default_flow_style=True, width=1000, sort_keys=False)
    return f"{verb} `{pair.strip()[1:-1]}`"


def _found(loc: Loc, value: object) -> str:
    """The value as shown; values below `quorum.properties` and a job's `options` may be secrets and are hidden."""
    hidden = loc[:2] == ("quorum", "properties") or (loc[:1] == ("spark_jobs",) and loc[2:3] == ("options",))
    return "a value of another kind" if hidden else shown(value)


def _is_ssh(details: ErrorDetails) -> bool:
    return details["loc"][-1:] == ("driver",) and details["input"] == "ssh"


def _unknown(loc: Loc, line: int, model: type[BaseModel] | None) -> Problem:
    if new := RENAMED.get(".".join(part for part in loc if isinstance(part, str))):
        return _renamed(loc, line, new)
    known = sorted(model.model_fields) if model else []
    near = difflib.get_close_matches(str(loc[-1]), known, n=1)
    return Problem(
        code="F04",
        loc=loc,
        line=line,
        found="a key that kmigrate does not know",
        expected=f"one of {', '.join(known)}",
        fix=f"write `{near[0]}`" if near else "remove it",
    )


def _renamed(loc: Loc, line: int, new: str) -> Problem:
    found, expected = "the old name of a key", f"its name `{new}`"
    return Problem(code="F04", loc=loc, line=line, found=found, expected=expected, fix=f"rename `{loc[-1]}` to `{new}`")


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


_NEEDS = {"command": ("properties", "start", "stop", "status"), "local": ("properties", "state")}
_TOGETHER = (("read", "write"), ("write", "read"))  # one alone would mix the host's file with one of this machine
_ANY_DRIVER_NEEDS = ("driver", "properties")
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


def entries(data: object) -> list[NodeEntry]:
    """Every node of the file that is a mapping."""
    if not isinstance(data, dict):
        return []
    hosts = data.get("hosts")
    defaults = hosts if isinstance(hosts, dict) else {}
    return [
        NodeEntry((section, index), role, {"port": DEFAULT_PORTS[role], **defaults, **_given(item)})
        for section, role in _SECTIONS.items()
        for index, item in enumerate(_items(data.get(section)))
        if isinstance(item, dict)
    ]


def _items(section: object) -> list[Any]:
    return section if isinstance(section, list) else []


def _given(item: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in item.items() if value is not None}


def check(data: object, line: Line) -> Iterator[Problem]:
    """Repeated ids, addresses, files and folders; drivers without what they need; secrets."""
    nodes = entries(data)
    yield from _repeated(nodes, line, ("id",), "an id that no other node has", _id_fix)
    yield from _repeated(
        nodes, line, ("host", "port"), "an address that no other node has", lambda *_: "give each node its own port"
    )
    yield from _repeated(nodes, line, ("host", "properties"), "a file that no other node has", _path_fix)
    yield from _repeated(nodes, line, ("host", "log_dir"), "a directory that no other node has", _path_fix)
    yield from _repeated(nodes, line, ("host", "state"), "a folder that no other node has", _path_fix)
    yield from _needs(nodes, line)
    yield from _secrets(data, line)
    yield from check_groups(data, line)
    yield from _jobs(data, line)
    yield from _audit(data, line)


def _repeated(
    nodes: list[NodeEntry], line: Line, names: tuple[str, ...], expected: str, fix: Callable[[NodeEntry, NodeEntry], str]
) -> Iterator[Problem]:
    first: dict[tuple[Any, ...], NodeEntry] = {}
    for node in nodes:
        values = node.scalars(*names)
        if values is None or first.setdefault(values, node) is node:
            continue
        other = first[values]
        loc = (*node.loc, names[-1])
        yield Problem(
            code="F05",
            loc=loc,
            line=line(loc),
            found=f"{':'.join(map(str, values))}, which {dotted(other.loc)} in line {line(other.loc)} also has",
            expected=expected,
            fix=fix(node, other),
        )


def _id_fix(node: NodeEntry, other: NodeEntry) -> str:
    if node.role is not other.role:
        return "give the controller an id that no broker has, such as 3000: brokers and controllers share one id space"
    return f"write each {node.role}'s own id"


def _path_fix(node: NodeEntry, _: NodeEntry) -> str:
    return f"write {dotted(node.loc)}'s own path; nodes on one machine share nothing"


def _needs(nodes: list[NodeEntry], line: Line) -> Iterator[Problem]:
    """One problem for a key that every node misses, else one for each such node."""
    missing: dict[str, list[NodeEntry]] = {}
    for node in nodes:
        for name in _missing_keys(node):
            missing.setdefault(name, []).append(node)
    for name, those in missing.items():
        locs = [("hosts",)] if len(those) == len(nodes) > 1 else [node.loc for node in those]
        for loc in locs:
            yield _missing(loc, name, those[0].keys.get("driver"), line)


def _missing_keys(node: NodeEntry) -> list[str]:
    driver = node.keys.get("driver")
    needs = [*_NEEDS.get(driver, ())] if isinstance(driver, str) else [*_ANY_DRIVER_NEEDS]
    if driver == "command":
        needs += ["format"] if node.role is NodeRole.CONTROLLER else []
        needs += [name for name, other in _TOGETHER if other in node.keys]
    return [name for name in needs if node.keys.get(name) is None]


def _missing(loc: Loc, name: str, driver: object, line: Line) -> Problem:
    why = "every node needs it" if name in _ANY_DRIVER_NEEDS else f"the {shown(driver)} driver needs it"
    return Problem(
        code="F04",
        loc=(*loc, name),
        line=line(loc),
        found="nothing",
        expected=f"the key here or, as a default for all nodes, in `hosts`: {why}",
        fix=f"add `{name}`",
    )


def _secrets(data: object, line: Line) -> Iterator[Problem]:
    """Cluster files are read by many and logged; Kafka resolves references itself (KIP-421)."""
    for place, properties in _property_maps(data):
        for key, value in properties.items():
            if _is_secret(str(key), str(value)):
                loc = (*place, str(key))
                yield Problem(
                    code="F06",
                    loc=loc,
                    line=line(loc),
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


def _property_maps(data: object) -> Iterator[tuple[Loc, Mapping[Any, Any]]]:
    """The parts of a file with free keys and values."""
    found = data if isinstance(data, dict) else {}
    places: list[tuple[Loc, Any]] = [(("quorum", "properties"), _inner(found.get("quorum"), "properties"))]
    jobs = enumerate(_items(found.get("spark_jobs")))
    places += [(("spark_jobs", index, "options"), _inner(job, "options")) for index, job in jobs]
    yield from ((place, values) for place, values in places if isinstance(values, dict))


def _inner(section: object, key: str) -> object:
    return section.get(key) if isinstance(section, dict) else None


def _jobs(data: object, line: Line) -> Iterator[Problem]:
    """Jobs with the same name, checkpoint or hold folder, and jobs that could not be held."""
    jobs = mappings(data, "spark_jobs")
    for key in ("name", "checkpoint", "hold_folder"):
        yield from same(jobs, key, line, "list each query once, with its own checkpoint")
    for loc, job in jobs:
        if job.get("checkpoint") is None and job.get("hold") != "never":
            yield Problem(
                code="F04",
                loc=(*loc, "checkpoint"),
                line=line(loc),
                found="nothing",
                expected="the checkpoint of a job that may be held: it shows whether a batch is unfinished",
                fix="add `checkpoint`, or write `hold: never`",
            )


def _audit(data: object, line: Line) -> Iterator[Problem]:
    """An audit without sources, which would stay INCONCLUSIVE."""
    section = data.get("audit") if isinstance(data, dict) else None
    if isinstance(section, dict) and not any(
        section.get(key, key in {"probe", "topics"}) for key in ("events", "ledgers", "events_topic", "topics", "probe")
    ):
        yield Problem(
            code="F04",
            loc=("audit", "events"),
            line=line(("audit",)),
            found="nothing",
            expected="where the clients' events are (`events`, `ledgers`, `events_topic`), `topics` whose logs are compared, or the `probe`",
            fix="add `events: [/var/lib/kmigrate/events]`",
        )


_HOWS = ("switch", "webhook")
_GROUP = GroupSpec("", ())
_DEFAULTS = {"bake": _GROUP.bake, "commit_within": _GROUP.commit_within}
_TASKS = ("plan", "done")  # of the DAG itself


def check_groups(data: object, line: Line) -> Iterator[Problem]:
    """Ambiguous groups and instances, and instances without a way to restart them."""
    groups = mappings(data, "groups")
    yield from same(groups, "name", line, "list each group once")
    yield from _one_task(groups, line, "move one of them, then list the other in its place", _TASKS)
    for loc, group in groups:
        instances = mappings(group, "instances", loc)
        yield from same(instances, "name", line, "give each instance its own name")
        yield from _one_task(instances, line, "give one of them another consumer.id and client.id")
        yield from _confusable(instances, line)
        yield from _hidden(instances, group.get("name"), line)
        yield from _sees_nothing(loc, group, line)
        for place, item in [(loc, group), *instances]:
            yield from _how(place, item, line)
        for place, instance in instances:
            yield from _unswitched(place, instance, group, line)


def _sees_nothing(loc: Loc, group: Mapping[str, Any], line: Line) -> Iterator[Problem]:
    """A canary that bakes no longer than its consumers may go without a commit: it is never seen to starve. 0: no bake."""
    bake, within = (seconds(group.get(name, default)) for name, default in _DEFAULTS.items())
    if not isinstance(bake, int | float) or not isinstance(within, int | float) or not 0 < bake <= within:
        return
    loc = (*loc, next(name for name in _DEFAULTS if name in group))
    yield Problem(
        code="F04",
        loc=loc,
        line=line(loc),
        found=f"a bake of {bake:g} s beside a commit_within of {within:g} s, too short to notice a partition without progress",
        expected="a bake longer than commit_within, or 0 for none",
        fix=f"write bake: {2 * within:g}s, or the seconds between two commits of these consumers as commit_within",
    )


def _one_task(items: list[Item], line: Line, fix: str, taken: Collection[str] = ()) -> Iterator[Problem]:
    """Names whose tasks would have one id; with two of an id there is no DAG. Task ids have `_` for a dot."""
    first = {name: f"the task {name}" for name in taken}
    for place, item in items:
        name = item.get("name")
        if not isinstance(name, str):
            continue
        other = first.setdefault(name.replace(".", "_"), name)
        if other != name:
            loc = (*place, "name")
            yield Problem(
                code="F05",
                loc=loc,
                line=line(loc),
                found=f"{name}, whose tasks would have the names of those of {other}",
                expected="a name that differs from others in more than a dot for `_`",
                fix=fix,
            )


def _confusable(instances: list[Item], line: Line) -> Iterator[Problem]:
    """Names of which one begins another: `app` would be taken for `app-1`, since a member's name begins with its instance's."""
    for (place, one), (other_place, other) in permutations(instances, 2):
        name, longer = one.get("name"), other.get("name")
        if isinstance(name, str) and isinstance(longer, str) and longer.startswith(f"{name}-"):
            loc = (*place, "name")
            yield Problem(
                code="F05",
                loc=loc,
                line=line(loc),
                found=f"{name}, with which the name of {dotted(other_place)}, {longer}, begins",
                expected="a name that no other instance's members match",
                fix="give the instances consumer.id and client.id that are no prefix of another",
            )


def _hidden(instances: list[Item], group: object, line: Line) -> Iterator[Problem]:
    """Ids that fit two instances.

    `billing_app0` is the id of instance `app0` in group `billing`, and of an instance `billing_app0` that is listed by the whole
    id.
    """
    prefix = f"{group}_"
    for (_, one), (place, other) in permutations(instances, 2):
        name, longer = one.get("name"), other.get("name")
        if not isinstance(name, str) or not isinstance(longer, str) or not longer.startswith(prefix):
            continue
        if f"{longer.removeprefix(prefix)}-".startswith(f"{name}-"):
            loc = (*place, "name")
            yield Problem(
                code="F05",
                loc=loc,
                line=line(loc),
                found=f"{longer}, which is also the consumer id of a member of {name} in group {group}",
                expected="a name that no other instance's members match",
                fix="give one of them another consumer.id and client.id",
            )


def _how(place: Loc, item: Mapping[str, Any], line: Line) -> Iterator[Problem]:
    if all(item.get(how) for how in _HOWS):
        loc = (*place, "webhook")
        found, expected = "a webhook beside a command", "one of `switch` and `webhook`"
        yield Problem(code="F05", loc=loc, line=line(loc), found=found, expected=expected, fix="remove one")
    command = item.get("switch")
    words = " ".join(map(str, command)) if isinstance(command, list) else str(command or "")
    if words and "{kind}" not in words:
        loc = (*place, "switch")
        found, expected = "a command without {kind}", "a command with {kind}, the kind to restart the instance as"
        yield Problem(code="F04", loc=loc, line=line(loc), found=found, expected=expected, fix="write {kind} where it takes it")


def _unswitched(place: Loc, instance: Mapping[str, Any], group: Mapping[str, Any], line: Line) -> Iterator[Problem]:
    if not any(item.get(how) for item in (instance, group) for how in _HOWS):
        yield Problem(
            code="F04",
            loc=(*place, "switch"),
            line=line(place),
            found="nothing",
            expected="how to restart the instance, here or at the group",
            fix="add `switch: ssh {host} sudo billing-as {kind}`, or `webhook` with the id of an HTTP connection",
        )
