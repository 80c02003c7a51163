"""A group under many hands: the tool dies and runs again, forward and back, instances die, and people restart them as what they like.

What people bring about is theirs; what the tool adds to it has to be sound at each moment, and the rollback has to lead out of all of it.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from random import Random
from typing import Any

import pytest

from airflow_provider_kmigrate.core.cluster_state.model import ClusterView
from airflow_provider_kmigrate.core.groups.move import Goal
from airflow_provider_kmigrate.core.member.registration import Mode
from airflow_provider_kmigrate.exceptions import KMigrateError
from airflow_provider_kmigrate.steps.groups import RollBackGroup
from airflow_provider_kmigrate.steps.run import run_step
from tests.seeds import seeds
from tests.steps.group_runs import forward, run
from tests.steps.sim_group import MIGRATING, OLD, PLAIN, ROOT, SimGroup, SimInstance
from tests.steps.sim_nodes import Killed, Mortal


@dataclass
class Handled(SimGroup):
    """`excused`: what other hands did wrong; it may stay for a while, and nothing else may come."""

    random: Random = field(default_factory=Random)
    busy_hands: float = 0.0  # the chance of a hand at each observation
    excused: set[str] = field(default_factory=set)
    messages: list[str] = field(default_factory=list)

    def observe(self, *asked: Any, **named: Any) -> ClusterView:
        if self.random.random() < self.busy_hands:
            self._hand()
        return super().observe(*asked, **named)

    def _hand(self) -> None:
        one = self.random.choice(list(self.instances.values()))
        what = self.random.choice(["dies", "mode", OLD, MIGRATING, PLAIN])
        self.messages.append(f"{self.clock.time:.0f}: {one.name} {what}")
        if what == "dies":
            one.kind, one.becomes, one.ready_at = (
                None,
                one.becomes or one.kind,
                self.clock.time + self.random.choice([5.0, 200.0]),
            )
        elif what == "mode":
            for folder in (f"{ROOT}/migration", f"{ROOT}/migration/mode"):
                if folder not in self.znodes:
                    self._put(folder, b"")
            self._put(f"{ROOT}/migration/mode", self.random.choice([b"kafka", b"zookeeper", b"kafka\n"]))
        else:
            one.kind, one.becomes = what, None  # type: ignore[assignment]
        self.excused |= self._wrong(soon=True)

    def _wrong(self, *, soon: bool = False) -> set[str]:
        kinds = {one.kind for one in self.instances.values()} | {one.becomes for one in self.instances.values() if soon}
        mode = Mode.ZOOKEEPER if OLD in kinds else self.requested_mode
        if {OLD, PLAIN} <= kinds:
            return {"old beside plain"}
        return {"plain beside ZooKeeper"} if {MIGRATING, PLAIN} <= kinds and mode is Mode.ZOOKEEPER else set()

    def _check(self) -> None:
        allowed = self.excused | ({"plain beside ZooKeeper"} if self.excused else set())  # the lesser, on the way out
        assert self._wrong() <= allowed, (self._wrong(), self.messages)
        self.excused = allowed & self._wrong(soon=True)

    def _begins(self, one: SimInstance) -> None:
        """Migrating members that follow ZooKeeper keep a plain one out by their assignors, until they are gone."""
        if one.kind is PLAIN and MIGRATING in self.kinds() and self.mode is Mode.ZOOKEEPER:
            one.kind, one.becomes = None, PLAIN
        elif not self.messages:
            super()._begins(one)


@pytest.mark.seeded
@pytest.mark.parametrize("seed", seeds(80))
def test_the_rollback_leads_out_of_what_many_hands_did(seed: int) -> None:
    random = Random(seed)  # noqa: S311  # no secret
    group = Handled(random.choice([2, 3]), random=random)
    for _ in range(4):
        group.mortal = Mortal(group.mortal.count + random.randrange(1, 120))
        group.busy_hands = random.choice([0.0, 0.03, 0.1])
        context, goal = group.context(), random.choice(list(Goal))
        with suppress(Killed, KMigrateError):
            if random.random() < 0.7:
                run(context, forward(group))
            else:
                run_step(RollBackGroup(group.spec, goal), context)
    group.busy_hands, group.mortal = 0.0, Mortal()
    run_step(RollBackGroup(group.spec, Goal.ZOOKEEPER_CONSUMERS), group.context())
    assert group.kinds() == [OLD] * group.count, group.messages
    assert group.requested_mode is Mode.ZOOKEEPER
