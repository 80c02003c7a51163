"""What one key of a consumer group in a cluster file says about another."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from itertools import permutations
from typing import Any

from airflow_provider_kmigrate.core.cluster import GroupSpec
from airflow_provider_kmigrate.spec.problems import Item, Line, Loc, Problem, dotted, mappings, same
from airflow_provider_kmigrate.spec.values import seconds

_HOWS = ("switch", "webhook")
_GROUP = GroupSpec("", ())
_DEFAULTS = {"bake": _GROUP.bake, "commit_within": _GROUP.commit_within}
_TASKS = ("plan", "done")  # of the DAG itself


def check_groups(data: object, line: Line) -> Iterator[Problem]:
    """Groups and instances that cannot be told apart, and instances that nobody could restart."""
    groups = mappings(data, "groups")
    yield from same(groups, "name", line, "list each group once")
    yield from _one_task(groups, line, "move one of them, then list the other in its place", _TASKS)
    for loc, group in groups:
        instances = mappings(group, "instances", loc)
        yield from same(instances, "name", line, "give each instance its own name")
        yield from _one_task(instances, line, "give one of them another consumer.id and client.id")
        yield from _confusable(instances, line)
        yield from _hidden(instances, group.get("name"), line)
        yield from _sees_nothing(loc, group, line)
        for place, item in [(loc, group), *instances]:
            yield from _how(place, item, line)
        for place, instance in instances:
            yield from _nobody(place, instance, group, line)


def _sees_nothing(loc: Loc, group: Mapping[str, Any], line: Line) -> Iterator[Problem]:
    """A canary that bakes no longer than its consumers may go without a commit is never seen to starve. 0: it is not to bake."""
    bake, within = (seconds(group.get(name, default)) for name, default in _DEFAULTS.items())
    if not isinstance(bake, int | float) or not isinstance(within, int | float) or not 0 < bake <= within:
        return
    loc = (*loc, next(name for name in _DEFAULTS if name in group))
    yield Problem(
        code="F04",
        loc=loc,
        line=line(loc),
        found=f"a bake of {bake:g} s beside a commit_within of {within:g} s, in which no partition is seen to starve",
        expected="a bake longer than commit_within, or 0 for none",
        fix=f"write bake: {2 * within:g}s, or the seconds between two commits of these consumers as commit_within",
    )


def _one_task(items: list[Item], line: Line, fix: str, taken: Collection[str] = ()) -> Iterator[Problem]:
    """Names whose tasks would have one id; with two of an id there is no DAG. Task ids have `_` for a dot."""
    first = {name: f"the task {name}" for name in taken}
    for place, item in items:
        name = item.get("name")
        if not isinstance(name, str):
            continue
        other = first.setdefault(name.replace(".", "_"), name)
        if other != name:
            loc = (*place, "name")
            yield Problem(
                code="F05",
                loc=loc,
                line=line(loc),
                found=f"{name}, whose tasks would be called as those of {other}",
                expected="a name that differs from others in more than a dot for `_`",
                fix=fix,
            )


def _confusable(instances: list[Item], line: Line) -> Iterator[Problem]:
    """A member is an instance's by the beginning of its name, up to a dash: `app` would be taken for `app-1` too."""
    for (place, one), (other_place, other) in permutations(instances, 2):
        name, longer = one.get("name"), other.get("name")
        if isinstance(name, str) and isinstance(longer, str) and longer.startswith(f"{name}-"):
            loc = (*place, "name")
            yield Problem(
                code="F05",
                loc=loc,
                line=line(loc),
                found=f"{name}, with which the name of {dotted(other_place)}, {longer}, begins",
                expected="a name whose members no other instance's are taken for",
                fix="give the instances consumer.id and client.id of which none begins another",
            )


def _hidden(instances: list[Item], group: object, line: Line) -> Iterator[Problem]:
    """The id `billing_app0` is that of instance `app0` in group `billing`, and of an instance `billing_app0` that is listed by the whole
    id: which of two it means could only be guessed.
    """
    prefix = f"{group}_"
    for (_, one), (place, other) in permutations(instances, 2):
        name, longer = one.get("name"), other.get("name")
        if not isinstance(name, str) or not isinstance(longer, str) or not longer.startswith(prefix):
            continue
        if f"{longer.removeprefix(prefix)}-".startswith(f"{name}-"):
            loc = (*place, "name")
            yield Problem(
                code="F05",
                loc=loc,
                line=line(loc),
                found=f"{longer}, which is also the consumer id of a member of {name} in group {group}",
                expected="a name whose members no other instance's are taken for",
                fix="give one of them another consumer.id and client.id",
            )


def _how(place: Loc, item: Mapping[str, Any], line: Line) -> Iterator[Problem]:
    if all(item.get(how) for how in _HOWS):
        loc = (*place, "webhook")
        found, expected = "a webhook beside a command", "one of `switch` and `webhook`"
        yield Problem(code="F05", loc=loc, line=line(loc), found=found, expected=expected, fix="remove one")
    command = item.get("switch")
    words = " ".join(map(str, command)) if isinstance(command, list) else str(command or "")
    if words and "{kind}" not in words:
        loc = (*place, "switch")
        found, expected = "a command without {kind}", "one that is told what to restart the instance as"
        yield Problem(code="F04", loc=loc, line=line(loc), found=found, expected=expected, fix="write {kind} where it takes it")


def _nobody(place: Loc, instance: Mapping[str, Any], group: Mapping[str, Any], line: Line) -> Iterator[Problem]:
    if not any(item.get(how) for item in (instance, group) for how in _HOWS):
        yield Problem(
            code="F04",
            loc=(*place, "switch"),
            line=line(place),
            found="nothing",
            expected="how the instance is restarted, here or at the group",
            fix="add `switch: ssh {host} sudo billing-as {kind}`, or `webhook` with the id of an HTTP connection",
        )
