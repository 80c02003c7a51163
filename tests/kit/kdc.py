"""A real Kerberos KDC (MIT, Debian's krb5-kdc) of one realm, in a folder, as a process of its own; and which tests need one."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.kit.localcluster.plan import free_ports
from tests.waiting import wait_until

REALM = "EXAMPLE.ORG"
_PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
_LIMIT_S = 60
_PROGRAMS = ("krb5kdc", "kdb5_util", "kadmin.local", "kinit")
REQUIRED = "KMIGRATE_TESTS_NEED_KERBEROS"  # a variable of the nightly: what is missing fails tests there, and leaves none out


def why_left_out(programs: tuple[str, ...], packages: tuple[str, ...], environment: Mapping[str, str] = os.environ) -> str:
    """What this machine lacks of these; empty if nothing, or if `REQUIRED` is set: the tests then run, and say it by failing."""
    missing = [name for name in programs if not shutil.which(name, path=_PATH)]
    missing += [name for name in packages if not find_spec(name)]
    if not missing or environment.get(REQUIRED):
        return ""
    return f"needs {', '.join(missing)}: Debian's krb5-kdc, krb5-admin-server and krb5-user; make setup-kerberos"


_WITHOUT_KERBEROS = why_left_out(_PROGRAMS, ("gssapi", "puresasl"))
_WITHOUT_SASL = why_left_out((), ("puresasl",))
needs_kerberos = pytest.mark.skipif(bool(_WITHOUT_KERBEROS), reason=_WITHOUT_KERBEROS or "-")
needs_pure_sasl = pytest.mark.skipif(bool(_WITHOUT_SASL), reason=_WITHOUT_SASL or "-")


@dataclass(frozen=True)
class Kdc:
    """A KDC that runs; `environment` is what its tools and clients need."""

    folder: Path
    port: int

    @property
    def configuration(self) -> Path:
        """The krb5.conf of its clients."""
        return self.folder / "krb5.conf"

    @property
    def environment(self) -> dict[str, str]:
        """For MIT's programs and libraries."""
        return {
            "PATH": _PATH,
            "KRB5_CONFIG": str(self.configuration),
            "KRB5_KDC_PROFILE": str(self.folder / "kdc.conf"),
            "KRB5CCNAME": f"FILE:{self.folder / 'no-tickets'}",
        }

    def run(self, *argv: str) -> None:
        """One of MIT's programs."""
        subprocess.run(argv, env=self.environment, check=True, timeout=_LIMIT_S, capture_output=True)

    def add(self, principal: str, *options: str) -> Path:
        """A principal with a random key; returns its keytab, which only its owner may read."""
        keytab = self.folder / f"{principal.replace('/', '_')}.keytab"
        self.run("kadmin.local", "-r", REALM, "addprinc", "-randkey", *options, principal)
        self.run("kadmin.local", "-r", REALM, "ktadd", "-k", str(keytab), principal)
        return keytab


@contextlib.contextmanager
def running(folder: Path) -> Iterator[Kdc]:
    """A new realm without principals of ours; its KDC ends afterwards."""
    (port,) = free_ports(1)
    kdc = Kdc(folder, port)
    kdc.configuration.write_text(
        f"[libdefaults]\ndefault_realm = {REALM}\ndns_lookup_kdc = false\ndns_lookup_realm = false\n"
        "dns_canonicalize_hostname = false\nrdns = false\nudp_preference_limit = 1\n"
        f"[realms]\n{REALM} = {{\n kdc = 127.0.0.1:{port}\n}}\n"
    )
    (folder / "kdc.conf").write_text(
        f"[kdcdefaults]\nkdc_listen = 127.0.0.1:{port}\nkdc_tcp_listen = 127.0.0.1:{port}\n"
        f"[realms]\n{REALM} = {{\n database_name = {folder}/principals\n key_stash_file = {folder}/stash\n"
        f" acl_file = {folder}/acl\n max_life = 10h\n}}\n[logging]\nkdc = FILE:{folder}/kdc.log\n"
    )
    kdc.run("kdb5_util", "-r", REALM, "create", "-s", "-P", "master")
    process = subprocess.Popen(
        ["krb5kdc", "-n", "-r", REALM], env=kdc.environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        wait_until(lambda: _listens(port), "the KDC's port")
        yield kdc
    finally:
        process.terminate()
        process.wait(10)


def _listens(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1.0):
        return True
    return False
