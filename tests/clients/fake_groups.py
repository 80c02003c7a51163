"""A broker that coordinates groups: answers as Kafka 3.9 gives them, over real TCP."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fake_node import FakeNode, api_versions
from kafka.protocol.admin import DescribeGroupsResponse
from kafka.protocol.consumer.group import OffsetCommitResponse, OffsetFetchResponse
from kafka.protocol.consumer.metadata import ConsumerProtocolAssignment
from kafka.protocol.metadata import FindCoordinatorResponse, MetadataResponse

from airflow_provider_kmigrate.clients.messages import ConsumerGroupDescribeResponse

METADATA, OFFSET_COMMIT, OFFSET_FETCH, FIND_COORDINATOR, DESCRIBE_GROUPS, DESCRIBE_NEW = 3, 8, 9, 10, 15, 69
#: What a broker serves of them: of 3.9, and of 2.8, which asks and answers about one group at a time.
NEW = {3: (0, 12), 8: (0, 9), 9: (0, 9), 10: (0, 6), 15: (0, 5), 16: (0, 5), 69: (0, 0)}
OLD = {3: (0, 11), 8: (0, 8), 9: (0, 7), 10: (0, 3), 15: (0, 5), 16: (0, 4)}
UNKNOWN_TOPIC = 3
GROUP = DescribeGroupsResponse.DescribedGroup
_NEW_GROUP = ConsumerGroupDescribeResponse.DescribedGroup


def member(number: int, *partitions: int, data: bytes | None = None) -> Any:
    topic = ConsumerProtocolAssignment.TopicPartition(topic="t", partitions=list(partitions))
    ours = ConsumerProtocolAssignment(version=0, assigned_partitions=[topic], user_data=b"").encode() if partitions else b""
    return GROUP.DescribedGroupMember(
        member_id=f"m-{number}",
        client_id="app",
        client_host="/h",
        group_instance_id=None,
        member_metadata=b"",
        member_assignment=bytes(ours) if data is None else data,
    )


def group(name: str, *members: Any, code: int = 0, state: str = "Stable", kind: str = "consumer") -> Any:
    return GROUP(
        error_code=code,
        group_id=name,
        group_state=state,
        protocol_type=kind,
        protocol_data="range",
        members=list(members),
    )


def group_of_new_protocol(name: str, code: int = 0) -> Any:
    """With one member, which has t-5."""
    kind = _NEW_GROUP.Member
    has = kind.Assignment(topic_partitions=[kind.Assignment.TopicPartitions(topic_name="t", partitions=[5])])
    one = kind(
        member_id="m-1",
        client_id="app",
        client_host="/h",
        assignment=has,
        target_assignment=kind.TargetAssignment(topic_partitions=[]),
    )
    return _NEW_GROUP(
        error_code=code, group_id=name, group_state="Reconciling", assignor_name="uniform", members=[] if code else [one]
    )


class Broker:
    """`groups`: what it coordinates, with offsets of t by partition; `codes`: FindCoordinator's error of a group, or OffsetFetch's of one
    that it coordinates. Groups of which it knows nothing are Dead. `offsets_topic`: whether any group ever committed."""

    def __init__(
        self,
        groups: Mapping[str, tuple[Any, Mapping[int, int]]] | None = None,
        *,
        codes: Mapping[str, int] | None = None,
        versions: Mapping[int, tuple[int, int]] = NEW,
        offsets_topic: bool = True,
    ) -> None:
        self.groups, self.codes, self._offsets_topic = dict(groups or {}), dict(codes or {}), offsets_topic
        self.elsewhere: dict[str, Broker] = {}
        self.peers: Sequence[Broker] = (self,)
        self.committed: list[Any] = []
        handlers = {
            18: api_versions(versions),
            METADATA: self._metadata,
            OFFSET_COMMIT: self._commit,
            OFFSET_FETCH: self._fetch,
            FIND_COORDINATOR: self._find,
            DESCRIBE_GROUPS: self._describe,
            DESCRIBE_NEW: self._describe_new,
        }
        self.node = FakeNode(handlers)

    @property
    def properties(self) -> dict[str, str]:
        return {"bootstrap.servers": f"127.0.0.1:{self.node.port}"}

    def asked(self, key: int) -> int:
        return self.node.keys_seen().count(key)

    def _metadata(self, request: Any) -> Any:
        kinds = MetadataResponse.MetadataResponseBroker, MetadataResponse.MetadataResponseTopic
        brokers = [
            kinds[0](node_id=index, host="127.0.0.1", port=peer.node.port, rack=None) for index, peer in enumerate(self.peers)
        ]
        code = 0 if self._offsets_topic else UNKNOWN_TOPIC
        topics = [kinds[1](error_code=code, name=topic.name, is_internal=True, partitions=[]) for topic in request.topics or ()]
        return MetadataResponse(throttle_time_ms=0, brokers=brokers, cluster_id="c", controller_id=0, topics=topics)

    def _find(self, request: Any) -> Any:
        if request.API_VERSION < 4:
            return FindCoordinatorResponse(throttle_time_ms=0, **self._found(request.key))
        one = FindCoordinatorResponse.Coordinator
        found = [one(key=name, **self._found(name)) for name in request.coordinator_keys]
        return FindCoordinatorResponse(throttle_time_ms=0, coordinators=found)

    def _found(self, name: str) -> dict[str, Any]:
        code = 0 if name in self.groups else self.codes.get(name, 0)
        port = self.elsewhere.get(name, self).node.port
        return {"error_code": code, "error_message": None, "node_id": 0, "host": "127.0.0.1", "port": port}

    def _describe(self, request: Any) -> Any:
        found = [self.groups[name][0] if name in self.groups else group(name, state="Dead") for name in request.groups]
        known = [one if isinstance(one, GROUP) else group(one.group_id, state="Dead") for one in found]
        return DescribeGroupsResponse(throttle_time_ms=0, groups=known)

    def _describe_new(self, request: Any) -> Any:
        found = [self.groups[name][0] if name in self.groups else None for name in request.group_ids]
        answers = [
            one if isinstance(one, _NEW_GROUP) else group_of_new_protocol(name, code=69)
            for name, one in zip(request.group_ids, found, strict=True)
        ]
        return ConsumerGroupDescribeResponse(throttle_time_ms=0, groups=answers)

    def _fetch(self, request: Any) -> Any:
        if request.API_VERSION < 8:
            topics = self._offsets(request.group_id, OffsetFetchResponse.OffsetFetchResponseTopic, "OffsetFetchResponsePartition")
            return OffsetFetchResponse(throttle_time_ms=0, error_code=self.codes.get(request.group_id, 0), topics=topics)
        one = OffsetFetchResponse.OffsetFetchResponseGroup
        found = [
            one(
                group_id=asked.group_id,
                error_code=self.codes.get(asked.group_id, 0),
                topics=self._offsets(asked.group_id, one.OffsetFetchResponseTopics, "OffsetFetchResponsePartitions"),
            )
            for asked in request.groups
        ]
        return OffsetFetchResponse(throttle_time_ms=0, groups=found)

    def _offsets(self, name: str, topic: Any, partition: str) -> list[Any]:
        """An offset below -1 stands for the error code that is sent instead."""
        kept = self.groups[name][1] if name in self.groups else {}
        parts = [
            getattr(topic, partition)(
                partition_index=index,
                committed_offset=max(offset, -1),
                committed_leader_epoch=-1,
                metadata="",
                error_code=-offset if offset < -1 else 0,
            )
            for index, offset in kept.items()
        ]
        return [topic(name="t", partitions=parts)] if parts else []

    def _commit(self, request: Any) -> Any:
        self.committed.append(request)
        topic = OffsetCommitResponse.OffsetCommitResponseTopic
        answers = [
            topic(
                name=asked.name,
                partitions=[
                    topic.OffsetCommitResponsePartition(
                        partition_index=one.partition_index, error_code=self.codes.get(request.group_id, 0)
                    )
                    for one in asked.partitions
                ],
            )
            for asked in request.topics
        ]
        return OffsetCommitResponse(throttle_time_ms=0, topics=answers)
