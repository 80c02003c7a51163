"""Inventories: what is read of Ansible's, what is derived from cluster files, and which commands reach the machines."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from airflow_provider_kmigrate.exceptions import Refused
from airflow_provider_kmigrate.node.ansible import render_role, write_role
from airflow_provider_kmigrate.node.command import build_shell_command, main
from airflow_provider_kmigrate.node.inventory import SshAccess, find_access, reach_by_inventory, read_inventory, render_inventory
from tests.node.script_text import FILE, MACHINES

NESTED = """\
all:
  vars: {ansible_user: ops, ansible_port: 2222}
  hosts: {ctl1: {ansible_user: root}}
  children:
    kafka:
      vars: {ansible_ssh_private_key_file: /keys/kafka}
      hosts:
        kafka0: {ansible_host: 10.0.0.1}
        KAFKA1.: {ansible_become: false, ansible_port: 22}
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "hosts.yml"


def test_the_innermost_variable_holds(path: Path) -> None:
    path.write_text(NESTED)
    assert read_inventory(path) == {
        "ctl1": SshAccess("ctl1", 2222, "root", "", has_sudo=False),
        "kafka0": SshAccess("10.0.0.1", 2222, "ops", "/keys/kafka"),
        "kafka1": SshAccess("KAFKA1.", 22, "ops", "/keys/kafka", has_sudo=False),
    }


def test_groups_beside_all_count_too(path: Path) -> None:
    path.write_text("all: {vars: {ansible_user: ops}}\nkafka: {hosts: {kafka0: }}\n")
    assert read_inventory(path) == {"kafka0": SshAccess("kafka0", user="ops")}


@pytest.mark.parametrize(
    "text",
    [
        "[kafka]\nkafka0\n",
        "- kafka0",
        "all: [kafka0]",
        "all: {hosts: [kafka0]}",
        "all: {hosts: {kafka0: {ansible_host: -oProxyCommand=x}}}",
        "all: {hosts: {-x: {}}}",
        "all: {hosts: {kafka0: {ansible_user: -v}}}",
        "all: {hosts: {kafka0: {ansible_user: '{{ user }}'}}}",
        "all: {hosts: {kafka0: {ansible_ssh_private_key_file: '{{ key }}'}}}",
        "all: {hosts: {kafka0: {ansible_port: ssh}}}",
        "all: {hosts: {kafka0: {ansible_port: 70000}}}",
        "all: {hosts: {kafka0: {ansible_port: true}}}",
        "all: {hosts: {kafka0: {ansible_become: maybe}}}",
        "all: &a {children: {x: *a}}",
        "all: " + "{children: {a: " * 30 + "}}" * 30,
        "a: !!python/object:os.system {}",
        "a: !!int ''",
        "all: {hosts: {kafka0: {ansible_port: 0x" + "f" * 5000 + "}}}",
        "a0: &a0 {b: 1}\n" + "".join(f"a{n}: &a{n} {{<<: [{f'*a{n - 1}, ' * 9}]}}\n" for n in range(1, 12)),
        "x" * ((4 << 20) + 1),
    ],
)
def test_what_is_no_plain_inventory_is_refused(path: Path, text: str) -> None:
    path.write_text(text)
    with pytest.raises(Refused, match="N03"):
        read_inventory(path)


@pytest.mark.parametrize(
    "text",
    ["ansible_password: CANARY: x", "all: {vars: 'ansible_password=CANARY'}", "all: {hosts: {k: [CANARY]}}", "a: !vault CANARY"],
)
def test_a_refusal_shows_no_password_of_the_inventory(path: Path, text: str) -> None:
    path.write_text(text)
    with pytest.raises(Refused) as refused:
        read_inventory(path)
    assert "CANARY" not in str(refused.value)


def test_an_inventory_without_an_end_is_refused() -> None:
    with pytest.raises(Refused, match="larger than 4 MiB"):
        read_inventory(Path("/dev/zero"))


def test_a_machine_that_the_inventory_does_not_name_is_refused() -> None:
    with pytest.raises(Refused, match=r"N03.*no host kafka9"):
        find_access({"kafka0": SshAccess("kafka0")}, "kafka9")


def test_every_node_of_a_machine_is_reached_as_the_inventory_says_and_host_keys_are_verified() -> None:
    accesses = {
        "kafka0": SshAccess("10.0.0.1", 2222, "ops", "/key"),
        "kafka1": SshAccess("kafka1", has_sudo=False),
        "ctl1": SshAccess("ctl1"),
    }
    reached = reach_by_inventory(MACHINES, accesses, Path("/known"))
    assert {host: len(nodes) for host, nodes in reached.items()} == {host: len(nodes) for host, nodes in MACHINES.items()}
    [command] = {node.hosts.connect for node in reached["kafka0"]}
    assert {"StrictHostKeyChecking=yes", "UserKnownHostsFile=/known", "BatchMode=yes"} <= {*command}
    assert command[-5:] == ("10.0.0.1", "sudo", "-n", "/usr/local/sbin/kmigrate-node", "serve")
    assert build_shell_command(command)[-5:] == ("10.0.0.1", "sudo", "-n", "/bin/sh", "-s")
    assert build_shell_command(reached["kafka1"][0].hosts.connect)[-3:] == ("kafka1", "/bin/sh", "-s")
    assert not any(node.hosts.ssh_conn_id for nodes in reached.values() for node in nodes)


def test_a_derived_inventory_names_all_machines_and_is_read_again(path: Path) -> None:
    path.write_text(render_inventory({"dc-1": {"kafka0": (), "ctl1": ()}, "prod": {"kafka1": ()}}))
    assert set(read_inventory(path)) == {"kafka0", "kafka1", "ctl1"}
    groups = yaml.safe_load(path.read_text())["all"]["children"]
    assert {name: group["vars"]["kmigrate_cluster"] for name, group in groups.items()} == {
        "kmigrate_dc_1": "dc-1",
        "kmigrate_prod": "prod",
    }


def test_the_role_runs_the_whole_script_of_each_cluster(tmp_path: Path) -> None:
    said: list[str] = []
    files = render_role({"prod": "#!/bin/sh\n"}, {"prod": {"kafka0": ()}})
    write_role(files, tmp_path / "role", said.append)
    [install, _] = yaml.safe_load(files["roles/kmigrate_node/tasks/main.yml"])
    assert install["ansible.builtin.script"]["cmd"].startswith("{{ kmigrate_cluster }}.sh {{ inventory_hostname | quote }}")
    assert (install["check_mode"], install["become"]) == (False, True)
    [play] = yaml.safe_load(files["kmigrate.yml"])
    assert play["hosts"] == "kmigrate_prod"
    (tmp_path / "role" / "hosts.yml").write_text("# mine\n")
    write_role({**files, "roles/kmigrate_node/files/prod.sh": "#!/bin/sh\nnew\n"}, tmp_path / "role", said.append)
    assert (tmp_path / "role" / "hosts.yml").read_text() == "# mine\n"
    assert (tmp_path / "role" / "roles" / "kmigrate_node" / "files" / "prod.sh").read_text().endswith("new\n")
    assert [line.rpartition("/")[2] for line in said[-4:]] == [
        "hosts.yml stays as it is",
        "kmigrate.yml is there",
        "main.yml is there",
        "prod.sh was written",
    ]


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    """Two cluster files whose machines differ."""
    other = FILE.replace("name: prod", "name: dc2").replace("kafka0", "k0").replace("kafka1", "k1").replace("ctl1", "c1")
    for name, text in (("prod.yaml", FILE), ("dc2.yaml", other)):
        (tmp_path / name).write_text(text)
    return [str(tmp_path / "prod.yaml"), str(tmp_path / "dc2.yaml")]


def test_an_inventory_of_many_cluster_files_is_printed(files: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inventory", *files]) == 0
    children = yaml.safe_load(capsys.readouterr().out)["all"]["children"]
    assert [list(group["hosts"]) for group in children.values()] == [["kafka0", "kafka1", "ctl1"], ["k0", "k1", "c1"]]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["install", "{0}", "{0}", "--yes"], "two cluster files have the name prod"),
        (["install", "{0}", "{1}", "--script"], "kmigrate node ansible"),
        (["check", "{0}", "{1}", "--inventory", "/absent"], "N03"),
        (["known-hosts", "{0}", "--fingerprints", "/absent"], "M06"),
    ],
)
def test_what_is_wrong_before_any_machine_is_asked_ends_with_2(
    files: list[str], words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([word.format(*files) for word in words]) == 2
    assert said in capsys.readouterr().err


def test_one_machine_of_two_cluster_files_is_refused(files: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Two scripts would write its node.json at once."""
    Path(files[1]).write_text(Path(files[1]).read_text().replace("host: k1", "host: KAFKA1"))
    assert main(["check", *files]) == 2
    assert "KAFKA1 stands in the files of prod and of dc2" in capsys.readouterr().err
