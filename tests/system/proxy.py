"""A TCP proxy that breaks a link on purpose: it refuses, resets, holds one way or both, delays or slows what passes through it.

What is held is kept and passed on once the link is healed, as TCP's own retransmissions would do it after a short partition. Two
things differ from a network that drops packets: a connection to a held link is made, since the kernel here answers for the node, and
a sender is slowed by full buffers, not by missing acknowledgements.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import socket
import struct
import threading
from collections.abc import Coroutine, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Self

HOST = "127.0.0.1"
_CHUNK = 1 << 16
_SLICE = 0.1  # seconds between two pieces of a slowed stream
_ANSWER = 10.0  # seconds for the proxies' own thread
_RST = struct.pack("ii", 1, 0)  # SO_LINGER of zero seconds: closing sends RST


class Way(StrEnum):
    """A direction of a link, seen from the client that connects."""

    REQUESTS = "requests"
    ANSWERS = "answers"


@dataclass(frozen=True)
class Fault:
    """How a link is broken; `delay` in seconds for each piece that is read, `rate` in bytes a second, each way by itself."""

    name: str
    refused: bool = False
    reset: bool = False
    held: frozenset[Way] = frozenset()
    delay: float = 0.0
    rate: float = math.inf


HEALTHY = Fault("healthy")
REFUSED = Fault("refused", refused=True)
RESET = Fault("reset", reset=True)
BLACK_HOLE = Fault("black-holed", held=frozenset(Way))
UNDELIVERED = Fault("black-holed on the way there", held=frozenset({Way.REQUESTS}))
UNANSWERED = Fault("black-holed on the way back", held=frozenset({Way.ANSWERS}))


def delayed(seconds: float) -> Fault:
    return Fault(f"delayed by {seconds:g} s", delay=seconds)


def slow(rate: float) -> Fault:
    return Fault(f"slowed to {rate:g} B/s", rate=rate)


@dataclass
class Link:
    """One port of ours in front of one port of a node."""

    port: int
    node: int
    fault: Fault = HEALTHY
    server: asyncio.Server | None = None
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    open: dict[asyncio.Task[None], list[asyncio.StreamWriter]] = field(default_factory=dict)

    async def turn(self, fault: Fault) -> None:
        """From now on the link is broken like this; refused and reset links lose the connections they have."""
        self.fault = fault
        self.changed.set()
        self.changed = asyncio.Event()
        if fault.refused and self.server is not None:
            self.server.close()
            self.server = None
        if fault.refused or fault.reset:
            for task, writers in list(self.open.items()):
                _reset(*writers)
                task.cancel()
        if not fault.refused and self.server is None:
            self.server = await asyncio.start_server(self._accept, HOST, self.port)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task, writers = asyncio.current_task(), [writer]
        if task is None or self.fault.reset or self.fault.refused:
            _reset(writer)
            return
        self.open[task] = writers
        try:
            to_node = await asyncio.open_connection(HOST, self.node)
            writers.append(to_node[1])
            await asyncio.gather(self._pump(Way.REQUESTS, reader, to_node[1]), self._pump(Way.ANSWERS, to_node[0], writer))
        except (OSError, asyncio.CancelledError):  # what ends one side ends the other, as hard
            _reset(*writers)
        finally:
            self.open.pop(task, None)
            for each in writers:
                each.close()

    async def _pump(self, way: Way, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(_CHUNK):
            await asyncio.sleep(self.fault.delay)
            await self._pass_on(way, data, writer)
        await self._let_through(way)
        with contextlib.suppress(OSError):
            writer.write_eof()

    async def _pass_on(self, way: Way, data: bytes, writer: asyncio.StreamWriter) -> None:
        while data:
            await self._let_through(way)
            slowed = self.fault.rate < math.inf
            size = max(1, int(self.fault.rate * _SLICE)) if slowed else len(data)
            writer.write(data[:size])
            await writer.drain()
            data = data[size:]
            await asyncio.sleep(_SLICE if slowed else 0)

    async def _let_through(self, way: Way) -> None:
        while way in self.fault.held:
            await self.changed.wait()


def _reset(*writers: asyncio.StreamWriter) -> None:
    for writer in writers:
        raw = writer.get_extra_info("socket")
        with contextlib.suppress(OSError):
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RST)
        writer.transport.abort()


class Links:
    """Links by name, each healthy at first, kept by a thread of their own until `close`."""

    def __init__(self, ports: Mapping[str, int], nodes: Mapping[str, int]) -> None:
        """`ports`: where each link listens; `nodes`: the port that it leads to."""
        self.ports = dict(ports)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="links", daemon=True)
        self._thread.start()
        self._links = {name: Link(port, nodes[name]) for name, port in ports.items()}
        for name in self._links:
            self.turn(name, HEALTHY)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def turn(self, name: str, fault: Fault) -> None:
        self._run(self._links[name].turn(fault))

    @contextmanager
    def broken(self, fault: Fault, *names: str) -> Iterator[None]:
        """Like this while it lasts, healthy afterwards."""
        try:
            for name in names:
                self.turn(name, fault)
            yield
        finally:
            for name in names:
                self.turn(name, HEALTHY)

    def close(self) -> None:
        """Every connection is reset, the port is closed."""
        if self._thread.is_alive():
            for name in self._links:
                self.turn(name, REFUSED)
            self._run(_ended())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(_ANSWER)
            self._loop.close()

    def _run(self, made: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(made, self._loop).result(_ANSWER)


async def _ended() -> None:
    others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    await asyncio.wait(others, timeout=_ANSWER / 2) if others else None
