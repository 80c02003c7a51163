"""What the raw log of `__consumer_offsets` must look like after an expansion or a repair."""

from __future__ import annotations

from collections.abc import Mapping

from airflow_provider_kmigrate.core.ledger.book import GroupPartition
from airflow_provider_kmigrate.core.migration.coordinator import hash_group
from airflow_provider_kmigrate.core.offsets_topic.offsets_repair import GroupLog, find_copies


def misplaced(groups: Mapping[str, GroupLog], count: int, expected: Mapping[GroupPartition, int]) -> tuple[str, ...]:
    """What is not as it must be, one sentence each; empty if all is well.

    `expected`: the offset of each commit. Whatever else is stored of a group in `groups` must only lie in its home.
    """
    judged = {key: find_copies(key, trails, count) for log in groups.values() for key, trails in log.commits.items()}
    found = [f"{_name(key)} is not stored" for key in expected if key not in judged]
    for key, one in sorted(judged.items()):
        found += [f"{_name(key)} has a copy: {copy.text}" for copy in one.strays]
        if key in expected and (one.current is None or one.current.offset != expected[key]):
            found.append(f"{_name(key)} must be {expected[key]}; stored is {one.current.text if one.current else 'nothing'}")
    for group, log in groups.items():
        found += [f"{group} has its state in {one.place}" for one in log.states if one.place != hash_group(group) % count]
    return tuple(found)


def _name(key: GroupPartition) -> str:
    return f"{key.group} {key.where.name}"
