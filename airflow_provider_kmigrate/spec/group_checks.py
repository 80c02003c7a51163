"""What one key of a consumer group in a cluster file says about another."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from itertools import permutations
from typing import Any

from airflow_provider_kmigrate.spec.problems import Item, Line, Loc, Problem, dotted, mappings, same

_HOWS = ("switch", "webhook")
_TASKS = ("plan", "done")  # of the DAG itself


def check(data: object, line: Line) -> Iterator[Problem]:
    """Groups and instances that cannot be told apart, and instances that nobody could restart."""
    groups = mappings(data, "groups")
    yield from same(groups, "name", line, "list each group once")
    yield from _one_task(groups, line, "move one of them, then list the other in its place", _TASKS)
    for loc, group in groups:
        instances = mappings(group, "instances", loc)
        yield from same(instances, "name", line, "give each instance its own name")
        yield from _one_task(instances, line, "give one of them another consumer.id and client.id")
        yield from _confusable(instances, line)
        for place, item in [(loc, group), *instances]:
            yield from _how(place, item, line)
        for place, instance in instances:
            yield from _nobody(place, instance, group, line)


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
            code="F03",
            loc=(*place, "switch"),
            line=line(place),
            found="nothing",
            expected="how the instance is restarted, here or at the group",
            fix="add `switch: ssh {host} sudo billing-as {kind}`, or `webhook` with the id of an HTTP connection",
        )
