"""A real ZooKeeper that lets clients in by SASL only, or by TLS: kmigrate's client reads and writes there, and each fault of a login is named."""

from __future__ import annotations

import contextlib
import logging
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest

from airflow_provider_kmigrate.applications.migrating.settings import read_zookeeper_settings
from airflow_provider_kmigrate.applications.migrating.zookeeper import GroupSession
from airflow_provider_kmigrate.clients.fence import Fence
from airflow_provider_kmigrate.clients.settings import KerberosLogin, ZooKeeperSettings
from airflow_provider_kmigrate.clients.zookeeper import ZooKeeper
from airflow_provider_kmigrate.clients.zookeeper_session import ReadKind, Session, ZnodeRead
from airflow_provider_kmigrate.exceptions import AuthenticationFailed, KMigrateError, TimedOut, Unreachable
from tests.clients.authority import Authority
from tests.kit import kdc
from tests.kit.kdc import Kdc
from tests.kit.localcluster.cluster import lent_zookeeper
from tests.kit.localcluster.jaas import digest_login
from tests.kit.localcluster.plan import free_ports
from tests.kit.logins import NAME, demand_sasl, kerberos_login, offer_tls, write_store
from tests.waiting import refusing_port, wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.long, pytest.mark.timeout(240)]
PASSWORD = "canary-d16e57"


class Server(NamedTuple):
    address: str
    realm: Kdc


def settings_of(address: str, **login: str | None) -> ZooKeeperSettings:
    return ZooKeeperSettings(address, sasl_mechanism="GSSAPI", kerberos=KerberosLogin(**{"service": "zookeeper", **login}))  # type: ignore[arg-type]


def refusal(settings: ZooKeeperSettings) -> KMigrateError | None:
    """Why the first request fails."""
    session = Session(settings)
    try:
        session.read("look", ZnodeRead(ReadKind.CHILDREN, "/"))
    except KMigrateError as error:
        return error
    finally:
        session.close()
    return None


def act(settings: ZooKeeperSettings, path: str, scheme: str = "sasl") -> None:
    """Everything that kmigrate does there: reads in one request, streams, writes, its fence; what it creates is closed to others."""
    session = Session(settings)
    try:
        if not session.client().exists("/cluster/id"):
            session.client().create("/cluster/id", b'{"version":"1","id":"cluster-1"}', acl=session.acl, makepath=True)
        session.client().create(path, b"mine", acl=session.acl)
        (data, _), children = session.read("look", ZnodeRead(ReadKind.DATA, path), ZnodeRead(ReadKind.CHILDREN, "/"))
        assert data == b"mine"
        assert path.removeprefix("/") in children
        assert dict(session.stream("list", ReadKind.DATA, (path, "/absent"))).keys() == {path}
        (acl,), _ = session.client().get_acls(path)
        assert (acl.id.scheme, acl.perms) == (scheme, 31)
    finally:
        session.close()
    with ZooKeeper(settings) as zookeeper, Fence(zookeeper, "cluster-1", "run-1") as fence:
        fence.check()


@kdc.needs_kerberos
class TestKerberos:
    @pytest.fixture(scope="class")
    @classmethod
    def server(cls, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
        with kdc.running(tmp_path_factory.mktemp("kdc")) as realm:
            service = f"zookeeper/{NAME}"
            login = kerberos_login(realm.add(service), service)
            realm.add("kmigrate")
            switch = f"-Djava.security.krb5.conf={realm.configuration}"
            folder = tmp_path_factory.mktemp("zookeeper") / "cluster"
            with lent_zookeeper(folder, prepare=lambda plan: demand_sasl(plan, login, [switch])) as address:
                yield Server(f"{NAME}:{address.rpartition(':')[2]}", realm)

    @pytest.fixture(autouse=True)
    @staticmethod
    def environment(server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
        """This process is a client of the realm, without a ticket; returns its own krb5.conf."""
        configuration = tmp_path / "krb5.conf"
        configuration.write_text(server.realm.configuration.read_text())
        monkeypatch.setenv("KRB5_CONFIG", str(configuration))
        monkeypatch.setenv("KRB5CCNAME", f"FILE:{tmp_path / 'tickets'}")
        return configuration

    def test_a_keytab(self, server: Server) -> None:
        act(settings_of(server.address, keytab=str(server.realm.folder / "kmigrate.keytab")), "/by-keytab")

    @pytest.mark.parametrize("principal", [None, "kmigrate", "kmigrate@EXAMPLE.ORG"])
    def test_the_ticket_cache(self, server: Server, tmp_path: Path, principal: str | None) -> None:
        keytab = server.realm.folder / "kmigrate.keytab"
        server.realm.run("kinit", "-c", str(tmp_path / "tickets"), "-k", "-t", str(keytab), "kmigrate")
        act(settings_of(server.address, principal=principal), f"/by-cache-{principal or ''}")

    def test_another_principal_may_not_read_what_is_ours(self, server: Server) -> None:
        act(settings_of(server.address, keytab=str(server.realm.folder / "kmigrate.keytab")), "/ours")
        session = Session(settings_of(server.address, keytab=str(server.realm.add("stranger"))))
        with pytest.raises(AuthenticationFailed, match="NoAuth"):
            session.read("look", ZnodeRead(ReadKind.DATA, "/ours"))
        session.close()

    def test_what_is_missing_is_named(self, server: Server, tmp_path: Path) -> None:
        keytab = server.realm.add("other")
        opened = tmp_path / "opened.keytab"
        opened.write_bytes(keytab.read_bytes())
        opened.chmod(0o644)
        faults: list[tuple[dict[str, str | None], str]] = [
            ({}, "there is no ticket"),
            ({"keytab": str(keytab), "principal": "nobody"}, "no key of kmigrate's principal"),
            ({"keytab": str(keytab), "principal": "other@WRONG.REALM"}, "no key of kmigrate's principal"),
            ({"keytab": str(keytab), "service": "zookeper"}, "does not know the server by this name"),
            ({"keytab": str(opened)}, "readable by others (mode 0644)"),
            ({"keytab": str(tmp_path / "gone.keytab")}, "cannot be read"),
        ]
        for login, text in faults:
            error = refusal(settings_of(server.address, **login))
            assert isinstance(error, AuthenticationFailed), login
            assert "SASL GSSAPI" in str(error)
            assert text in str(error)
            assert [reason.code for reason in error.reasons] == ["U09"]

    def test_an_expired_ticket_and_one_of_another_principal(self, server: Server, tmp_path: Path) -> None:
        keytab, cache = server.realm.add("brief"), tmp_path / "tickets"
        server.realm.run("kinit", "-c", str(cache), "-l", "2s", "-k", "-t", str(keytab), "brief")
        assert "no ticket" in str(refusal(settings_of(server.address, principal="kmigrate")))
        wait_until(lambda: "expired" in str(refusal(settings_of(server.address))), "the ticket's end", timeout=30.0)

    def test_an_old_key_and_a_principal_that_was_removed(self, server: Server) -> None:
        keytab = server.realm.add("changed")
        server.realm.run("kadmin.local", "-r", kdc.REALM, "cpw", "-randkey", "changed")
        assert "an old key" in str(refusal(settings_of(server.address, keytab=str(keytab))))
        keytab = server.realm.add("removed")
        server.realm.run("kadmin.local", "-r", kdc.REALM, "delprinc", "-force", "removed")
        assert "does not know kmigrate's principal" in str(refusal(settings_of(server.address, keytab=str(keytab))))

    def test_a_wrong_realm(self, server: Server, environment: Path) -> None:
        text = environment.read_text()
        environment.write_text(text.replace("default_realm = EXAMPLE.ORG", "default_realm = OTHER.ORG"))
        error = refusal(settings_of(server.address, keytab=str(server.realm.add("elsewhere")), principal="elsewhere"))
        assert isinstance(error, AuthenticationFailed)
        assert "SASL GSSAPI: the keytab has no key of kmigrate's principal" in str(error)
        environment.write_text(text.partition("[realms]")[0])
        error = refusal(settings_of(server.address, keytab=str(server.realm.folder / "elsewhere.keytab"), principal="elsewhere"))
        assert "no KDC is known for the realm" in str(error)

    def test_a_kdc_that_is_away_is_waited_for(self, server: Server, environment: Path) -> None:
        keytab, text = server.realm.add("patient"), environment.read_text()
        session = Session(settings_of(server.address, keytab=str(keytab)))
        try:
            with refusing_port() as port:
                environment.write_text(text.replace(f":{server.realm.port}", f":{port}"))
                with pytest.raises(Unreachable, match=r"SASL GSSAPI: no KDC of the realm answers") as error:
                    session.read("look", ZnodeRead(ReadKind.CHILDREN, "/"))
                assert [reason.code for reason in error.value.reasons] == ["U09"]
            environment.write_text(text)
            wait_until(
                lambda: bool(session.read("look", ZnodeRead(ReadKind.CHILDREN, "/"))),
                "it is back",
                despite=(Unreachable, TimedOut),
            )
        finally:
            session.close()

    def test_a_kdc_that_hangs_costs_the_timeout_only(self, server: Server, environment: Path) -> None:
        keytab = server.realm.add("bounded")
        with socket.create_server(("127.0.0.1", 0)) as silent:
            port = silent.getsockname()[1]
            environment.write_text(environment.read_text().replace(f":{server.realm.port}", f":{port}"))
            began = time.monotonic()
            error = refusal(settings_of(server.address, keytab=str(keytab)))
            assert time.monotonic() - began < 15.0
        assert isinstance(error, TimedOut)
        assert "SASL GSSAPI: the KDC: no answer within 4 s" in str(error)
        assert [reason.code for reason in error.reasons] == ["U09"]

    def test_a_client_without_sasl_is_told_so(self, server: Server) -> None:
        error = refusal(ZooKeeperSettings(server.address))
        assert isinstance(error, AuthenticationFailed)
        assert "SASL only" in str(error)
        assert [reason.code for reason in error.reasons] == ["U09"]

    def test_a_migrating_consumer(self, server: Server, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.INFO)
        keytab = server.realm.add("consumer")
        with_keytab = {
            "zookeeper.connect": server.address,
            "zookeeper.sasl.mechanism": "GSSAPI",
            "zookeeper.sasl.keytab": str(keytab),
        }
        with group_session(with_keytab) as session:
            wait_until(lambda: session.connected, "it logs in")
            wait_until(lambda: session.get("/zookeeper") is not None, "it reads", despite=(Unreachable,))
        keytab.chmod(0o644)
        with group_session(with_keytab):
            wait_until(lambda: "refuses this consumer's identity" in caplog.text, "its login fails")
        assert "readable by others" in caplog.text

    def test_a_ticket_that_the_server_cannot_read(self, server: Server) -> None:
        """The last test: the server has an old key of its own from now on."""
        server.realm.run("kadmin.local", "-r", kdc.REALM, "cpw", "-randkey", f"zookeeper/{NAME}")
        error = refusal(settings_of(server.address, keytab=str(server.realm.add("newcomer"))))
        assert isinstance(error, AuthenticationFailed)
        assert "SASL GSSAPI: ZooKeeper does not accept the ticket" in str(error)
        assert [reason.code for reason in error.reasons] == ["U09"]


class group_session:  # noqa: N801 - reads as a statement
    """A migrating consumer's session, ended afterwards."""

    def __init__(self, properties: dict[str, str]) -> None:
        self._session = GroupSession(read_zookeeper_settings(properties), lambda _: None, lambda _: None)

    def __enter__(self) -> GroupSession:
        self._session.start()
        return self._session

    def __exit__(self, *_: object) -> None:
        self._session.close()


@kdc.needs_pure_sasl
class TestDigest:
    @pytest.fixture(scope="class", params=["", "3.5.10"])
    @classmethod
    def address(cls, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
        login, _ = digest_login("kmigrate", PASSWORD)
        folder = tmp_path_factory.mktemp("zookeeper") / "cluster"
        with lent_zookeeper(folder, release=request.param, prepare=lambda plan: demand_sasl(plan, login)) as there:
            yield there

    def test_a_password(self, address: str) -> None:
        act(ZooKeeperSettings(address, sasl_mechanism="DIGEST-MD5", sasl_user="kmigrate", sasl_password=PASSWORD), "/by-digest")

    @pytest.mark.parametrize(("user", "password"), [("kmigrate", "canary-wrong"), ("stranger", "canary-wrong")])
    def test_a_wrong_user_or_password_is_named_without_it(self, address: str, user: str, password: str) -> None:
        error = refusal(ZooKeeperSettings(address, sasl_mechanism="DIGEST-MD5", sasl_user=user, sasl_password=password))
        assert isinstance(error, AuthenticationFailed)
        assert "SASL DIGEST-MD5: ZooKeeper does not accept the user or password" in str(error)
        assert "canary" not in str(error)
        assert [reason.code for reason in error.reasons] == ["U09"]

    def test_a_wrong_password_is_not_taken_for_another_identity(self, address: str) -> None:
        right = ZooKeeperSettings(address, sasl_mechanism="DIGEST-MD5", sasl_user="kmigrate", sasl_password=PASSWORD)
        act(right, "/before")
        with (
            pytest.raises(AuthenticationFailed) as error,
            ZooKeeper(replace(right, sasl_password="canary-wrong")) as zookeeper,
            Fence(zookeeper, "cluster-1", "run-2"),
        ):
            pass
        assert [reason.code for reason in error.value.reasons] == ["U09"]

    def test_a_migrating_consumer_with_a_wrong_password(self, address: str, caplog: pytest.LogCaptureFixture) -> None:
        sasl = {"mechanism": "DIGEST-MD5", "username": "kmigrate", "password": "canary-wrong"}
        with group_session({"zookeeper.connect": address, **{f"zookeeper.sasl.{name}": value for name, value in sasl.items()}}):
            wait_until(lambda: "refuses this consumer's identity" in caplog.text, "its login fails")
        assert "canary" not in caplog.text


class TestTls:
    @pytest.fixture(scope="class", params=["", "3.5.10"])
    @classmethod
    def server(cls, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Authority]]:
        authority = Authority(tmp_path_factory.mktemp("authority"))
        store, (port,) = write_store(authority.folder / "store.pem", *authority.issue("kafka")), free_ports(1)
        folder = tmp_path_factory.mktemp("zookeeper") / "cluster"
        prepare = partial(offer_tls, port=port, store=store, authority=authority.ca)
        with lent_zookeeper(folder, release=request.param, prepare=prepare):
            yield f"127.0.0.1:{port}", authority

    def login(self, server: tuple[str, Authority], **other: str | None) -> ZooKeeperSettings:
        address, authority = server
        files = {name: str(authority.folder / f"kafka.{end}") for name, end in (("cert_file", "pem"), ("key_file", "key"))}
        known = {"hosts": address, "ca_file": authority.ca, **files}
        return ZooKeeperSettings(use_tls=True, **{**known, **other})  # type: ignore[arg-type]

    @pytest.mark.parametrize("in_one_file", [False, True])
    def test_a_certificate(self, server: tuple[str, Authority], in_one_file: bool) -> None:
        """kazoo alone would show none if the key is in the certificate's file."""
        other = {"cert_file": str(server[1].folder / "store.pem"), "key_file": None} if in_one_file else {}
        act(self.login(server, **other), f"/by-tls-{in_one_file}", "x509")

    def test_what_is_missing_is_named(self, server: tuple[str, Authority], tmp_path: Path) -> None:
        stranger, port = Authority(tmp_path), server[0].rpartition(":")[2]
        certificate, key = stranger.issue("stranger")
        faults: list[tuple[dict[str, str | None], str]] = [
            ({"ca_file": stranger.ca}, "the other side's certificate is not accepted here"),
            ({"hosts": f"{NAME}:{port}"}, "the other side's certificate is not for this host"),
            ({"cert_file": certificate, "key_file": key}, "the other side refuses this connection's certificate"),
            ({"cert_file": None, "key_file": None}, "or demands one and there is none"),
            ({"key_file": key}, "the files cannot be used"),
            ({"ca_file": str(tmp_path / "gone")}, "the files cannot be used"),
        ]
        for other, text in faults:
            error = refusal(self.login(server, **other))
            assert isinstance(error, AuthenticationFailed), (other, error)
            assert "TLS: the " in str(error)
            assert text in str(error)
            assert [reason.code for reason in error.reasons] == ["U09"]

    def test_a_port_of_the_other_kind_is_named(self, server: tuple[str, Authority]) -> None:
        error = refusal(ZooKeeperSettings(server[0]))
        assert isinstance(error, TimedOut)
        assert "a port for TLS needs `use_tls`" in str(error)
        with socket.create_server(("127.0.0.1", 0)) as other, ThreadPoolExecutor(1) as pool:
            pool.submit(hang_up, other)
            error = refusal(self.login(server, hosts=f"127.0.0.1:{other.getsockname()[1]}"))
        assert isinstance(error, Unreachable)
        assert "TLS: what answers at this port speaks no TLS, or hung up" in str(error)

    def test_a_refusal_after_another_fault_is_waited_out(self, server: tuple[str, Authority], tmp_path: Path) -> None:
        """One server of two is down, the other one's certificate is strange: the first may come back."""
        with refusing_port() as port:
            error = refusal(self.login(server, hosts=f"127.0.0.1:{port},{server[0]}", ca_file=Authority(tmp_path).ca))
        assert isinstance(error, AuthenticationFailed | Unreachable)
        assert [reason.code for reason in error.reasons] == ["U09"]


def hang_up(server: socket.socket) -> None:
    """What answers here is no TLS."""
    server.settimeout(10.0)
    with contextlib.suppress(OSError):
        while True:
            connection, _ = server.accept()
            connection.sendall(b"no TLS\n")
            connection.close()
