"""A migration whose workers share an object store and Airflow's database, and no folder."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import DAG, ObjectStoragePath
from airflow.sdk.io import attach
from fsspec.implementations.memory import MemoryFileSystem

from airflow_provider_kmigrate.clients.object_log import COPY, ObjectExists
from airflow_provider_kmigrate.core.shared.chain import find_break
from airflow_provider_kmigrate.dag_builders import folder
from airflow_provider_kmigrate.exceptions import Refused, Unavailable
from airflow_provider_kmigrate.steps.journal import FileJournal
from airflow_provider_kmigrate.utils.object_store import AirflowObjectStore, open_state_folder
from tests.provider.simulated import Rehearsal
from tests.steps.sim_nodes import CLUSTER_ID

ROOTS = ("one", "two")


class Killed(BaseException):
    """A process ends here."""


@pytest.fixture(scope="session")
def s3() -> Iterator[Any]:
    """S3 as moto's server has it; skipped if s3fs or moto is not installed (`pip install s3fs 'moto[server]'`)."""
    s3fs, server = pytest.importorskip("s3fs"), pytest.importorskip("moto.server")
    running = server.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    running.start()
    host, port = running.get_host_and_port()
    try:
        files = s3fs.S3FileSystem(key="any", secret="any", endpoint_url=f"http://{host}:{port}")
        files.mkdir("kmigrate")
        yield files
    finally:
        running.stop()


@pytest.fixture(params=["memory", "s3"])
def address(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """An empty object store, which Airflow's configuration names."""
    attach(request.param, fs=MemoryFileSystem() if request.param == "memory" else request.getfixturevalue("s3"))
    found = f"{request.param}://kmigrate/{tmp_path.name}"
    monkeypatch.setenv("AIRFLOW__KMIGRATE__STORE", found)
    return found


class Remembering(MemoryFileSystem):
    """Asks the list that it remembers before it reads, as s3fs does (2026.9, `_cat_file`: the size of an object)."""

    def __init__(self, *args: Any, **storage_options: Any) -> None:
        super().__init__(*args, **storage_options)
        self._lists = dict[str, set[str]]()

    def ls(self, path: str, detail: bool = True, **kwargs: Any) -> Any:
        found = super().ls(path, detail=False, **kwargs)
        self._lists[self._strip_protocol(path)] = set(found)
        return super().ls(path, detail=detail, **kwargs)

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **kwargs: Any) -> Any:
        name = self._strip_protocol(path)
        if name not in self._lists.get(self._parent(name), {name}):
            raise FileNotFoundError(path)
        return super().cat_file(path, start, end, **kwargs)

    def invalidate_cache(self, path: str | None = None) -> None:
        self._lists.clear()


class Workers:
    """Each process of a task runs on another machine than the one before it."""

    def __init__(self, path: Path) -> None:
        self._roots = itertools.cycle(path / name for name in ROOTS)
        self.tasks = dict[str, set[str]]()

    def choose(self, context: Any) -> None:
        root = next(self._roots)
        os.environ["AIRFLOW__KMIGRATE__FOLDER"] = str(root)
        self.tasks.setdefault(context["ti"].task_id, set()).add(root.name)


def kill_at_stop(sim: Rehearsal, broker: int) -> list[str]:
    """Kill the process once that has just stopped this broker; returns the kills."""
    kills, stop = list[str](), sim.cluster.stop

    def die(node: Any, *args: Any, **kwargs: Any) -> Any:
        result = stop(node, *args, **kwargs)
        if node.id == broker and not kills:
            kills.append(node.name)
            raise Killed
        return result

    sim.cluster.stop = die  # type: ignore[method-assign]
    return kills


@pytest.mark.slow
@pytest.mark.long
def test_a_whole_migration_on_two_machines_that_share_no_folder(
    rehearse: Callable[..., Rehearsal], known: Callable[[DAG], None], run_dag: Callable[..., Any], address: str, tmp_path: Path
) -> None:
    sim, workers = rehearse(min_soak=700.0), Workers(tmp_path)
    dags = folder.dags_of(sim.path.parent)
    dag = dags["kmigrate_zk_to_kraft__sim"]
    known(dags["kmigrate_rollback__sim"])
    for task in dag.tasks:
        task._pre_execute_hook, task.retry_delay = workers.choose, timedelta(0)  # type: ignore[attr-defined]
    kills = kill_at_stop(sim, broker=1)
    run = run_dag(dag, run_conf={"approve_finalization": CLUSTER_ID})
    states = {ti.task_id: str(ti.state) for ti in run.get_task_instances()}
    assert str(run.state) == "success", states
    assert sim.cluster.finalized
    assert kills == ["broker 1"]
    assert sim.restarts() == 3 * 2 + 3, "the killed task's broker was restarted once"
    assert workers.tasks["first_roll.broker_1"] == set(ROOTS), "the second try ran on the other machine"
    assert workers.tasks["soak"] == set(ROOTS), "a soak continues on the other machine after a deferral"
    copies = [read_files(tmp_path / name, address) for name in ROOTS]
    assert copies[0] == copies[1]
    assert {path.partition("/")[0] for path in copies[0]} >= {"backup", "journal", "preflight"}
    journals = [path for path in copies[0] if path.startswith("journal/")]
    for journal in journals:
        link = FileJournal(tmp_path / "one" / journal, "", lambda: 0.0).read_link()
        assert find_break(copies[0][journal].splitlines(), link) == ""
    assert journals
    assert not (tmp_path / "kmigrate").exists()


def read_files(root: Path, address: str) -> dict[str, bytes]:
    """Every file of a machine's copy, up to date."""
    open_state_folder(root, address).refresh()
    paths = (path for path in root.rglob("*") if path.is_file() and path.name not in {COPY, "lock"})
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in paths}


def test_an_object_is_created_once_and_read_by_its_name(address: str) -> None:
    store = AirflowObjectStore(f"{address}/")
    assert store.list_names() == []
    store.create("000000001", b"one")
    with pytest.raises(ObjectExists):
        store.create("000000001", b"two")
    assert store.read(["000000001", "000000002"]) == [b"one", None]
    assert store.list_names() == ["000000001"]


@pytest.mark.parametrize("kind", ["memory", "s3"])
def test_what_another_process_has_created_since_a_list_is_read(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    if kind == "s3":
        others = request.getfixturevalue("s3")
        own = type(others)(**others.storage_options, skip_instance_cache=True)
    else:
        others, own = MemoryFileSystem(), Remembering(skip_instance_cache=True)
    attach(kind, fs=own)
    store = AirflowObjectStore(f"{kind}://kmigrate/{tmp_path.name}")
    store.create("000000001", b"one")
    assert store.list_names() == ["000000001"]
    others.pipe_file(f"kmigrate/{tmp_path.name}/log/000000002", b"two")
    assert store.read(["000000002"]) == [b"two"]
    others.pipe_file(f"kmigrate/{tmp_path.name}/log/000000003", b"three")
    assert store.list_names() == ["000000001", "000000002", "000000003"]


def test_any_other_error_of_a_store_is_no_answer(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    store = AirflowObjectStore(address)
    files: Any = ObjectStoragePath(address).fs
    monkeypatch.setattr(files, "cat", lambda *_args, **_kwargs: (_ for _ in ()).throw(PermissionError("403")))
    with pytest.raises(Unavailable, match="403"):
        store.read(["000000001"])
    monkeypatch.setattr(
        files, "cat", lambda paths, **_kwargs: dict.fromkeys(paths, PermissionError("404"))
    )  # as fsspec's own stores
    with pytest.raises(Unavailable, match="404"):
        store.read(["000000001"])
    monkeypatch.setattr(files, "pipe_file", lambda *_args, **_kwargs: (_ for _ in ()).throw(FileNotFoundError("no bucket")))
    with pytest.raises(Unavailable, match="no such bucket"):
        store.create("000000001", b"one")


@pytest.mark.parametrize("address", ["bucket/folder", "file:///mnt/nfs", "s3://key:secret@bucket/folder", "/mnt/nfs"])
def test_what_is_no_object_store_is_refused_without_its_password(tmp_path: Path, address: str) -> None:
    with pytest.raises(Refused, match="O05") as refusal:
        open_state_folder(tmp_path, address)
    assert "secret" not in str(refusal.value)


def test_a_scheme_without_a_library_is_refused(tmp_path: Path) -> None:
    with pytest.raises((Refused, Unavailable), match="nosuch"):
        open_state_folder(tmp_path, "nosuch://bucket/folder").refresh()


def test_a_machine_that_has_lost_the_setting_refuses_its_copy(address: str, tmp_path: Path) -> None:
    open_state_folder(tmp_path / "one", address).replace(tmp_path / "one" / "note", lambda _: b"a")
    with pytest.raises(Refused, match="copy of an object store"):
        open_state_folder(tmp_path / "one", "")


_WRITER = """
import sys
from pathlib import Path
import s3fs
from airflow.sdk.io import attach
from airflow_provider_kmigrate.steps.journal import FileJournal
from airflow_provider_kmigrate.utils.object_store import open_state_folder

endpoint, root, address, name = sys.argv[1:]
attach("s3", fs=s3fs.S3FileSystem(key="any", secret="any", endpoint_url=endpoint))
journal = FileJournal(Path(root) / "journal" / "run.jsonl", "run", lambda: 1.5, open_state_folder(Path(root), address))
for number in range(15):
    journal.write("acted", name, f"{name} {number}")
    print(f"stored {name} {number}", flush=True)
"""


@pytest.mark.long
def test_processes_of_two_machines_lose_no_line_of_a_journal_and_one_is_killed(s3: Any, tmp_path: Path) -> None:
    attach("s3", fs=s3)
    address = f"s3://kmigrate/{tmp_path.name}"

    def begin(root: str, name: str) -> subprocess.Popen[str]:
        words = (s3.client_kwargs.get("endpoint_url") or s3.endpoint_url, str(tmp_path / root), address, name)
        return subprocess.Popen([sys.executable, "-c", _WRITER, *words], stdout=subprocess.PIPE, text=True)

    with begin("one", "a") as killed, begin("two", "b") as other:
        assert killed.stdout is not None
        said = [killed.stdout.readline().strip() for _ in range(5)]
        killed.kill()
        said += [line.strip() for line in killed.stdout]
        with begin("one", "c") as again:
            said += again.communicate(timeout=300.0)[0].splitlines()
        said += other.communicate(timeout=300.0)[0].splitlines()
    stored = {line.removeprefix("stored ") for line in said if line.startswith("stored ")}  # Airflow prints here, too
    files = read_files(tmp_path / "one", address)
    lines = files["journal/run.jsonl"].splitlines()
    texts = [json.loads(line)["text"] for line in lines]
    assert len(set(texts)) == len(texts)
    assert {f"{name} {number}" for name in "bc" for number in range(15)} <= stored <= set(texts)
    assert find_break(lines, FileJournal(tmp_path / "one" / "journal" / "run.jsonl", "", lambda: 0.0).read_link()) == ""
    assert files == read_files(tmp_path / "two", address)
