"""A node whose process runs, or may run, and that does not answer, or does not stop."""

from __future__ import annotations

from airflow_provider_kmigrate.core.cluster import NodeSpec, Role
from airflow_provider_kmigrate.core.model import Controller, Reason

_READ = "Read the end of its log."
_HANGS = (
    "Is 'KRaftMigrationDriver' shutting down there, and nothing behind it for a minute, it was stopped without a way to ZooKeeper "
    "and never ends: kill -9 its process."
)


def unresponsive_controller(controller: Controller) -> Reason:
    """G23. Kafka 3.9.2 closes the migration's ZooKeeper client, then waits for a thread that waits for that client to be connected
    (`ControllerMigrationSupport.shutdown`, `KRaftMigrationDriver.close`; a thread dump): such a stop ended neither in the nine minutes that
    were watched nor when ZooKeeper was back.
    """
    text = f"Controller {controller.id} does not answer; its process is {controller.process.state}."
    return Reason("G23", text)


def stop_timed_out(node: NodeSpec) -> str:
    """What to do next where a node did not stop in time; why a controller may never do so: `unresponsive_controller`."""
    hangs = f" {_HANGS}" if node.role is Role.CONTROLLER else ""
    return f"Next: {_READ}{hangs} When it has stopped, clear the task: it goes on from there."
