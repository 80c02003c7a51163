"""The context of a task, a sensor or a trigger: opened from the cluster file and Airflow's connections, and closed again.

The kill switch is an Airflow Variable that stops every act of kmigrate on a cluster, or on all of them.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from contextvars import ContextVar
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any, Final, NamedTuple, NoReturn

from airflow.configuration import conf
from airflow.sdk import Context, Variable
from airflow.sdk.observability import stats

from airflow_provider_kmigrate.clients.fence import Fence, ReadOnlyFence
from airflow_provider_kmigrate.clients.journal_heads import JournalHead, seal
from airflow_provider_kmigrate.clients.tools import Tools, opened
from airflow_provider_kmigrate.core.cluster import ClusterSpec
from airflow_provider_kmigrate.core.gauges import Gauge
from airflow_provider_kmigrate.core.migration.waits import needs_rollback_prerequisites
from airflow_provider_kmigrate.core.model import Fields, ProbeFigures, Reason
from airflow_provider_kmigrate.exceptions import KMigrateError, Unavailable
from airflow_provider_kmigrate.hooks.connections import open_ssh, settings_of
from airflow_provider_kmigrate.observe import Observer
from airflow_provider_kmigrate.spec import load
from airflow_provider_kmigrate.steps.backup import BackupStore, rollback_prerequisites
from airflow_provider_kmigrate.steps.group_watch import GroupFile
from airflow_provider_kmigrate.steps.journal import FileJournal, file_name
from airflow_provider_kmigrate.steps.nodes import refuse_if_rollback_lost
from airflow_provider_kmigrate.steps.run import Fencing, Observing, StepClock, StepContext, SystemClock

_log = logging.getLogger(__name__)
_ALL: Final = "kmigrate_stop"
_SHOWN: Final = 300  # characters of what the Variable says that a message carries


def stopped(cluster: str) -> str:
    """The text of the Variable `kmigrate_stop__<cluster>`, or of `kmigrate_stop` for every cluster; empty if neither exists.

    Read again before every act. Raises `Unavailable` if Airflow does not answer: `Variable.get` returns its default also if the
    API server fails (seen in `ExecutionAPISecretsBackend.get_variable` of Airflow 3.3.2, which turns every error but a denied
    access into "not there"). So an absent Variable is believed only if the list of keys was read as well, and has neither. No
    call of Airflow's can distinguish "not there" from an unresponsive secrets backend beside it, such as Vault.
    """
    names = (f"{_ALL}__{cluster}", _ALL)
    try:
        for name in names:
            said = Variable.get(name, default=None)
            if said is not None:
                return f"Variable {name} says {str(said).strip()[:_SHOWN]!r}"
        there = set(Variable.keys(prefix=_ALL))
    except Exception as error:  # noqa: BLE001  # of whatever kind: unread is not off
        raise _unread(cluster, f"{type(error).__name__}: {error}") from None
    if listed := [name for name in names if name in there]:
        raise _unread(cluster, f"Variable {listed[0]} exists, but its value was not delivered")
    return ""


def _unread(cluster: str, seen: str) -> Unavailable:
    text = f"The kill switch of {cluster} could not be read: {seen[:_SHOWN]}."
    return Unavailable(str(Reason("H07", text)))


_PARSING = Lock()
_OVER = {"success", "failed"}
JUDGED_AT = "kmigrate_judged_at"
"""The XCom key under which a PASS of an audit leaves its time, in seconds since the epoch: a later act checks its age."""
RESTS_ON = "rests_on"
"""The XCom key of what a readiness verdict rests on, which a finalization compares with."""


class Access(NamedTuple):
    """One opened cluster: its clients, its observer, and the clock for waits."""

    tools: Tools
    observer: Observing
    clock: StepClock


@contextmanager
def connected(spec: ClusterSpec) -> Iterator[Access]:
    """Open a cluster through Airflow's connections. Raises as `settings_of`."""
    with opened(settings_of(spec), spec.name, open_ssh) as tools, Observer(spec, tools) as observer:
        yield Access(tools, observer, SystemClock())


opener: ContextVar[Callable[[ClusterSpec], AbstractContextManager[Access]]] = ContextVar("opener", default=connected)
"""How tasks and triggers open a cluster; a rehearsal sets another function, in its own context only."""


def folder() -> Path:
    """The folder of journals and backups, `[kmigrate] folder`; by default `kmigrate` beside the DAGs folder.

    All workers share it, if there are several.
    """
    default = Path(conf.get("core", "dags_folder")).parent / "kmigrate"
    return Path(conf.get("kmigrate", "folder", fallback="") or default).expanduser()


@contextmanager
def acting(
    cluster_file: str,
    context: Context,
    say: Callable[[str], None],
    killed: Callable[[], bool] = lambda: False,
    *,
    over_waiting: bool = False,
) -> Iterator[StepContext]:
    """A context in which the DAG run owns the cluster; raises `Fenced` if another run does. `over_waiting`: as in `finished_of`.

    Once Airflow has `killed` the task, each further act raises `Unavailable`: a retry continues.
    """
    spec = load(cluster_file)
    run = run_of(context)
    finished = finished_of(context, over_waiting=over_waiting)
    with opener.get()(spec) as access, Fence(access.tools.zk, spec.cluster_id, run, finished=finished) as fence:
        journal = open_journal(spec, run)
        journal.begin()
        step_context = _context_of(spec, access, fence=fence, journal=journal, say=say)
        try:
            yield replace(step_context, stopped=lambda: _ended(spec.name) if killed() else step_context.stopped())
        finally:
            with suppress(KMigrateError, OSError):  # another process owns the cluster: it keeps the hash now
                seal(access.tools.zk, spec.cluster_id, JournalHead(run, *journal.link()), fence)


def _ended(cluster: str) -> NoReturn:
    raise Unavailable(
        f"Airflow ends this task: it changes nothing more in {cluster}. Its next try observes the cluster and does the rest."
    )


@contextmanager
def watching(cluster_file: str, say: Callable[[str], None] = lambda _: None, run: str = "observations") -> Iterator[StepContext]:
    """A read-only context: every act in it is refused."""
    spec = _one_at_a_time(cluster_file)
    with opener.get()(spec) as access:
        yield _context_of(spec, access, fence=ReadOnlyFence(), journal=open_journal(spec, run), say=say)


@contextmanager
def asking(
    cluster_file: str, context: Context, say: Callable[[str], None], *, over_waiting: bool = False
) -> Iterator[StepContext]:
    """As `watching`, for a run that acts later; `Fenced` if another run holds the cluster, before an administrator is asked."""
    spec, run = load(cluster_file), run_of(context)
    with opener.get()(spec) as access:
        Fence(access.tools.zk, spec.cluster_id, run, finished=finished_of(context, over_waiting=over_waiting)).ask()
        yield _context_of(spec, access, fence=ReadOnlyFence(), journal=open_journal(spec, run), say=say)


def require_rollback_possible(name: str, cluster_file: str, context: Context) -> None:
    """Raise `Refused` if a rollback misses something: of the backup, as this worker has it, or of the cluster file.

    `name`: the step's. Nothing is missing if the cluster shows that no rollback is possible any more.
    """
    spec = load(cluster_file)
    if not rollback_prerequisites(spec, _backup(spec), spec.brokers):
        return
    with watching(cluster_file, run=run_of(context)) as step_context:
        if needs_rollback_prerequisites(step_context.observer.observe(Fields.POSITION)):
            refuse_if_rollback_lost(name, spec, step_context.backup, step_context.journal)


def _backup(spec: ClusterSpec) -> BackupStore:
    return BackupStore(folder() / "backup", spec.name, spec.cluster_id)


def _one_at_a_time(cluster_file: str) -> ClusterSpec:
    """Load the cluster file; threads take turns, since many that parse at once slow down every other thread of a triggerer."""
    turn = _PARSING.acquire(timeout=1.0)  # a file that cannot be read for long blocks no other
    try:
        return load(cluster_file)
    finally:
        if turn:
            _PARSING.release()


def journal_of(cluster: str, run: str) -> Path:
    """The path of a run's journal."""
    return journals_of(cluster) / file_name(run)


def journals_of(cluster: str) -> Path:
    """The folder of the journals of all runs on a cluster."""
    return folder() / "journal" / cluster


def open_journal(spec: ClusterSpec, run: str) -> FileJournal:
    """The journal of a run on this machine. Raises as `FileJournal`."""
    return FileJournal(journal_of(spec.name, run), run, time.time)


def _context_of(
    spec: ClusterSpec, access: Access, *, fence: Fencing, journal: FileJournal, say: Callable[[str], None]
) -> StepContext:
    return StepContext(
        *(spec, access.observer, access.tools, fence, journal, _backup(spec), say, access.clock),
        stopped=lambda: stopped(spec.name),
        run=journal.run,
        journals=journals_of(spec.name),
        groups=GroupFile(folder() / "groups" / f"{spec.name}.json", writable=not isinstance(fence, ReadOnlyFence)),
        probe=_probe_of(spec, access.clock),
        export=exporter(spec.name),
    )


def _probe_of(spec: ClusterSpec, clock: StepClock) -> Callable[[], ProbeFigures | None]:
    if not spec.probes:
        return lambda: None
    from airflow_provider_kmigrate.probe.latency import read_figures  # noqa: PLC0415  # most cluster files have no probe

    return partial(read_figures, Path(spec.probes), clock.now)


def exporter(cluster: str) -> Callable[[Iterable[Gauge]], None]:
    """A function that sends gauges as `kmigrate.<name>` through Airflow's metrics (`[metrics]` of airflow.cfg). It never raises.

    The cluster's name is among their tags. A plain StatsD knows no tags and would mix the clusters, so there the values are in a
    second name: `kmigrate.<name>.<cluster>.<value of the tag>`. Airflow sends its own task metrics in both forms, too.
    """

    def export(gauges: Iterable[Gauge]) -> None:
        try:
            for gauge in gauges:
                name = ".".join(("kmigrate", gauge.name, cluster, *gauge.tags.values()))
                stats.gauge(stats.normalize_name_for_stats(name, log_warning=False), gauge.value)
                stats.gauge(f"kmigrate.{gauge.name}", gauge.value, tags={"cluster": cluster, **gauge.tags})
        except Exception as error:  # noqa: BLE001 - of whatever backend: no migration stops for a dashboard
            _log.warning("The metrics of %s were not sent: %s", cluster, error)

    return export


def run_of(context: Context) -> str:
    """The DAG run, as the fence and the journal name it."""
    return f"{context['dag'].dag_id}/{context['run_id']}"


def finished_of(context: Context, *, over_waiting: bool = False) -> Callable[[str], bool]:
    """Whether the DAG run that owns the cluster is over, as Airflow knows it; unknown counts as not over.

    `over_waiting`: a run that only waits for an answer or for time counts as over, too; a rollback may take its lock.
    """

    def finished(owner: str) -> bool:
        dag_id, _, run_id = owner.partition("/")
        ti: Any = context["ti"]
        try:
            if ti.get_dagrun_state(dag_id=dag_id, run_id=run_id) in _OVER:
                return True
            return over_waiting and _only_waits(ti.get_task_states(dag_id=dag_id, run_ids=[run_id]).get(run_id, {}))
        except Exception:  # noqa: BLE001  # whatever the API answers about a run it does not know: not over
            return False

    return finished


def _only_waits(states: Mapping[str, str | None]) -> bool:
    from airflow_provider_kmigrate.core.approval import only_waits  # noqa: PLC0415  # a roll of a broker needs no approval

    return only_waits(states)
