"""An application under load whose group is cut over and rolled back by the steps of kmigrate's DAGs, and what may become of its records."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from airflow_provider_kmigrate.clients.group_reads import seen
from airflow_provider_kmigrate.clients.settings import ZooKeeperSettings
from airflow_provider_kmigrate.clients.zookeeper import ZooKeeper
from airflow_provider_kmigrate.core.groups.move import Goal
from airflow_provider_kmigrate.core.member.group_seen import GroupSeen, MemberKind
from airflow_provider_kmigrate.exceptions import Refused
from airflow_provider_kmigrate.spec import load
from airflow_provider_kmigrate.steps.run import StepContext
from benchmarks import direct
from tests.kit.localcluster.cluster import LocalCluster
from tests.old_consumer.jvm_application import Account, JvmApplication, Load
from tests.waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]
OLD, PLAIN = MemberKind.ZOOKEEPER, MemberKind.KAFKA


class Running:
    """The application under load, and the tool beside it."""

    def __init__(self, cluster: LocalCluster, application: JvmApplication, load_: Load) -> None:
        self.cluster, self.application, self.load = cluster, application, load_
        self._runs = 0

    def observe(self) -> GroupSeen:
        hosts, _, chroot = self.cluster.zookeeper.partition("/")
        with ZooKeeper(ZooKeeperSettings(hosts, f"/{chroot}" if chroot else "")) as zk:
            group = self.application.group
            return seen(zk, {"bootstrap.servers": self.cluster.bootstrap}, [group])[group]

    def kinds(self) -> list[MemberKind]:
        return [member.kind for member in self.observe().members or ()]

    @contextmanager
    def context(self) -> Iterator[StepContext]:
        """Of a new run."""
        self._runs += 1
        spec = replace(load(self.cluster.spec_path), groups=(self.application.spec(),))
        with direct.context(self.cluster, f"{self.application.group}-{self._runs}", spec=spec) as context:
            try:
                yield context
            finally:
                context.fence.release()

    def cut_over(self) -> str:
        with self.context() as context:
            return getattr(direct.step(context, "cutover", group=self.application.group), "text", "")

    def roll_back(self) -> None:
        with self.context() as context:
            goal = Goal.ZOOKEEPER_CONSUMERS
            direct.step(context, "roll back group", group=self.application.group, goal=goal)

    def refused(self) -> list[str]:
        with pytest.raises(Refused) as refused:
            self.cut_over()
        return [reason.code for reason in refused.value.reasons]

    def run_tool(self, kind: str, *trap: str, **arguments: str) -> subprocess.CompletedProcess[str]:
        """One step in a process of its own, which a trap may kill."""
        given = json.dumps({"group": self.application.group, **arguments})
        argv = [sys.executable, "-m", "tests.system.tool", str(self.cluster.folder), kind, given, *trap]
        return subprocess.run(
            argv, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=150, check=False
        )

    def settle(self) -> Account:
        """The load ends, all is processed, and the account is made."""
        self.load.stop()
        wait_until(lambda: self.load.acked <= self.application.processed().keys(), "everything is processed")
        return self.application.account(self.load.acked)


@contextmanager
def in_cluster_file(there: Running) -> Iterator[None]:
    """The application's group is in the cluster file; its run lets the cluster go at the end."""
    path = there.cluster.spec_path
    before = path.read_text()
    path.write_text(before + yaml.safe_dump({"groups": [there.application.entry()]}))
    try:
        yield
        with direct.context(there.cluster) as context:
            context.fence.release()
    finally:
        path.write_text(before)


def check_nothing_lost(account: Account) -> None:
    assert account.acked > 0
    assert (account.lost, account.skipped) == (0, 0), account
    assert account.repeated <= account.uncommitted, account
