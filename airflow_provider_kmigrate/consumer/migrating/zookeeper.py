"""What a migrating consumer asks of ZooKeeper: one session of its own, watches that only say "look", and a group's znodes.

Lessons of `clients.zookeeper_session` hold here too: every answer is awaited for a bounded time, nothing ever runs in kazoo's
threads but putting a word into a queue, and closing does not wait for a hung server. What differs: the session is the member's
life, so it is never thrown away and made anew behind its back; kazoo reconnects for as long as the consumer lives.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final, NamedTuple

from kazoo.client import KazooClient
from kazoo.exceptions import BadVersionError, KazooException, NodeExistsError, NoNodeError
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.protocol.states import KazooState, KeeperState, WatchedEvent
from kazoo.security import CREATOR_ALL_ACL, OPEN_ACL_UNSAFE

from airflow_provider_kmigrate.clients.settings import ZooKeeperSettings
from airflow_provider_kmigrate.clients.zookeeper_session import access, error_for
from airflow_provider_kmigrate.exceptions import AuthenticationFailed, TimedOut, Unreachable

_log = logging.getLogger(__name__)
ANSWER_S: Final = 4.0
_CLOSE_S: Final = 3.0
_NEGOTIATED: Final = "Session created"  # kazoo keeps what the server granted nowhere but in this line of its log

StateChanged = Callable[[bool], None]  # whether the session is gone, or only the connection
Watched = Callable[[str], None]


class Znode(NamedTuple):
    """`session`: of the one who made it; 0 for a lasting one."""

    data: bytes
    version: int
    session: int
    created: int
    changed: int


class _Log(logging.Logger):
    """Kazoo's logger: keeps the granted timeout, in seconds, passes on why it cannot connect, and drops the rest."""

    def __init__(self, timeout: float) -> None:
        super().__init__("kazoo", logging.CRITICAL)
        self.timeout = timeout

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:  # noqa: ARG002  # as its base has it
        if str(msg).startswith(_NEGOTIATED):
            self.timeout = float(str(args[2])) / 1000.0

    def warning(self, msg: object, *args: object, **kwargs: Any) -> None:  # noqa: ARG002  # as its base has it
        _log.info(str(msg), *args)


class GroupSession:
    """Thread-safe. `changed` and `watched` are called in kazoo's threads and must only put something into a queue."""

    def __init__(self, settings: ZooKeeperSettings, changed: StateChanged, watched: Watched) -> None:
        self.where = f"ZooKeeper {settings.hosts}{settings.chroot}"
        self._log = _Log(settings.session_timeout)
        self._changed = changed
        self._watched = watched
        self._refused = False
        self._client = KazooClient(
            f"{settings.hosts}{settings.chroot}",
            timeout=settings.session_timeout,
            connection_retry={"max_tries": -1, "delay": 0.1, "backoff": 1.5, "max_delay": 1.0},
            logger=self._log,
            **access(settings),
        )
        self._acl = CREATOR_ALL_ACL if settings.set_acl else OPEN_ACL_UNSAFE  # the old consumer's are open
        self._client.add_listener(self._on_state)

    def start(self) -> None:
        """Does not wait."""
        self._client.start_async()

    def close(self) -> None:
        """End the session, and with it all our ephemeral znodes."""
        ending = threading.Thread(target=self._end, daemon=True, name="kmigrate-zookeeper-close")
        ending.start()
        ending.join(_CLOSE_S)

    def _end(self) -> None:
        with contextlib.suppress(KazooException, OSError):
            self._client.stop()
            self._client.close()

    def _on_state(self, state: str) -> None:
        if self._client.client_state == KeeperState.AUTH_FAILED:
            self._refused = True
            _log.error("%s refuses this consumer's identity: it delivers nothing, and does not try again", self.where)
        if state != KazooState.CONNECTED:
            self._changed(state == KazooState.LOST)

    def _on_watch(self, event: WatchedEvent) -> None:
        if event.path:  # without: the connection broke, and whoever resumes asks again
            self._watched(event.path)

    @property
    def connected(self) -> bool:
        return bool(self._client.connected)

    @property
    def session(self) -> int | None:
        found = self._client.client_id
        return int(found[0]) if found and found[0] else None

    def pulse(self, answered: Callable[[int, float, float], None]) -> None:
        """Ask ZooKeeper's leader for a sign of life, and tell it with its session, when it was asked, and the session's timeout.

        Only the leader keeps sessions alive. A follower that has lost it answers reads for seconds more; a `sync` goes through it.
        """
        asked, session = time.monotonic(), self.session

        def heard(result: Any) -> None:
            if result.successful() and session is not None and session == self.session:
                answered(session, asked, self._log.timeout)

        if self.connected:
            self._client.sync_async("/").rawlink(heard)

    def _got(self, what: str, result: Any) -> Any:
        try:
            return result.get(timeout=ANSWER_S)
        except KazooTimeoutError as error:
            raise TimedOut(f"{self.where}: {what}: no answer within {ANSWER_S:g} s") from error

    def call(self, what: str, act: Callable[[KazooClient], Any]) -> Any:
        """The answer to one asynchronous request; what it says of the znode passes (absent, there, other version), the rest of kazoo's becomes ours."""
        if self._refused:
            raise AuthenticationFailed(f"{self.where}: {what}: our identity is refused")
        if not self.connected:
            raise Unreachable(f"{self.where}: {what}: not connected")
        try:
            return self._got(what, act(self._client))
        except (NoNodeError, NodeExistsError, BadVersionError):
            raise
        except KazooException as error:
            raise error_for(error, f"{self.where}: {what}") from error

    def sync(self) -> None:
        self.call("sync", lambda client: client.sync_async("/"))

    def get(self, path: str, *, watch: bool = False) -> Znode | None:
        """None where there is none; the watch is then for its creation."""
        watcher = self._on_watch if watch else None
        for _ in range(3):
            with contextlib.suppress(NoNodeError):
                return _znode(self.call(f"read {path}", lambda client: client.get_async(path, watch=watcher)))
            if not watch or self.call(f"watch {path}", lambda client: client.exists_async(path, watch=watcher)) is None:
                return None
        raise Unreachable(f"{self.where}: {path} comes and goes")

    def get_all(self, paths: Mapping[str, str], *, watch: bool = False) -> dict[str, Znode]:
        """Name -> znode, of those that exist; all asked at once."""
        watcher = self._on_watch if watch else None
        sent = {name: self._client.get_async(path, watch=watcher) for name, path in paths.items()}
        found = {}
        for name, result in sent.items():
            with contextlib.suppress(NoNodeError):
                found[name] = _znode(self.call(f"read {paths[name]}", partial(_sent, result)))
        return found

    def children(self, path: str, *, watch: bool = False) -> list[str]:
        """None of a znode that is not there; then there is no watch either."""
        watcher = self._on_watch if watch else None
        try:
            names = self.call(f"list {path}", lambda client: client.get_children_async(path, watch=watcher))
        except NoNodeError:
            return []
        return [str(name) for name in names]

    def make(self, path: str, data: bytes, *, ephemeral: bool = False) -> bool:
        """Create it, with its parents; False where there is one already."""
        try:
            self.call(f"create {path}", lambda client: client.create_async(path, data, self._acl, ephemeral=ephemeral))
        except NodeExistsError:
            return False
        except NoNodeError:
            self.make_folder(path.rpartition("/")[0])
            return self.make(path, data, ephemeral=ephemeral)
        return True

    def make_folder(self, path: str) -> None:
        """A lasting znode with no data, and its parents."""
        if path and self.get(path) is None:
            self.make(path, b"")

    def write(self, path: str, data: bytes, version: int) -> int | None:
        """The new version; None where it has another one than this, or is gone."""
        return self._versioned(
            lambda client: client.set_async(path, data, version), lambda stat: int(stat.version), f"write {path}"
        )

    def delete(self, path: str, version: int) -> bool:
        """Whether it was deleted; False where it has another version, or is gone."""
        return self._versioned(lambda client: client.delete_async(path, version), lambda _: 1, f"delete {path}") is not None

    def _versioned(self, act: Callable[[KazooClient], Any], answer: Callable[[Any], int], what: str) -> int | None:
        try:
            return answer(self.call(what, act))
        except (NoNodeError, BadVersionError):
            return None

    def make_together(self, nodes: Mapping[str, bytes]) -> bool:
        """Ephemeral znodes, all or none, whose parents exist; False where one exists already."""
        transaction = self._client.transaction()
        for path, data in nodes.items():
            transaction.create(path, data, self._acl, ephemeral=True)
        results = self.call("register", lambda _: transaction.commit_async())
        failed = [result for result in results if isinstance(result, Exception)]
        if any(isinstance(result, NodeExistsError) for result in failed):
            return False
        if failed:
            raise error_for(failed[0], f"{self.where}: register")
        return True


def _sent(result: Any, _: KazooClient) -> Any:
    return result


def _znode(answer: tuple[bytes | None, Any]) -> Znode:
    data, stat = answer
    return Znode(data or b"", stat.version, stat.ephemeralOwner, stat.czxid, stat.mzxid)
