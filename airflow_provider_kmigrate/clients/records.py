"""What kmigrate must be able to believe later, kept beside the fence: the approvals of each run.

Below `/_kmigrate/<cluster id>`:

==================  ================================================================================================
`approvals/<hash>`  {"approval", "signature"}: what one request of one run showed, and the answers that counted
`journals/<hash>`   {"run", "chain", "lines"}: the newest hash of a run's journal (`clients.journal_heads`)
==================  ================================================================================================

Each is written in a transaction that holds the fence, and belongs to the identity that wrote it (ZooKeeper's creator ACL). An approval
is believed if it has the signature of the cluster file's `signing_conn_id`; without that, if no other identity may write it or delete a znode
above it. Where kmigrate's connection to ZooKeeper has no identity either, it is all there is: `Kept.protected` is false.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from airflow_provider_kmigrate.clients.holding import Holding
from airflow_provider_kmigrate.clients.journal_heads import JournalHead, RecordTree, put_operation, record_name, seal_operation
from airflow_provider_kmigrate.clients.znodes import ROOT, Operation, printable_content
from airflow_provider_kmigrate.core.cluster_state.model import Reason
from airflow_provider_kmigrate.core.migration.approval import Approval, parse_approval, sign_record
from airflow_provider_kmigrate.core.shared.foreign_json import read_json
from airflow_provider_kmigrate.exceptions import Refused


@dataclass(frozen=True, slots=True)
class Kept:
    """A record of an approval as it was found. `doubt`: why it is not believed; `protected`: only kmigrate could write it."""

    path: str
    approval: Approval | None
    doubt: str = ""
    protected: bool = True


class Records:
    """The records of one cluster. `key`: the secret that signs approvals; empty: the znodes' ACL protects them."""

    def __init__(self, zookeeper: RecordTree, cluster_id: str, key: str = "") -> None:
        self._zookeeper, self._cluster_id, self._key = zookeeper, cluster_id, key
        self._root = f"{ROOT}/{cluster_id}/approvals"

    def write(self, approval: Approval, head: JournalHead, holding: Holding) -> None:
        """Write an approval and the hash of the journal that has it, both or none. Raises as `ZooKeeper.commit`."""
        self._zookeeper.commit([self.write_operation(approval), seal_operation(self._zookeeper, self._cluster_id, head)], holding)

    def write_operation(self, approval: Approval) -> Operation:
        """The operation that writes an approval, for a transaction with others."""
        stored = approval.to_json()
        return put_operation(
            self._zookeeper, self._root, _approval_name(approval), {"approval": stored, "signature": self._sign(stored)}
        )

    def handover_operation(self, approval: Approval, run: str) -> Operation:
        """The operation that writes an approval for another run, to which the cluster is handed over by it."""
        return self.write_operation(replace(approval, task=f"{_HANDED_OVER}{run}"))

    def approval(self, run: str, task: str) -> Approval | None:
        """What a task of a run has recorded; None if it has recorded nothing. Raises `Refused` (H13) if the record is not believed."""
        record = self._read_record(record_name(run, task))
        return _require_believed(record, record.doubt, f"task {task!r} of run {run}") if record else None

    def handover_approval(self, run: str) -> Approval | None:
        """The approval with which the cluster was handed over to a run; None if it was not.

        Raises `Refused` (H13) as `approval`, and if any client of ZooKeeper could have written it: such a run must ask.
        """
        record = self._read_record(record_name(f"{_HANDED_OVER}{run}"))
        if record is None:
            return None
        doubt = record.doubt or ("" if record.protected else "any client of ZooKeeper may write it, and it has no signature")
        return _require_believed(record, doubt, f"the handover to run {run}")

    def approvals(self) -> Iterator[Kept]:
        """Every record, believed or not."""
        names = self._zookeeper.children(self._root)
        return (record for name in names if (record := self._read_record(name)))

    def _read_record(self, name: str) -> Kept | None:
        path = f"{self._root}/{name}"
        znode = self._zookeeper.read(path)
        if znode is None:
            return None
        try:
            fields = read_json(znode[0])
            signed, approval = fields["signature"], parse_approval(fields["approval"])
        except (ValueError, TypeError, KeyError):
            signed, approval = "", None
        if approval is None:
            return Kept(path, None, f"it is no record of kmigrate: {printable_content(znode[0])!r}", protected=False)
        if _approval_name(approval) != name:
            return Kept(path, approval, "it is of another request", protected=False)
        if self._key:
            is_signed = hmac.compare_digest(str(signed).encode(), self._sign(approval.to_json()).encode())
            return Kept(path, approval, "" if is_signed else "its signature is not that of signing_conn_id", protected=is_signed)
        others = self._zookeeper.find_others_right(path)
        is_doubted = others is not None and not (self._zookeeper.is_anonymous and not others.who)
        return Kept(path, approval, str(others) if is_doubted else "", protected=others is None)

    def _sign(self, stored: dict[str, Any]) -> str:
        return sign_record(stored, self._key) if self._key else ""


def _require_believed(record: Kept, doubt: str, whose: str) -> Approval | None:
    if doubt:
        raise Refused.because(Reason("H13", f"The record of {whose} in {record.path} is not believed: {doubt}."))
    return record.approval


_HANDED_OVER = "handed over to "


def _approval_name(approval: Approval) -> str:
    """The name of its znode: of its run and task, or of the run to which it was handed over."""
    return (
        record_name(approval.task) if approval.task.startswith(_HANDED_OVER) else record_name(approval.shown.run, approval.task)
    )
