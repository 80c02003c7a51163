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

from airflow_provider_kmigrate.airflow_releases import find_stored_variables, send_gauge
from airflow_provider_kmigrate.clients.fence import Fence, ReadOnlyFence
from airflow_provider_kmigrate.clients.journal_heads import JournalHead, seal
from airflow_provider_kmigrate.clients.state_folder import StateFolder
from airflow_provider_kmigrate.clients.tools import Tools
from airflow_provider_kmigrate.core.cluster_state.model import Fields, NoProbe, ProbeFigures, Reason
from airflow_provider_kmigrate.core.cluster_state.spec import ClusterSpec
from airflow_provider_kmigrate.core.migration.waits import needs_rollback_prerequisites
from airflow_provider_kmigrate.core.monitoring.gauges import Gauge
from airflow_provider_kmigrate.exceptions import KMigrateError, TimedOut, Unavailable, Unreachable
from airflow_provider_kmigrate.hooks.connections import ClusterHooks
from airflow_provider_kmigrate.observe import Observer
from airflow_provider_kmigrate.spec import load
from airflow_provider_kmigrate.steps.backup import BackupStore, rollback_prerequisites
from airflow_provider_kmigrate.steps.group_watch import GroupFile
from airflow_provider_kmigrate.steps.journal import FileJournal, journal_file_name
from airflow_provider_kmigrate.steps.nodes import refuse_if_rollback_lost
from airflow_provider_kmigrate.steps.run import Fencing, Observing, StepClock, StepContext, SystemClock
from airflow_provider_kmigrate.utils.object_store import open_state_folder

_log = logging.getLogger(__name__)
_ALL: Final = "kmigrate_stop"
_SHOWN: Final = 300  # characters of what the Variable says that a message carries


def read_kill_switch(cluster: str) -> str:
    """The text of the Variable `kmigrate_stop__<cluster>`, or of `kmigrate_stop` for every cluster; empty if neither exists.

    Read again before every act. Raises `Unavailable` if Airflow does not answer: `Variable.get` returns its default also if the
    API server fails (seen in `ExecutionAPISecretsBackend.get_variable` of Airflow 3.3.2, which turns every error but a denied
    access into "not there"). So an absent Variable is believed only if the API server says, too, that it has neither. No
    call of Airflow's can distinguish "not there" from an unresponsive secrets backend beside it, such as Vault.
    """
    names = (f"{_ALL}__{cluster}", _ALL)
    try:
        for name in names:
            switch_text = Variable.get(name, default=None)
            if switch_text is not None:
                return f"Variable {name} says {str(switch_text).strip()[:_SHOWN]!r}"
        stored_names = find_stored_variables(names, prefix=_ALL)
    except Exception as error:  # noqa: BLE001  # of whatever kind: unread is not off
        raise _kill_switch_unread(cluster, f"{type(error).__name__}: {error}") from None
    if stored_names:
        raise _kill_switch_unread(cluster, f"Variable {stored_names[0]} exists, but its value was not delivered")
    return ""


def _kill_switch_unread(cluster: str, problem: str) -> Unavailable:
    text = f"The kill switch of {cluster} could not be read: {problem[:_SHOWN]}."
    return Unavailable(str(Reason("H07", text)))


_PARSING = Lock()
_OVER = {"success", "failed"}
JUDGED_AT = "kmigrate_judged_at"
"""The XCom key under which a PASS of an audit leaves its time, in seconds since the epoch: a later act checks its age."""
RESTS_ON = "rests_on"
"""The XCom key of what a readiness verdict rests on, which a finalization compares with."""
FIGURES = "figures"
"""The XCom key of an audit's figures (`core.audit.request_figures.summarize_audit`), which the request for an approval shows."""
PLAN = "plan"
"""The XCom key of a preflight's plan: its fingerprint, the path of its page, and its inputs, which later tasks compare with."""


class OpenCluster(NamedTuple):
    """One opened cluster: its clients, its observer, and the clock for waits."""

    tools: Tools
    observer: Observing
    clock: StepClock


@contextmanager
def open_cluster(spec: ClusterSpec) -> Iterator[OpenCluster]:
    """Open a cluster through the hooks of its connections. Raises as `ClusterHooks.settings`."""
    with ClusterHooks(spec).open_tools() as tools, Observer(spec, tools) as observer:
        yield OpenCluster(tools, observer, SystemClock())


opener: ContextVar[Callable[[ClusterSpec], AbstractContextManager[OpenCluster]]] = ContextVar("opener", default=open_cluster)
"""How tasks and triggers open a cluster; a rehearsal sets another function, in its own context only."""


def state_folder() -> Path:
    """The folder of journals and backups, `[kmigrate] folder`; by default `kmigrate` beside the DAGs folder.

    All workers share it, if there are several; or it is each one's copy of `[kmigrate] store`.
    """
    default = Path(conf.get("core", "dags_folder")).parent / "kmigrate"
    return Path(conf.get("kmigrate", "folder", fallback="") or default).expanduser()


def open_state() -> StateFolder:
    """Changes of `state_folder`. Raises as `open_state_folder`."""
    return open_state_folder(state_folder(), conf.get("kmigrate", "store", fallback=""))


def refresh_state() -> Path:
    """`state_folder` with what every worker has stored. Raises `Unavailable` or `Refused` (O05)."""
    open_state().refresh()
    return state_folder()


@contextmanager
def acting_context(
    cluster_file: str,
    context: Context,
    say: Callable[[str], None],
    killed: Callable[[], bool] = lambda: False,
    *,
    over_waiting: bool = False,
) -> Iterator[StepContext]:
    """A context in which the DAG run owns the cluster; raises `Fenced` if another run does. `over_waiting`: as in `make_finished_check`.

    Once Airflow has `killed` the task, each further act raises `Unavailable`: a retry continues.
    """
    spec = load(cluster_file)
    run = dag_run_name(context)
    refresh_state()
    finished = make_finished_check(context, over_waiting=over_waiting)
    with opener.get()(spec) as access, Fence(access.tools.zk, spec.cluster_id, run, finished=finished) as fence:
        journal = open_journal(spec, run)
        journal.begin()
        step_context = _make_context(spec, access, fence=fence, journal=journal, say=say)
        try:
            yield replace(step_context, stopped=lambda: _raise_task_killed(spec.name) if killed() else step_context.stopped())
        finally:
            with suppress(KMigrateError, OSError):  # another process owns the cluster: it keeps the hash now
                seal(access.tools.zk, spec.cluster_id, JournalHead(run, *journal.read_link()), fence)


def _raise_task_killed(cluster: str) -> NoReturn:
    raise Unavailable(
        f"Airflow ends this task: it changes nothing more in {cluster}. Its next try observes the cluster and does the rest."
    )


@contextmanager
def read_only_context(
    cluster_file: str, say: Callable[[str], None] = lambda _: None, run: str = "observations"
) -> Iterator[StepContext]:
    """A read-only context: every act in it is refused."""
    spec = _load_one_at_a_time(cluster_file)
    refresh_state()
    with opener.get()(spec) as access:
        yield _make_context(spec, access, fence=ReadOnlyFence(), journal=open_journal(spec, run), say=say)


@contextmanager
def asking_context(
    cluster_file: str, context: Context, say: Callable[[str], None], *, over_waiting: bool = False
) -> Iterator[StepContext]:
    """As `watching`, for a run that acts later; `Fenced` if another run holds the cluster, before an administrator is asked.

    Raises `Unavailable` (H15) if ZooKeeper does not answer: it has the fence and the records of approvals.
    """
    spec, run = load(cluster_file), dag_run_name(context)
    refresh_state()
    with opener.get()(spec) as access:
        try:
            Fence(
                access.tools.zk, spec.cluster_id, run, finished=make_finished_check(context, over_waiting=over_waiting)
            ).require_available()
        except (Unreachable, TimedOut) as error:
            raise Unavailable.because(Reason("H15", f"Nothing is asked, approved or done: {error}.")) from error
        yield _make_context(spec, access, fence=ReadOnlyFence(), journal=open_journal(spec, run), say=say)


def require_rollback_possible(name: str, cluster_file: str, context: Context) -> None:
    """Raise `Refused` if a rollback misses something: of the backup, as this worker has it, or of the cluster file.

    `name`: the step's. Nothing is missing if the cluster shows that no rollback is possible any more.
    """
    spec = load(cluster_file)
    refresh_state()
    if not rollback_prerequisites(spec, _backup_store(spec), spec.brokers):
        return
    with read_only_context(cluster_file, run=dag_run_name(context)) as step_context:
        if needs_rollback_prerequisites(step_context.observer.observe(Fields.POSITION)):
            refuse_if_rollback_lost(name, spec, step_context.backup, step_context.journal)


def _backup_store(spec: ClusterSpec) -> BackupStore:
    return BackupStore(state_folder() / "backup", spec.name, spec.cluster_id, open_state())


def _load_one_at_a_time(cluster_file: str) -> ClusterSpec:
    """Load the cluster file; threads take turns, since many that parse at once slow down every other thread of a triggerer."""
    turn = _PARSING.acquire(timeout=1.0)  # a file that cannot be read for long blocks no other
    try:
        return load(cluster_file)
    finally:
        if turn:
            _PARSING.release()


def journal_path(cluster: str, run: str) -> Path:
    """The path of a run's journal."""
    return journal_folder(cluster) / journal_file_name(run)


def journal_folder(cluster: str) -> Path:
    """The folder of the journals of all runs on a cluster."""
    return state_folder() / "journal" / cluster


def open_journal(spec: ClusterSpec, run: str) -> FileJournal:
    """The journal of a run on this machine. Raises as `FileJournal`."""
    return FileJournal(journal_path(spec.name, run), run, time.time, open_state())


def _make_context(
    spec: ClusterSpec, access: OpenCluster, *, fence: Fencing, journal: FileJournal, say: Callable[[str], None]
) -> StepContext:
    return StepContext(
        *(spec, access.observer, access.tools, fence, journal, _backup_store(spec), say, access.clock),
        stopped=lambda: read_kill_switch(spec.name),
        run=journal.run,
        journals=journal_folder(spec.name),
        groups=GroupFile(
            state_folder() / "groups" / f"{spec.name}.json", writable=not isinstance(fence, ReadOnlyFence), state=open_state()
        ),
        probe=_probe_figures_reader(spec, access.clock),
        export=make_gauge_exporter(spec.name),
    )


def _probe_figures_reader(spec: ClusterSpec, clock: StepClock) -> Callable[[], ProbeFigures | NoProbe]:
    if not spec.probe_folder:
        return NoProbe
    from airflow_provider_kmigrate.probe.latency import read_figures  # noqa: PLC0415  # most cluster files have no probe

    return partial(read_figures, Path(spec.probe_folder), clock.now)


def make_gauge_exporter(cluster: str) -> Callable[[Iterable[Gauge]], None]:
    """A function that sends gauges as `kmigrate.<name>` through Airflow's metrics (`[metrics]` of airflow.cfg). It never raises.

    The cluster's name is among their tags. A plain StatsD knows no tags and would mix the clusters, so there the values are in a
    second name: `kmigrate.<name>.<cluster>.<value of the tag>`, dots of a value as underscores. Airflow sends its own task metrics in both forms, too.
    """

    def export(gauges: Iterable[Gauge]) -> None:
        try:
            for gauge in gauges:
                parts = (part.replace(".", "_") for part in (cluster, *gauge.tags.values()))
                name = ".".join(("kmigrate", gauge.name, *parts))
                send_gauge(f"kmigrate.{gauge.name}", gauge.value, {"cluster": cluster, **gauge.tags}, plain_name=name)
        except Exception as error:  # noqa: BLE001 - of whatever backend: no migration stops for a dashboard
            _log.warning("The metrics of %s were not sent: %s", cluster, error)

    return export


def dag_run_name(context: Context) -> str:
    """The DAG run, as the fence and the journal name it."""
    return f"{context['dag'].dag_id}/{context['run_id']}"


def make_finished_check(context: Context, *, over_waiting: bool = False) -> Callable[[str], bool]:
    """Whether the DAG run that owns the cluster is over, as Airflow knows it; unknown counts as not over.

    `over_waiting`: a run that only waits for an answer or for time counts as over, too; a rollback may take its lock.
    """

    def is_finished(owner: str) -> bool:
        dag_id, _, run_id = owner.partition("/")
        ti: Any = context["ti"]
        try:
            if ti.get_dagrun_state(dag_id=dag_id, run_id=run_id) in _OVER:
                return True
            return over_waiting and _is_only_waiting(ti.get_task_states(dag_id=dag_id, run_ids=[run_id]).get(run_id, {}))
        except Exception:  # noqa: BLE001  # whatever the API answers about a run it does not know: not over
            return False

    return is_finished


def _is_only_waiting(states: Mapping[str, str | None]) -> bool:
    from airflow_provider_kmigrate.core.migration.approval import run_only_waits  # noqa: PLC0415  # a roll of a broker needs no approval

    return run_only_waits(states)
