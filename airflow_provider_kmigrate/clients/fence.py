"""The fence: only one run at a time may change a cluster. It is a lock, an epoch and proof of life in ZooKeeper.

Below `/_kmigrate/<cluster id>` in the cluster's own chroot:

========  ==========  ==============================================================================================
`owner`   persistent  who may change the cluster: {"owner", "since", "host"}. Absent: the cluster is free.
`epoch`   persistent  its data version is the fencing token. Never deleted; each taking raises it.
`live`    persistent  parent of one ephemeral znode for each process that has taken the fence.
========  ==========  ==============================================================================================

A lock alone is not safe: a holder that is suspended past its session wakes up believing that it still holds it (measured: it
deleted /controller while another run was at work). So every act carries the token: ZooKeeper transactions check `epoch`, the
host drivers refuse a token lower than one they have seen.

The owner is a *run* (`dag_id/run_id`), not a process, because each task of a run is its own short process:

- the same run is never refused. Each taking raises the token, so that a retry fences the process it replaces, be that dead,
  suspended or merely slow. Tasks of one run that act must therefore follow one another; threads of one task share one `Fence`.
- leaving the `with` block ends only the proof of life. The run keeps the cluster between its tasks, when no process lives.
- every act of an outdated process is refused (code H03);
- another run is refused (`Fenced`, code H01; its text says if a process of the owner lives) until the owner's last task
  calls `release` or hands the cluster over, the caller knows that the owning run is over, or only waits and may be replaced
  (`finished`), or the operator calls `break_lock`.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import uuid
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from types import TracebackType
from typing import Never, Self

from airflow_provider_kmigrate.clients.znodes import ROOT, Create, Delete, Operation, Set, outdated_token, printable_content
from airflow_provider_kmigrate.clients.zookeeper import ZooKeeper
from airflow_provider_kmigrate.clients.zookeeper_session import Changed
from airflow_provider_kmigrate.core.cluster_state.model import Reason
from airflow_provider_kmigrate.core.shared.foreign_json import read_json
from airflow_provider_kmigrate.core.shared.text import printable
from airflow_provider_kmigrate.exceptions import AuthenticationFailed, Fenced, Refused, SpecError, Unavailable, WrongCluster

_SHOWN = 600  # characters of each; the ids of a DAG and a run have 250
_ATTEMPTS = 5  # two runs that start together collide once
_CLUSTER_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")


@dataclass(frozen=True, slots=True)
class FenceHolder:
    """The run that owns the cluster.

    `since` is ISO 8601 in UTC, `host` where it took the fence; both only for the reader.
    """

    owner: str
    since: str
    host: str

    def __str__(self) -> str:
        shown_texts = (
            printable(text[:_SHOWN]) for text in (self.owner, self.since, self.host)
        )  # any client may have written them
        return "run {} (since {}, from {})".format(*shown_texts)


class Fence:
    """The right of one run to change one cluster; `with` takes it and shows life, `release` frees it."""

    def __init__(
        self,
        zookeeper: ZooKeeper,
        cluster_id: str,
        owner: str,
        *,
        finished: Callable[[str], bool] = lambda _: False,
    ) -> None:
        if not _CLUSTER_ID.fullmatch(cluster_id):
            raise SpecError.because(Reason("F04", f"cluster_id: {cluster_id!r} is not a Kafka cluster id."))
        self._zookeeper, self._cluster_id, self._me = zookeeper, cluster_id, owner
        self._root = f"{ROOT}/{cluster_id}"
        self._finished = finished
        self._life = f"{self._root}/live/{uuid.uuid4().hex}"
        self._token: int | None = None

    def __enter__(self) -> Self:
        self.take()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.leave()

    @property
    def path(self) -> str:
        """The znode whose version is the token."""
        return f"{self._root}/epoch"

    @property
    def token(self) -> int:
        """The fencing token, which every taking by any run raises. Raises `Fenced` before `take`."""
        if self._token is None:
            raise Fenced.because(Reason("H03", f"run {self._me} has not taken the fence of {self._root}"))
        return self._token

    def take(self) -> int:
        """Become or remain the owner; returns the new token.

        Raises `Fenced` if another run is the owner, `WrongCluster`, and `Refused` (H14) where the tree belongs to another identity.
        """
        with self._refusing_strangers():
            self._ensure_tree()
            for _ in range(_ATTEMPTS):
                with contextlib.suppress(Changed):  # another process was faster: read the owner again
                    self._token = self._commit_new_token(self._claim_operations(), shows_life=True)
                    return self._token
        raise Fenced.because(
            outdated_token(f"{self._root}: its owner changed {_ATTEMPTS} times while run {self._me} tried to take it")
        )

    def require_available(self) -> None:
        """Raise `Fenced` if `take` would, because another run is the owner now; writes nothing."""
        with self._refusing_strangers():
            self._claim_operations()

    def use_current_token(self) -> int:
        """As `ask`; returns the present token without raising it: what this process commits holds while no process takes the fence."""
        with self._refusing_strangers():
            self._ensure_tree()
            self._token = (self._zookeeper.read(self.path) or (b"", 0))[1]
            self._claim_operations()
            return self._token

    def check(self) -> None:
        """Raise `Fenced` if any process has taken the fence since; one round trip."""
        epoch_znode = self._zookeeper.read(self.path)
        if epoch_znode is None or epoch_znode[1] != self.token:
            text = f"token {self.token} of run {self._me} is outdated; the cluster is owned by {self.holder() or 'no run'}"
            raise Fenced.because(outdated_token(text))

    def leave(self) -> None:
        """Delete this process's ephemeral znode; the run still owns the cluster. May fail: the znode ends with the session anyway."""
        with contextlib.suppress(Unavailable):
            life_znode = self._zookeeper.read(self._life)
            if life_znode is not None:
                self._zookeeper.commit([Delete(self._life, life_znode[1])])

    def release(self) -> None:
        """End the run and free the cluster for others. Raises `Fenced` if this run no longer owns it."""
        owner_znode = self._zookeeper.read(self._owner_path)
        if owner_znode is not None:
            self._zookeeper.commit([Delete(self._owner_path, owner_znode[1])], holding=self)

    def hand_over(self, run: str, *beside: Operation) -> None:
        """Make another run the owner, in one transaction with `beside`. Raises `Fenced` if this run no longer owns the cluster.

        This process must have taken the fence. The other run's first task raises the token, which ends every process of this run.
        """
        owner_znode = self._zookeeper.read(self._owner_path)
        if owner_znode is None or _parse_owner(owner_znode[0]).owner != self._me:
            raise Fenced.because(outdated_token(f"run {self._me} does not own the cluster any more and cannot hand it over"))
        self._zookeeper.commit([Set(self._owner_path, self._owner_record(run), owner_znode[1]), *beside], holding=self)

    def holder(self) -> FenceHolder | None:
        """The run that owns the cluster now; None if no run does."""
        owner_znode = self._zookeeper.read(self._owner_path)
        return _parse_owner(owner_znode[0]) if owner_znode else None

    def alive(self) -> bool:
        """True if any process shows life now; a killed one seems alive until its ZooKeeper session expires."""
        return bool(self._zookeeper.children(f"{self._root}/live"))

    def break_lock(self, run: str | None = None) -> FenceHolder | None:
        """Free the cluster from the run that owns it, as the operator decided; returns that run. `run`: only from this one.

        ZooKeeper, and hosts that have seen a newer token, refuse its running task from now on. Its next task would take the free
        cluster again: mark the run failed, or set the kill switch, first.
        """
        self._ensure_tree()
        owner_znode = self._zookeeper.read(self._owner_path)
        owner = _parse_owner(owner_znode[0]) if owner_znode else None
        if run is None or (owner is not None and owner.owner == run):
            self._commit_new_token([Delete(self._owner_path, owner_znode[1])] if owner_znode else [], shows_life=False)
        return owner

    @contextlib.contextmanager
    def _refusing_strangers(self) -> Iterator[None]:
        """Who made the tree with an ACL of their own is named (H14): ZooKeeper says only that we may not."""
        try:
            yield
        except AuthenticationFailed as error:
            others = self._zookeeper.find_others_right(self.path)
            if others is None or not others.who:
                raise
            raise Refused.because(
                Reason("H14", f"{others}, and kmigrate may not: run {self._me} cannot own the cluster.")
            ) from error

    @property
    def _owner_path(self) -> str:
        return f"{self._root}/owner"

    def _claim_operations(self) -> list[Operation]:
        """The operations that make this run the owner, if nothing changes meanwhile."""
        owner_znode = self._zookeeper.read(self._owner_path)
        if owner_znode is None:
            return [Create(self._owner_path, self._owner_record())]
        owner = _parse_owner(owner_znode[0])
        if owner.owner == self._me:
            return [Set(self._owner_path, *owner_znode)]  # the same data, but the version is checked
        if self._finished(owner.owner):
            return [Set(self._owner_path, self._owner_record(), owner_znode[1])]
        raise self._owned_by_other(owner)

    def _commit_new_token(self, operations: list[Operation], *, shows_life: bool) -> int:
        """Commit the operations with a new token, which is returned. Raises `Changed` if another process was faster."""
        if shows_life and self._zookeeper.read(self._life) is None:
            operations.append(Create(self._life, self._owner_record(), ephemeral=True))
        _, version = self._zookeeper.read(self.path) or (b"", 0)
        *_, token = self._zookeeper.commit([*operations, Set(self.path, self._owner_record(), version)])
        if token is None:
            raise AssertionError("ZooKeeper answered a set without a version")
        return token

    def _owner_record(self, run: str = "") -> bytes:
        now = datetime.now(UTC).isoformat(timespec="seconds")
        return json.dumps(asdict(FenceHolder(run or self._me, now, f"{socket.gethostname()}:{os.getpid()}"))).encode()

    def _owned_by_other(self, owner: FenceHolder) -> Fenced:
        alive = "one of its processes is alive" if self.alive() else "none of its processes is alive now"
        return Fenced.because(Reason("H01", f"The cluster is owned by {owner}; {alive}."))

    def _ensure_tree(self) -> None:
        cluster_id = self._zookeeper.cluster_id()
        if cluster_id != self._cluster_id:
            text = f"ZooKeeper has cluster {cluster_id}, run {self._me} is for cluster {self._cluster_id}"
            raise WrongCluster.because(Reason("I01", text))
        if self._zookeeper.read(self.path) is not None:  # made last: if it exists, all exist
            return
        for path in (ROOT, self._root, f"{self._root}/live", self.path):
            with contextlib.suppress(Changed):  # it exists
                self._zookeeper.commit([Create(path)])


class ReadOnlyFence:
    """The fence of a process that only observes: every act in it raises `Fenced` (H03)."""

    @property
    def path(self) -> str:
        """No znode: raises `Fenced`."""
        self.check()

    @property
    def token(self) -> int:
        """No token: raises `Fenced`."""
        self.check()

    def check(self) -> Never:
        """Raise `Fenced`."""
        raise Fenced.because(Reason("H03", "There is something to do, but this process only observes."))

    def release(self) -> None:
        """Do nothing: nothing was taken."""


def _parse_owner(data: bytes) -> FenceHolder:
    try:
        fields = read_json(data)
        return FenceHolder(str(fields["owner"]), str(fields["since"]), str(fields["host"]))
    except (ValueError, KeyError, TypeError, AttributeError):
        return FenceHolder(f"unknown: {printable_content(data)}", "?", "?")
