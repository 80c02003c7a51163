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


class WholeUnit(NamedTuple):
    """One public unit by its own lines. `blocked`: a stop would end a controller beside it; `unclear`: only its administrator knows."""

    lines: str
    blocked: bool = False
    unclear: bool = False
    needs_zookeeper: bool = False
    in_time: bool = False
    is_behind: bool = False


_START = "ExecStart=/opt/kafka/bin/kafka-server-start.sh /etc/kafka/server.properties\n"
_BY_SCRIPT = f"{_START}ExecStop={STOP_SCRIPT}\n"
WHOLE_UNITS = (
    WholeUnit(
        "RemainAfterExit=yes\nExecStartPre=/bin/sleep 5\nExecStart=bin/kafka-server-start.sh config/server.properties\nExecStopPost=/bin/sleep 5\n"
    ),
    WholeUnit("ExecStartPre=/bin/sleep 5\nExecStart=/opt/pnda/kafka-start-script.sh\nRestart=always\n", is_behind=True),
    WholeUnit(
        "ExecStart=/bin/bash /opt/kafka/bin/kafka-run-class.sh kafka.Kafka /etc/kafka/server.properties\nTimeoutStopSec=60\n"
    ),
    WholeUnit(f"{_START}KillMode=process\nRestart=on-failure\n"),
    WholeUnit(f"{_START}ExecStop=/home/kafka/kafka/bin/kafka-server-stop.sh\nRestart=on-abnormal\n", blocked=True),
    WholeUnit(f"{_BY_SCRIPT}SuccessExitStatus=143\nTimeoutStopSec=600\nRestart=always\n", blocked=True, in_time=True),
    WholeUnit(f"{_BY_SCRIPT}SuccessExitStatus=143\nRestart=on-failure\n", blocked=True),
    WholeUnit(
        "Type=forking\nExecStart=/opt/kafka/bin/kafka.init start sysd\nExecStop=/opt/kafka/bin/kafka.init stop sysd\nKillMode=control-group\n",
        unclear=True,
        is_behind=True,
    ),
    WholeUnit(
        "Requires=zookeeper.service\nExecStart=/c/bin/kafka-server-start -daemon /c/server.properties\nExecStop=/c/bin/kafka-server-stop\n",
        blocked=True,
        needs_zookeeper=True,
    ),
    WholeUnit(f"Requires=network.target remote-fs.target\nPIDFile=/var/run/kafka.pid\n{_BY_SCRIPT}", blocked=True),
    WholeUnit(f"PrivateTmp=yes\n{_BY_SCRIPT}Restart=on-failure\n", blocked=True),
    WholeUnit(
        "Type=forking\nExecStart=/etc/init.d/kafka start\nExecStop=/etc/init.d/kafka stop\nKillMode=process\nTimeoutStopSec=300\n",
        unclear=True,
        is_behind=True,
    ),
)
"""Units, and units that systemd makes of scripts in /etc/init.d, which the table above has no columns for."""


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
