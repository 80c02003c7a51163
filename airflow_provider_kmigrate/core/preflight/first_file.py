"""The first cluster file of a cluster, from what its ZooKeeper, its brokers and its agents report.

What no machine can know is a mark: a value that begins with `FILL_IN`. A file with marks is no cluster file yet: `spec.load` refuses it and names each.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from airflow_provider_kmigrate.core.cluster_state.znode_formats import BROKER, require_known_version
from airflow_provider_kmigrate.core.shared.foreign_json import read_json
from airflow_provider_kmigrate.core.shared.text import printable

MARK: Final = "FILL_IN"
_CONTROLLERS: Final = 3
_FIRST_CONTROLLER: Final = 3000
_CONTROLLER_PORT: Final = 9093
_PLAIN: Final = re.compile(r"[A-Za-z0-9_./][A-Za-z0-9_./-]*")
_RELEASE: Final = re.compile(r"[0-9]{1,3}\.[0-9]{1,3}\.[0-9]{1,3}")
_WORDS: Final = frozenset({"null", "true", "false", "yes", "no", "on", "off"})


@dataclass(frozen=True, slots=True)
class FirstBroker:
    """One broker as ZooKeeper has it. `port`: of the listener by which it was reached; None: not known, as are all fields that are None.

    `release`: the release line that it reports, such as 3.9; `software`: the full release that runs and is on the disk, as the agent on its
    machine reports it, such as 3.9.2; `properties`: the file that the agent names.
    `log_dirs`: what it reports, or None. `doubts`: why something is not known, whole sentences.
    """

    id: int
    host: str
    port: int | None
    rack: str | None = None
    release: str | None = None
    log_dirs: tuple[str, ...] | None = None
    properties: str | None = None
    software: str | None = None
    doubts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class FirstFacts:
    """What a file is made of. `ssh_conn_id`: empty if the operator named none."""

    name: str
    cluster_id: str
    zookeeper_conn_id: str
    kafka_conn_id: str
    brokers: Sequence[FirstBroker]
    ssh_conn_id: str = ""


def parse_registration(data: bytes) -> Mapping[str, object]:
    """A broker's znode as JSON values; empty if it is no JSON object, or of a version that is not known here."""
    try:
        registration = read_json(data)
        require_known_version(BROKER, registration)
    except (ValueError, TypeError, AttributeError):
        return {}
    return registration if isinstance(registration, dict) else {}


def parse_endpoints(registration: Mapping[str, object]) -> dict[int, str]:
    """Port -> host of the listeners in a broker's znode (`/brokers/ids/<id>`); a listener that is no address is left out."""
    endpoints = registration.get("endpoints")
    addresses = [str(endpoint).partition("://")[2] for endpoint in endpoints] if isinstance(endpoints, list) else []
    split = [address.rpartition(":") for address in addresses]
    return {int(port): host.strip("[]") for host, _, port in split if host and port.isascii() and port.isdigit()}


def choose_endpoint(registration: Mapping[str, object], used_ports: Sequence[int]) -> tuple[str, int | None]:
    """Host and port by which clients reach a broker. `used_ports`: those of the Kafka connection, the likeliest first.

    The port is None if no listener has one of these ports and there are several: any of them could be internal. The host is empty if the
    znode names no listener at all.
    """
    endpoints = parse_endpoints(registration)
    for port in used_ports:
        if port in endpoints:
            return endpoints[port], port
    if len(endpoints) == 1:
        [(port, host)] = endpoints.items()
        return host, port
    return next(iter(endpoints.values()), ""), None


def render_first_file(facts: FirstFacts) -> str:
    """The file as YAML, with comments on what was read and what is marked."""
    lines = [
        "# Written by `kmigrate init` from what the cluster reported. Replace each FILL_IN; `kmigrate check` names those that are left.",
        f"name: {_scalar(facts.name, text=True)}",
        f"cluster_id: {_scalar(facts.cluster_id, text=True)}",
        f"zookeeper: {{conn_id: {_scalar(facts.zookeeper_conn_id)}}}",
        f"kafka: {{conn_id: {_scalar(facts.kafka_conn_id)}}}",
        "hosts:",
        "  driver: agent",
        f"  properties: {_scalar(_find_common_properties(facts.brokers) or f'/{MARK}_path_of_server.properties')}",
        f"  ssh_conn_id: {_scalar(facts.ssh_conn_id or f'{MARK}_ssh_connection')}",
        "brokers:",
        *(
            _render_broker(broker, _find_common_properties(facts.brokers))
            for broker in sorted(facts.brokers, key=lambda broker: broker.id)
        ),
        "# Three controllers on machines of their own survive the loss of one. Their directory must not be one of a broker.",
        "controllers:",
        *(_render_controller(number) for number in _choose_controller_ids(facts.brokers)),
        f"kafka_release: {_scalar(_choose_release(facts.brokers))}",
    ]
    return "\n".join(lines) + "\n"


def _render_broker(broker: FirstBroker, common: str | None) -> str:
    fields = {
        "id": str(broker.id),
        "host": _scalar(broker.host or f"{MARK}_host"),
        "port": str(broker.port) if broker.port is not None else f"{MARK}_port",
    }
    if broker.rack is not None:
        fields["rack"] = _scalar(broker.rack, text=True)
    if broker.properties and broker.properties != common:
        fields["properties"] = _scalar(broker.properties)
    comments = [f"    # {printable(doubt)}" for doubt in broker.doubts]
    if broker.log_dirs:
        comments.append(f"    # its log.dirs: {printable(', '.join(broker.log_dirs))}")
    item = f"  - {{{', '.join(f'{name}: {value}' for name, value in fields.items())}}}"
    return "\n".join((item, *comments))


def _render_controller(number: int) -> str:
    host = f"{MARK}_host_of_controller_{number}"
    return f"  - {{id: {number}, host: {host}, port: {_CONTROLLER_PORT}, log_dir: /{MARK}_log_dir_of_controller_{number}}}"


def _choose_controller_ids(brokers: Sequence[FirstBroker]) -> list[int]:
    """Three ids that no broker has: brokers and controllers share one range."""
    taken = {broker.id for broker in brokers}
    first = _FIRST_CONTROLLER
    while taken.intersection(range(first, first + _CONTROLLERS)):
        first += 1000
    return list(range(first, first + _CONTROLLERS))


def _choose_release(brokers: Sequence[FirstBroker]) -> str:
    """The full release if every agent reports the same one, of the line that the brokers report. Else a mark with that line.

    Brokers report 3.9 of 3.9.2, and the difference decides what is blocked.
    """
    lines, releases = {broker.release for broker in brokers}, {broker.software for broker in brokers}
    [line] = lines if len(lines) == 1 else [None]
    [release] = releases if len(releases) == 1 else [None]
    if line and release and _RELEASE.fullmatch(release) and release.startswith(f"{line}."):
        return release
    return f"{MARK}_release_of_the_line_{line}" if line else f"{MARK}_release"


def _find_common_properties(brokers: Sequence[FirstBroker]) -> str | None:
    """The properties file of most brokers; None if no agent reported one."""
    paths = [broker.properties for broker in brokers if broker.properties]
    return max(sorted(set(paths)), key=paths.count) if paths else None


def _scalar(value: str, *, text: bool = False) -> str:
    """A value as YAML; quoted unless it is a plain word. `text`: what could be a number is quoted, too. Names of others forge no key."""
    may_be_number = not value[:1].isalpha()
    is_plain = _PLAIN.fullmatch(value) and value.lower() not in _WORDS and not (text and may_be_number)
    return value if is_plain else json.dumps(value)


def is_mark(value: object) -> bool:
    """Whether a value of a cluster file waits for the operator."""
    return isinstance(value, str) and value.lstrip("/").startswith(MARK)


MARKED_VALUES: Final = {
    "host": "the host name of the node's machine",
    "port": "the port of the listener that clients use",
    "log_dir": "an absolute path that no broker uses",
    "properties": "the absolute path of the brokers' server.properties",
    "ssh_conn_id": "the id of an Airflow SSH connection, or `connect` instead",
    "kafka_release": "the full release of the brokers' software, such as 3.9.2",
}
"""What belongs in the place of each mark, by its key."""


def find_marks(data: object, location: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """The place of each mark in a file's data, in its order."""
    if isinstance(data, Mapping):
        for name, value in data.items():
            yield from find_marks(value, (*location, name))
    elif isinstance(data, list):
        for number, value in enumerate(data):
            yield from find_marks(value, (*location, number))
    elif is_mark(data):
        yield location
