"""No order of two runs' requests, of the agent's jobs and of kills lets an older run act after a newer one, or leaves a node down.

The agent's own code runs on a machine in memory: every order of the processes that its lock allows, each of them killed before each of
its effects. A killed job is started again (systemd), or is not; a request that was killed or came too early is asked again.
"""

from __future__ import annotations

import contextlib
import copy
import itertools
import json
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.node.machine import AGENT, file

CLUSTER, OTHER = "-1Sh-9_ISia_zwGINzRvyQ", "another-cluster-of-Kafka"
OLD, NEW, BEFORE = "broker.id=1\nrun=older\n", "broker.id=1\nrun=newer\n", "broker.id=1\n"
FOLDER = "/var/lib/kafka/data"
OLDER, NEWER = 5, 6  # tokens


class Killed(BaseException):
    """`kill -9`: no handler of the agent's code runs."""


@dataclass
class Machine:
    """All that outlives a process of the agent. `kill_at`: the effect before which the present process dies."""

    records: dict[str, Any] = field(default_factory=dict)
    properties: str = BEFORE
    staged: dict[str, str] = field(default_factory=dict)
    meta: str | None = None
    process: str = "up"  # up | stopping | down
    births: int = 1
    spawned: tuple[Spawned, ...] = ()  # processes of jobs that have not ended
    effects: tuple[tuple[int, str], ...] = ()  # the token of who did it, and what
    outdated: tuple[str, ...] = ()  # effects, but starts, of a run whose token was not the newest any more
    acting: int = 0  # the token of the present process
    asked: Ask | None = None  # what it carries out
    locked: bool = False
    kill_at: int = 0
    steps: int = 0

    def step(self) -> None:
        """Before each effect."""
        self.steps += 1
        if self.steps == self.kill_at:
            raise Killed

    def do(self, effect: str) -> None:
        """An effect on the node."""
        self.step()
        assert self.locked, f"{effect} without the lock"
        assert self.asked is not None
        if self.acting < self.records.get("tokens.json", {}).get(self.asked.cluster, 0):
            self.outdated += (effect,)
        self.effects += ((self.acting, effect),)

    def key(self) -> str:
        spawned = sorted(map(str, self.spawned))
        return json.dumps([self.records, self.properties, self.meta, self.process, spawned, self.effects], sort_keys=True)


def agent_at(path: Path) -> Any:
    """The agent's code with a clock that no test waits for."""
    made: Any = types.ModuleType("kmigrate_node")
    made.__file__ = str(path)
    exec(compile(path.read_text(), str(path), "exec"), made.__dict__)  # noqa: S102  # it has no name that can be imported
    return made


class InMemory:
    """What the agent's class for a broker has of a machine: files, lock and process."""

    def __init__(self, module: Any, machine: Machine, backend: str) -> None:
        self.module, self.machine, self.backend = module, machine, backend
        self.name, self.config, self.state = "broker", "/etc/kmigrate/node.json", "/var/lib/kmigrate/broker"
        self.is_node = True
        self.links: dict[str, str] = {}
        self.properties, self.log_dirs, self.service = "/etc/kafka/server.properties", [FOLDER], "kafka.service"
        self.stop_timeout = self.start_timeout = 60.0
        ticks = itertools.count()
        module.time = types.SimpleNamespace(time=lambda: 0.0, monotonic=lambda: float(next(ticks)), sleep=self.sleep)

    def sleep(self, _: float) -> None:
        if self.machine.process == "stopping":
            self.machine.process = "down"

    @contextlib.contextmanager
    def locked(self, _: float = 0.0) -> Iterator[None]:
        self.machine.step()
        self.machine.locked = True
        yield
        self.machine.locked = False

    def load(self, name: str) -> dict[str, Any]:
        return copy.deepcopy(self.machine.records.get(name, {}))

    def save(self, name: str, value: Any) -> None:
        self.machine.step()
        assert self.machine.locked, f"{name} is saved without the lock"
        self.machine.records[name] = copy.deepcopy(value)

    def seen(self, path: str) -> tuple[str | None, int, float]:
        return (self.machine.properties if path == self.properties else self.machine.meta), 1, 0.0

    def stage(self, path: str, text: str) -> str:
        name = f"staged-{len(self.machine.staged)}"
        self.machine.do(f"stage {path}")
        self.machine.staged[name] = text
        return name

    def install(self, path: str, name: str) -> None:
        if name not in self.machine.staged:
            raise FileNotFoundError(name)
        text = self.machine.staged[name]
        self.machine.do(f"install {text if path == self.properties else path}")
        if path == self.properties:
            self.machine.properties = text
        else:
            self.machine.meta = text

    def keep_old(self) -> None:
        self.machine.step()

    def find(self) -> Any:
        if self.machine.process == "down":
            return self.module.Service("stopped")
        return self.module.Service("running", 7, f"birth:{self.machine.births}")

    def bring(self, state: str) -> None:
        machine = self.machine
        if state == "stopped":
            machine.do("stop")
            machine.process = "stopping"
            machine.step()
            machine.process = "down"
            return
        machine.step()
        if machine.process == "up":  # a start does nothing to what runs
            return
        machine.effects += ((machine.acting, "start"),)
        assert self.backend == "systemd" or machine.process != "stopping", "a second process beside the one that stops"
        machine.births += 1
        machine.process = "up"

    def spawn(self, _: str) -> None:
        self.machine.step()
        assert self.machine.asked is not None
        self.machine.spawned += (Spawned(self.machine.asked),)


def role_on(module: Any, machine: Machine, backend: str) -> Any:
    """A broker of this machine, with the agent's own verbs and jobs."""
    return type("Role", (InMemory, module.Role), {})(module, machine, backend)


@dataclass(frozen=True)
class Ask:
    """One request of a run; asked again until it is answered otherwise than by `ASK_AGAIN`."""

    token: int
    verb: str
    fields: str
    cluster: str

    def __str__(self) -> str:
        return f"{self.verb} of token {self.token}"

    def request(self) -> dict[str, Any]:
        return {"verb": self.verb, "cluster": self.cluster, "token": self.token, **json.loads(self.fields)}

    @property
    def job(self) -> str:
        return str(self.request().get("job"))

    @property
    def content(self) -> str:
        return str(self.request().get("content", ""))


ASK_AGAIN = {"restarted", "busy"}


def ask(token: int, verb: str, text: str = "", job: str = "", cluster: str = CLUSTER, **more: Any) -> Ask:
    return Ask(token, verb, json.dumps((file(text) if text else {}) | ({"job": job} if job else {}) | more), cluster)


@dataclass(frozen=True)
class Spawned:
    """A job's process that has not ended."""

    ask: Ask

    def __str__(self) -> str:
        return f"{self.job} of token {self.token}"

    @property
    def job(self) -> str:
        return self.ask.job

    @property
    def token(self) -> int:
        return self.ask.token


@dataclass(frozen=True)
class History:
    """A state of the world: the machine, what has not happened yet, how many may still be killed, and how it came here."""

    machine: Machine
    asks: tuple[Ask, ...]
    kills: int
    told: tuple[str, ...] = ()

    def key(self) -> str:
        return f"{self.machine.key()} {sorted(map(str, self.asks))} {self.kills}"


def without(all_of_them: tuple[Any, ...], one: Any) -> tuple[Any, ...]:
    at = all_of_them.index(one)
    return (*all_of_them[:at], *all_of_them[at + 1 :])


def after(module: Any, before: History, event: tuple[str, Any], backend: str, kill_at: int) -> tuple[History, int]:
    """What one process leaves behind that is killed before its effect number `kill_at` (0: never), and how many effects it had."""
    machine = copy.deepcopy(before.machine)
    machine.steps, machine.kill_at, machine.locked = 0, kill_at, False
    role, (kind, what), asks, answer = role_on(module, machine, backend), event, before.asks, ""
    try:
        if kind == "ask":
            machine.acting, machine.asked, request = what.token, what, what.request()
            act = role.begin_job if what.verb in module.ACTS else getattr(role, what.verb)
            said = module.outcome(lambda: act(request))
            answer = said["error"]["code"] if "error" in said else "ok"
            machine.effects += ((what.token, "answered"),) if answer == "ok" else ()
            asks = asks if answer in ASK_AGAIN else without(asks, what)
        elif kind == "run":
            machine.spawned = without(machine.spawned, what)
            machine.acting, machine.asked = machine.records["job.json"].get("token", what.token), what.ask
            role.run_job(what.job)
        else:
            machine.process = "down"
    except Killed:
        if kind == "run" and backend == "systemd":
            machine.spawned += (what,)
        elif kind == "run":  # its worker sees that nothing carries it out
            asks = (*asks, what.ask)
    machine.locked = False
    told = f"{kind} {what}{f', killed at {kill_at}' if kill_at else ''}: {answer or 'ended'}"
    return History(machine, asks, before.kills - bool(kill_at), (*before.told, told)), machine.steps


def histories(module: Any, start: History, backend: str) -> Iterator[History]:
    """Every history, after each of its processes. Those that lead to the same state are followed once."""
    known, left = set[str](), [start]
    while left:
        now = left.pop()
        if (key := now.key()) in known:
            continue
        known.add(key)
        yield now
        events: list[tuple[str, Any]] = [("ask", one) for one in now.asks] + [("run", one) for one in now.machine.spawned]
        events += [("end", "of the stop")] if now.machine.process == "stopping" else []
        for event in events:
            found, steps = after(module, now, event, backend, 0)
            left.append(found)
            if now.kills:
                left += [after(module, now, event, backend, at)[0] for at in range(1, steps + 1)]


def wrong(now: History, first: Ask, last: Ask) -> str:
    """What must never be; empty if all is well."""
    machine = now.machine
    if machine.outdated:
        return f"a run does {machine.outdated} although a newer token is known"
    newer = [at for at, (token, _) in enumerate(machine.effects) if token == last.token]
    if newer and (late := [what for token, what in machine.effects[newer[0] :] if token == first.token]):
        return f"the older run does {late} after the newer one acted"
    installed = [what for _, what in machine.effects if what.startswith("install broker.id")]
    if f"install {NEW}" in installed and machine.properties != NEW:
        return "the older run's file is over the newer one's"
    return "" if now.asks or machine.spawned or machine.process == "stopping" else wrong_at_the_end(machine, first, last)


def wrong_at_the_end(machine: Machine, first: Ask, last: Ask) -> str:
    """What must not be left once nothing happens any more."""
    if machine.process == "down" and "stop" not in {first.verb, last.verb}:
        return "the node is left down"
    record = machine.records.get("job.json", {})
    has_ended = last.verb == "install_file" or (record.get("id"), record.get("state")) == (last.job, "done")
    if has_ended and last.content and machine.properties != last.content:
        return f"the newer run's file was not installed: {machine.properties!r}"
    return ""


METAS = {FOLDER: file(f"#\nbroker.id=1\ncluster.id={CLUSTER}\n")}
PAIRS = {
    "a file": (ask(OLDER, "restart", OLD, "r1"), ask(NEWER, "install_file", NEW)),
    "a restart": (ask(OLDER, "restart", OLD, "r1"), ask(NEWER, "restart", NEW, "r2")),
    "a restart of the same process": (ask(OLDER, "restart", OLD, "r1"), ask(NEWER, "restart", NEW, "r1")),
    "the next try of its run": (ask(OLDER, "restart", NEW, "r1"), ask(NEWER, "restart", NEW, "r1")),
    "a restart without a file": (ask(OLDER, "restart", "", "r1"), ask(NEWER, "install_file", NEW)),
    "a restart with other directories": (ask(OLDER, "restart", "", "r1", metas=METAS), ask(NEWER, "install_file", NEW)),
    "a stop": (ask(OLDER, "restart", OLD, "r1"), ask(NEWER, "stop", "", "s2")),
    "a stop that is outdated": (ask(OLDER, "stop", "", "s1"), ask(NEWER, "install_file", NEW)),
}


def search(module: Any, pair: tuple[Ask, Ask], backend: str, kills: int = 1) -> tuple[int, str]:
    """How many states were reached, and the first that must not be."""
    for count, now in enumerate(histories(module, History(Machine(), pair, kills), backend), 1):
        if problem := wrong(now, *pair):
            return count, "\n".join((*now.told, problem))
    return count, ""


@pytest.fixture(scope="module")
def agent() -> Any:
    return agent_at(AGENT)


@pytest.mark.parametrize("backend", ["systemd", "process"])
@pytest.mark.parametrize("name", PAIRS)
def test_in_every_order_with_a_kill_at_every_effect_no_older_run_acts_and_no_node_stays_down(
    agent: Any, name: str, backend: str
) -> None:
    count, problem = search(agent, PAIRS[name], backend)
    assert not problem, problem
    assert count > 30


@pytest.mark.parametrize("backend", ["systemd", "process"])
@pytest.mark.parametrize("last", [ask(NEWER, "install_file", NEW), ask(NEWER, "start", "", "s2")], ids=str)
def test_a_start_that_was_admitted_happens(agent: Any, last: Ask, backend: str) -> None:
    first = ask(OLDER, "start", "", "s1")
    down = History(Machine(process="down"), (first, last), 1)
    admitted, _ = after(agent, down, ("ask", first), backend, 0)
    assert {wrong(now, first, last) for now in histories(agent, admitted, backend)} == {""}


@pytest.mark.parametrize("backend", ["systemd", "process"])
def test_two_kills_change_nothing(agent: Any, backend: str) -> None:
    count, problem = search(agent, PAIRS["a file"], backend, kills=2)
    assert not problem, problem
    assert count > 300


def test_a_job_ends_too_once_another_cluster_acts_whose_tokens_cannot_be_compared(agent: Any) -> None:
    first, last = PAIRS["a file"][0], ask(OLDER - 1, "install_file", NEW, cluster=OTHER)
    admitted, _ = after(agent, History(Machine(), (first, last), 1), ("ask", first), "systemd", 0)
    problems = {wrong(now, first, last) for now in histories(agent, admitted, "systemd")}
    assert problems == {""}


def test_a_check_ends_no_job_whatever_cluster_it_names(agent: Any) -> None:
    first = PAIRS["a file"][0]
    for last in (ask(0, "install_file", BEFORE, cluster=OTHER), ask(0, "install_file", BEFORE)):
        now, _ = after(agent, History(Machine(), (first, last), 0), ("ask", first), "systemd", 0)
        now, _ = after(agent, now, ("ask", last), "systemd", 0)
        now, _ = after(agent, now, ("run", now.machine.spawned[0]), "systemd", 0)
        assert (now.machine.records["job.json"]["state"], now.machine.properties) == ("done", OLD)


GUARDS: dict[str, tuple[str, Callable[[Any], object], str]] = {
    "the comparison of tokens": (
        "Role.compare",
        lambda agent: lambda self, *_: self.load("tokens.json"),
        "after the newer one acted",
    ),
    "the end of an older job": ("Role.end_older", lambda _: lambda *_: None, "after the newer one acted"),
    "the start of what it was stopping": ("Role.bring_back", lambda _: lambda *_: False, "left down"),
    "the files of a job": ("files_of", lambda _: lambda _: "", "was not installed"),
}


@pytest.mark.slow
@pytest.mark.parametrize("guard", GUARDS)
def test_the_search_finds_what_each_guard_prevents(agent: Any, guard: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the guard taken out; else the search would only show that nothing happens in it."""
    name, instead, problem = GUARDS[guard]
    owner, _, attribute = name.rpartition(".")
    monkeypatch.setattr(getattr(agent, owner) if owner else agent, attribute, instead(agent))
    found = [search(agent, pair, backend)[1] for pair in PAIRS.values() for backend in ("systemd", "process")]
    assert any(problem in text for text in found), found
