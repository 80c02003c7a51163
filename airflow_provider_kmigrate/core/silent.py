"""A controller whose process runs, or may run, and that does not answer."""

from __future__ import annotations

from airflow_provider_kmigrate.core.model import Controller, Reason

_REMEDY = (
    "Read the end of its log. Is 'KRaftMigrationDriver' shutting down there, and nothing behind it for a minute, "
    "it was stopped without a way to ZooKeeper and never ends: kill -9 its process, and it is started again."
)


def silent_controller(controller: Controller) -> Reason:
    """R10. Kafka 3.9.2 closes the migration's ZooKeeper client, then waits for a thread that waits for that client to be connected
    (`ControllerMigrationSupport.shutdown`, `KRaftMigrationDriver.close`; a thread dump): such a stop ended neither in the nine minutes that
    were watched nor when ZooKeeper was back.
    """
    text = f"Controller {controller.id} does not answer; its process is {controller.process.state}."
    return Reason("R10", text, "It starts, or it hangs.", _REMEDY)
