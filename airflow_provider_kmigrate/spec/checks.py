"""What one key of a cluster file says about another; works on raw data, so that one wrong key hides no other finding."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from airflow_provider_kmigrate.core.cluster import Role
from airflow_provider_kmigrate.spec import group_checks
from airflow_provider_kmigrate.spec.model import DEFAULT_PORTS
from airflow_provider_kmigrate.spec.problems import Line, Loc, Problem, dotted, mappings, same, shown

_NEEDS = {"command": ("properties", "start", "stop", "status"), "local": ("properties", "state")}
_TOGETHER = (("read", "write"), ("write", "read"))  # one alone would mix the host's file with one of this machine
_ANY_DRIVER_NEEDS = ("driver", "properties")
_SECRET_KEY = re.compile(r"password|jaas|secret|\.key$|\.pem$|token", re.IGNORECASE)
#: What stands beside a secret, not one itself: sasl.oauthbearer.token.endpoint.url, delegation.token.max.lifetime.ms, password.encoder.iterations.
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
_SECTIONS = {"brokers": Role.BROKER, "controllers": Role.CONTROLLER}


@dataclass(frozen=True, slots=True)
class Entry:
    """One item of `brokers` or `controllers` with the defaults of `hosts` below its own keys."""

    loc: Loc
    role: Role
    keys: Mapping[str, Any]

    def scalars(self, *names: str) -> tuple[Any, ...] | None:
        """The values of these keys, or None where one is missing or no scalar: another check's business."""
        values = tuple(self.keys.get(name) for name in names)
        usable = all(isinstance(value, str | int) and not isinstance(value, bool) for value in values)
        return values if usable else None


def entries(data: object) -> list[Entry]:
    """Every node of the file that is a mapping at all."""
    if not isinstance(data, dict):
        return []
    hosts = data.get("hosts")
    defaults = hosts if isinstance(hosts, dict) else {}
    return [
        Entry((section, index), role, {"port": DEFAULT_PORTS[role], **defaults, **_given(item)})
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
    yield from group_checks.check_groups(data, line)
    yield from _jobs(data, line)
    yield from _audit(data, line)


def _repeated(
    nodes: list[Entry], line: Line, names: tuple[str, ...], expected: str, fix: Callable[[Entry, Entry], str]
) -> Iterator[Problem]:
    first: dict[tuple[Any, ...], Entry] = {}
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
            found=f"{':'.join(map(str, values))}, which {dotted(other.loc)} in line {line(other.loc)} has too",
            expected=expected,
            fix=fix(node, other),
        )


def _id_fix(node: Entry, other: Entry) -> str:
    if node.role is not other.role:
        return "give the controller an id that no broker has, such as 3000: brokers and controllers share one id space"
    return f"write each {node.role}'s own id"


def _path_fix(node: Entry, _: Entry) -> str:
    return f"write {dotted(node.loc)}'s own path; nodes of one machine share nothing"


def _needs(nodes: list[Entry], line: Line) -> Iterator[Problem]:
    """One problem for a key that every node lacks, else one for each node that lacks it."""
    lacking: dict[str, list[Entry]] = {}
    for node in nodes:
        for name in _lacks(node):
            lacking.setdefault(name, []).append(node)
    for name, those in lacking.items():
        locs = [("hosts",)] if len(those) == len(nodes) > 1 else [node.loc for node in those]
        for loc in locs:
            yield _missing(loc, name, those[0].keys.get("driver"), line)


def _lacks(node: Entry) -> list[str]:
    driver = node.keys.get("driver")
    needs = [*_NEEDS.get(driver, ())] if isinstance(driver, str) else [*_ANY_DRIVER_NEEDS]
    if driver == "command":
        needs += ["format"] if node.role is Role.CONTROLLER else []
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
            if _is_told(str(key), str(value)):
                loc = (*place, str(key))
                yield Problem(
                    code="F06",
                    loc=loc,
                    line=line(loc),
                    found="a secret",
                    expected="a reference that Kafka resolves on the host (config.providers, KIP-421)",
                    fix=f"write `{key}: ${{file:/path/on/the/host:key}}`" if place[0] == "quorum" else "remove it",
                )


def _is_told(key: str, value: str) -> bool:
    """Whether a key holds a secret that is written out; of a login only what its options keep secret counts."""
    if not _SECRET_KEY.search(key) or _NO_SECRET.search(key) or value.startswith("${"):
        return False
    if not (_LOGIN.search(key) and "=" in value):
        return True
    options = ("".join(match) for match in _SECRET_OPTION.findall(value))
    return any(not _REFERENCE.fullmatch(option) and not _SWITCH.fullmatch(option) for option in options)


def _property_maps(data: object) -> Iterator[tuple[Loc, Mapping[Any, Any]]]:
    """Where a file holds free keys and values."""
    found = data if isinstance(data, dict) else {}
    places: list[tuple[Loc, Any]] = [(("quorum", "properties"), _inner(found.get("quorum"), "properties"))]
    jobs = enumerate(_items(found.get("spark_jobs")))
    places += [(("spark_jobs", index, "options"), _inner(job, "options")) for index, job in jobs]
    yield from ((place, values) for place, values in places if isinstance(values, dict))


def _inner(section: object, key: str) -> object:
    return section.get(key) if isinstance(section, dict) else None


def _jobs(data: object, line: Line) -> Iterator[Problem]:
    """Jobs that cannot be told apart, and jobs that could not be held."""
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
                expected="the checkpoint of a job that may be held: it says whether anything is half done",
                fix="add `checkpoint`, or write `hold: never`",
            )


def _audit(data: object, line: Line) -> Iterator[Problem]:
    """An audit of nothing would be INCONCLUSIVE for ever."""
    section = data.get("audit") if isinstance(data, dict) else None
    if isinstance(section, dict) and not any(
        section.get(key, key in {"probe", "topics"}) for key in ("events", "ledgers", "events_topic", "topics", "probe")
    ):
        yield Problem(
            code="F04",
            loc=("audit", "events"),
            line=line(("audit",)),
            found="nothing",
            expected="where the events of clients lie (`events`, `ledgers`, `events_topic`), `topics` whose logs are compared, or the `probe`",
            fix="add `events: [/var/lib/kmigrate/events]`",
        )
