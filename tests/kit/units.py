"""Thirty units of Kafka as public roles, packages and tutorials write them: what they have in common, a row each."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

STOP_SCRIPT = "/opt/kafka/bin/kafka-server-stop.sh"


class UnitRow(NamedTuple):
    """One public unit. `timeout`: its TimeoutStopSec, 0 for systemd's default; `properties`: empty if its start names no file."""

    ends_all: bool
    needs_zookeeper: bool
    timeout: int
    is_forking: bool
    properties: str

    def text(self, properties: str | None = None, extra: str = "") -> str:
        """The unit's file; `properties`: in the place of its own; `extra`: more lines of its service."""
        file = self.properties if properties is None else properties
        start = (
            f"/opt/kafka/bin/kafka-server-start.sh{' -daemon' if self.is_forking else ''} {file}" if file else "/opt/kafka/start"
        )
        service = {
            "Type": "forking" if self.is_forking else "simple",
            "User": "kafka",
            "WorkingDirectory": "/opt/kafka" if file[:1] not in ("/", "") else "",
            "ExecStart": start,
            "ExecStop": STOP_SCRIPT if self.ends_all else "",
            "TimeoutStopSec": str(self.timeout or ""),
            "Restart": "on-failure",
        }
        needs = "Requires=zookeeper.service\nAfter=zookeeper.service\n" if self.needs_zookeeper else ""
        lines = "".join(f"{name}={value}\n" for name, value in service.items() if value)
        return f"[Unit]\nDescription=Apache Kafka\n{needs}[Service]\n{lines}{extra}[Install]\nWantedBy=multi-user.target\n"


_ETC, _OPT, _SRV = "/etc/kafka/server.properties", "/opt/kafka/config/server.properties", "/srv/kafka/config/server.properties"
UNITS = (
    UnitRow(False, False, 0, False, _ETC),
    UnitRow(True, False, 0, False, _OPT),
    UnitRow(False, False, 0, False, "/data/kafka/config/server.properties"),
    UnitRow(False, False, 0, False, "/data/server.properties"),
    UnitRow(True, False, 0, False, ""),
    UnitRow(False, False, 0, True, ""),
    UnitRow(False, False, 0, False, "/data/config/server.properties"),
    UnitRow(False, False, 0, False, _ETC),
    UnitRow(True, False, 0, False, "/data/server.properties"),
    UnitRow(False, False, 0, False, "/data/server.properties"),
    UnitRow(False, False, 10, False, ""),
    UnitRow(True, False, 0, True, "/data/config/server.properties"),
    UnitRow(True, False, 0, False, "/data/server.properties"),
    UnitRow(False, False, 0, False, _ETC),
    UnitRow(True, False, 0, False, "/data/config/server.properties"),
    UnitRow(True, False, 600, False, _OPT),
    UnitRow(True, False, 0, False, "/etc/amq/kafka.properties"),
    UnitRow(True, False, 0, False, "/data/kafka/config/server.properties"),
    UnitRow(True, False, 0, False, _ETC),
    UnitRow(True, False, 0, False, "/usr/lib/kafka/config/server.properties"),
    UnitRow(False, False, 0, False, "config/server.properties"),
    UnitRow(False, False, 0, False, ""),
    UnitRow(True, False, 0, True, _SRV),
    UnitRow(True, True, 180, False, "/opt/confluent/etc/kafka/server.properties"),
    UnitRow(True, True, 0, False, _OPT),
    UnitRow(True, False, 120, False, _OPT),
    UnitRow(False, False, 180, False, _ETC),
    UnitRow(True, False, 180, False, _ETC),
    UnitRow(False, False, 0, False, _OPT),
    UnitRow(True, False, 10, False, _OPT),
)


def shown(name: str, *files: str) -> dict[str, str]:
    """What systemd shows of a unit with these files, of which the later ones are its drop-ins."""
    found = {"Id": name, "TimeoutStopUSec": "90s", "KillMode": "control-group", "KillSignal": "15", "SuccessExitStatus": ""}
    for setting, value in _settings(files):
        if setting.startswith("Exec") and value:
            found[setting] = "\n".join(filter(None, (found.get(setting, ""), value)))
        elif setting in {"Requires", "BindsTo", "PartOf", "Requisite"}:
            found[setting] = f"{found.get(setting, '')} {value}".strip()  # an empty one takes nothing back
        else:
            found[setting] = value
    return found


def _settings(files: Iterable[str]) -> Iterable[tuple[str, str]]:
    for line in "\n".join(files).splitlines():
        setting, is_set, value = line.partition("=")
        if is_set and not line.startswith("#"):
            yield ("TimeoutStopUSec", f"{value}s") if setting == "TimeoutStopSec" else (setting, value)
