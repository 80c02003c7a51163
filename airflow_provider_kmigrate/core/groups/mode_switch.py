"""Plans the mode switch of many groups at once: which of them may switch now, in waves, and why the others stay.

A group needs no entry in the cluster file: its members are its instances. So teams may deploy migrating consumers by themselves, and an
administrator switches all groups that are ready.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from airflow_provider_kmigrate.core.cluster_state.decision import Act, Refuse, Wait
from airflow_provider_kmigrate.core.cluster_state.model import Reason
from airflow_provider_kmigrate.core.cluster_state.spec import GroupSpec, InstanceSpec
from airflow_provider_kmigrate.core.groups.members import GroupObservations
from airflow_provider_kmigrate.core.groups.move import decide_set_mode, hold_reasons, is_mode_written
from airflow_provider_kmigrate.core.member.group_seen import GroupSeen
from airflow_provider_kmigrate.core.member.registration import Mode, Registration
from airflow_provider_kmigrate.core.shared.text import count_of


@dataclass(frozen=True, slots=True)
class ModePlan:
    """`waves`: groups to switch, in order. `done`: groups in that mode already. `left`: groups that stay, each with its reasons.

    Groups without a migrating consumer are in none of them: the mode means nothing to them.
    """

    waves: tuple[tuple[str, ...], ...] = ()
    done: tuple[str, ...] = ()
    left: Mapping[str, tuple[Reason, ...]] | None = None


def plan_mode_switch(
    groups: Mapping[str, GroupSeen], mode: Mode, *, now: float, stable_for: float = 0.0, wave_size: int = 10
) -> ModePlan:
    """Plans the switch of these groups. `now`: seconds since the epoch; `stable_for`: seconds since the last member joined."""
    ready, done, left = list[str](), list[str](), dict[str, tuple[Reason, ...]]()
    for name, observed in sorted(groups.items()):
        if observed.zk is not None and not observed.zk.progress:
            continue
        if is_mode_written(observed, mode):
            done.append(name)
        elif reasons := tuple(_find_obstacles(observed, mode, now, stable_for)):
            left[name] = reasons
        else:
            ready.append(name)
    waves = tuple(tuple(ready[start : start + wave_size]) for start in range(0, len(ready), wave_size))
    return ModePlan(waves, tuple(done), left)


def group_of_members(observed: GroupSeen) -> GroupSpec:
    """The group as its members show it: each of them is an instance."""
    return GroupSpec(observed.name, tuple(InstanceSpec(member.name) for member in observed.members or ()))


def _find_obstacles(observed: GroupSeen, mode: Mode, now: float, stable_for: float) -> Iterator[Reason]:
    group = group_of_members(observed)
    decision = decide_set_mode(GroupObservations().with_observation(observed, 0.0, group), group, mode)
    if isinstance(decision, Refuse | Wait):
        yield from decision.reasons
    elif isinstance(decision, Act) and mode is Mode.KAFKA:
        yield from hold_reasons(observed)
        yield from _recent_member_reasons(observed, now, stable_for)


def _recent_member_reasons(observed: GroupSeen, now: float, stable_for: float) -> Iterator[Reason]:
    """K52 if a member joined less than `stable_for` seconds ago, or if that is unknown: a team may still be deploying."""
    entries = observed.zk.registrations.values() if observed.zk else ()
    joined = [_read_joined(entry) for entry in entries]
    newest = max((at for at in joined if at is not None), default=None)
    if not stable_for:
        return
    if newest is None or None in joined:
        yield Reason("K52", f"Group {observed.name}: since when its members are in it is not known.")
    elif now - newest < stable_for:
        hours = (max(0.0, now - newest) / 3600, stable_for / 3600)
        yield Reason(
            "K52",
            f"Group {observed.name}: a member joined {hours[0]:.1f} h ago; {hours[1]:.1f} h without a change are asked for.",
        )


def _read_joined(entry: object) -> float | None:
    """When a member registered, in seconds since the epoch, by its own clock; None if it does not say."""
    timestamp = entry.timestamp if isinstance(entry, Registration) else ""
    return int(timestamp) / 1000 if timestamp.isascii() and timestamp.isdigit() and len(timestamp) < _DIGITS else None


_DIGITS = 15  # of milliseconds since the epoch: more are no time


def describe_mode_plan(plan: ModePlan, mode: Mode) -> Iterable[str]:
    """The plan, a line a wave and a line a group that stays."""
    for number, wave in enumerate(plan.waves, 1):
        yield f"wave {number}: {', '.join(wave)}"
    for name, reasons in (plan.left or {}).items():
        yield f"{name} stays: {' '.join(map(str, reasons))}"
    count = sum(map(len, plan.waves))
    yield f"mode {mode}: {count_of(count, 'group')} in {count_of(len(plan.waves), 'wave')} to set, {len(plan.done)} in it already, {len(plan.left or {})} stay"
