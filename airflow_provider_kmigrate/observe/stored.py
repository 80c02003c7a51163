"""Read the metadata beside topics from ZooKeeper and KRaft, and what preflight needs beside a view.

KRaft: brokers in KRaft mode report all kinds, controllers only ACLs and the default settings of brokers (Kafka 3.9), so that these
are compared before the first broker runs in KRaft mode. A broker in another mode answers too, but with ZooKeeper's data, which would
always look equal, so it is not asked. Brokers withhold sensitive values themselves; they do send a delegation token's HMAC, which is
dropped here. What is not reported stays None, with its reason in `ClusterEnvironment.unread`.

ZooKeeper: what Kafka 3.9 keeps under /config, /kafka-acl and /delegation_token. These znodes hold secrets: salted passwords,
keystore passwords. No part of a value leaves this module but what `core.equivalence` shows, and a malformed znode is
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
from airflow_provider_kmigrate.clients.wire import OF_DEFAULT, Wire, broker_configs
from airflow_provider_kmigrate.clients.zookeeper import ZnodeReads
from airflow_provider_kmigrate.core import equivalence
from airflow_provider_kmigrate.core.cluster import ClusterSpec, NodeSpec, is_loopback
from airflow_provider_kmigrate.core.foreign_json import read_json
from airflow_provider_kmigrate.core.model import (
    BrokerMode,
    ClusterEnvironment,
    ClusterView,
    Entities,
    Reason,
    Stored,
    StoredKind,
    Taken,
    ZooKeeperServer,
)
from airflow_provider_kmigrate.exceptions import AuthenticationFailed, Failed, KMigrateError, Unavailable, WrongCluster
from airflow_provider_kmigrate.observe import reads
from airflow_provider_kmigrate.observe.reads import Question, Questions, Reads, first_of

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


def broker_settings(wire: Wire, broker: int | None) -> dict[str, str]:
    """The dynamic settings of the broker that is asked, or (None) the default of all brokers, which any node reports."""
    source = _OF_ALL if broker is None else _OF_ONE
    found = {
        synonym.name: equivalence.broker_setting(synonym.name, synonym.value)
        for entry in broker_configs(wire, broker)
        for synonym in entry.synonyms
        if synonym.source == source
    }
    return dict(sorted(found.items()))


def quotas(wire: Wire) -> Entities:
    """Every client quota of the cluster, by entity (DescribeClientQuotas). Raises ours."""
    answer = wire.ask(DescribeClientQuotasRequest, 0, 1, components=[], strict=False)
    check(answer.error_code, f"{wire.endpoint} DescribeClientQuotas", answer.error_message)
    return {
        equivalence.quota_entity({part.entity_type: part.entity_name for part in entry.entity}): {
            value.key: equivalence.quota_value(value.value) for value in entry.values
        }
        for entry in answer.entries or ()
    }


def credentials(wire: Wire) -> Entities:
    """Every SCRAM credential, by user: mechanism and iterations, never a secret (DescribeUserScramCredentials). Raises ours."""
    answer = wire.ask(DescribeUserScramCredentialsRequest, 0, 0, users=None)
    where = f"{wire.endpoint} DescribeUserScramCredentials"
    check(answer.error_code, where, answer.error_message)
    for each in answer.results:
        check(each.error_code, where, each.error_message)
    return {f"user {each.user}": dict(map(_credential, each.credential_infos)) for each in answer.results}


def acls(wire: Wire) -> Entities:
    """Every ACL. Raises `NotReported` if the node has no authorizer."""
    any_of = ("resource_type_filter", "pattern_type_filter", "operation", "permission_type")
    unset = ("resource_name_filter", "principal_filter", "host_filter")
    answer = wire.ask(DescribeAclsRequest, 1, 3, **dict.fromkeys(any_of, _ANY), **dict.fromkeys(unset))
    if answer.error_code == _SECURITY_DISABLED:
        raise NotReported("no authorizer is configured")
    check(answer.error_code, f"{wire.endpoint} DescribeAcls", answer.error_message)
    return equivalence.acls(rule for resource in answer.resources for rule in _rules(resource))


def tokens(wire: Wire, broker: int) -> Entities:
    """The tokens that the asking principal may see. Raises `NotReported` if the brokers are configured without tokens."""
    answer = wire.ask(DescribeDelegationTokenRequest, 1, 3, owners=None)
    if answer.error_code == _TOKENS_OFF or (answer.error_code == _TOKENS_NOT_HERE and not _uses_tokens(wire, broker)):
        raise NotReported("the brokers are configured without them")
    if answer.error_code == _TOKENS_NOT_HERE:
        raise Failed(f"{wire.endpoint} reports delegation tokens only over TLS or SASL, and this connection uses neither")
    check(answer.error_code, f"{wire.endpoint} DescribeDelegationToken")
    return {f"token {each.token_id}": _token(each) for each in answer.tokens}


def highest_producer_id(wire: Wire) -> int | None:
    """The highest producer id among the transactions that this broker coordinates; None if it has none."""
    answer = wire.ask(ListTransactionsRequest, 0, 1)
    check(answer.error_code, f"{wire.endpoint} ListTransactions")
    return max((state.producer_id for state in answer.transaction_states), default=None)


def _uses_tokens(wire: Wire, broker: int) -> bool:
    """True if the broker has a key for tokens; it withholds the value but reports the source."""
    return any(entry.config_source != OF_DEFAULT for entry in broker_configs(wire, broker, list(_TOKEN_KEYS)))


def _credential(info: Any) -> tuple[str, str]:
    mechanism = {1: "SCRAM-SHA-256", 2: "SCRAM-SHA-512"}.get(info.mechanism, f"mechanism {info.mechanism}")
    return mechanism, equivalence.credential(info.iterations)


def _rules(resource: Any) -> Iterator[equivalence.ComparedAcl]:
    pattern = _named(_PATTERNS, resource.pattern_type)
    kind = _named(_RESOURCES, resource.resource_type)
    for rule in resource.acls:
        permission, operation = _named(_PERMISSIONS, rule.permission_type), _named(_OPERATIONS, rule.operation)
        yield equivalence.ComparedAcl(pattern, kind, resource.resource_name, permission, operation, rule.principal, rule.host)


def _token(found: Any) -> dict[str, str]:
    owner = f"{found.principal_type}:{found.principal_name}"
    renewers = [f"{each.principal_type}:{each.principal_name}" for each in found.renewers]
    return equivalence.token(owner, renewers, found.issue_timestamp, found.expiry_timestamp, found.max_timestamp)


def _named(names: Mapping[int, str], code: int) -> str:
    """The name of a code; a code newer than this table differs from every name, so it shows."""
    return names.get(code, f"code {code}")


Value = TypeVar("Value")

_USERS = "/config/users"
_TOKENS = "/delegation_token/tokens"  # a path, not a token
_BLOCK = "/latest_producer_id_block"
_SCRAM = "SCRAM-"


def read(zk: ZnodeReads, kind: StoredKind) -> Entities:
    """One kind, as ZooKeeper, or a backup of it, has it. Raises what the client raises, and `Failed` if a znode is malformed."""
    return _READS[kind](zk)


def _broker_settings(zk: ZnodeReads) -> Entities:
    return {
        equivalence.broker(name): {key: equivalence.broker_setting(key, value) for key, value in config.items()}
        for name, config in _configs(zk, "/config/brokers")
    }


def _quotas(zk: ZnodeReads) -> Entities:
    users = dict(_configs(zk, _USERS))
    found = {_entity(user=user): _numbers(config) for user, config in users.items()}
    for kind, folder in (("client-id", "/config/clients"), ("ip", "/config/ips")):
        found |= {_entity(**{kind: name}): _numbers(config) for name, config in _configs(zk, folder)}
    for path, clients in dict(zk.families(f"{_USERS}/{user}/clients" for user in users)).items():
        user = path.removeprefix(f"{_USERS}/").removesuffix("/clients")
        pairs = _configs(zk, path, clients)
        found |= {_entity(**{"user": user, "client-id": client}): _numbers(config) for client, config in pairs}
    return found


def _entity(**names: str) -> str:
    """The quota entity of these kinds, with their names as znodes have them."""
    return equivalence.quota_entity({kind: None if name == "<default>" else unquote(name) for kind, name in names.items()})


def _numbers(config: Mapping[str, str]) -> dict[str, str]:
    return {key: equivalence.quota_value(value) for key, value in config.items() if not key.startswith(_SCRAM)}


def _credentials(zk: ZnodeReads) -> Entities:
    return {f"user {unquote(user)}": _iterations(user, config) for user, config in _configs(zk, _USERS)}


def _iterations(user: str, config: Mapping[str, str]) -> dict[str, str]:
    """Only the last part of `salt=...,stored_key=...,server_key=...,iterations=4096`."""

    def count(value: str) -> str:
        return equivalence.credential(int(dict(part.split("=", 1) for part in value.split(","))["iterations"]))

    scram = {key: value for key, value in config.items() if key.startswith(_SCRAM)}
    return {key: _understood(f"{_USERS}/{user}", count, value) for key, value in scram.items()}


def _acls(zk: ZnodeReads) -> Entities:
    prefixed = [(pattern, f"/kafka-acl-extended/{pattern}") for pattern in zk.children("/kafka-acl-extended")]
    roots = [("literal", "/kafka-acl"), *prefixed]
    return equivalence.acls(rule for pattern, root in roots for rule in _acls_of(zk, equivalence.words(pattern), root))


def _acls_of(zk: ZnodeReads, pattern: str, root: str) -> Iterator[equivalence.ComparedAcl]:
    for folder, names in zk.families(f"{root}/{kind}" for kind in zk.children(root)):
        resource = equivalence.words(folder.rpartition("/")[2])
        for name, data in zk.each(folder, names):
            for rule in _understood(f"{folder}/{name}", _list_of_acls, data):
                permission, operation = equivalence.words(rule["permissionType"]), equivalence.words(rule["operation"])
                yield equivalence.ComparedAcl(pattern, resource, name, permission, operation, rule["principal"], rule["host"])


def _list_of_acls(data: bytes) -> list[dict[str, str]]:
    found: list[dict[str, str]] = read_json(data)["acls"] if data else []
    keys = ("permissionType", "operation", "principal", "host")
    return [{key: str(rule[key]) for key in keys} for rule in found]


def _tokens(zk: ZnodeReads) -> Entities:
    found = zk.each(_TOKENS, zk.children(_TOKENS))
    return {f"token {name}": _understood(f"{_TOKENS}/{name}", _token_of, data) for name, data in found}


def _token_of(data: bytes) -> dict[str, str]:
    fields = read_json(data)
    renewers = [unquote(renewer) for renewer in fields["renewers"]]
    times = (int(fields[key]) for key in ("issueTimestamp", "expiryTimestamp", "maxTimestamp"))
    return equivalence.token(unquote(fields["owner"]), renewers, *times)


def _producer_ids(zk: ZnodeReads) -> Entities:
    """Brokers create the znode when they start, and write to it when the first producer id is requested."""
    data, _ = zk.read(_BLOCK) or (b"", 0)
    if not data:
        return {}
    highest = _understood(_BLOCK, lambda block: int(read_json(block)["block_end"]), data)
    return {equivalence.PRODUCER_IDS: {equivalence.HIGHEST: str(highest)}}


def _configs(zk: ZnodeReads, folder: str, names: Iterable[str] | None = None) -> Iterator[tuple[str, dict[str, str]]]:
    """Each entity of the folder with its settings; `names`: only these."""
    there = zk.each(folder, zk.children(folder) if names is None else names)
    return ((name, _understood(f"{folder}/{name}", _config, data)) for name, data in there)


def _config(data: bytes) -> dict[str, str]:
    """Empty without data: such a znode is only the parent of others."""
    return {str(key): str(value) for key, value in read_json(data)["config"].items()} if data else {}


def _understood(path: str, parse: Callable[[Any], Value], data: Any) -> Value:
    try:
        return parse(data)
    except (ValueError, TypeError, KeyError, AttributeError):  # no cause either: it would quote the content
        raise Failed(f"{path} does not have Kafka's format; its content may be secret and is not shown") from None


_READS: Mapping[StoredKind, Callable[[ZnodeReads], Entities]] = {
    StoredKind.BROKER_SETTINGS: _broker_settings,
    StoredKind.QUOTAS: _quotas,
    StoredKind.CREDENTIALS: _credentials,
    StoredKind.ACLS: _acls,
    StoredKind.TOKENS: _tokens,
    StoredKind.PRODUCER_IDS: _producer_ids,
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

    def everything(self) -> Found:
        """Read all kinds, one after the other; a kind that fails does not stop the others."""
        modes = self._modes()
        found: dict[StoredKind, Stored] = {}
        unread = []
        for kind in StoredKind:
            try:
                found[kind] = self._both(kind, modes)
            except (AuthenticationFailed, WrongCluster):
                raise
            except KMigrateError as error:
                unread.append(replace(reads.STORED, text=f"{reads.STORED.text}: {kind}: {error}"))
        return Found(found, tuple(unread))

    def _both(self, kind: StoredKind, modes: Mapping[NodeSpec, BrokerMode]) -> Stored:
        """ZooKeeper first: what is written meanwhile shows as a difference that the next observation does not have."""
        zookeeper = read(self._tools.zk, kind)
        if kind is StoredKind.BROKER_SETTINGS:
            return self._broker_settings(zookeeper, modes)
        if kind is StoredKind.PRODUCER_IDS:
            return Stored(zookeeper, self._producer_ids(modes), {Stored.EVERY: _NO_REQUEST})
        try:
            return Stored(zookeeper, self._kraft(kind, _in_kraft_mode(modes)))
        except NotReported as error:
            return Stored(zookeeper, unreported={Stored.EVERY: str(error)})

    def _kraft(self, kind: StoredKind, reporters: Sequence[NodeSpec]) -> Entities:
        if kind is StoredKind.ACLS:
            return first_of((*reporters, *self._controllers), lambda node: acls(self._tools.wire(node)))
        if not reporters:
            raise NotReported(_NO_KRAFT)
        if kind is StoredKind.TOKENS:
            return first_of(reporters, lambda node: tokens(self._tools.wire(node), node.id))
        read = quotas if kind is StoredKind.QUOTAS else credentials
        return first_of(reporters, lambda node: read(self._tools.wire(node)))

    def _broker_settings(self, zookeeper: Entities, modes: Mapping[NodeSpec, BrokerMode]) -> Stored:
        """Each broker in KRaft mode reports its own settings, any KRaft node the default of all brokers."""
        reporters = _in_kraft_mode(modes)
        kraft = {equivalence.broker(node.id): broker_settings(self._tools.wire(node), node.id) for node in reporters}
        default = first_of((*reporters, *self._controllers), lambda node: broker_settings(self._tools.wire(node), None))
        others = {equivalence.broker(node.id): _ON_ZOOKEEPER if node in modes else _UNRESPONSIVE for node in self._brokers}
        known = {**kraft, equivalence.ALL_BROKERS: default}
        entities = sorted({*zookeeper, *others} - known.keys())
        return Stored(zookeeper, known, {entity: others.get(entity, _STRANGER) for entity in entities})

    def _producer_ids(self, modes: Mapping[NodeSpec, BrokerMode]) -> Entities:
        """The highest producer id that a broker coordinates. It is a lower bound, but brokers report it in every mode."""
        seen = (highest_producer_id(self._tools.wire(node)) for node in modes)
        highest = max((found for found in seen if found is not None), default=None)
        return {} if highest is None else {equivalence.PRODUCER_IDS: {equivalence.HIGHEST: str(highest)}}

    def _modes(self) -> dict[NodeSpec, BrokerMode]:
        """The modes of the brokers that answer. Raises `Unavailable` if none does."""
        found = {}
        for node in self._brokers:
            try:
                found[node] = self._tools.wire(node).api_versions().mode
            except AuthenticationFailed:
                raise
            except KMigrateError:
                continue
        if not found:
            raise Unavailable("no broker answers")
        return found


def _in_kraft_mode(modes: Mapping[NodeSpec, BrokerMode]) -> list[NodeSpec]:
    return [node for node, mode in modes.items() if mode is BrokerMode.KRAFT]


def read_environment(
    spec: ClusterSpec, tools: Tools, view: ClusterView, questions: Questions, *, patience: float, long: float
) -> ClusterEnvironment:
    """Start all reads at once; brokers missing from the view are not asked again.

    `patience`: seconds for each node, `long`: seconds for reads of many znodes.
    """
    alive = [node for node in spec.brokers if view.answered(node.id)]

    def ask(who: str, what: str, seconds: float, read: Callable[..., Value], *given: Any) -> Question[Value]:
        return questions.ask(Reason("", f"{who} did not report its {what}"), seconds, _granted(read), *given)

    def ask_each(what: str, read: Callable[[Wire, int], Value]) -> dict[int, Question[Value]]:
        def read_node(node: NodeSpec) -> Value:
            return read(tools.wire(node), node.id)

        return {node.id: ask(node.name, what, patience, read_node, node) for node in alive}

    dirs = ask_each("log directories", lambda broker, _: wire.log_dirs(broker))
    taken = ask_each("configuration", wire.taken)
    moving = ask("the controller", "reassignments", long, Reads(alive, tools).moving)
    tree = ask("ZooKeeper", "settings, users and rules", long, tools.zk.read_tree)
    servers = ask("ZooKeeper", "versions", long, tools.zk.servers)
    ensemble, settings = questions.answer(servers) or (), _each(questions, taken, spec)
    return ClusterEnvironment(
        releases=releases_of(settings),
        log_dirs=_each(questions, dirs, spec),
        taken=settings,
        moving=questions.answer(moving),
        tree=questions.answer(tree),
        servers=ensemble,
        one_machine=one_machine(spec, ensemble),
        unread=tuple(reason.text for reason in questions.unknowns),
        now=time.time(),
    )


def releases_of(settings: Mapping[int, Taken | None]) -> dict[int, str | None]:
    """The release line of each broker's software; None if its configuration, or the default in it, is not known."""
    return {broker: found.defaults.get(_PROTOCOL) if found else None for broker, found in settings.items()}


def one_machine(spec: ClusterSpec, servers: Iterable[ZooKeeperServer]) -> bool:
    """True if all nodes and ZooKeeper have addresses of this machine itself."""
    addresses = [server.address.rpartition(":")[0] for server in servers]
    return bool(addresses) and all(map(is_loopback, [*addresses, *(node.host for node in spec.nodes())]))


def _each(questions: Questions, asked: Mapping[int, Question[Value]], spec: ClusterSpec) -> dict[int, Value | None]:
    answers = {broker: questions.answer(question) for broker, question in asked.items()}
    return {node.id: answers.get(node.id) for node in spec.brokers}


def _granted(read: Callable[..., Value]) -> Callable[..., Value]:
    """Count a missing right, or another cluster's answer, as not reported: the view has identified the cluster."""

    def wrapped(*arguments: Any) -> Value:
        try:
            return read(*arguments)
        except (AuthenticationFailed, WrongCluster) as error:
            raise Unavailable(str(error)) from error

    return wrapped
