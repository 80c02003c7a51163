"""Every pair of faults at every step of a migration and of a rollback, on a cluster in memory: `python -m tests.pairs`.

A search goes from task to task, as Airflow runs a plan's rows. At each instant of a task, an observation or a side effect, each fault of
`faults_at` is tried, and at each later instant each second one. What is equal is tried once:

* instants of a task at which the cluster is in the same state (`key_of`), apart for observations and acts;
* nodes, and racks, that differ by nothing but their number;
* clusters in the same state before the same task: the rest of the plan is searched once. A cluster that has recovered from its first
  fault is the cluster without it, whose second fault is another cluster's first.

A dead machine boots by itself. A task is tried again as Airflow does it, once; then a person is needed. What a person does is counted:
undo what a person did, if the error names that node; clear the task; begin a new run; run the other direction. What must hold: faults
of machines need no person; after all others one act that the error names is enough; nothing is a disaster; and there is always a way.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import dropwhile
from pathlib import Path
from typing import Final, NamedTuple

from airflow_provider_kmigrate.core.migration.plan import MIGRATION, ROLLBACK, Plan, StepRow, steps_after_approval
from airflow_provider_kmigrate.core.node_files.config_matrix import FileStage
from airflow_provider_kmigrate.exceptions import KMigrateError
from airflow_provider_kmigrate.steps.catalog import build, reason_to_postpone, run_plan, run_remaining_nodes
from airflow_provider_kmigrate.steps.run import StepContext, run_step
from tests.steps.faults import SHORT, Fault, Key, befall, faults_at, key_of
from tests.steps.sim_faults import BROKER, FaultyCluster, Node
from tests.steps.sim_nodes import Killed, Mortal

FORWARD: Final = tuple(step for step in MIGRATION if step.kind not in {"preflight", "backup", "approve"})
BACK: Final = steps_after_approval(ROLLBACK)
TRIES: Final = 2  # of a task, as the DAGs have it
RETRY_AFTER: Final = 15.0  # seconds
RUN_AGAIN: Final = 30.0  # seconds after which a task whose worker died runs again
MOST_ACTS: Final = 3  # of persons on nodes, before they try another way
QUIET: Final = 400.0  # seconds in which everything that comes back by itself has


class Task(NamedTuple):
    """A task of the DAG: a row of a plan on one of its nodes, or on all that are left."""

    row: StepRow
    node: int | None = None
    rest: bool = False

    def __str__(self) -> str:
        return f"{self.row.group}.{self.row.task}".strip(".") + (
            f"_{self.node}" if self.node is not None else ".rest" if self.rest else ""
        )

    @property
    def here(self) -> Node | None:
        """The node on which it works."""
        return (self.row.each, self.node) if self.row.each and self.node is not None else None

    def run(self, context: StepContext) -> None:
        row, target = self.row, {"target": self.row.target} if self.row.target else {}
        if self.rest:
            run_remaining_nodes(context, row.kind, target)
        elif self.node is None:
            run_plan(context, (row,))
        elif not (row.last and reason_to_postpone(context, row.kind, {**target, "node": self.node})):
            run_step(build(context.spec, row.kind, {**target, "node": self.node}), context)


def tasks_of(plan: Plan, cluster: FaultyCluster) -> tuple[Task, ...]:
    made: list[Task] = []
    for row in plan:
        made += [Task(row, node.id) for node in cluster.spec.nodes() if node.role is row.each] or [Task(row)]
        made += [Task(row, rest=True)] if row.last else []
    return tuple(made)


class Instant(NamedTuple):
    """A moment of a task: its `number`th observation or side effect."""

    number: int
    acting: bool
    key: Key
    faults: tuple[Fault, ...]


@dataclass
class Instants(Mortal):
    """Lets faults happen at their instants, and keeps each instant that is unlike the ones before."""

    cluster: FaultyCluster | None = None
    schedule: dict[int, Fault] = field(default_factory=dict)
    task: Task | None = None
    records: bool = False
    seen: dict[tuple[bool, Key], Instant] = field(default_factory=dict)

    def step(self) -> None:
        assert self.cluster is not None
        assert self.task is not None
        self.count += 1
        acting = not self.cluster.looking
        self.cluster.looking = False
        if acting:
            self.cluster.clock.calm = 0
        if self.records and self.count > max(self.schedule, default=0):
            key = key_of(self.cluster)
            if (acting, key) not in self.seen:
                self.seen[acting, key] = Instant(self.count, acting, key, tuple(faults_at(self.cluster, acting, self.task.here)))
        if (fault := self.schedule.get(self.count)) is not None:
            befall(self.cluster, fault)


@dataclass
class Place:
    """A cluster before a task, and how it came there. `left`: faults that may still happen."""

    cluster: FaultyCluster
    left: int
    path: tuple[str, ...] = ()
    faults: tuple[Fault, ...] = ()

    @property
    def by_machines(self) -> bool:
        """Whether no person has had a hand in it."""
        return all(fault.by_machine for fault in self.faults)

    @property
    def rank(self) -> tuple[int, bool, float]:
        """Of equal clusters the highest is searched."""
        return self.left, self.by_machines, self.cluster.longest


class Finding(NamedTuple):
    """Something that must not be. `cause`: what alike findings have in common."""

    what: str
    cause: str
    path: tuple[str, ...]
    detail: str

    def __str__(self) -> str:
        return f"{self.what} | {self.cause}\n    {' -> '.join(self.path)}\n    {self.detail}"


class Known(NamedTuple):
    """An exception: findings that match are expected until their cause is gone. `cause`: why they are there."""

    name: str
    pattern: str
    cause: str

    def covers(self, finding: Finding) -> bool:
        return re.search(self.pattern, f"{finding.what} | {finding.cause} | {finding.detail}", re.DOTALL) is not None


KNOWN: Final[tuple[Known, ...]] = (
    Known(
        "isolated",
        r"(?:first_roll|to_migration|to_zookeeper)\.(?:registered|leaders|broker\S*):? (?:TimedOut|Failed).*(?:\[R03\]|without effect)|second_roll\.broker\S*: TimedOut.*\[(?:R05|S02)\]",
        "a broker that is isolated or left behind is waited for by steps that come before the one that brings it back",
    ),
    Known("file in the middle", r"\[O06\]", "O06 names what wrote the file, and not the run that writes it again"),
    Known(
        "one retry",
        r"a person is needed.*(?:Unreachable|readiness: Unavailable|TimedOut: .*did not)",
        "an act that its host or a broker does not answer fails the task's try, and a task has two",
    ),
    Known(
        "R12 in the handover",
        r"back handover: .*\[R12\]",
        "a cleared handover stops the controllers again that R12 has started; a new run gives the flag back first",
    ),
    Known(
        "R12 by hand",
        r"no way \|.*(?:\[R12\]|\[G07\]|\[G05\]).*it is finalized|it is finalized.*(?:\[R12\]|\[G07\]|\[G05\])",
        "a leader with the flag hides that one without it has led: only the controllers' logs show it",
    ),
    Known(
        "wiped, and back from an old disk",
        r"rolled back: TimedOut.*\[G04\]",
        "a controller whose directories come back after its task is named, and not the task that sets them aside again",
    ),
)
"""Each is deleted together with its cause."""


@dataclass(frozen=True)
class Sample:
    """Which pairs are tried. `share`: of all faults, and of the second ones; `only`: searches whose name has this in it.

    `begin`: the first task at which something happens; `kinds`: of faults, none: all.
    """

    share: float = 1.0
    seed: int = 0
    only: str = ""
    begin: str = ""
    kinds: frozenset[str] = frozenset()


@dataclass
class Search:
    """All pairs of a sample over one plan; `other`: the plan of the other direction."""

    plan: Plan
    other: Plan
    folder: Path
    name: str = ""
    sample: Sample = Sample()
    until: float = float("inf")  # on the monotonic clock
    findings: list[Finding] = field(default_factory=list)
    counts: Counter[int] = field(default_factory=Counter)  # runs of a task, by their faults so far
    ends: Counter[str] = field(default_factory=Counter)
    stalls: list[tuple[float, float, tuple[str, ...]]] = field(default_factory=list)
    over: dict[Key, str] = field(default_factory=dict)
    states: int = 0  # between two tasks, unlike all others there
    done_pairs: set[Key] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.random = random.Random(f"{self.sample.seed} {self.name}")  # noqa: S311 - a sample
        self.way = self.name.split()[0]

    @property
    def size(self) -> str:
        """How much was searched, in words."""
        of = self.counts
        return f"{of[2]} runs of a task after two faults, {of[1]} after one, from {self.states} states; {len(self.findings)} findings"

    def go(self, first: FaultyCluster) -> None:
        """Search from this cluster on, or from the first task of that name, before which nothing happens."""
        every = tasks_of(self.plan, first)
        tasks = list(dropwhile(lambda task: not str(task).startswith(self.sample.begin), every))
        for task in every[: len(every) - len(tasks)]:
            task.run(first.context(self.folder))
        level: dict[Key, Place] = {key_of(first): Place(first.clone(), 2)}
        for number, task in enumerate(tasks):
            following: dict[Key, Place] = {}
            for place in sorted(level.values(), key=lambda place: -place.left):
                for found in self._through(place, task, tasks[number:]):
                    self._keep(following, found)
            level = following
        for place in level.values():
            self._end(place)

    def _keep(self, level: dict[Key, Place], place: Place) -> None:
        """Of equal clusters the one that may meet more faults, then the one that has waited longest."""
        key = key_of(place.cluster)
        known = level.get(key)
        self._note_stall(place)
        if known is None or place.rank > known.rank:
            level[key] = place
            self.states += known is None

    def _note_stall(self, place: Place) -> None:
        if place.faults and (place.cluster.longest > 0 or place.cluster.without_controller > 0):
            self.stalls.append((place.cluster.longest, place.cluster.without_controller, place.path))
            if len(self.stalls) > 4_000:
                self.stalls = worst(self.stalls, 100)

    def _through(self, place: Place, task: Task, rest: Sequence[Task]) -> Iterator[Place]:
        """Where the task leads from this place: without a fault, with each one, and with each pair."""
        ended, instants = self._run(place, task, rest, {}, records=place.left > 0)
        yield from ended
        for one in self._drawn(instants, first=place.left > 1):
            first, later = self._run(place, task, rest, {one[0].number: one[1]}, records=place.left > 1)
            yield from first
            for two in self._drawn(later, first=False):
                known = (str(task), two[0].acting, two[0].key, two[1])
                if known in self.done_pairs:
                    continue
                self.done_pairs.add(known)
                yield from self._run(place, task, rest, {one[0].number: one[1], two[0].number: two[1]}, records=False)[0]

    def _drawn(self, instants: Sequence[Instant], *, first: bool) -> Iterator[tuple[Instant, Fault]]:
        """Of a share of 1 % every tenth first fault, and with each every tenth second one."""
        sample = self.sample
        share = sample.share**0.5 if first else sample.share
        for instant in instants:
            for fault in instant.faults:
                wanted = (not sample.kinds or fault.kind in sample.kinds) and (share >= 1.0 or self.random.random() < share)
                if wanted and time.monotonic() < self.until:
                    yield instant, fault

    def _run(
        self, place: Place, task: Task, rest: Sequence[Task], schedule: dict[int, Fault], *, records: bool
    ) -> tuple[list[Place], list[Instant]]:
        """Run the task, tried again as Airflow does; a failure goes to its end with persons, and no further fault."""
        cluster = place.cluster.clone()
        recorder = Instants(cluster=cluster, schedule=schedule, task=task, records=records)
        cluster.mortal = recorder
        error = self._tried(cluster, task)
        happened = {number: fault for number, fault in sorted(schedule.items()) if number <= recorder.count}
        cluster.mortal = Mortal()
        path = (*place.path, *(f"{task}@{number} {fault}" for number, fault in happened.items()))
        ended = Place(cluster, place.left - len(happened), path, (*place.faults, *happened.values()))
        self.counts[len(ended.faults)] += 1
        instants = list(recorder.seen.values())
        if cluster.disasters:
            self._found("disaster", f"{task}: {cluster.disasters[0]}", ended, "; ".join(cluster.disasters))
            return [], instants
        if error is None:
            return [ended], instants
        self._with_persons(ended, task, rest, error)
        return [], instants

    def _tried(self, cluster: FaultyCluster, task: Task) -> KMigrateError | None:
        """Run the task as Airflow does. The error of the last try; None if it got to its end."""
        tries = TRIES
        while True:
            context = cluster.context(self.folder)
            cluster.observations = 0
            try:
                task.run(context)
            except Killed:  # by a fault: at most twice
                cluster.advance(RUN_AGAIN)
            except KMigrateError as error:
                tries -= 1
                if not error.retriable or tries <= 0:
                    return error
                cluster.advance(RETRY_AFTER)
            else:
                return None

    def _whole(self, cluster: FaultyCluster, tasks: Sequence[Task]) -> tuple[Task, KMigrateError] | None:
        for task in tasks:
            if (error := self._tried(cluster, task)) is not None:
                return task, error
        return None

    def _with_persons(self, place: Place, task: Task, rest: Sequence[Task], error: KMigrateError) -> None:
        """What a person must do until it goes on; everything that comes back by itself is back by then."""
        known = (self.name, str(task), key_of(place.cluster), codes(error), place.by_machines)
        if known in self.over:
            self.ends[self.over[known]] += 1
            return
        helped, acts, said = self._helped(place, task, rest, error)
        by_machines = place.by_machines
        end = f"{'machines' if by_machines else 'persons'}: {helped or 'no way'}"
        self.over[known] = end
        self.ends[end] += 1
        detail = f"{'; '.join(acts)} || {' || '.join(said)}"
        what = f"{task.row.kind}: {codes(error)}"
        if place.cluster.finalized and "P12" in what and helped == "the other direction":
            return  # it is over, the refusal says so, and the run that it names gets to its end
        if helped is None:
            lost = "it is finalized" if place.cluster.finalized else "it is not finalized"
            self._found("no way", f"{what}: {lost}", place, detail)
        elif by_machines:
            self._found("a person is needed", f"{what}: {helped}", place, detail)
        elif helped != "cleared" and not named(helped, said):
            self._found("what helps is not named", f"{what}: {helped}", place, detail)

    def _helped(
        self, place: Place, task: Task, rest: Sequence[Task], error: KMigrateError
    ) -> tuple[str | None, list[str], list[str]]:
        """Which run helped, None if none did; what persons did to nodes; and what was said."""
        cluster, acts, said = place.cluster, list[str](), [f"{task}: {codes(error)}: {error}"]
        cluster.mortal = Mortal()
        cluster.advance(QUIET)
        ways: tuple[tuple[str, Callable[[FaultyCluster], Sequence[Task]]], ...] = (
            ("cleared", lambda _: rest),
            ("a new run", lambda c: tasks_of(self.plan, c)),
            ("the other direction", lambda c: tasks_of(self.other, c)),
        )
        for name, tasks in ways:
            for _ in range(MOST_ACTS):
                acts += (did := follow(cluster, " ".join(said)))
                tried = cluster.clone()
                tried.mortal = Mortal()
                failed = self._whole(tried, tasks(tried))
                if tried.disasters:
                    self._found("disaster", f"{task}, {name}: {tried.disasters[0]}", place, "; ".join((*acts, *tried.disasters)))
                elif failed is None:
                    self._note_stall(Place(tried, 0, (*place.path, f"[{name}]"), place.faults))
                    return name, acts, said
                else:
                    said.append(f"{name}: {failed[0]}: {codes(failed[1])}: {failed[1]}")
                    cluster = tried  # what it has done so far stays
                if not did and not follow(cluster.clone(), said[-1]):
                    break
        return None, acts, said

    def _end(self, place: Place) -> None:
        """The run is over: everything is as it should be, now and after a reboot of every machine; else a run mends it."""
        cluster, kinds = place.cluster.clone(), ", ".join(sorted({fault.kind for fault in place.faults}))
        cluster.mortal = Mortal()
        cluster.advance(QUIET)
        self.ends["by itself"] += 1
        machines = {f"{role} {number}": cluster.machine((role, number)) for role, number in cluster.nodes}
        if wrong := [name for name, mine in machines.items() if mine.running is not None and mine.running != mine.text]:
            self._found("a file of another mode at the end", kinds, place, ", ".join(wrong))
        for node, mine in cluster.nodes.items():  # one after the other, as machines are maintained
            cluster.machine(node).masked = False
            if mine.running is not None:
                cluster.cut(node, SHORT)
                cluster.advance(QUIET)
        if not amiss(cluster):
            return
        tried = {
            name: self._mended(cluster, plan) for name, plan in (("a new run", self.plan), ("the other direction", self.other))
        }
        for name in (name for name, left in tried.items() if not left):
            self.ends[f"after a reboot, {name}"] += 1
            return
        stand = "; ".join(sorted(text.split(":")[0] for text in tried.values()))
        self._found("no way after a reboot", f"{kinds}: {stand}", place, f"{amiss(cluster)}: {tried}")

    def _mended(self, cluster: FaultyCluster, plan: Plan) -> str:
        """What is left after a run; empty if all is well."""
        again = cluster.clone()
        again.mortal = Mortal()
        failed = self._whole(again, tasks_of(plan, again))
        return f"{failed[0]} {codes(failed[1])}: {failed[1]}" if failed else amiss(again)

    def _found(self, what: str, cause: str, place: Place, detail: str) -> None:
        self.findings.append(Finding(what, f"{self.way} {cause}", (self.name, *place.path), detail))


def follow(cluster: FaultyCluster, said: str) -> list[str]:
    """Do to nodes what is said of them: start one that is named as down, whatever keeps it from that."""
    acts, kept = [], list(cluster.disasters)
    for role, number in cluster.nodes:
        mine = cluster.machine((role, number))
        if not re.search(rf"{role}s?\b[^|]{{0,60}}\b{number}\b", said, re.IGNORECASE):
            continue
        if mine.masked:
            mine.masked = False
            acts.append(f"unmasked {role} {number}")
        asked = role is BROKER or re.search(r"\[(R12|G23)\]", said)  # never a controller that a rollback has stopped
        if mine.running is None and not mine.dead and mine.text and (role is BROKER or mine.formatted) and asked:
            cluster.start(mine.spec)
            acts.append(f"started {role} {number}")
    cluster.disasters = kept  # not the tool's doing
    return acts


NAMED: Final = {
    "a new run": r"[Cc]lear (its )?`?first_roll|with \*Downstream\*|new run|[Ss]tart a run|start the rollback|another run|begin(s)? again|run the rollback again",
    "the other direction": r"kmigrate_zk_to_kraft|kmigrate_rollback|[Ss]tart the rollback|[Rr]oll(ed)? (it )?back|[Cc]ontinue the migration",
}


def named(helped: str, said: Sequence[str]) -> bool:
    """Whether what helped was said before."""
    return any(re.search(NAMED[helped], text) for text in said)


def amiss(cluster: FaultyCluster) -> str:
    """What is not as a migration or a rollback leaves it."""
    stage = FileStage.KRAFT if cluster.kraft_owns else FileStage.ZOOKEEPER
    wrong = [
        f"broker {b} is {cluster.nodes[BROKER, b].stage}"
        for b in range(cluster.brokers)
        if cluster.nodes[BROKER, b].stage is not stage
    ]
    wrong += [f"broker {b} does not serve" for b in range(cluster.brokers) if b not in cluster.serving]
    wrong += [f"partition {p} has ISR {isr}" for p, isr in cluster.isr.items() if len(isr) < len(cluster._replicas(p))]
    return ", ".join(wrong)


def codes(error: KMigrateError) -> str:
    return f"{type(error).__name__} {' '.join(dict.fromkeys(reason.code for reason in error.reasons))}".strip()


def worst(stalls: Sequence[tuple[float, float, tuple[str, ...]]], count: int) -> list[tuple[float, float, tuple[str, ...]]]:
    by_stall = sorted(stalls, key=lambda one: -one[0])[:count]
    return by_stall + [one for one in sorted(stalls, key=lambda one: -one[1])[:count] if one not in by_stall]


def kept(cluster: FaultyCluster) -> FaultyCluster:
    """With every disk as it is now, for one that comes back with it."""
    for mine in map(cluster.machine, cluster.nodes):
        mine.old = mine.disk()
    return cluster


def beginnings(folder: Path) -> dict[str, FaultyCluster]:
    """A cluster in each phase from which a rollback begins, as the migration leaves it."""
    cluster, made = FaultyCluster(), {}
    made["untouched"] = cluster.clone()
    stages = {"controllers": 0, "first_roll": 1, "copy": 2, "second_roll": 3, "before_approval": 4}
    for task in tasks_of(FORWARD, cluster):
        task.run(cluster.context(folder))
        part = task.row.group
        if part == "first_roll" and task.node == 1:
            made["one in migration mode"] = cluster.clone()
        if part == "second_roll" and task.node == 1:
            made["hybrid"] = cluster.clone()
        if part in stages:
            made[f"after {part}"] = cluster.clone()
        if part == "finalize" and task.node is not None and sum(cluster._flagged(c.id) for c in cluster.spec.controllers) == 2:
            made["finalization begun"] = cluster.clone()
    return made


def searched(folder: Path, sample: Sample, seconds: float = float("inf"), say: Callable[[str], object] = print) -> list[Search]:
    """A search over the migration, and one over the rollback from each phase."""
    began, found = time.monotonic(), beginnings(folder)
    wanted = [("forward", found.pop("untouched"), FORWARD, BACK)]
    wanted += [(f"back from {name}", cluster, BACK, FORWARD) for name, cluster in found.items()]
    wanted = [each for each in wanted if sample.only in each[0]]
    searches, pairs = list[Search](), set[Key]()
    for place, (name, cluster, plan, other) in enumerate(wanted):
        now = time.monotonic()
        until = now + (began + seconds - now) / (len(wanted) - place)
        search = Search(plan, other, folder, name, sample, until, done_pairs=pairs)
        search.go(kept(cluster.clone()))
        searches.append(search)
        say(f"{name}: {search.size}, {time.monotonic() - now:.0f} s; ends: {dict(search.ends)}")
    return searches


def report(searches: Sequence[Search], say: Callable[[str], object] = print) -> tuple[Finding, ...]:
    """Print the worst stalls and what was found, each kind once; returns what no exception names."""
    stalls = worst([(stall, without, (each.name, *path)) for each in searches for stall, without, path in each.stalls], 5)
    for stall, without, path in stalls:
        say(f"stalled {stall:.0f} s, {without:.0f} s without a controller: {' -> '.join(path)}")
    by_cause: dict[str, list[Finding]] = {}
    for finding in (one for search in searches for one in search.findings):
        by_cause.setdefault(f"{finding.what} | {finding.cause}", []).append(finding)
    for cause, alike in sorted(by_cause.items(), key=lambda each: -len(each[1])):
        shortest = min(alike, key=lambda one: (len(one.path), len(one.detail)))
        name = next((each.name for each in KNOWN if each.covers(shortest)), "NEW")
        say(f"\n[{name}] {len(alike)} x {cause}\n    {' -> '.join(shortest.path)}\n    {shortest.detail[:2_500]}")
    every = [one for alike in by_cause.values() for one in alike]
    return tuple(one for one in every if not any(each.covers(one) for each in KNOWN))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--share", type=float, default=1.0, help="the part of all faults, and of all second ones, that is tried")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=float("inf"))
    parser.add_argument("--only", default="", help="searches whose name has this in it")
    parser.add_argument("--begin", default="", help="at the first task whose name begins like this")
    parser.add_argument("--kinds", default="", help="only these kinds of faults, as in power,file")
    parser.add_argument("--out", type=Path, help="where all findings are written, one JSON a line")
    given = parser.parse_args()
    sample = Sample(given.share, given.seed, given.only, given.begin, frozenset(filter(None, given.kinds.split(","))))
    os.fsync = lambda _handle: None
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as folder:
        searches = searched(Path(folder), sample, 60 * given.minutes)
    new = report(searches)
    sys.stdout.write(f"\n{len(new)} findings that no exception names\n")
    if given.out:
        given.out.write_text("".join(json.dumps(one) + "\n" for search in searches for one in search.findings))
    return int(bool(new))


if __name__ == "__main__":
    sys.exit(main())
