"""TLS and SASL of the wire client: real handshakes with a node of our own, certificates made on the spot."""

from __future__ import annotations

import base64
import hashlib
import hmac
import math
import re
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from authority import VALID_DAYS, Authority
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.serialization import pkcs12
from fake_node import FakeNode
from kafka.protocol.metadata import MetadataResponse
from kafka.protocol.sasl import SaslAuthenticateResponse, SaslHandshakeResponse

from airflow_provider_kmigrate.clients.identity import security_from_kafka
from airflow_provider_kmigrate.clients.settings import KafkaSettings, WireSecurity
from airflow_provider_kmigrate.clients.wire import Wire
from airflow_provider_kmigrate.core.cluster_state.model import Certificate
from airflow_provider_kmigrate.exceptions import AuthenticationFailed, KMigrateError, Unreachable

HANDSHAKE, AUTHENTICATE, METADATA = 17, 36, 3
USER, PASSWORD = "observer", "correct horse"
PEER = MetadataResponse.MetadataResponseBroker(node_id=0, host="h", port=1, rack=None)


def metadata() -> MetadataResponse:
    return MetadataResponse(brokers=[PEER], cluster_id="c", controller_id=0, topics=[])


def cluster_id(node: FakeNode, security: WireSecurity) -> str | None:
    with Wire("127.0.0.1", node.port, security) as client:
        return client.metadata().cluster_id


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def key_store(path: Path, certificate: str, key: str, password: str | None) -> str:
    """A PKCS#12 file with a key and its certificate."""
    private = serialization.load_pem_private_key(Path(key).read_bytes(), None)
    public = x509.load_pem_x509_certificate(Path(certificate).read_bytes())
    form = serialization.BestAvailableEncryption(password.encode()) if password else serialization.NoEncryption()
    path.write_bytes(pkcs12.serialize_key_and_certificates(b"client", private, public, None, form))  # type: ignore[arg-type]
    return str(path)


class TestTls:
    def test_a_trusted_node(self, authority: Authority) -> None:
        with FakeNode({METADATA: metadata()}, authority.server()) as node:
            assert cluster_id(node, WireSecurity("SSL", ca_file=authority.ca)) == "c"

    def test_the_end_of_a_nodes_certificate_is_known(self, authority: Authority) -> None:
        with (
            FakeNode({}, authority.server()) as node,
            Wire("127.0.0.1", node.port, WireSecurity("SSL", ca_file=authority.ca)) as wire,
        ):
            shown = wire.certificate()
        assert abs(shown.end - time.time() - 86_400 * VALID_DAYS) < 600
        assert shown.name == "CN=server"
        with FakeNode({}) as node, Wire("127.0.0.1", node.port) as wire:
            assert wire.certificate() == Certificate(math.inf, None)

    def test_a_chain_ends_with_the_first_of_its_certificates_that_ends(self, authority: Authority) -> None:
        """Clients refuse the node on that day, although its own certificate is valid."""
        for days in (20, 2 * VALID_DAYS):
            files = authority.issue_by_intermediate("chained", days)
            with (
                FakeNode({}, authority.server(files=files)) as node,
                Wire("127.0.0.1", node.port, WireSecurity("SSL", ca_file=authority.ca)) as wire,
            ):
                end = wire.certificate().end
            assert abs(end - time.time() - 86_400 * min(days, VALID_DAYS)) < 600

    def test_an_unknown_authority_is_refused(self, authority: Authority) -> None:
        with FakeNode({METADATA: metadata()}, authority.server()) as node, pytest.raises(AuthenticationFailed):
            cluster_id(node, WireSecurity("SSL"))

    def test_a_wrong_name_is_refused_by_default(self, authority: Authority) -> None:
        with FakeNode({METADATA: metadata()}, authority.server(host="10.9.8.7")) as node:
            with pytest.raises(AuthenticationFailed):
                cluster_id(node, WireSecurity("SSL", ca_file=authority.ca))
            assert cluster_id(node, WireSecurity("SSL", ca_file=authority.ca, verify_hostname=False)) == "c"

    def test_a_node_that_wants_our_certificate(self, authority: Authority) -> None:
        certificate, key = authority.issue("client")
        ours = WireSecurity("SSL", ca_file=authority.ca, cert_file=certificate, key_file=key)
        with FakeNode({METADATA: metadata()}, authority.server(wants_client=True)) as node:
            assert cluster_id(node, ours) == "c"
            with pytest.raises((AuthenticationFailed, Unreachable)):
                cluster_id(node, WireSecurity("SSL", ca_file=authority.ca))

    @pytest.mark.parametrize("password", [None, "opens it"])
    def test_our_certificate_in_a_key_store(self, authority: Authority, tmp_path: Path, password: str | None) -> None:
        certificate, key = authority.issue("client")
        store = key_store(tmp_path / "k.p12", certificate, key, password)
        ours = WireSecurity("SSL", ca_file=authority.ca, key_store=store, key_password=password)
        with FakeNode({METADATA: metadata()}, authority.server(wants_client=True)) as node:
            assert cluster_id(node, ours) == "c"

    @pytest.mark.parametrize("password", ["wrong-canary", None])
    def test_a_key_store_that_does_not_open_is_named(self, authority: Authority, tmp_path: Path, password: str | None) -> None:
        store = key_store(tmp_path / "k.p12", *authority.issue("client"), "opens it")
        ours = WireSecurity("SSL", ca_file=authority.ca, key_store=store, key_password=password)
        with FakeNode() as node, pytest.raises(AuthenticationFailed, match=r"k\.p12") as error:
            cluster_id(node, ours)
        assert "wrong-canary" not in str(error.value)

    def test_a_key_store_without_a_key_is_refused(self, authority: Authority, tmp_path: Path) -> None:
        store = tmp_path / "trust.p12"
        ca = x509.load_pem_x509_certificate(Path(authority.ca).read_bytes())
        store.write_bytes(pkcs12.serialize_key_and_certificates(b"ca", None, None, [ca], serialization.NoEncryption()))
        with FakeNode() as node, pytest.raises(AuthenticationFailed, match="no key with a certificate"):
            cluster_id(node, WireSecurity("SSL", ca_file=authority.ca, key_store=str(store)))

    def test_an_encrypted_key(self, authority: Authority, tmp_path: Path) -> None:
        certificate, key = authority.issue("client")
        encrypted = tmp_path / "client.encrypted"
        form = serialization.PrivateFormat.PKCS8
        private = serialization.load_pem_private_key(Path(key).read_bytes(), None)
        encrypted.write_bytes(
            private.private_bytes(serialization.Encoding.PEM, form, serialization.BestAvailableEncryption(b"opens it"))
        )
        with FakeNode({METADATA: metadata()}, authority.server(wants_client=True)) as node:
            ours = WireSecurity("SSL", authority.ca, certificate, str(encrypted), "opens it")
            assert cluster_id(node, ours) == "c"
            with pytest.raises(AuthenticationFailed, match=r"client\.encrypted"):
                cluster_id(node, replace(ours, key_password=None))

    def test_tls_to_a_plain_port_is_unreachable(self, authority: Authority) -> None:
        with FakeNode({METADATA: metadata()}) as node, pytest.raises(KMigrateError):
            Wire("127.0.0.1", node.port, WireSecurity("SSL", ca_file=authority.ca), timeout=0.3).metadata()

    def test_a_missing_file_names_itself(self) -> None:
        with FakeNode() as node, pytest.raises(AuthenticationFailed, match=r"nowhere\.pem"):
            cluster_id(node, WireSecurity("SSL", ca_file="nowhere.pem"))


SASLNAME = re.compile(rb"n=((?:[\x01-\x7f](?<![=,])|=2C|=3D)+),r=")  # as Kafka's ScramMessages takes it


class Sasl:
    """The node's half of PLAIN and SCRAM (RFC 5802), as Kafka answers it."""

    def __init__(
        self, mechanism: str, password: str = PASSWORD, *, honest: bool = True, iterations: bytes = b"4096", user: str = USER
    ) -> None:
        self.mechanism, self._iterations, self._user = mechanism, iterations, user
        self.handlers = {HANDSHAKE: self._handshake, AUTHENTICATE: self._step, METADATA: metadata()}
        self._password = password
        self._honest = honest
        self._first = b""

    def _handshake(self, request: Any) -> SaslHandshakeResponse:
        known = request.mechanism == self.mechanism
        return SaslHandshakeResponse(error_code=0 if known else 33, mechanisms=[self.mechanism])

    def _step(self, request: Any) -> SaslAuthenticateResponse:
        if self.mechanism == "PLAIN":
            expected = f"{self._user}\0{self._user}\0{self._password}".encode()
            return self._answer(b"") if request.auth_bytes == expected else self._refuse()
        return self._scram(bytes(request.auth_bytes))

    def _scram(self, message: bytes) -> SaslAuthenticateResponse:
        if message.startswith(b"n,,"):
            self._bare = message[3:]
            name = SASLNAME.match(self._bare)
            if name is None or name[1].decode().replace("=2C", ",").replace("=3D", "=") != self._user:
                return self._refuse()
            nonce = self._bare.split(b"r=")[1] + b"ours"
            self._first = b"r=" + nonce + b",s=" + base64.b64encode(b"salt") + b",i=" + self._iterations
            return self._answer(self._first)
        algorithm = self.mechanism.replace("SCRAM-SHA-", "sha")
        salted = hashlib.pbkdf2_hmac(algorithm, self._password.encode(), b"salt", 4096)
        auth = b",".join((self._bare, self._first, message.rsplit(b",p=", 1)[0]))
        stored = hashlib.new(algorithm, hmac.digest(salted, b"Client Key", algorithm)).digest()
        proof = base64.b64decode(message.rsplit(b",p=", 1)[1])
        client_key = bytes(a ^ b for a, b in zip(proof, hmac.digest(stored, auth, algorithm), strict=True))
        if hashlib.new(algorithm, client_key).digest() != stored:
            return self._refuse()
        signature = hmac.digest(hmac.digest(salted, b"Server Key", algorithm), auth, algorithm)
        return self._answer(b"v=" + base64.b64encode(signature if self._honest else b"x" * 32))

    @staticmethod
    def _answer(data: bytes) -> SaslAuthenticateResponse:
        return SaslAuthenticateResponse(error_code=0, error_message=None, auth_bytes=data, session_lifetime_ms=0)

    @staticmethod
    def _refuse() -> SaslAuthenticateResponse:
        return SaslAuthenticateResponse(error_code=58, error_message="no", auth_bytes=b"", session_lifetime_ms=0)


def sasl(mechanism: str | None, password: str | None = PASSWORD) -> WireSecurity:
    return WireSecurity("SASL_PLAINTEXT", sasl_mechanism=mechanism, sasl_user=USER, sasl_password=password)


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
class TestSasl:
    def test_the_right_password(self, mechanism: str) -> None:
        with FakeNode(Sasl(mechanism).handlers) as node:
            assert cluster_id(node, sasl(mechanism)) == "c"
        assert node.keys_seen()[:2] == [18, HANDSHAKE], "a node says what it serves before it knows who asks"

    @pytest.mark.parametrize("user", ["CN=kafka,O=x", "a=2Cb", "a,", "="])
    def test_a_name_with_signs_that_scram_has_for_itself(self, mechanism: str, user: str) -> None:
        with FakeNode(Sasl(mechanism, user=user).handlers) as node:
            assert cluster_id(node, replace(sasl(mechanism), sasl_user=user)) == "c"

    def test_a_wrong_password_is_refused_and_not_shown(self, mechanism: str) -> None:
        with FakeNode(Sasl(mechanism).handlers) as node, pytest.raises(AuthenticationFailed) as refused:
            cluster_id(node, sasl(mechanism, "s3cr3t-guess"))
        assert "s3cr3t-guess" not in str(refused.value)

    def test_sasl_inside_tls(self, mechanism: str, authority: Authority) -> None:
        security = WireSecurity(
            "SASL_SSL", ca_file=authority.ca, sasl_mechanism=mechanism, sasl_user=USER, sasl_password=PASSWORD
        )
        with FakeNode(Sasl(mechanism).handlers, authority.server()) as node:
            assert cluster_id(node, security) == "c"


class TestSaslRefusals:
    @pytest.mark.parametrize("iterations", [b"1", b"4095", b"-4096", b"99999999", b"", b"-1000000000000000000000000000000"])
    def test_a_node_that_wants_few_iterations_gets_no_proof_of_the_password(self, iterations: bytes) -> None:
        node = Sasl("SCRAM-SHA-256", iterations=iterations)
        with FakeNode(node.handlers) as served, pytest.raises(AuthenticationFailed, match="iterations"):
            cluster_id(served, sasl("SCRAM-SHA-256"))

    def test_a_node_that_does_not_know_the_password_is_no_node_of_ours(self) -> None:
        with FakeNode(Sasl("SCRAM-SHA-256", honest=False).handlers) as node, pytest.raises(AuthenticationFailed):
            cluster_id(node, sasl("SCRAM-SHA-256"))

    def test_a_mechanism_that_the_node_does_not_offer(self) -> None:
        with (
            FakeNode(Sasl("PLAIN").handlers) as node,
            pytest.raises(AuthenticationFailed, match=r"SaslHandshake.*it offers PLAIN"),
        ):
            cluster_id(node, sasl("SCRAM-SHA-256"))

    @pytest.mark.parametrize(
        ("node", "mechanism", "password"),
        [
            *((Sasl(mechanism), mechanism, "s3cr3t-guess") for mechanism in ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")),
            (Sasl("SCRAM-SHA-512", iterations=b"1"), "SCRAM-SHA-512", PASSWORD),
            (Sasl("SCRAM-SHA-256", honest=False), "SCRAM-SHA-256", PASSWORD),
            (Sasl("PLAIN"), "SCRAM-SHA-256", PASSWORD),
            (Sasl("PLAIN"), "OAUTHBEARER", None),
            (Sasl("PLAIN"), "DIGEST-MD5", PASSWORD),
            (Sasl("PLAIN"), "PLAIN", None),
            (Sasl("PLAIN"), "SCRAM-SHA-512", None),
        ],
    )
    def test_every_refusal_names_node_and_mechanism_and_has_a_code(
        self, node: Sasl, mechanism: str, password: str | None
    ) -> None:
        with FakeNode(node.handlers) as served, pytest.raises(AuthenticationFailed) as refused:
            cluster_id(served, sasl(mechanism, password))
        (reason,) = refused.value.reasons
        assert reason.code == "U09"
        for text in (str(refused.value), reason.text):
            assert f"127.0.0.1:{served.port}" in text
            assert f"SASL {mechanism}" in text
            assert "s3cr3t" not in text

    @pytest.mark.parametrize(("mechanism", "password"), [("GSSAPI", "x"), (None, "x"), ("PLAIN", None)])
    def test_what_we_cannot_speak(self, mechanism: str | None, password: str | None) -> None:
        with FakeNode(Sasl("PLAIN").handlers) as node, pytest.raises(AuthenticationFailed):
            cluster_id(node, sasl(mechanism, password))


class TestSettings:
    def test_librdkafka_properties_give_the_same_identity(self) -> None:
        settings = KafkaSettings(
            {
                "security.protocol": "sasl_ssl",
                "ssl.ca.location": "ca.pem",
                "ssl.endpoint.identification.algorithm": "none",
                "sasl.mechanisms": "PLAIN",
                "sasl.username": USER,
                "sasl.password": PASSWORD,
            }
        )
        assert security_from_kafka(settings) == WireSecurity(
            "SASL_SSL", "ca.pem", verify_hostname=False, sasl_mechanism="PLAIN", sasl_user=USER, sasl_password=PASSWORD
        )

    def test_names_are_checked_by_default(self) -> None:
        assert security_from_kafka(KafkaSettings({})) == WireSecurity()
        assert security_from_kafka(KafkaSettings({})).verify_hostname

    def test_no_secret_in_a_repr(self) -> None:
        assert PASSWORD not in repr(security_from_kafka(KafkaSettings({"sasl.password": PASSWORD, "ssl.key.password": PASSWORD})))
