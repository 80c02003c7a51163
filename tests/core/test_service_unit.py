"""What a unit's stop reaches, what hangs on it, and the drop-in that it needs."""

from __future__ import annotations

import ast
import inspect
import sys

import pytest

from airflow_provider_kmigrate.core.node_files import service_unit
from airflow_provider_kmigrate.core.node_files.service_unit import (
    find_contradictions,
    find_dependents,
    find_kill,
    find_missing_stop,
    find_reaching_commands,
    find_settings,
    find_unclear_commands,
    find_zookeeper_needs,
    is_of_cluster,
    join_repeated,
    read_settings,
    render_drop_in,
)
from tests.kit.units import STOP_SCRIPT, shown

ALL, OWN, UNCLEAR = "all", "own", "unclear"


@pytest.mark.parametrize(
    ("command", "reach"),
    [
        (STOP_SCRIPT, ALL),
        ("/usr/bin/kafka-server-stop", ALL),
        ("/opt/kafka/bin/kafka-server-stop.sh /etc/kafka/server.properties", ALL),  # the script ignores it
        ("/opt/kafka/bin/kafka-server-stop.sh $MAINPID", ALL),
        ("/usr/bin/su - kafka -c /opt/kafka/bin/kafka-server-stop.sh", ALL),
        ("/bin/sh -c /opt/kafka/bin/kafka-server-stop.sh > /var/log/stop.log 2>&1", ALL),
        ("/opt/kafka/bin/kafka-server-stop.sh --node-id=3", OWN),
        ("/opt/kafka/bin/kafka-server-stop.sh --process-role=controller", OWN),
        ("/usr/bin/pkill -f kafka", ALL),
        ("/usr/bin/pkill -f kafka.Kafka", ALL),
        ("/usr/bin/pkill -u kafka", ALL),
        ("pkill -f /etc/kafka/controller.properties", OWN),
        ("pkill -F /run/kafka.pid", OWN),
        ("pkill -P $MAINPID", OWN),
        ("/usr/bin/killall java", ALL),
        ("/bin/sh -c kill $(pgrep -f kafka)", ALL),
        ("/bin/sh -c kill -TERM $(pidof java)", ALL),
        ("/bin/sh -c ps ax | grep java | grep -i kafka | awk '{print $1}' | xargs kill", ALL),
        ("/bin/sh -c kill $(cat /run/kafka.pid)", OWN),
        ("/bin/kill -s TERM $MAINPID", OWN),
        ("/bin/kill $MAINPID", OWN),
        ("/bin/true", OWN),
        ("/bin/rm -f /run/kafka.pid", OWN),
        ("/bin/rm -f /tmp/x; /opt/site/stop", UNCLEAR),
        ("/opt/kafka/stop", UNCLEAR),
        ("/etc/init.d/kafka stop", UNCLEAR),
        ("/opt/kafka/bin/kafka-server-stop.sh.bak", UNCLEAR),
        ("/opt/kafka/bin/zookeeper-server-stop.sh", UNCLEAR),
    ],
)
def test_whom_a_stop_command_ends(command: str, reach: str) -> None:
    unit = {"ExecStop": command}
    found = ALL if find_reaching_commands(unit) else UNCLEAR if find_unclear_commands(unit) else OWN
    assert found == reach


def test_a_shell_before_kafka_matters_if_systemd_signals_the_main_process_alone() -> None:
    modes = ("control-group", "mixed", "process", "none")
    assert [find_kill({"KillMode": mode}, behind=True) for mode in modes] == ["", "KillMode=mixed", "", ""]
    assert [find_missing_stop({"KillMode": mode}, behind=True) for mode in modes] == ["", "", "KillMode=process", "KillMode=none"]
    assert [find_missing_stop({"KillMode": mode}, behind=False) for mode in modes] == ["", "", "", "KillMode=none"]
    for mode in modes:
        unit = {"KillMode": mode, "ExecStop": STOP_SCRIPT}
        assert (find_kill(unit, behind=True), find_missing_stop(unit, behind=True)) == ("", ""), "its command stops Kafka"


def test_every_setting_that_runs_a_command_is_read() -> None:
    names = ("ExecStop", "ExecStopPost", "ExecStartPre", "ExecStartPost")
    unit = dict.fromkeys(names, f"/bin/mkdir -p /run/kafka\n{STOP_SCRIPT}")
    assert find_reaching_commands(unit) == [f"{name}={STOP_SCRIPT}" for name in names]
    assert find_unclear_commands(unit) == ["ExecStop=/bin/mkdir -p /run/kafka", "ExecStopPost=/bin/mkdir -p /run/kafka"]


@pytest.mark.parametrize(
    ("unit", "kill"),
    [
        ({}, ""),
        ({"KillSignal": "15"}, ""),
        ({"KillSignal": "2"}, ""),
        ({"KillSignal": "9"}, "KillSignal=9"),
        ({"ExecStop": "/bin/kill -9 $MAINPID"}, "ExecStop=/bin/kill -9 $MAINPID"),
        ({"ExecStop": "/usr/bin/pkill -KILL -f kafka"}, "ExecStop=/usr/bin/pkill -KILL -f kafka"),
        ({"ExecStop": "/bin/kill -s KILL $MAINPID"}, "ExecStop=/bin/kill -s KILL $MAINPID"),
        ({"ExecStop": "/bin/kill -s TERM $MAINPID"}, ""),
        ({"ExecStopPost": "/bin/kill -9 $MAINPID"}, ""),  # it runs once Kafka has ended
        *(
            ({"ExecStop": command}, f"ExecStop={command}" if kills else "")
            for command, kills in (
                ("/usr/bin/docker stop kafka", True),  # 10 s
                ("/bin/bash -c 'docker stop kafka'", True),
                ("docker stop -t 60 kafka", True),
                ("docker stop -t 600 kafka", False),
                ("docker stop -t $TIME kafka", False),
                ("/usr/bin/podman stop --time=300 kafka", True),
                ("podman stop -t -1 kafka", False),
                ("nerdctl restart kafka", True),
                ("docker-compose -f /opt/kafka/compose.yml down", True),
                ("docker compose stop -t600", False),
                ("docker kill kafka", True),
                ("docker kill --signal=TERM kafka", False),
                ("docker rm --force kafka", True),
                ("docker rm kafka", False),
                ("docker exec kafka supervisorctl stop kafka", False),
                ("/opt/docker/stop", False),
                ("/sbin/start-stop-daemon --stop --retry 30 --pidfile /run/kafka.pid", True),
                ("start-stop-daemon -K -R TERM/60/KILL/5 -p /run/kafka.pid", True),
                ("start-stop-daemon --stop --retry=TERM/600/KILL/5 --pidfile /run/kafka.pid", False),
                ("start-stop-daemon --stop --pidfile /run/kafka.pid", False),
            )
        ),
    ],
)
def test_a_stop_that_kills_is_named(unit: dict[str, str], kill: str) -> None:
    assert find_kill(unit) == kill


@pytest.mark.parametrize(
    ("unit", "needs"),
    [
        ({"Requires": "zookeeper.service system.slice"}, ["Requires=zookeeper.service"]),
        ({"BindsTo": "confluent-zookeeper.service"}, ["BindsTo=confluent-zookeeper.service"]),
        ({"PartOf": "zookeeper.target"}, []),
        ({"PartOf": "zk.service"}, ["PartOf=zk.service"]),
        ({"Requisite": "zk@1.service"}, ["Requisite=zk@1.service"]),
        ({"StopPropagatedFrom": "apache-zookeeper-1.service"}, ["StopPropagatedFrom=apache-zookeeper-1.service"]),
        ({"Wants": "zookeeper.service", "After": "zookeeper.service"}, []),
        ({"Requires": "bulkzkeeper.service"}, []),
        ({"Requires": "network-online.target data.mount"}, []),
    ],
)
def test_what_ties_a_unit_to_zookeeper(unit: dict[str, str], needs: list[str]) -> None:
    assert find_zookeeper_needs(unit) == needs


def test_what_is_stopped_with_a_unit_in_every_way_in_which_systemd_knows_it() -> None:
    unit = {
        "RequiredBy": "multi-user.target kafka-connect.service",
        "BoundBy": "b.service",
        "ConsistsOf": "kafka-connect.service",
    }
    assert find_dependents(unit) == ["b.service", "kafka-connect.service"]


@pytest.mark.parametrize(
    ("unit", "is_node"),
    [
        ("kafka.service", True),
        ("kafka-controller.service", True),
        ("confluent-kafka.service", True),
        ("kafka@2.service", True),
        ("zookeeper.service", True),
        ("kafka-connect.service", False),
        ("schema-registry.service", False),
    ],
)
def test_which_dependents_are_of_the_cluster(unit: str, is_node: bool) -> None:
    assert is_of_cluster(unit) == is_node


EXIT = {"SuccessExitStatus": "143"}


@pytest.mark.parametrize(
    ("lines", "stop_timeout", "settings"),
    [
        ("TimeoutStopSec=600", 330, {}),
        ("TimeoutStopSec=331", 330, {}),
        ("TimeoutStopSec=330", 330, {"TimeoutStopSec": "600"} | EXIT),
        ("", 60, {"TimeoutStopSec": "600"} | EXIT),
        ("TimeoutStopSec=600", 900, {"TimeoutStopSec": "960"} | EXIT),
        ("TimeoutStopSec=600\nSuccessExitStatus=0 143", 900, {"TimeoutStopSec": "960"}),
        (f"TimeoutStopSec=600\nExecStop={STOP_SCRIPT}", 330, {"ExecStop": ""} | EXIT),
        (f"TimeoutStopSec=600\nExecStop={STOP_SCRIPT}\nExecStop=/bin/kill $MAINPID", 330, {"ExecStop": ""} | EXIT),
        (f"TimeoutStopSec=600\nExecStop={STOP_SCRIPT}\nExecStop=/opt/site/leave", 330, {}),
        (f"TimeoutStopSec=600\nExecStopPost={STOP_SCRIPT}", 330, {"ExecStopPost": ""} | EXIT),
        (f"TimeoutStopSec=600\nExecStop={STOP_SCRIPT}\nKillMode=none", 330, {"ExecStop": "", "KillMode": "control-group"} | EXIT),
        ("TimeoutStopSec=600\nKillMode=mixed", 330, {"KillMode": "control-group"} | EXIT),
        ("TimeoutStopSec=600\nKillMode=process\nExecStop=/bin/kill $MAINPID", 330, {}),
        ("ExecStop=/opt/site/leave", 330, {"TimeoutStopSec": "600"}),  # upon exit code 143 alone, systemd would run it as well
        ("TimeoutStopSec=600\nKillSignal=9", 330, {"KillSignal": "SIGTERM"} | EXIT),
        ("TimeoutStopSec=600\nExecStop=/opt/kafka/stop", 330, {}),
        ("TimeoutStopSec=600\nKillMode=process\nExecStop=/bin/sleep 5", 330, {"KillMode": "control-group"} | EXIT),
        ("TimeoutStopSec=60\nExecStop=/bin/sleep 5", 330, {"TimeoutStopSec": "600"} | EXIT),
        ("TimeoutStopSec=600\nKillMode=process\nExecStop=/bin/sh -c 'sleep 5; /opt/kafka/stop'", 330, {}),
    ],
)
def test_a_drop_in_sets_what_the_unit_lacks_and_nothing_else(lines: str, stop_timeout: float, settings: dict[str, str]) -> None:
    assert find_settings(shown("kafka.service", lines), stop_timeout) == settings


def test_a_unit_that_never_kills_needs_no_time() -> None:
    assert find_settings({"TimeoutStopUSec": "infinity"}, 330) == {}
    assert find_settings({}, 330) == {}, "what is not known is not changed"


def test_a_drop_in_that_is_there_keeps_what_it_set() -> None:
    first = render_drop_in({"TimeoutStopSec": "600", "ExecStop": ""})
    assert first.splitlines()[1:] == ["[Service]", "TimeoutStopSec=600", "ExecStop="]
    assert render_drop_in({}, first) == first
    assert read_settings(render_drop_in({"TimeoutStopSec": "960"}, first)) == {"TimeoutStopSec": "960", "ExecStop": ""}
    assert render_drop_in({}) == ""


@pytest.mark.parametrize(
    ("path", "text", "said"),
    [
        ("/etc/systemd/system/kafka.service.d/override.conf", "[Service]\nTimeoutStopSec=90\n", True),
        ("/etc/systemd/system/kafka.service.d/override.conf", "[Service]\nTimeoutSec = 90\n", True),
        ("/etc/systemd/system/kafka.service.d/override.conf", "#TimeoutStopSec=90\n;TimeoutStopSec=90\nUser=k\n", False),
        ("/etc/systemd/system/kafka.service.d/10-limits.conf", "TimeoutStopSec=90\n", False),  # read before ours
        ("/run/systemd/system/kafka.service.d/zz.conf", "TimeoutStopSec=90\n", True),
    ],
)
def test_a_drop_in_of_others_that_is_read_later_is_named(path: str, text: str, said: bool) -> None:
    found = find_contradictions({"TimeoutStopSec": "600"}, {path: text})
    assert [each.partition(": ")[0] for each in found] == ([path] if said else [])


def test_the_lines_of_one_setting_are_joined_as_the_agent_joins_them() -> None:
    argv = "{{ path=/x ; argv[]={} ; ignore_errors=no ; start_time=[n/a] ; status=0/0 }}"
    lines = [
        f"ExecStop={argv.format('/bin/a ; b')}",
        f"ExecStop={argv.format('/bin/c')}",
        "Id=kafka.service",
        "KillSignal=15",
        "ExecStart=",
    ]
    assert join_repeated(lines) == {"ExecStop": "/bin/a ; b\n/bin/c", "Id": "kafka.service", "KillSignal": "15", "ExecStart": ""}


def test_machines_can_run_it_too() -> None:
    tree = ast.parse(inspect.getsource(service_unit), feature_version=(3, 6))
    imported = {alias.name for entry in ast.walk(tree) if isinstance(entry, ast.Import) for alias in entry.names}
    imported |= {str(entry.module) for entry in ast.walk(tree) if isinstance(entry, ast.ImportFrom)}
    assert imported <= sys.stdlib_module_names - {"dataclasses"}
    assert not any(isinstance(entry, ast.NamedExpr | ast.Match) for entry in ast.walk(tree))


@pytest.mark.parametrize(
    "part",
    ["kill ps ", "ps kafka ", "/", "a/", "/sh -c ", "kill ", "kafka-server-stop ", "MAINPI", "docker ", "start-stop-daemon -R "],
)
def test_a_command_of_any_shape_is_judged_in_linear_time(part: str) -> None:
    """An agent sends it: by a cubic pattern the longest one that is taken took a worker minutes."""
    command = part * (100_000 // len(part))
    unit = {"ExecStop": command}
    assert find_kill(unit) == ""
    assert find_reaching_commands(unit) + find_unclear_commands(unit) in ([f"ExecStop={command}"], [])


@pytest.mark.parametrize("command", ["/bin/true", "/bin/sleep 5", "/usr/bin/logger Kafka stops", "echo stop"])
@pytest.mark.parametrize("mode", ["process", "none"])
def test_a_command_that_ends_nothing_is_no_stop(command: str, mode: str) -> None:
    unit = {"ExecStop": command, "KillMode": mode}
    assert find_missing_stop(unit, behind=True) == f"KillMode={mode}"
    assert find_missing_stop(unit | {"ExecStop": f"{command}\n/opt/kafka/stop"}, behind=True) == ""
    assert find_kill(unit | {"KillMode": "mixed"}, behind=True) == "KillMode=mixed"
