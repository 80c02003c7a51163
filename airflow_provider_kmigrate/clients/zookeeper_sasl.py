"""SASL towards ZooKeeper: kazoo drives pure-sasl's client, whose DIGEST-MD5 is its own and whose GSSAPI is `sasl.KerberosMechanism`.

pure-sasl's own GSSAPI needs a second package of Kerberos, takes no keytab, and kazoo loses its word for what is missing ("Unknown error").
"""

from __future__ import annotations

import logging
import ssl
from importlib.util import find_spec
from typing import Any, Final

from kazoo import exceptions as kazoo

from airflow_provider_kmigrate.clients.deadline import Deadline
from airflow_provider_kmigrate.clients.sasl import GSSAPI, make_mechanism
from airflow_provider_kmigrate.clients.settings import KerberosLogin, WireSecurity, ZooKeeperSettings
from airflow_provider_kmigrate.clients.tls import explain_failure
from airflow_provider_kmigrate.core.cluster_state.model import Reason
from airflow_provider_kmigrate.exceptions import AuthenticationFailed, KMigrateError, Refused, Unavailable, Unreachable

_MODULES: Final = {"DIGEST-MD5": ("puresasl",), GSSAPI: ("puresasl", "gssapi")}
_EXTRAS: Final = {"DIGEST-MD5": "sasl", GSSAPI: "kerberos"}
_OURS: Final = "KMIGRATE-GSSAPI"  # in pure-sasl's table: others in this process may use its own; no name is sent to ZooKeeper
_WITHOUT_CAUSE: Final = ("Transition to CONNECTING", "Failed connecting to Zookeeper")  # they follow the line that has it
_BREAKS: Final = 3  # logins in a row that end with their connection: the last one was refused; kazoo makes them within a second
_LOGIN_S: Final = 4.0  # below what a request waits for its answer, so that this has the cause; a session must last longer, too


def sasl_options(settings: ZooKeeperSettings) -> dict[str, Any] | None:
    """Kazoo's `sasl_options`; None without SASL. Raises `Refused` if a package is missing."""
    mechanism = settings.sasl_mechanism
    if mechanism is None:
        return None
    if missing := [name for name in _MODULES[mechanism] if find_spec(name) is None]:
        text = f"SASL {mechanism} towards ZooKeeper needs the Python package {' and '.join(missing)}, which this machine does not have."
        install = f"Install it on every worker and the triggerer: pip install 'airflow-provider-kmigrate[{_EXTRAS[mechanism]}]'."
        raise Refused.because(Reason("N03", f"{text} {install}"))
    if mechanism != GSSAPI:
        return {"mechanism": mechanism, "username": settings.sasl_user, "password": settings.sasl_password}
    from puresasl.mechanisms import mechanisms  # noqa: PLC0415 - an extra

    mechanisms[_OURS] = _KerberosLogin
    return {"mechanism": _OURS, "service": (settings.kerberos or KerberosLogin("zookeeper")).service, "settings": settings}


def guard_login(client: Any) -> None:
    """Have a login that the server refuses end as one, and one whose server stops in the middle of it as a lost connection.

    kazoo's thread dies of the server's own error (-124), and all that is seen is a lost connection. It takes each connection that breaks in
    an exchange for a refusal, after which it never connects again: some servers refuse so, and each one that is restarted does it once.
    """
    connection = client._connection  # noqa: SLF001 - kazoo makes no other one
    authenticate, breaks = connection._authenticate_with_sasl, 0  # noqa: SLF001

    def authenticate_guarded(host: str, timeout: float) -> None:
        nonlocal breaks
        try:
            authenticate(host, timeout)
        except (kazoo.SessionClosedRequireSaslError, kazoo.SASLException) as error:
            raise kazoo.AuthFailedError(f"{type(error).__name__} {error}".strip()) from error
        except kazoo.AuthFailedError as error:
            breaks += isinstance(error.__cause__, kazoo.ConnectionDropped)
            if isinstance(error.__cause__, kazoo.ConnectionDropped) and breaks < _BREAKS:
                raise kazoo.ConnectionDropped(str(error)) from error
            raise
        breaks = 0

    connection._authenticate_with_sasl = authenticate_guarded  # noqa: SLF001


class _KerberosLogin:
    """One login, as pure-sasl's client calls a mechanism. kazoo tries again after `ConnectionDropped`, and gives up after all else."""

    complete = False

    def __init__(self, client: Any, settings: ZooKeeperSettings) -> None:
        what = f"{client.host} SASL GSSAPI"
        security = WireSecurity(sasl_mechanism=GSSAPI, kerberos=settings.kerberos or KerberosLogin("zookeeper"))
        self._has_begun = False
        try:
            self._exchange = make_mechanism(security, client.host, what, Deadline(min(_LOGIN_S, settings.connect_timeout)))
        except Unavailable as error:
            raise kazoo.ConnectionDropped(str(error)) from error
        except KMigrateError as error:
            raise kazoo.AuthFailedError(str(error)) from error

    def process(self, challenge: bytes | None = None) -> bytes | None:
        """What to send after the server's `challenge`; before the first one it is None."""
        if self._has_begun:
            self._exchange.receive(challenge or b"")
        self._has_begun, self.complete = True, self._exchange.is_done()
        return None if self.complete else self._exchange.auth_bytes()

    def dispose(self) -> None:
        """Nothing: the library keeps the tickets."""


class LastWarning(logging.Handler):
    """Keeps the last line of kazoo's log, which alone has the cause of a failed connection or login.

    A refused certificate is final only if nothing else went wrong: with several servers another one may take it.
    """

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.text = ""
        self.refused = False
        self.cause: KMigrateError | None = None  # why a login could not be made, until a request is answered
        self._saw_other = False
        self._handshakes_refused = 0

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the warning's text, and whether any said that the login was refused."""
        text = record.getMessage()
        if text.startswith(_WITHOUT_CAUSE):
            return
        cause = find_own_error(record.args) or self._explain_tls(record.args)
        self.text, self.cause, self._saw_other = text, cause or self.cause, self._saw_other or cause is None
        self.refused = self.refused or text.startswith("AUTH_FAILED")

    def _explain_tls(self, logged: Any) -> KMigrateError | None:
        """A handshake that failed, behind the exception that kazoo logs; it has lost its cause there, but not its context."""
        error = logged[0].__context__ if isinstance(logged, tuple) and logged and isinstance(logged[0], BaseException) else None
        if not isinstance(error, ssl.SSLError):
            return None
        cause = explain_failure(error)
        self._handshakes_refused += isinstance(cause, AuthenticationFailed)
        return Unreachable(str(cause), cause.reasons) if self._saw_other else cause

    def is_refused_by_all(self, settings: ZooKeeperSettings) -> bool:
        """Whether each server of the connection has ended the handshake, and nothing else went wrong: kazoo tries them in turn."""
        return not self._saw_other and self._handshakes_refused >= len(settings.hosts.split(","))


def find_own_error(logged: Any) -> KMigrateError | None:
    """Our error behind the exception that is the first argument of a line of kazoo's log; None: there is none."""
    error = logged[0] if isinstance(logged, tuple) and logged else None
    while isinstance(error, BaseException):
        if isinstance(error, KMigrateError):
            return error
        error = error.__cause__
    return None


def explain_login(error: Exception, warning: LastWarning, settings: ZooKeeperSettings, text: str) -> KMigrateError | None:
    """What kazoo's `error` is if a login failed, with the mechanism and what is missing (U09); None for all other errors."""
    if isinstance(error, kazoo.SessionClosedRequireSaslError):
        why = "this ZooKeeper lets clients in by SASL only, and the connection has no sasl_mechanism"
        return AuthenticationFailed(f"{text}: {why}", (Reason("U09", f"{text}: {why}"),))
    if not isinstance(error, kazoo.AuthFailedError | kazoo.ConnectionLoss | kazoo.ConnectionClosedError):
        return None
    if warning.cause is not None:
        return type(warning.cause)(f"{text}: {warning.cause}", warning.cause.reasons)
    if warning.refused and settings.sasl_mechanism:
        whom = "the user or password" if settings.sasl_mechanism != GSSAPI else "the ticket of kmigrate's principal"
        why = f"SASL {settings.sasl_mechanism}: ZooKeeper does not accept {whom}; its log says why ({warning.text})"
        return AuthenticationFailed(f"{text}: {why}", (Reason("U09", f"{text}: {why}"),))
    return None
