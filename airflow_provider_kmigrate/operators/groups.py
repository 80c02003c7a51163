"""Consumer groups off ZooKeeper (KIP-125) and back: an instance, the mode of groups, the watch, the way back, the leftovers."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

from airflow.sdk import Context
from airflow.sdk.exceptions import AirflowSkipException

from airflow_provider_kmigrate.core.audit.verdict import Outcome, outcome_of
from airflow_provider_kmigrate.core.coordination.group_seen import GroupSeen, MemberKind
from airflow_provider_kmigrate.core.coordination.registration import Mode
from airflow_provider_kmigrate.core.decision import Done
from airflow_provider_kmigrate.core.groups.health import goes_back
from airflow_provider_kmigrate.core.groups.hold import held
from airflow_provider_kmigrate.core.groups.members import unread
from airflow_provider_kmigrate.core.groups.move import Goal, moved, plan
from airflow_provider_kmigrate.core.groups.windows import not_in_file, other_wave
from airflow_provider_kmigrate.core.model import Look, Reason
from airflow_provider_kmigrate.exceptions import KMigrateError, Refused, Unreachable
from airflow_provider_kmigrate.hooks.verdicts import stored
from airflow_provider_kmigrate.operators.step import StepOperator
from airflow_provider_kmigrate.steps.catalog import build
from airflow_provider_kmigrate.steps.group_check import GoOn, GroupChecked
from airflow_provider_kmigrate.steps.journal import told
from airflow_provider_kmigrate.steps.run import World, run_step

_EVERY_WAVE = 0
_GO_ON = "go_on"  # of a run's conf: groups that a person lets move forward again
_CAUSES = "causes"  # the XCom with what a step was refused for
_NOTHING_RED = (
    "No step before it found the group worse, and no audit said FAIL: nothing is known that the group would have to be taken back for. "
    "Where a step is red, it could not look or act, or a person ended it; where an audit is red, it could not be made, or stayed "
    "INCONCLUSIVE: clear it, or take the group back by the DAG for that."
)


class _Forward(StepOperator):
    """A step on the way of groups off ZooKeeper. A run whose conf names another `wave` skips it, and so do groups that are off it.

    A group that another run took back is refused (K69) until a run's conf names it in `go_on`, or `groups go-on` was told.
    """

    ui_color = "#e3f0d8"
    groups: tuple[str, ...]
    wave: int
    onward = True  # not the mode of a way back, which a group that was taken back may need
    _released: frozenset[str] = frozenset()

    def execute(self, context: Context) -> str:
        if other_wave(context["params"].get("wave"), self.wave):
            raise AirflowSkipException(f"This run is not for wave {self.wave}, of which {', '.join(self.groups)} is.")
        return super().execute(context)

    def _execute(self, context: Context, watched: dict[str, Any]) -> str:
        self._released = frozenset(context["params"].get(_GO_ON) or ())
        return super()._execute(context, watched)

    def refused(self, context: Context, reasons: Sequence[Reason]) -> None:
        """For the task that may take the group back."""
        context["ti"].xcom_push(_CAUSES, [str(reason.cause) for reason in reasons if reason.cause])

    def run_in(self, world: World, arguments: dict[str, Any]) -> object:
        seen = world.observer.look(Look.ZOOKEEPER | Look.GROUP_MEMBERS, groups=self.groups).groups or {}
        if all(moved(seen.get(name), world.spec.group(name)) for name in self.groups):
            raise AirflowSkipException(f"{', '.join(self.groups)} has left ZooKeeper already.")
        for name in self.groups:
            self._goes_on(world, seen.get(name), name)
        return self.do(world, arguments)

    def _goes_on(self, world: World, seen: GroupSeen | None, name: str) -> None:
        reasons = held(seen, world.run) if self.onward else ()
        if reasons and name not in self._released:
            raise Refused.because(*reasons)
        if reasons:
            run_step(GoOn(world.spec.group(name)), world)

    def do(self, world: World, arguments: dict[str, Any]) -> object:
        """The step itself."""
        return super().run_in(world, arguments)


class _GroupOperator(_Forward):
    """A step of one group of the cluster file."""

    def __init__(self, *, group: str, wave: int = _EVERY_WAVE, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.groups, self.wave = (group,), wave

    def arguments(self, context: Context) -> dict[str, Any]:
        del context
        return {"group": self.groups[0]}


class CheckGroupOperator(_GroupOperator):
    """Scan a group before anything of it is moved: fail on what blocks it (K30 to K46), and say what else a person should know."""

    kind = "check group"
    ui_color = "#e6e6fa"

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**{"deferrable": False, **kwargs})  # the second look is compared with the first

    def do(self, world: World, arguments: dict[str, Any]) -> object:
        return run_step(GroupChecked(world.spec.group(arguments["group"]), world.tools.topic_settings), world)


class SwitchInstanceOperator(_GroupOperator):
    """Have one instance restarted as `target` (migrating or plain), once its group is at rest, and wait until it is again.

    The way back is `GroupBackOperator`'s. With `bake` the group is then watched for the file's `bake`; a canary that makes it worse goes back alone, and the task fails.
    """

    kind = "switch"
    ui_color = "#fdf0cd"

    def __init__(self, *, instance: str, target: MemberKind | str, bake: bool = False, **kwargs: Any) -> None:
        # a worker is held until the instance is back, or its command would be run again by the next one
        super().__init__(**{"sync_for": 600.0, **kwargs})
        self.instance, self.target, self.bake = instance, str(target), bake

    def arguments(self, context: Context) -> dict[str, Any]:
        return {**super().arguments(context), "instance": self.instance, "target": self.target, "bake": self.bake}


class SetModeOperator(_Forward):
    """The toggle of KIP-125 for a list of groups, one after another: exact bytes, version-checked, read back; each is over when every
    member has reported that mode's epoch and is at rest in it. The first that is refused stops the list; what is not done then is in the log.
    """

    kind = "mode"
    ui_color = "#f4d7d7"

    def __init__(self, *, groups: Sequence[str], mode: Mode | str, wave: int = _EVERY_WAVE, **kwargs: Any) -> None:
        super().__init__(**{"deferrable": False, **kwargs})
        self.groups, self.mode, self.wave = tuple(groups), str(mode), wave
        self.onward = Mode(mode) is Mode.KAFKA

    def do(self, world: World, arguments: dict[str, Any]) -> object:
        del arguments
        for number, group in enumerate(self.groups):
            try:
                run_step(build(world.spec, self.kind, {"group": group, "mode": self.mode}), world)
            except KMigrateError:
                done, left = (", ".join(names) or "none" for names in (self.groups[:number], self.groups[number + 1 :]))
                world.say(f"It ends with group {group}. In {self.mode} mode before it: {done}; not touched: {left}.")
                raise
        return f"In {self.mode} mode, and settled: {', '.join(self.groups)}."


class WatchGroupOperator(_GroupOperator):
    """Wait while a group, that nobody touches, shows for the file's `bake` that it goes on committing; fail when it does not."""

    kind = "watch group"


class CleanUpGroupOperator(_GroupOperator):
    """Delete the mode and the empty folders of a group that has left ZooKeeper."""

    kind = "clean up"


class GroupBackOperator(StepOperator):
    """Bring groups back to `goal` (old, migrating or kafka: see `core.groups.move.Goal`) from wherever each stands.

    With `only_after` or `verdict` it acts only where one of these tasks of its run has found the group worse (V30 to V30), or the
    audit's verdict in that file is FAIL. It is skipped where they never ran, could not look, or were ended by a person, and where the
    audit said nothing or INCONCLUSIVE: unknown is no reason to take a group back, and a person decides. A run's conf `groups` (a list of names) limits it. Killed and run again it looks, and goes on.
    """

    kind = "group back"
    ui_color = "#fdf0cd"
    template_fields: Sequence[str] = (*StepOperator.template_fields, "verdict")

    def __init__(
        self,
        *,
        groups: Sequence[str],
        goal: Goal | str = "",
        only_after: Sequence[str] = (),
        verdict: str = "",
        **kwargs: Any,
    ) -> None:
        super().__init__(**{"deferrable": False, **kwargs})
        self.groups, self.goal, self.only_after, self.verdict = tuple(groups), str(goal), tuple(only_after), verdict

    def execute(self, context: Context) -> str:
        if (self.only_after or self.verdict) and not (_worse(context, self.only_after) or _says_fail(self.verdict)):
            raise AirflowSkipException(_NOTHING_RED)
        wanted = context["params"].get("groups") or self.groups
        if not set(self.groups) & set(wanted):
            raise AirflowSkipException(f"This run is for {', '.join(wanted)}.")
        return super().execute(context)

    def arguments(self, context: Context) -> dict[str, Any]:
        return {"goal": self.goal or context["params"].get("goal") or str(Goal.OLD)}

    def run_in(self, world: World, arguments: dict[str, Any]) -> object:
        for group in self.groups:
            run_step(build(world.spec, self.kind, {"group": group, "goal": arguments["goal"]}), world)
        return f"Back at {arguments['goal']}: {', '.join(self.groups)}."


def _says_fail(verdict: str) -> bool:
    """Whether an audit has left a FAIL there. What is not there, or cannot be read, is no verdict."""
    document = stored(verdict) if verdict else None
    with contextlib.suppress(Refused):
        return document is not None and outcome_of(document) is Outcome.FAIL
    return False


def _worse(context: Context, tasks: Sequence[str]) -> bool:
    """Whether one of these tasks has failed itself, for something that it saw of the group."""
    if not tasks:
        return False
    ti: Any = context["ti"]
    states = ti.get_task_states(dag_id=context["dag"].dag_id, task_ids=list(tasks), run_ids=[context["run_id"]])
    failed = {task for of_run in states.values() for task, state in of_run.items() if state == "failed"}
    return any(goes_back(ti.xcom_pull(task_ids=task, key=_CAUSES) or ()) for task in sorted(failed))


class GroupPlanOperator(StepOperator):
    """Say where each group stands and what would be done; changes nothing. Returns a Markdown list; `goal` empty: the way forward.

    Fails where the run's conf names groups, or a wave, that the cluster file does not have.
    """

    kind = "plan groups"
    only_looks = True
    ui_color = "#e6e6fa"

    def __init__(self, *, groups: Sequence[str], back: bool = False, **kwargs: Any) -> None:
        super().__init__(**{"deferrable": False, **kwargs})
        self.groups, self.back = tuple(groups), back

    def arguments(self, context: Context) -> dict[str, Any]:
        goal = (context["params"].get("goal") or str(Goal.OLD)) if self.back else None
        params = context["params"]
        groups, released = params.get("groups") or None, params.get(_GO_ON) or ()
        return {"goal": goal, "groups": groups, "wave": params.get("wave"), _GO_ON: list(released)}

    def run_in(self, world: World, arguments: dict[str, Any]) -> object:
        unknown = not_in_file(world.spec.groups, arguments["wave"], [*(arguments["groups"] or ()), *arguments[_GO_ON]])
        if unknown:
            raise Refused.because(*unknown)
        names = [name for name in self.groups if name in (arguments["groups"] or self.groups)]
        seen = world.observer.look(Look.ZOOKEEPER | Look.GROUP_MEMBERS, groups=names).groups or {}
        missing = [reason for name in names for reason in unread(seen.get(name), name)]
        if missing:
            raise Unreachable(told(missing))
        goal = Goal(arguments["goal"]) if arguments["goal"] else None
        return "\n".join(f"* **{name}**: {plan(seen[name], world.spec.group(name), goal)}" for name in names)


class GroupsDoneOperator(StepOperator):
    """Let go of the cluster at the end of a run."""

    kind = "done"

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**{"deferrable": False, **kwargs})

    def run_in(self, world: World, arguments: dict[str, Any]) -> object:
        del arguments
        world.fence.release()
        return Done("All groups of this run are done; the run lets go of the cluster.")
