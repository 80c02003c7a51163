"""Look at every consumer group, remember the look, and say how ready each group is to be moved."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from airflow.sdk import BaseOperator, Context
from airflow.sdk.exceptions import AirflowFailException

from airflow_provider_kmigrate.clients import atomic, groups, offsets_topic
from airflow_provider_kmigrate.clients.log_marks import read_marks
from airflow_provider_kmigrate.core.audit.offsets_records import Scan
from airflow_provider_kmigrate.core.groups import inventory
from airflow_provider_kmigrate.core.groups.readiness import GroupSnapshot, OffsetsHistory, Readiness, offsets_histories
from airflow_provider_kmigrate.exceptions import AuthenticationFailed, KMigrateError, Refused
from airflow_provider_kmigrate.hooks.tools import settings_of
from airflow_provider_kmigrate.hooks.world import folder, watching


class GroupInventoryOperator(BaseOperator):
    """Look once at all groups of the cluster, and judge them over all looks of the last `days`; run it every few minutes for a day.

    Commit intervals, session timeouts and generations come from what `__consumer_offsets` took in the last `hours`; where our user may
    not read it, the log says so, and they are left out.

    Leaves `inventory.json` (see `core.groups.readiness.Readiness`) and `looks.jsonl` in `<folder>/inventory/<cluster>`, each whole or as it
    was before, and returns how many groups are in which wave. Looks older than `days` are dropped. Changes nothing in the cluster.
    """

    template_fields: Sequence[str] = ()
    ui_color = "#e6e6fa"

    def __init__(self, *, cluster_file: str, days: float = 7.0, hours: float = 1.0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.cluster_file, self.days, self.hours = cluster_file, days, hours

    def execute(self, context: Context) -> dict[str, int]:
        del context
        try:
            name, looks, stored = self._look()
        except (Refused, AuthenticationFailed) as error:
            raise AirflowFailException(str(error)) from None
        place = folder() / "inventory" / name
        known = remembered(place / "looks.jsonl", looks, _now_ms() - round(86_400_000 * self.days))
        now = {look.group for look in looks}  # a group that is gone is left out
        found = inventory.inventory((look for look in known if look.group in now), stored)
        atomic.replace(place / "inventory.json", json.dumps(inventory.as_dicts(found), indent=1).encode(), mode=atomic.EVERYBODY)
        return self._told(found)

    def _look(self) -> tuple[str, tuple[GroupSnapshot, ...], Mapping[str, OffsetsHistory]]:
        with watching(self.cluster_file, self.log.info) as world:
            properties = settings_of(world.spec).kafka.properties
            seen = [*groups.of_zookeeper(world.tools.zk), *groups.of_brokers(properties)]
            marks = read_marks(properties, {where.topic for one in seen for where in one.offsets or ()})
            stored = self._stored(properties)
            return world.spec.name, inventory.snapshots(seen, marks, _now_ms(), stored), stored

    def _stored(self, properties: Mapping[str, str]) -> Mapping[str, OffsetsHistory]:
        try:
            records = offsets_topic.recent(properties, _now_ms() - round(3_600_000 * self.hours))
        except KMigrateError as error:
            self.log.warning("Commit intervals, sessions and generations are left out: %s", error)
            return {}
        return offsets_histories(Scan().read_all(records))

    def _told(self, found: Sequence[Readiness]) -> dict[str, int]:
        counts: dict[str, int] = {}
        for group in found:
            wave = "blocked" if group.wave is None else f"wave {group.wave}"
            counts[wave] = counts.get(wave, 0) + 1
            self.log.info("%s: %s, %s, score %d; %s", wave, group.group, group.protocol, group.score, _why(group))
        return counts


def remembered(path: Path, looks: Sequence[GroupSnapshot], since_ms: int) -> list[GroupSnapshot]:
    """These looks and those of the file from `since_ms` on, which the file holds afterwards: without older ones. Raises `Failed`."""
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines() if path.exists() else []
    known = [*inventory.read_lines(lines, since_ms), *looks]
    atomic.make_folder(path.parent)
    atomic.replace(path, "".join(f"{inventory.line(look)}\n" for look in known).encode(), mode=atomic.EVERYBODY)
    return known


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _why(group: Readiness) -> str:
    return " | ".join(map(str, (*group.blockers, *group.reservations))) or "nothing against it"
