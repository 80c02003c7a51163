"""Two cluster files of many machines that are reached by ssh, and an inventory of them."""

from __future__ import annotations

from pathlib import Path

from airflow_provider_kmigrate.node.command import main
from airflow_provider_kmigrate.node.inventory import render_inventory
from tests.kit.ssh_machines import USER, SshMachines

NUMBER = 12


class Clusters:
    """Two cluster files, and an inventory of the machines with user, port and key."""

    def __init__(self, folder: Path, machines: SshMachines) -> None:
        self.folder, self.machines, hosts = folder, machines, machines.addresses
        half = len(hosts) // 2
        self.files = [self._write("prod", "q1", hosts[:half]), self._write("dc2", "q2", hosts[half:])]
        self.inventory, self.known_hosts, self.prints = folder / "hosts.yml", folder / "known_hosts", folder / "fingerprints"
        access = f"ansible_become: true\n    ansible_user: {USER}\n    ansible_port: {machines.port}"
        access += f"\n    ansible_ssh_private_key_file: {machines.key}"
        derived = render_inventory({"prod": dict.fromkeys(hosts[:half]), "dc2": dict.fromkeys(hosts[half:])})
        self.inventory.write_text(derived.replace("ansible_become: true", access))
        self.prints.write_text("".join(f"{host} {machines.fingerprint(host)}\n" for host in hosts))

    def _write(self, name: str, cluster_id: str, hosts: list[str]) -> str:
        path, brokers = self.folder / f"{name}.yaml", hosts[:-3]
        rows = [f"  - {{id: {number}, host: {host}}}" for number, host in enumerate(brokers)]
        place = "properties: /etc/kafka/controller.properties, log_dir: /var/lib/kafka/controller"
        controllers = [f"  - {{id: {3000 + number}, host: {host}, {place}}}" for number, host in enumerate(hosts[-3:])]
        head = f"name: {name}\ncluster_id: {cluster_id}Sh-9_ISia_zwGINzRvyQ\nzookeeper: {{conn_id: zk}}\nkafka: {{conn_id: kf}}\n"
        head += "hosts: {properties: /etc/kafka/server.properties, ssh_conn_id: absent}\n"
        path.write_text(head + "brokers:\n" + "\n".join(rows) + "\ncontrollers:\n" + "\n".join(controllers) + "\n")
        return str(path)

    def __call__(self, command: str, *words: str) -> int:
        """The exit code of a command for both clusters."""
        access = [] if command == "ansible" else ["--inventory", str(self.inventory), "--known-hosts", str(self.known_hosts)]
        return main([command, *self.files, *access, *words])
