"""The door: whether public units, property files and broken cluster files pass preflight and the check, or hear what to write.

Real: preflight's decisions and the reader of cluster files. Not real: systemd, for which `tests/machines/test_units_on_machines.py` shows
that it reads the units alike, and the clusters around the property files, which are healthy.

`units_apart`: each node on a machine of its own; `units_beside`: a controller with a copy of the unit beside the broker. A unit passes if
nothing of it is left to do before the first restart; that it needs ZooKeeper's unit (W23) must be seen to before ZooKeeper is switched off.
`observation_ms`, `observation_cpu_ms`: the median of all facts of one node over a connection that is open, and what the agent and its programs take
of a processor for it, of a unit with `ExecStop` and a file that names stores; on a machine of the lane, so with a real systemd. `observation_load`: the box's.
`fleet_install_s`, `fleet_check_s`: `kmigrate node install` and `check` of as many machines as `fleet` says, over ssh and sudo.
`--corpus DIR` reads DIR/files/*.properties, and DIR/messages/*.yaml if there are any, in place of the project's own.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from statistics import median

import psutil

from airflow_provider_kmigrate.clients.hosts.agent import PATH as AGENT_PATH
from airflow_provider_kmigrate.clients.hosts.agent import Connection, Program
from tests.core.door_files import FILES, judge_file
from tests.core.door_messages import MESSAGES, judge_message
from tests.core.preflight_units_passing import after_drop_in, passes, units_of
from tests.core.preflight_units_rows import with_units
from tests.kit import ssh_machines
from tests.kit.fleet_clusters import NUMBER, Clusters
from tests.kit.machines import Template, booted, missing, properties_path, stand_in_files
from tests.kit.units import UNITS

_OBSERVATIONS = 50


def main(arguments: Sequence[str], build: Path) -> dict[str, object]:
    """The flat figures of `door.json`."""
    del build
    parser = argparse.ArgumentParser(prog="door")
    parser.add_argument("--corpus", type=Path, metavar="DIR", help="a folder with files/ and messages/")
    corpus: Path | None = parser.parse_args(arguments).corpus
    return {
        "units": len(UNITS),
        "units_apart_untouched": sum(passes(with_units(units_of(row))) for row in UNITS),
        "units_beside_untouched": sum(passes(with_units(units_of(row), beside=True)) for row in UNITS),
        "units_apart": sum(passes(with_units(after_drop_in(row))) for row in UNITS),
        "units_beside": sum(passes(with_units(after_drop_in(row), beside=True)) for row in UNITS),
        "units_that_need_zookeeper": sum(row.needs_zookeeper for row in UNITS),
        **_judge_files(corpus / "files" if corpus else FILES),
        **_judge_messages(corpus / "messages" if corpus else MESSAGES),
        **_measure_observations(),
        **_measure_fleet(),
    }


def _measure_fleet() -> dict[str, object]:
    """Install and check of twelve machines of two clusters, over ssh and sudo; none where no sshd can be started; why not is said."""
    if lacking := ssh_machines.missing():
        sys.stderr.write(f"no installation was measured: {lacking}\n")
        return {}
    with tempfile.TemporaryDirectory() as folder, ssh_machines.running(Path(folder), NUMBER) as machines:
        clusters, taken = Clusters(Path(folder), machines), dict[str, float]()
        for command, *words in (
            ("known-hosts", "--fingerprints", str(clusters.prints)),
            ("install", "--yes", "--brief", "--storage-tool", "/bin/true"),
            ("check",),
        ):
            began = time.perf_counter()
            with contextlib.redirect_stdout(sys.stderr):
                code = clusters(command, *words)
            if code:
                sys.stderr.write(f"kmigrate node {command} ended with {code}\n")
                return {}
            taken[command] = round(time.perf_counter() - began, 1)
    return {"fleet": NUMBER, "fleet_install_s": taken["install"], "fleet_check_s": taken["check"]}


def _measure_observations() -> dict[str, object]:
    """None where no machine can be booted; why not is said."""
    if lacking := missing():
        sys.stderr.write(f"no observation was measured: {lacking}\n")
        return {}
    unit = UNITS[1].text(properties_path("broker")).replace("kafka-server-start.sh", "kafka-storage.sh")
    stores = "".join(f"ssl.{kind}store.location=/etc/kafka/{kind}.p12\n" for kind in ("key", "trust"))
    files = stand_in_files()
    files |= {"usr/local/lib/systemd/system/kafka.service": unit, "etc/kafka/key.p12": "", "etc/kafka/trust.p12": ""}
    files["etc/kafka/server.properties"] += stores
    with contextlib.ExitStack() as stack:
        template, home = (Path(stack.enter_context(tempfile.TemporaryDirectory())) for _ in range(2))
        machine = stack.enter_context(booted(home, Template(template, files)))
        serve = ("nsenter", "-t", str(machine.leader), "-m", "-u", "-i", "-p", "--", AGENT_PATH, "serve")
        connection, taken = (
            Connection("broker", partial(Program, serve, {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"})),
            list[float](),
        )
        try:
            connection.facts("broker 1", "broker")
            [agent] = [child for child in psutil.Process().children(recursive=True) if child.cmdline()[1:3] == ["-I", AGENT_PATH]]
            before = sum(agent.cpu_times()[:4])
            for _ in range(_OBSERVATIONS):
                began = time.perf_counter()
                connection.facts("broker 1", "broker")
                taken.append((time.perf_counter() - began) * 1000)
            used = sum(agent.cpu_times()[:4]) - before
        finally:
            connection.close()
    return {
        "observation_ms": round(median(taken), 1),
        "observation_cpu_ms": round(used * 1000 / _OBSERVATIONS, 1),
        "observation_load": round(os.getloadavg()[0], 1),
    }


def _judge_files(folder: Path) -> dict[str, object]:
    judged = [
        judge_file(file.name, file.read_text(encoding="utf-8", errors="replace")) for file in sorted(folder.glob("*.properties"))
    ]
    for file in judged:
        for finding in file.blocks:
            sign = "WRONG" if finding in file.wrong else "right"
            sys.stderr.write(f"{file.name}: {sign} {finding.code}: {finding.reason.text}\n")
    return {
        "files": len(judged),
        "files_without_block": sum(not file.blocks for file in judged),
        "files_blocked_wrongly": sum(bool(file.wrong) for file in judged),
    }


def _judge_messages(folder: Path) -> dict[str, object]:
    answers = {file.name: judge_message(file) for file in sorted(folder.glob("*.y*ml"))}
    for name, wrong in answers.items():
        sys.stderr.write("".join(f"{name}: {text}\n" for text in wrong))
    return {"messages": len(answers), "messages_right": sum(not wrong for wrong in answers.values())}
