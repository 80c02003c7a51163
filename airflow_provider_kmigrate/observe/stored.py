"""Read the metadata beside topics from ZooKeeper and KRaft, and what preflight needs beside a view.

KRaft: brokers in KRaft mode report all kinds, controllers only ACLs and the default settings of brokers (Kafka 3.9), so that these
are compared before the first broker runs in KRaft mode. A broker in another mode answers too, but with ZooKeeper's data, which would
always look equal, so it is not asked. Brokers withhold sensitive values themselves; they do send a delegation token's HMAC, which is
dropped here. What is not reported stays None, with its reason in `ClusterEnvironment.unread`.

ZooKeeper: what Kafka 3.9 keeps under /config, /kafka-acl and /delegation_token. These znodes hold secrets: salted passwords,
keystore passwords. No part of a value leaves this module but what `core.migration.equivalence` shows, and a malformed znode is
named without its content.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple, TypeVar
from urllib.parse import unquote

from kafka.protocol.admin import (
    DescribeAclsRequest,
    DescribeClientQuotasRequest,
    DescribeUserScramCredentialsRequest,
    ListTransactionsRequest,
)

from airflow_provider_kmigrate.clients import wire
from airflow_provider_kmigrate.clients.admin import check
from airflow_provider_kmigrate.clients.messages import DescribeDelegationTokenRequest
from airflow_provider_kmigrate.clients.tools import Tools
from airflow_provider_kmigrate.clients.wire import OF_DEFAULT, Wire, describe_broker_configs
from airflow_provider_kmigrate.clients.zookeeper import ZnodeReads
from airflow_provider_kmigrate.core.cluster_state.model import (
    BrokerMode,
    ClusterEnvironment,
    ClusterView,
    Entities,
    PartitionIds,
    Reason,
    Stored,
    StoredKind,
    Taken,
    TopicMetadata,
    ZooKeeperServer,
)
from airflow_provider_kmigrate.core.cluster_state.spec import ClusterSpec, NodeSpec, is_loopback
from airflow_provider_kmigrate.core.cluster_state.znode_formats import (
    ACL,
    CONFIG,
    PRODUCER_IDS,
    TOKEN,
    UnknownVersion,
    require_known_version,
)
from airflow_provider_kmigrate.core.migration import equivalence
from airflow_provider_kmigrate.core.shared.foreign_json import read_json
from airflow_provider_kmigrate.exceptions import AuthenticationFailed, Failed, KMigrateError, Unavailable, WrongCluster
from airflow_provider_kmigrate.observe import reads
from airflow_provider_kmigrate.observe.reads import Question, Questions, Reads, read_from_first

_ANY = 1
_OF_ONE, _OF_ALL = 2, 3  # DescribeConfigs' sources: dynamic of one broker, dynamic default of all
_SECURITY_DISABLED = 54
_TOKENS_NOT_HERE, _TOKENS_OFF = 64, 61
_PROTOCOL = (
    "inter.broker.protocol.version"  # its default is the release line of the broker's software; nothing reports the patch level
)
_TOKEN_KEYS = ("delegation.token.secret.key", "delegation.token.master.key")

_RESOURCES: Final = {2: "topic", 3: "group", 4: "cluster", 5: "transactional id", 6: "delegation token", 7: "user"}
_PATTERNS: Final = {3: "literal", 4: "prefixed"}
_PERMISSIONS: Final = {2: "deny", 3: "allow"}
_OPERATION_NAMES = (
    *("all", "read", "write", "create", "delete", "alter", "describe", "cluster action", "describe configs", "alter configs"),
    *("idempotent write", "create tokens", "describe tokens"),
)
_OPERATIONS: Final = dict(enumerate(_OPERATION_NAMES, start=2))


class NotReported(Exception):
    """No node reports this, and the text says why; not a failure."""


def read_broker_settings(wire: Wire, broker: int | None) -> dict[str, str]:
    """The dynamic settings of the broker that is asked, or (None) the default of all brokers, which any node reports."""
    source = _OF_ALL if broker is None else _OF_ONE
    settings = {
        synonym.name: equivalence.visible_broker_setting(synonym.name, synonym.value)
        for entry in describe_broker_configs(wire, broker)
        for synonym in entry.synonyms
        if synonym.source == source
    }
    return dict(sorted(settings.items()))


def read_quotas(wire: Wire) -> Entities:
    """Every client quota of the cluster, by entity (DescribeClientQuotas). Raises ours."""
    answer = wire.ask(DescribeClientQuotasRequest, 0, 1, components=[], strict=False)
    check(answer.error_code, f"{wire.endpoint} DescribeClientQuotas", answer.error_message)
    return {
        equivalence.quota_entity({part.entity_type: part.entity_name for part in entry.entity}): {
            value.key: equivalence.format_quota(value.value) for value in entry.values
        }
        for entry in answer.entries or ()
    }


def read_credentials(wire: Wire) -> Entities:
    """Every SCRAM credential, by user: mechanism and iterations, never a secret (DescribeUserScramCredentials). Raises ours."""
    answer = wire.ask(DescribeUserScramCredentialsRequest, 0, 0, users=None)
    request = f"{wire.endpoint} DescribeUserScramCredentials"
    check(answer.error_code, request, answer.error_message)
    for result in answer.results:
        check(result.error_code, request, result.error_message)
    return {f"user {result.user}": dict(map(_parse_credential, result.credential_infos)) for result in answer.results}


def read_acls(wire: Wire) -> Entities:
    """Every ACL. Raises `NotReported` if the node has no authorizer."""
    any_of = ("resource_type_filter", "pattern_type_filter", "operation", "permission_type")
    unset = ("resource_name_filter", "principal_filter", "host_filter")
    answer = wire.ask(DescribeAclsRequest, 1, 3, **dict.fromkeys(any_of, _ANY), **dict.fromkeys(unset))
    if answer.error_code == _SECURITY_DISABLED:
        raise NotReported("no authorizer is configured")
    check(answer.error_code, f"{wire.endpoint} DescribeAcls", answer.error_message)
    return equivalence.group_acls(rule for resource in answer.resources for rule in _parse_rules(resource))


def read_tokens(wire: Wire, broker: int) -> Entities:
    """The tokens that the asking principal may see. Raises `NotReported` if the brokers are configured without tokens."""
    answer = wire.ask(DescribeDelegationTokenRequest, 1, 3, owners=None)
    if answer.error_code == _TOKENS_OFF or (answer.error_code == _TOKENS_NOT_HERE and not _uses_tokens(wire, broker)):
        raise NotReported("the brokers are configured without them")
    if answer.error_code == _TOKENS_NOT_HERE:
        raise Failed(f"{wire.endpoint} reports delegation tokens only over TLS or SASL, and this connection uses neither")
    check(answer.error_code, f"{wire.endpoint} DescribeDelegationToken")
    return {f"token {token.token_id}": _parse_token(token) for token in answer.tokens}


def read_highest_producer_id(wire: Wire) -> int | None:
    """The highest producer id among the transactions that this broker coordinates; None if it has none."""
    answer = wire.ask(ListTransactionsRequest, 0, 1)
    check(answer.error_code, f"{wire.endpoint} ListTransactions")
    return max((state.producer_id for state in answer.transaction_states), default=None)


def _uses_tokens(wire: Wire, broker: int) -> bool:
    """True if the broker has a key for tokens; it withholds the value but reports the source."""
    return any(entry.config_source != OF_DEFAULT for entry in describe_broker_configs(wire, broker, list(_TOKEN_KEYS)))


def _parse_credential(info: Any) -> tuple[str, str]:
    mechanism = {1: "SCRAM-SHA-256", 2: "SCRAM-SHA-512"}.get(info.mechanism, f"mechanism {info.mechanism}")
    return mechanism, equivalence.format_credential(info.iterations)


def _parse_rules(resource: Any) -> Iterator[equivalence.ComparedAcl]:
    pattern = _name_of_code(_PATTERNS, resource.pattern_type)
    kind = _name_of_code(_RESOURCES, resource.resource_type)
    for rule in resource.acls:
        permission, operation = _name_of_code(_PERMISSIONS, rule.permission_type), _name_of_code(_OPERATIONS, rule.operation)
        yield equivalence.ComparedAcl(pattern, kind, resource.resource_name, permission, operation, rule.principal, rule.host)


def _parse_token(token: Any) -> dict[str, str]:
    owner = f"{token.principal_type}:{token.principal_name}"
    renewers = [f"{renewer.principal_type}:{renewer.principal_name}" for renewer in token.renewers]
    return equivalence.token_settings(owner, renewers, token.issue_timestamp, token.expiry_timestamp, token.max_timestamp)


def _name_of_code(names: Mapping[int, str], code: int) -> str:
    """The name of a code; a code newer than this table differs from every name, so it shows."""
    return names.get(code, f"code {code}")


Value = TypeVar("Value")

_USERS = "/config/users"
_TOKENS = "/delegation_token/tokens"  # a path, not a token
_BLOCK = "/latest_producer_id_block"
_SCRAM = "SCRAM-"


def read_kind(zk: ZnodeReads, kind: StoredKind) -> Entities:
    """One kind, as ZooKeeper, or a backup of it, has it. Raises what the client raises, and `Failed` if a znode is malformed."""
    return _READS[kind](zk)


def _read_zk_broker_settings(zk: ZnodeReads) -> Entities:
    return {
        equivalence.broker_entity(name): {key: equivalence.visible_broker_setting(key, value) for key, value in config.items()}
        for name, config in _read_configs(zk, "/config/brokers")
    }


def _read_zk_quotas(zk: ZnodeReads) -> Entities:
    users = dict(_read_configs(zk, _USERS))
    limits = {_quota_entity(user=user): _quota_values(config) for user, config in users.items()}
    for kind, folder in (("client-id", "/config/clients"), ("ip", "/config/ips")):
        limits |= {_quota_entity(**{kind: name}): _quota_values(config) for name, config in _read_configs(zk, folder)}
    for path, clients in dict(zk.children_by_path(f"{_USERS}/{user}/clients" for user in users)).items():
        user = path.removeprefix(f"{_USERS}/").removesuffix("/clients")
        pairs = _read_configs(zk, path, clients)
        limits |= {_quota_entity(**{"user": user, "client-id": client}): _quota_values(config) for client, config in pairs}
    return limits


def _quota_entity(**names: str) -> str:
    """The quota entity of these kinds, with their names as znodes have them."""
    return equivalence.quota_entity({kind: None if name == "<default>" else unquote(name) for kind, name in names.items()})


def _quota_values(config: Mapping[str, str]) -> dict[str, str]:
    return {key: equivalence.format_quota(value) for key, value in config.items() if not key.startswith(_SCRAM)}


def _read_zk_credentials(zk: ZnodeReads) -> Entities:
    return {f"user {unquote(user)}": _scram_iterations(user, config) for user, config in _read_configs(zk, _USERS)}


def _scram_iterations(user: str, config: Mapping[str, str]) -> dict[str, str]:
    """Only the last part of `salt=...,stored_key=...,server_key=...,iterations=4096`."""

    def parse_iterations(value: str) -> str:
        return equivalence.format_credential(int(dict(part.split("=", 1) for part in value.split(","))["iterations"]))

    scram = {key: value for key, value in config.items() if key.startswith(_SCRAM)}
    return {key: _parse_znode(f"{_USERS}/{user}", parse_iterations, value) for key, value in scram.items()}


def _read_zk_acls(zk: ZnodeReads) -> Entities:
    prefixed = [(pattern, f"/kafka-acl-extended/{pattern}") for pattern in zk.children("/kafka-acl-extended")]
    roots = [("literal", "/kafka-acl"), *prefixed]
    return equivalence.group_acls(
        rule for pattern, root in roots for rule in _read_acls_below(zk, equivalence.normalize_name(pattern), root)
    )


def _read_acls_below(zk: ZnodeReads, pattern: str, root: str) -> Iterator[equivalence.ComparedAcl]:
    for folder, names in zk.children_by_path(f"{root}/{kind}" for kind in zk.children(root)):
        resource = equivalence.normalize_name(folder.rpartition("/")[2])
        for name, data in zk.read_children(folder, names):
            for rule in _parse_znode(f"{folder}/{name}", _parse_acls, data):
                permission, operation = (
                    equivalence.normalize_name(rule["permissionType"]),
                    equivalence.normalize_name(rule["operation"]),
                )
                yield equivalence.ComparedAcl(pattern, resource, name, permission, operation, rule["principal"], rule["host"])


def _parse_acls(data: bytes) -> list[dict[str, str]]:
    rules: list[dict[str, str]] = _read_fields(ACL, data)["acls"] if data else []
    keys = ("permissionType", "operation", "principal", "host")
    return [{key: str(rule[key]) for key in keys} for rule in rules]


def _read_zk_tokens(zk: ZnodeReads) -> Entities:
    znodes = zk.read_children(_TOKENS, zk.children(_TOKENS))
    return {f"token {name}": _parse_znode(f"{_TOKENS}/{name}", _parse_token_znode, data) for name, data in znodes}


def _parse_token_znode(data: bytes) -> dict[str, str]:
    fields = _read_fields(TOKEN, data)
    renewers = [unquote(renewer) for renewer in fields["renewers"]]
    times = (int(fields[key]) for key in ("issueTimestamp", "expiryTimestamp", "maxTimestamp"))
    return equivalence.token_settings(unquote(fields["owner"]), renewers, *times)


def _read_zk_producer_ids(zk: ZnodeReads) -> Entities:
    """Brokers create the znode when they start, and write to it when the first producer id is requested."""
    data, _ = zk.read(_BLOCK) or (b"", 0)
    if not data:
        return {}
    highest = _parse_znode(_BLOCK, lambda block: int(_read_fields(PRODUCER_IDS, block)["block_end"]), data)
    return {equivalence.PRODUCER_IDS: {equivalence.HIGHEST: str(highest)}}


def _read_configs(zk: ZnodeReads, folder: str, names: Iterable[str] | None = None) -> Iterator[tuple[str, dict[str, str]]]:
    """Each entity of the folder with its settings; `names`: only these."""
    znodes = zk.read_children(folder, zk.children(folder) if names is None else names)
    return ((name, _parse_znode(f"{folder}/{name}", _parse_config, data)) for name, data in znodes)


def _parse_config(data: bytes) -> dict[str, str]:
    """Empty without data: such a znode is only the parent of others."""
    return {str(key): str(value) for key, value in _read_fields(CONFIG, data)["config"].items()} if data else {}


def _read_fields(kind: str, data: bytes) -> Any:
    """The JSON values of a znode of this kind. Raises ValueError and its kin for what is none, and `UnknownVersion`."""
    fields = read_json(data)
    require_known_version(kind, fields)
    return fields


def _parse_znode(path: str, parse: Callable[[Any], Value], data: Any) -> Value:
    try:
        return parse(data)
    except UnknownVersion as unknown:
        raise Failed(f"{path} has {unknown}") from None
    except (ValueError, TypeError, KeyError, AttributeError):  # no cause either: it would quote the content
        raise Failed(f"{path} does not have Kafka's format; its content may be secret and is not shown") from None


_READS: Mapping[StoredKind, Callable[[ZnodeReads], Entities]] = {
    StoredKind.BROKER_SETTINGS: _read_zk_broker_settings,
    StoredKind.QUOTAS: _read_zk_quotas,
    StoredKind.CREDENTIALS: _read_zk_credentials,
    StoredKind.ACLS: _read_zk_acls,
    StoredKind.TOKENS: _read_zk_tokens,
    StoredKind.PRODUCER_IDS: _read_zk_producer_ids,
}


_NO_KRAFT: Final = "no broker that answers runs in KRaft mode yet"
_NO_REQUEST: Final = "KRaft reports none; no transaction has an id beyond those of ZooKeeper"
_STRANGER: Final = "not a broker of the cluster file"
_UNRESPONSIVE: Final = "it does not answer, and only it could report this"
_ON_ZOOKEEPER: Final = "not in KRaft mode; such a broker reports what ZooKeeper has"


class Found(NamedTuple):
    """The kinds of which both sides were read, and why the others were not."""

    stored: Mapping[StoredKind, Stored]
    unread: tuple[Reason, ...]


class StoredReads:
    """Both sides of one cluster's metadata beside topics."""

    def __init__(self, brokers: Sequence[NodeSpec], controllers: Sequence[NodeSpec], tools: Tools) -> None:
        self._brokers, self._controllers, self._tools = brokers, controllers, tools

    def read_everything(self) -> Found:
        """Read all kinds, one after the other; a kind that fails does not stop the others."""
        modes = self._read_modes()
        stored: dict[StoredKind, Stored] = {}
        unread = []
        for kind in StoredKind:
            try:
                stored[kind] = self._read_both_sides(kind, modes)
            except (AuthenticationFailed, WrongCluster):
                raise
            except KMigrateError as error:
                unread.append(replace(reads.STORED, text=f"{reads.STORED.text}: {kind}: {error}"))
        return Found(stored, tuple(unread))

    def _read_both_sides(self, kind: StoredKind, modes: Mapping[NodeSpec, BrokerMode]) -> Stored:
        """ZooKeeper first: what is written meanwhile shows as a difference that the next observation does not have."""
        zookeeper = read_kind(self._tools.zk, kind)
        if kind is StoredKind.BROKER_SETTINGS:
            return self._read_broker_settings(zookeeper, modes)
        if kind is StoredKind.PRODUCER_IDS:
            return Stored(zookeeper, self._read_producer_ids(modes), {Stored.EVERY: _NO_REQUEST})
        try:
            return Stored(zookeeper, self._read_kraft(kind, _select_kraft_brokers(modes)))
        except NotReported as error:
            return Stored(zookeeper, unreported={Stored.EVERY: str(error)})

    def _read_kraft(self, kind: StoredKind, reporters: Sequence[NodeSpec]) -> Entities:
        if kind is StoredKind.ACLS:
            return read_from_first((*reporters, *self._controllers), lambda node: read_acls(self._tools.wire(node)))
        if not reporters:
            raise NotReported(_NO_KRAFT)
        if kind is StoredKind.TOKENS:
            return read_from_first(reporters, lambda node: read_tokens(self._tools.wire(node), node.id))
        read_entities = read_quotas if kind is StoredKind.QUOTAS else read_credentials
        return read_from_first(reporters, lambda node: read_entities(self._tools.wire(node)))

    def _read_broker_settings(self, zookeeper: Entities, modes: Mapping[NodeSpec, BrokerMode]) -> Stored:
        """Each broker in KRaft mode reports its own settings, any KRaft node the default of all brokers."""
        reporters = _select_kraft_brokers(modes)
        kraft = {equivalence.broker_entity(node.id): read_broker_settings(self._tools.wire(node), node.id) for node in reporters}
        default = read_from_first(
            (*reporters, *self._controllers), lambda node: read_broker_settings(self._tools.wire(node), None)
        )
        others = {equivalence.broker_entity(node.id): _ON_ZOOKEEPER if node in modes else _UNRESPONSIVE for node in self._brokers}
        reported = {**kraft, equivalence.ALL_BROKERS: default}
        entities = sorted({*zookeeper, *others} - reported.keys())
        return Stored(zookeeper, reported, {entity: others.get(entity, _STRANGER) for entity in entities})

    def _read_producer_ids(self, modes: Mapping[NodeSpec, BrokerMode]) -> Entities:
        """The highest producer id that a broker coordinates. It is a lower bound, but brokers report it in every mode."""
        producer_ids = (read_highest_producer_id(self._tools.wire(node)) for node in modes)
        highest = max((producer_id for producer_id in producer_ids if producer_id is not None), default=None)
        return {} if highest is None else {equivalence.PRODUCER_IDS: {equivalence.HIGHEST: str(highest)}}

    def _read_modes(self) -> dict[NodeSpec, BrokerMode]:
        """The modes of the brokers that answer. Raises `Unavailable` if none does."""
        modes = {}
        for node in self._brokers:
            try:
                modes[node] = self._tools.wire(node).api_versions().mode
            except AuthenticationFailed:
                raise
            except KMigrateError:
                continue
        if not modes:
            raise Unavailable("no broker answers")
        return modes


def _select_kraft_brokers(modes: Mapping[NodeSpec, BrokerMode]) -> list[NodeSpec]:
    return [node for node, mode in modes.items() if mode is BrokerMode.KRAFT]


def read_environment(
    spec: ClusterSpec, tools: Tools, view: ClusterView, questions: Questions, *, patience: float, long: float
) -> ClusterEnvironment:
    """Start all reads at once; brokers missing from the view are not asked again.

    `patience`: seconds for each node, `long`: seconds for reads of many znodes.
    """
    alive = [node for node in spec.brokers if view.has_answered(node.id)]

    def ask(who: str, what: str, seconds: float, read: Callable[..., Value], *arguments: Any) -> Question[Value]:
        return questions.ask(Reason("", f"{who} did not report its {what}"), seconds, _without_access_errors(read), *arguments)

    def ask_each(what: str, read: Callable[[Wire, int], Value]) -> dict[int, Question[Value]]:
        def read_node(node: NodeSpec) -> Value:
            return read(tools.wire(node), node.id)

        return {node.id: ask(node.name, what, patience, read_node, node) for node in alive}

    dirs = ask_each("log directories", lambda broker, _: wire.describe_log_dirs(broker))
    taken = ask_each("configuration", wire.read_startup_config)
    certificates = ask_each("certificate", lambda broker, _: broker.certificate())
    topics = () if view.topics is None else tuple(view.topics[0].values())
    compared = [] if view.topics is None else alive  # all partitions would seem to be strays
    ids = {node.id: ask(node.name, "topic ids on disk", long, _compare_topic_ids, tools, node, topics) for node in compared}
    addresses = {
        node.id: ask(node.name, "address on its own machine", long, _find_addresses, tools, node) for node in spec.controllers
    }
    moving = ask("the controller", "reassignments", long, Reads(alive, tools).read_reassignments)
    tree = ask("ZooKeeper", "settings, users and rules", long, tools.zk.read_tree)
    servers = ask("ZooKeeper", "versions", long, tools.zk.servers)
    ensemble, settings = questions.wait_for_answer(servers) or (), _collect_by_broker(questions, taken, spec)
    return ClusterEnvironment(
        releases=releases_of(settings),
        log_dirs=_collect_by_broker(questions, dirs, spec),
        taken=settings,
        moving=questions.wait_for_answer(moving),
        tree=questions.wait_for_answer(tree),
        servers=ensemble,
        one_machine=one_machine(spec, ensemble),
        certificates=_collect_by_broker(questions, certificates, spec),
        partition_ids=_collect_by_broker(questions, ids, spec),
        addresses={controller: questions.wait_for_answer(question) for controller, question in addresses.items()},
        unread=tuple(reason.text for reason in questions.unknowns),  # of all answers above
        now=time.time(),
    )


def _find_addresses(tools: Tools, node: NodeSpec) -> tuple[str, ...]:
    return tools.host(node).find_addresses(node)


def _compare_topic_ids(tools: Tools, node: NodeSpec, topics: Iterable[TopicMetadata]) -> PartitionIds:
    """What differs is compared once more, with topics that were read since: others create and delete topics meanwhile."""
    compared = tools.host(node).compare_topic_ids(node, topics)
    return tools.host(node).compare_topic_ids(node, tools.zk.topic_assignments()) if compared.found else compared


def releases_of(settings: Mapping[int, Taken | None]) -> dict[int, str | None]:
    """The release line of each broker's software; None if its configuration, or the default in it, is not known."""
    return {
        broker: configuration.defaults.get(_PROTOCOL) if configuration else None for broker, configuration in settings.items()
    }


def one_machine(spec: ClusterSpec, servers: Iterable[ZooKeeperServer]) -> bool:
    """True if all nodes and ZooKeeper have addresses of this machine itself."""
    addresses = [server.address.rpartition(":")[0] for server in servers]
    return bool(addresses) and all(map(is_loopback, [*addresses, *(node.host for node in spec.nodes())]))


def _collect_by_broker(
    questions: Questions, broker_questions: Mapping[int, Question[Value]], spec: ClusterSpec
) -> dict[int, Value | None]:
    answers = {broker: questions.wait_for_answer(question) for broker, question in broker_questions.items()}
    return {node.id: answers.get(node.id) for node in spec.brokers}


def _without_access_errors(read: Callable[..., Value]) -> Callable[..., Value]:
    """Count a missing right, or another cluster's answer, as not reported: the view has identified the cluster."""

    def read_or_unavailable(*arguments: Any) -> Value:
        try:
            return read(*arguments)
        except (AuthenticationFailed, WrongCluster) as error:
            raise Unavailable(str(error)) from error

    return read_or_unavailable
