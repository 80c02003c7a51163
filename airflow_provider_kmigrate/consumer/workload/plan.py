"""What a workload consists of, and the command line of each of its processes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from airflow_provider_kmigrate.consumer.workload.life import MAX_SECONDS
from airflow_provider_kmigrate.consumer.workload.receiver import Protocol
from airflow_provider_kmigrate.core.model import Reason
from airflow_provider_kmigrate.exceptions import Refused

_SCHEMA: Final = 1


@dataclass(frozen=True, slots=True)
class GroupPlan:
    """One classic consumer group; `topics` empty: all topics of the workload."""

    name: str
    members: int = 2
    protocol: Protocol = "cooperative"
    topics: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class WorkloadPlan:
    """`rate` records a second over all `producers`, to every partition of `topics` in turn, read by each of the groups.

    `topics` are names, or patterns that begin with `^`; topics and partitions that appear later are taken in within seconds.
    Groups deliver and commit in batches of `batch_s` seconds. `run` tells the writers of this run from those of another one;
    `Workload.start` chooses it where it is empty. After `max_seconds` a forgotten workload ends itself.
    """

    topics: tuple[str, ...]
    rate: float = 500.0
    producers: int = 1
    groups: tuple[GroupPlan, ...] = (GroupPlan("load"),)
    record_bytes: int = 100
    batch_s: float = 1.0
    max_seconds: float = MAX_SECONDS
    run: str = ""

    def topics_of(self, group: GroupPlan) -> tuple[str, ...]:
        return group.topics or self.topics

    def producer_commands(self) -> dict[str, list[str]]:
        """Words after `python -m ...workload`, by writer; paths and connection are not in them."""
        rest = [
            *_topics(self.topics),
            "--rate",
            str(self.rate / self.producers),
            "--bytes",
            str(self.record_bytes),
            *self._limit(),
        ]
        return {f"producer{i}-{self.run}": ["produce", "--share", f"{i}/{self.producers}", *rest] for i in range(self.producers)}

    def consumer_commands(self) -> dict[str, list[str]]:
        """The same for every member of every group."""
        return {f"{group.name}.{i}-{self.run}": self._consume(group) for group in self.groups for i in range(group.members)}

    def _consume(self, group: GroupPlan) -> list[str]:
        how = ["--protocol", group.protocol, "--batch-seconds", str(self.batch_s), *self._limit()]
        return ["consume", "--group", group.name, *_topics(self.topics_of(group)), *how]

    def _limit(self) -> list[str]:
        return ["--max-seconds", str(self.max_seconds)]

    def as_dict(self) -> dict[str, Any]:
        """For the plan's file."""
        return {"schema": _SCHEMA, **asdict(self)}


def plan_of(values: Mapping[str, Any]) -> WorkloadPlan:
    """The plan in a file. Raises `Refused` for what another release wrote."""
    rest = dict(values)
    if rest.pop("schema", None) != _SCHEMA:
        raise _unreadable(f"It has schema {values.get('schema')!r}; this release reads {_SCHEMA}.")
    try:
        groups = tuple(GroupPlan(**{**group, "topics": tuple(group["topics"])}) for group in rest.pop("groups"))
        return WorkloadPlan(**{**rest, "topics": tuple(rest["topics"]), "groups": groups})
    except (KeyError, TypeError) as error:
        raise _unreadable(f"It is damaged: {error!r}.") from error


def _unreadable(why: str) -> Refused:
    return Refused.because(Reason("Y01", f"The plan of a workload or probe cannot be read. {why}"))


def _topics(topics: Sequence[str]) -> list[str]:
    return [f"--topic={topic}" for topic in topics]
