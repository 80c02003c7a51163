r"""Java's .properties files: read them as a broker does, change some keys and leave every other byte alone.

The rules are those of `java.util.Properties.load`: a backslash at the end of a line continues it, `#` and `!` begin comments,
`=`, `:` or white space end a key, `\uXXXX` is a UTF-16 unit, a later key wins. Brokers read their file as ISO-8859-1, so a caller
must decode and encode it so, without translating line ends; what `edit_properties` writes is pure ASCII. Values may be secrets: nothing in
this module puts one into a message, and `diff` shows only what is none to any release of Kafka (`kafka_keys.visible_value`).

The files of every stage are rendered from a broker's original, never from a rendered file, so that each can be made again at any
time. What a stage adds, such as the policy's faster failover, is gone in the next one, and a rollback restores the original, byte
for byte. Controllers inherit what the table of `core.node_files.config_matrix` says.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Self

from airflow_provider_kmigrate.core.cluster_state.model import PropertyChange, Reason
from airflow_provider_kmigrate.core.cluster_state.spec import ClusterSpec, NodeSpec, is_loopback, normalize_host
from airflow_provider_kmigrate.core.node_files.config_matrix import (
    AUTHORIZER,
    AUTHORIZERS,
    IDLE,
    STAGE_SECTIONS,
    FileStage,
    Rule,
    find_problems,
    find_references,
    find_rule,
    inter_broker_listener,
    is_forbidden,
    listener_key_prefix,
    may_be_added,
    may_stay_idle,
    read_listener_setting,
    read_node_id,
    read_setting,
    stage_of,
)
from airflow_provider_kmigrate.core.node_files.kafka_keys import find_key, visible_value
from airflow_provider_kmigrate.exceptions import Refused

_HEAD_LINES = 40
_TOOLS = re.compile(r"(?i)\b(?:Ansible|Puppet|Chef|Salt(?:Stack)?|CFEngine|Terraform|Ambari|Cloudera Manager)\b")
#: A part of a path -> the vendor's manager that writes Kafka's file there again at each start by it; the first also in a new directory.
#: Ambari's stacks (hdp, odp, iop, bgtp and others) have one layout: a folder of their own, then `current` or a version with a build.
_LAYOUTS = (
    (re.compile(r"/cloudera-scm-agent/process/"), "Cloudera Manager"),
    (re.compile(r"/opt/cloudera/parcels/"), "Cloudera Manager"),
    (re.compile(r"/usr/[a-z]+/(?:current/kafka-broker|\d[\d.]*-\d+/(?:etc/)?kafka)/|/etc/kafka/\d[\d.]*-\d+/0/"), "Ambari"),
)
_KEEPS = re.compile(r"(?i)\b(?:managed|maintained|controlled|generated|written|created|do not (?:edit|modify|change))\b")

_BLANKS = " \t\f"
_NATURAL_LINE = re.compile(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+")
_LAST_END = re.compile(r"(?:\r\n|\r|\n)\Z")
_KEY_AND_VALUE = re.compile(r"((?:\\.|[^\\=: \t\f])*)[ \t\f]*[=:]?[ \t\f]*(.*)", re.DOTALL)
_ESCAPE = re.compile(r"\\(?:u([0-9A-Fa-f]{4})|(.))", re.DOTALL)
_NAMED_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_ESCAPED = {"\\": r"\\", "\t": r"\t", "\n": r"\n", "\r": r"\r", "\f": r"\f"}


@dataclass(frozen=True, slots=True)
class _Entry:
    """Some natural lines, ends included; `key` is None for blanks and comments. All `raw` in a row are the file."""

    raw: str
    key: str | None = None
    value: str = ""


def parse_properties(text: str) -> dict[str, str]:
    r"""The keys and values as Java reads them, in order of their last place.

    Values keep trailing blanks, which Kafka strips itself. Raises `Refused` (code C04) if a `\u` has fewer than four digits,
    since a broker would not start with it. One deviation: a last line that is a lone backslash, an empty key to Java, is nothing
    here.
    """
    properties: dict[str, str] = {}
    for entry in _parse_entries(text):
        if entry.key is not None:
            properties.pop(entry.key, None)
            properties[entry.key] = entry.value
    return properties


def edit_properties(text: str, assign: Mapping[str, str], remove: Collection[str] = ()) -> str:
    """The text with keys assigned in their place (new ones at the end, in the order given) and others removed.

    Every other line stays byte for byte; a key that has its value already is not touched, so the function is idempotent. If a key
    occurs more than once, its last line, which wins, is changed. Raises ValueError for a key to assign and remove at once.
    """
    if overlap := set(assign) & set(remove):
        raise ValueError(f"to be assigned and removed at once: {', '.join(sorted(overlap))}")
    entries = list(_parse_entries(text))
    winners = {entry.key: entry for entry in entries}
    new_lines = (
        _assign_entry(entry, assign) if entry is winners[entry.key] else entry.raw for entry in entries if entry.key not in remove
    )
    return _append_keys("".join(new_lines), {key: value for key, value in assign.items() if key not in winners})


def diff_properties(old: str, new: str) -> tuple[PropertyChange, ...]:
    """What differs between two files, by key; comments and order do not count."""
    return compare_properties(parse_properties(old), parse_properties(new))


def compare_properties(before: Mapping[str, str], after: Mapping[str, str]) -> tuple[PropertyChange, ...]:
    """`diff` of files that were parsed."""
    keys = sorted(before.keys() | after.keys())
    return tuple(_build_change(key, before.get(key), after.get(key)) for key in keys if before.get(key) != after.get(key))


def find_managing_tool(text: str) -> str | None:
    """Which tool writes this file, if its comments say so: "Ansible managed", "Generated by Chef, do not edit"."""
    comments = (line for line in text.splitlines()[:_HEAD_LINES] if line.lstrip(_BLANKS).startswith(("#", "!")))
    matches = (_TOOLS.search(line) for line in comments if _KEEPS.search(line))
    return next((match[0] for match in matches if match), None)


def find_layout(paths: Iterable[str]) -> tuple[str, str] | None:
    """The vendor's manager to whose layout one of these paths belongs (CDP, HDP), with the path; None for Kafka's own and plain ones."""
    return next(((manager, path) for path in paths for part, manager in _LAYOUTS if part.search(path)), None)


def _build_change(key: str, before: str | None, after: str | None) -> PropertyChange:
    shown_before, shown_after = (None if value is None else visible_value(key, value) for value in (before, after))
    return PropertyChange(key, shown_before, shown_after)


def _parse_entries(text: str) -> Iterator[_Entry]:
    """Blanks, comments and assignments in order; a line with nothing but a backslash counts as blank, as in Java."""
    lines = enumerate(_NATURAL_LINE.findall(text), start=1)
    for number, line in lines:
        content = line.rstrip("\r\n").lstrip(_BLANKS)
        if content in ("", "\\") or content[0] in "#!":
            yield _Entry(line)
            continue
        raws, parts = [line], [content]  # joined once: a file may have a hundred thousand lines of one entry
        while _is_continued(parts[-1]):
            _, line_after = next(lines, (0, ""))
            raws.append(line_after)
            parts[-1] = parts[-1][:-1]
            parts.append(line_after.rstrip("\r\n").lstrip(_BLANKS))
        yield _parse_entry("".join(raws), "".join(parts), number)


def _is_continued(content: str) -> bool:
    return (len(content) - len(content.rstrip("\\"))) % 2 == 1


def _parse_entry(raw: str, content: str, line: int) -> _Entry:
    match = _KEY_AND_VALUE.fullmatch(content)
    assert match  # noqa: S101 - every part of the pattern is optional
    return _Entry(raw, _unescape(match[1], line), _unescape(match[2], line))


def _unescape(text: str, line: int) -> str:
    if "\\" not in text:
        return text
    plain = _ESCAPE.sub(lambda match: _unescape_match(match, line), text)
    return plain.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")  # pairs become one character


def _unescape_match(match: re.Match[str], line: int) -> str:
    if match[1]:
        return chr(int(match[1], 16))
    if match[2] == "u":
        reason = Reason("C04", f"line {line} of the properties file has a \\u without four hexadecimal digits")
        raise Refused(str(reason), [reason])
    return _NAMED_ESCAPES.get(match[2], match[2])


def _assign_entry(entry: _Entry, assign: Mapping[str, str]) -> str:
    if entry.key is None or assign.get(entry.key, entry.value) == entry.value:
        return entry.raw
    return _format_line(entry.key, assign[entry.key]) + _find_line_end(entry.raw)


def _find_line_end(raw: str) -> str:
    """The line end that closes it; empty at the end of a file without one."""
    match = _LAST_END.search(raw)
    return match[0] if match else ""


def _append_keys(text: str, assign: Mapping[str, str]) -> str:
    if not assign:
        return text
    ends = re.search(r"\r\n|\r|\n", text)
    newline = ends[0] if ends else "\n"
    added = "".join(_format_line(key, value) + newline for key, value in assign.items())
    return text + _closing_line_ends(text, newline) + added


def _closing_line_ends(text: str, newline: str) -> str:
    """The line ends that close the text, so that what follows is neither glued to its last line nor taken for a continuation."""
    *_, last = _Entry("\n"), *_parse_entries(text)
    end = _find_line_end(last.raw)
    continues = last.key is not None and _is_continued(last.raw.removesuffix(end))
    # Of the same kind: a line feed after a carriage return would be none of its own.
    return (end or newline) * ((not end) + continues)


def _format_line(key: str, value: str) -> str:
    name = re.sub(r"([ =:#!])", r"\\\1", _escape(key))
    content = _escape(value)
    return f"{name}=\\{content}" if content.startswith(" ") else f"{name}={content}"


def _escape(text: str) -> str:
    if text.isascii() and text.isprintable() and "\\" not in text:
        return text
    units = text.encode("utf-16-be", "surrogatepass")
    characters = (chr(units[i] << 8 | units[i + 1]) for i in range(0, len(units), 2))
    return "".join(_ESCAPED.get(c) or (c if " " <= c <= "~" else f"\\u{ord(c):04x}") for c in characters)


_FASTER = {"replica.fetch.backoff.ms": "50", "replica.fetch.wait.max.ms": "50", "broker.heartbeat.interval.ms": "250"}
_NO_BALANCING = {"auto.leader.rebalance.enable": "false"}
FAST_FAILOVER: Mapping[FileStage, Mapping[str, str]] = {
    FileStage.MIGRATION: _FASTER | _NO_BALANCING,
    FileStage.KRAFT: _FASTER,  # the second roll's stops need it too; to restore the defaults, remove them in any later roll
    FileStage.CONTROLLER_MIGRATION: _NO_BALANCING,
}
"""What policy `fast_failover` adds in which stage (measured). Controllers balance leaders themselves once they own the cluster."""

_HEADER = "# Rendered by kmigrate from a broker's server.properties.\n"
_DEFAULT_PROTOCOLS = "PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT,SASL_SSL:SASL_SSL"


@dataclass(frozen=True, slots=True)
class RenderFacts:
    """What rendering needs beside the original: from the cluster file, and the metadata version that brokers and controllers share.

    A broker whose file names no inter.broker.protocol.version runs with its software's latest: read that from the running broker.
    `broker_hosts`: the brokers' machines, first the one whose original controllers inherit from. `stage_properties`: what the cluster
    file has for one stage alone; it goes over everything else.
    """

    voters: str
    metadata_version: str
    controller_listener: str = "CONTROLLER"
    controller_security: str = "PLAINTEXT"
    controller_properties: Mapping[str, str] = field(default_factory=dict, repr=False)
    fast_failover: bool = False
    broker_hosts: tuple[str, ...] = ()
    stage_properties: Mapping[FileStage, Mapping[str, str]] = field(default_factory=dict, repr=False)

    @property
    def listener(self) -> str:
        """The controllers' listener in upper case: Kafka does that to `listeners`, but not to `controller.listener.names`."""
        return self.controller_listener.upper()

    @classmethod
    def of(cls, spec: ClusterSpec, metadata_version: str) -> Self:
        """The facts from the cluster file and the metadata version that the brokers run."""
        return cls(
            spec.voters,
            metadata_version,
            spec.controller_listener,
            spec.controller_security,
            spec.controller_properties,
            spec.policy.fast_failover,
            tuple(node.host for node in spec.brokers),
            {STAGE_SECTIONS[section]: keys for section, keys in spec.stage_properties.items()},
        )


def render_broker_file(original: str, stage: FileStage, facts: RenderFacts) -> str:
    """A broker's file for a stage; for ZOOKEEPER the original itself. Other keys, comments and order stay as they are.

    Raises `Refused` if `original` is not one or cannot become another stage (`config_matrix.find_problems`), ValueError for a
    controller's stage. ZOOKEEPER, the rollback, is possible for every original, whatever else is wrong with it.
    """
    if stage.of_controller:
        raise ValueError(f"{stage} is no stage of a broker")
    properties = parse_properties(original)
    if stage is FileStage.ZOOKEEPER and stage_of(properties) is stage:
        return original
    _check_original(properties, facts)
    keys = {
        **_broker_keys(properties, stage, facts),
        **_keys_of_brokers_and_controllers(properties, stage, facts),
        **_stage_keys(stage, facts),
    }
    assign = _drop_empty_classes(keys)
    removed = [key for key in properties if (key in keys or is_forbidden(key, stage)) and key not in assign]
    text = edit_properties(original, assign, removed)
    _refuse_problems(find_problems(parse_properties(text), stage, controller_listener=facts.listener))
    return text


def render_controller_file(original: str, node: NodeSpec, stage: FileStage, facts: RenderFacts) -> str:
    """A controller's file, from the original of any broker. `controller_properties` of the cluster file add to it.

    Those replace what is inherited, and `listeners` and the directories, but no other key that the stage requires or excludes: a
    migration flag of false would finalize. An empty class there takes the brokers' away. Raises as `broker_properties`, and `Refused` if the cluster file names no directory.
    """
    if not stage.of_controller:
        raise ValueError(f"{stage} is no stage of a controller")
    properties = parse_properties(original)
    _check_original(properties, facts)
    text = edit_properties(_HEADER, list_controller_keys(properties, node, stage, facts))
    _refuse_problems(find_problems(parse_properties(text), stage, controller_listener=facts.listener))
    return text


def list_controller_keys(properties: Mapping[str, str], node: NodeSpec, stage: FileStage, facts: RenderFacts) -> dict[str, str]:
    """What a controller's file would hold: `controller_properties` without its checks."""
    keys = {
        **_own_controller_keys(properties, node, stage, facts),
        **_inherited_keys(properties, stage, facts),
        **_keys_of_brokers_and_controllers(properties, stage, facts),
        **{key: value for key, value in facts.controller_properties.items() if may_be_added(key, stage)},
        **_stage_keys(stage, facts),
    }
    keys = _drop_empty_classes(keys)
    return {**keys, **_enabled_mechanism_keys(keys, facts)}


def _stage_keys(stage: FileStage, facts: RenderFacts) -> dict[str, str]:
    """What the cluster file has for this stage alone."""
    return {key: value for key, value in facts.stage_properties.get(stage, {}).items() if may_be_added(key, stage)}


def _drop_empty_classes(keys: Mapping[str, str]) -> dict[str, str]:
    return {key: value for key, value in keys.items() if value.strip() or not _is_class(key)}


def _is_class(key: str) -> bool:
    """Whether Kafka loads one class by this key; it refuses an empty name."""
    definition = find_key(key)
    return definition is not None and definition.kind == "class"


def add_controller_keys(properties: Mapping[str, str], stage: FileStage, facts: RenderFacts) -> dict[str, str]:
    """A broker's original with a stage's keys, without checks; an empty class of the cluster file takes the original's away."""
    return _drop_empty_classes(
        {**properties, **_keys_of_brokers_and_controllers(properties, stage, facts), **_stage_keys(stage, facts)}
    )


def _check_original(properties: Mapping[str, str], facts: RenderFacts) -> None:
    version, listener = facts.metadata_version, facts.listener
    _refuse_problems(find_problems(properties, FileStage.ZOOKEEPER, metadata_version=version, controller_listener=listener))


def _refuse_problems(reasons: tuple[Reason, ...]) -> None:
    if reasons:
        raise Refused("; ".join(map(str, reasons)), reasons)


def _keys_of_brokers_and_controllers(properties: Mapping[str, str], stage: FileStage, facts: RenderFacts) -> dict[str, str]:
    """The keys that brokers and controllers share once there are controllers."""
    return {
        "controller.quorum.voters": facts.voters,
        "controller.listener.names": facts.listener,
        "listener.security.protocol.map": _render_protocol_map(properties, facts),
        **_controller_security_keys(properties, facts),
        **_authorizer_keys(properties, stage, facts),
        **(FAST_FAILOVER.get(stage, {}) if facts.fast_failover else {}),
    }


def _broker_keys(properties: Mapping[str, str], stage: FileStage, facts: RenderFacts) -> dict[str, str]:
    if stage is FileStage.KRAFT:
        return {"process.roles": "broker", "node.id": str(read_node_id(properties))}
    protocol = read_setting(properties, "inter.broker.protocol.version") or facts.metadata_version
    return {"zookeeper.metadata.migration.enable": "true", "inter.broker.protocol.version": protocol}


def address_zookeeper(connect: str, host: str, broker_hosts: tuple[str, ...]) -> str:
    """The zookeeper.connect of a controller on `host`: servers on the first broker's own machine get that machine's name.

    A controller on a broker's machine keeps the address: its own machine has the server, too.
    """
    machines = [normalize_host(machine) for machine in broker_hosts]
    if not machines or is_loopback(machines[0]) or is_loopback(host) or normalize_host(host) in machines:
        return connect
    servers, slash, chroot = connect.partition("/")
    named = [_name_server(server.strip(), broker_hosts[0]) for server in servers.split(",")]
    return f"{','.join(named)}{slash}{chroot}"


def split_server(server: str) -> tuple[str, str]:
    """Host and port of a server of ZooKeeper, as its client takes them; the port is 2181 if none is there."""
    host, colon, port = server.rpartition(":")
    return (host, port) if colon and not server.endswith("]") else (server, "2181")


def _name_server(server: str, machine: str) -> str:
    host, port = split_server(server)
    return f"{machine}:{port}" if is_loopback(host) else server


def _own_controller_keys(properties: Mapping[str, str], node: NodeSpec, stage: FileStage, facts: RenderFacts) -> dict[str, str]:
    extra = facts.controller_properties
    directory = extra.get("metadata.log.dir") or node.log_dir or ""
    keys = {
        "process.roles": "controller",
        "node.id": str(node.id),
        "listeners": extra.get("listeners") or f"{facts.listener}://{node.endpoint}",
        "inter.broker.listener.name": inter_broker_listener(properties),
        "metadata.log.dir": directory,
        "log.dirs": extra.get("log.dirs") or directory,  # its default, /tmp/kafka-logs, would be formatted too
    }
    if stage is FileStage.CONTROLLER_MIGRATION:
        keys["zookeeper.connect"] = address_zookeeper(properties["zookeeper.connect"], node.host, facts.broker_hosts)
        keys["zookeeper.metadata.migration.enable"] = "true"
    return keys


def _inherited_keys(properties: Mapping[str, str], stage: FileStage, facts: RenderFacts) -> dict[str, str]:
    """What a controller inherits; also a broker's keys for the controllers' listener, which the controllers open.

    Brokers in ZooKeeper mode ignore `metadata.max.idle.interval.ms`: a value that a migration cannot have comes into force after it.
    """
    inter_broker, own = inter_broker_listener(properties), listener_key_prefix(facts.listener)
    inherited = {
        key: value for key, value in properties.items() if key.startswith(own) or find_rule(key, stage, inter_broker) is Rule.SAME
    }
    if stage is FileStage.CONTROLLER_MIGRATION and not may_stay_idle(inherited.get(IDLE, "1")):
        del inherited[IDLE]
    return inherited


def _render_protocol_map(properties: Mapping[str, str], facts: RenderFacts) -> str:
    """The broker's map, or Kafka's default, with the controllers' listener; Kafka compares that name in upper case."""
    entries = (read_setting(properties, "listener.security.protocol.map") or _DEFAULT_PROTOCOLS).split(",")
    names = {"", facts.listener}  # Java drops what a comma at the end leaves over; in the middle no broker starts with it
    others = [entry.strip() for entry in entries if entry.split(":")[0].strip().upper() not in names]
    return ",".join([*others, f"{facts.listener}:{facts.controller_security}"])


def _controller_security_keys(properties: Mapping[str, str], facts: RenderFacts) -> dict[str, str]:
    """The controllers' listener has the identity and trust of the inter-broker one, unless the file says otherwise already."""
    if facts.controller_security == "PLAINTEXT":
        return {}
    inter_broker_prefix, controller_prefix = (
        listener_key_prefix(inter_broker_listener(properties)),
        listener_key_prefix(facts.listener),
    )
    keys = {
        controller_prefix + key.removeprefix(inter_broker_prefix): value
        for key, value in properties.items()
        if key.startswith(inter_broker_prefix)
    }
    if facts.controller_security.startswith("SASL"):
        mechanism = read_setting(facts.controller_properties, "sasl.mechanism.controller.protocol")
        inter_broker = read_setting(properties, "sasl.mechanism.inter.broker.protocol")
        keys["sasl.mechanism.controller.protocol"] = mechanism or inter_broker or "GSSAPI"
    return {key: value for key, value in keys.items() if key not in properties}


def _enabled_mechanism_keys(keys: Mapping[str, str], facts: RenderFacts) -> dict[str, str]:
    """The mechanism by which nodes log in on the controllers' listener, if that does not have it enabled."""
    own = f"{listener_key_prefix(facts.listener)}sasl.enabled.mechanisms"
    if not facts.controller_security.startswith("SASL") or own in facts.controller_properties:
        return {}
    enabled = read_listener_setting(keys, facts.listener, "sasl.enabled.mechanisms") or "GSSAPI"
    mechanism = keys["sasl.mechanism.controller.protocol"]
    taken = find_references(enabled) or mechanism in {name.strip() for name in enabled.split(",")}
    return {} if taken else {own: mechanism}


def _authorizer_keys(properties: Mapping[str, str], stage: FileStage, facts: RenderFacts) -> dict[str, str]:
    """The authorizer of a KRaft node. Of one that is not Kafka's, the cluster file has the class and the settings for KRaft.

    Brokers get those settings too, such as `confluent.authorizer.access.rule.providers`: with other ones than the controllers' they
    do not start, or read other rules.
    """
    name = read_setting(properties, AUTHORIZER)
    if name is None or stage in {FileStage.ZOOKEEPER, FileStage.MIGRATION}:
        return {}
    if name in AUTHORIZERS:
        return {AUTHORIZER: AUTHORIZERS[name]}
    return {key: value for key, value in facts.controller_properties.items() if "authorizer" in key}
