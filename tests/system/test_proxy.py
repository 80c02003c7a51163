"""The proxy itself, on real sockets: what each broken link does to a client, and that it works again once it is healed."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator

import pytest

from tests.kit.localcluster.plan import free_ports
from tests.system import proxy
from tests.system.proxy import HOST, Links

SHORT = 0.2  # seconds in which nothing must come
LONG = 10.0


def echo(listening: socket.socket) -> None:
    """Any client gets back what it sends, until the socket is closed."""

    def serve(one: socket.socket) -> None:
        with one:
            try:
                while data := one.recv(4096):
                    one.sendall(data)
            except OSError:
                return

    while True:
        try:
            one, _ = listening.accept()
        except OSError:
            return
        threading.Thread(target=serve, args=(one,), daemon=True).start()


@pytest.fixture
def node() -> Iterator[int]:
    with socket.create_server((HOST, 0)) as listening:
        threading.Thread(target=echo, args=(listening,), daemon=True).start()
        yield listening.getsockname()[1]
        listening.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def links(node: int) -> Iterator[Links]:
    with Links(dict(zip(("one", "other"), free_ports(2), strict=True)), {"one": node, "other": node}) as made:
        yield made


def connected(links: Links, name: str = "one") -> socket.socket:
    return socket.create_connection((HOST, links.ports[name]), timeout=LONG)


def answer(client: socket.socket, size: int = 4) -> bytes:
    data = b""
    while len(data) < size and (chunk := client.recv(size - len(data))):
        data += chunk
    return data


def echoed(client: socket.socket, data: bytes = b"ping") -> bytes:
    client.sendall(data)
    return answer(client, len(data))


def test_a_healthy_link_passes_everything_on_and_the_end_too(links: Links) -> None:
    with connected(links) as client:
        assert echoed(client) == b"ping"
        much = b"x" * 300_000
        threading.Thread(target=client.sendall, args=(much,), daemon=True).start()
        assert answer(client, len(much)) == much
        client.shutdown(socket.SHUT_WR)
        assert client.recv(1) == b""


def test_a_refused_link_breaks_what_is_there_and_refuses_what_comes_until_it_is_healed(links: Links) -> None:
    with connected(links) as client:
        assert echoed(client) == b"ping"
        with links.broken(proxy.REFUSED, "one"):
            with pytest.raises(ConnectionResetError):
                client.recv(1)
            with pytest.raises(ConnectionRefusedError):
                connected(links)
            with connected(links, "other") as beside:
                assert echoed(beside) == b"ping"
    with connected(links) as again:
        assert echoed(again) == b"ping"


def test_a_reset_link_accepts_and_resets(links: Links) -> None:
    with connected(links) as client:
        assert echoed(client) == b"ping"
        with links.broken(proxy.RESET, "one"):
            with pytest.raises(ConnectionResetError):
                client.recv(1)
            with pytest.raises(ConnectionResetError), connected(links) as new:
                new.recv(1)
    with connected(links) as again:
        assert echoed(again) == b"ping"


@pytest.mark.parametrize("fault", [proxy.BLACK_HOLE, proxy.UNDELIVERED, proxy.UNANSWERED], ids=lambda fault: fault.name)
def test_a_held_link_is_silent_and_nothing_is_lost_when_it_heals(links: Links, fault: proxy.Fault) -> None:
    with connected(links) as client:
        assert echoed(client) == b"ping"
        with links.broken(fault, "one"):
            client.sendall(b"late")
            client.settimeout(SHORT)
            with pytest.raises(TimeoutError):
                client.recv(1)
        client.settimeout(LONG)
        assert answer(client) == b"late"


def test_one_way_is_held_and_the_other_is_not() -> None:
    with (
        socket.create_server((HOST, 0)) as listening,
        Links({"one": free_ports(1)[0]}, {"one": listening.getsockname()[1]}) as made,
    ):
        client = connected(made)
        there, _ = listening.accept()
        with client, there, made.broken(proxy.UNANSWERED, "one"):
            client.sendall(b"heard")
            there.settimeout(LONG)
            assert answer(there, 5) == b"heard"
            there.sendall(b"answer")
            client.settimeout(SHORT)
            with pytest.raises(TimeoutError):
                client.recv(1)


def test_a_connection_made_while_a_link_is_held_works_once_it_is_healed(links: Links) -> None:
    links.turn("one", proxy.BLACK_HOLE)
    with connected(links) as client:
        client.sendall(b"late")
        links.turn("one", proxy.HEALTHY)
        assert answer(client) == b"late"


def test_a_delayed_link_is_late_both_ways(links: Links) -> None:
    links.turn("one", proxy.delayed(0.05))
    with connected(links) as client:
        began = time.monotonic()
        assert echoed(client) == b"ping"
        assert time.monotonic() - began >= 0.1, "a lower bound: it cannot be sooner, however fast the machine"


def test_a_slow_link_passes_a_piece_at_a_time(links: Links) -> None:
    links.turn("one", proxy.slow(100))
    with connected(links) as client:
        client.sendall(b"x" * 25)
        assert len(client.recv(25)) <= 10
        links.turn("one", proxy.HEALTHY)


def test_a_node_that_is_down_breaks_the_connection(links: Links) -> None:
    unused, ours = free_ports(2)
    # The reset may be here before `connect` has returned.
    with Links({"down": ours}, {"down": unused}) as made, pytest.raises(ConnectionResetError), connected(made, "down") as client:
        client.recv(1)


def test_closed_links_listen_no_more(node: int) -> None:
    made = Links({"one": free_ports(1)[0]}, {"one": node})
    client = connected(made)
    assert echoed(client) == b"ping"
    made.close()
    made.close()
    with pytest.raises(ConnectionResetError):
        client.recv(1)
    with pytest.raises(ConnectionRefusedError):
        connected(made)
    client.close()
