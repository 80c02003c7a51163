"""`make demo`: two groups of real old consumers leave ZooKeeper, then a real cluster is migrated, by the real DAGs under load.

One group moves instance by instance, as migrating consumers between; the other is of a JVM application, which is cut over, and whose own log alone says
what it processed. Both DAGs run by Airflow's `dag.test` in one process: every task as it is, but no scheduler, and the approval is given beforehand, in the run's
conf, as a rehearsal may. With `--rollback` a first migration runs on an Airflow with a scheduler, and its approver answers *Roll back*.

The migration's DAG holds a Spark streaming job for both rolls, and continues after each phase only at Spark's PASS.

A live line a step, at the end a table, summary.json and the report.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import Any

from airflow_provider_kmigrate.core.events.model import Ack
from airflow_provider_kmigrate.exceptions import Failed, KMigrateError
from benchmarks.answered import roll_back_by_answer
from benchmarks.old_application import OldApplication
from benchmarks.rehearsal import Rehearsal, pause_of_cutover, slow_records, stalls_by_act
from benchmarks.spark_side import SparkSide
from tests.kit.account import Account
from tests.kit.fleet import Fleet
from tests.kit.judge import TOPIC
from tests.kit.localcluster.cluster import LocalCluster
from tests.kit.localcluster.plan import Shape
from tests.kit.workload import Workload
from tests.old_consumer.jvm_application import CutoverGroup

LAST_GATE = "after_finalization"
HOW_IT_RUNS = "by Airflow's dag.test, without a scheduler"


class Teller:
    """One line a step, with the time since the beginning."""

    def __init__(self) -> None:
        self._began = time.monotonic()

    def say(self, text: str) -> None:
        """Print a line with the seconds since the start."""
        print(f"{time.monotonic() - self._began:7.1f} s  {text}", flush=True)

    def line(self, line: dict[str, Any]) -> None:
        """A line of the journal."""
        if line["kind"] == "act":
            self.say(f"    {line['step']}: {line['text'].split(':')[0]} ...")
        elif line["kind"] == "done":
            self.say(f"  {line['step']}: {line['text']}")
        elif line["kind"] == "alarm":
            self.say(f"  ALARM {line['text']}")


def main() -> int:
    """Run the demo; returns the exit code."""
    arguments = _parser().parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what was started is stopped
    shape = Shape(name="demo", brokers=arguments.brokers, controllers=arguments.controllers, chroot=arguments.chroot)
    policy = {"min_soak": "5s", "fast_failover": arguments.fast_failover}
    where: type[LocalCluster] = Fleet if arguments.machines else LocalCluster
    jvm = CutoverGroup("invoices", TOPIC, commit_within="10s")
    applications = (OldApplication("reports", "clicks", bake="0s"), jvm)
    rehearsal = Rehearsal(arguments.dir, shape, rate=arguments.rate, policy=policy, applications=applications, cluster_type=where)
    try:
        spark = SparkSide(arguments.dir / "spark", [topic.name for topic in rehearsal.topics])
        with closing(rehearsal), closing(spark):
            return _run(rehearsal, spark, jvm, rollback=arguments.rollback)
    except KMigrateError as error:
        print(f"The demo failed: {error}\nLogs: {arguments.dir.absolute()}", file=sys.stderr)
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dir", type=Path, default=Path("build/demo"))
    parser.add_argument("--brokers", type=int, default=3)
    parser.add_argument("--controllers", type=int, default=3)
    parser.add_argument("--chroot", default="")
    parser.add_argument(
        "--machines", action="store_true", help="each node on a machine with a systemd of its own, over ssh; as root"
    )
    parser.add_argument(
        "--rollback",
        action="store_true",
        help="migrate on an Airflow with a scheduler first, whose approver answers Roll back: the audited rollback's DAG; then migrate again",
    )
    parser.add_argument("--rate", type=float, default=200.0, help="records a second")
    parser.add_argument("--fast-failover", action="store_true", help="policy fast_failover")
    return parser


def _run(rehearsal: Rehearsal, spark: SparkSide, jvm: CutoverGroup, *, rollback: bool) -> int:
    teller = Teller()
    teller.say(f"starting ZooKeeper and {rehearsal.shape.brokers} brokers")
    rehearsal.up()
    plan = rehearsal.cluster.plan
    partitions = sum(topic.partitions for topic in rehearsal.topics)
    teller.say(f"cluster {plan.cluster_id} serves; {partitions} partitions; Airflow gets ready")
    os.environ |= spark.submit_options
    spark.connect(plan)
    rehearsal.start_airflow()
    teller.say("starting the load")
    workload = rehearsal.load()
    teller.say(f"{rehearsal.rate:.0f} records/s flow; {len(rehearsal.groups)} groups read them")
    rehearsal.start_applications()
    count = sum(one.instances for one in rehearsal.applications)
    teller.say(f"{count} old consumers (Kafka 1.1.1) of {len(rehearsal.applications)} groups start; ZooKeeper coordinates them")
    spark.bootstrap = rehearsal.cluster.bootstrap
    teller.say(f"DAG {rehearsal.consumers_dag} begins; {HOW_IT_RUNS}")
    groups = rehearsal.move_groups(tell=teller.line)
    teller.say(f"DAG run: {groups['state']}")
    if groups["state"] != "success":
        raise Failed(f"the old consumers could not be moved; the tasks' logs: {rehearsal.dag_log}")
    teller.say("a Spark streaming job starts, and reads a topic from its beginning")
    spark.start_stream()
    spark.wait_streaming()
    spark.ask(plan, workload.events)  # not beside the consumers' move: on two cores that takes both longer than one by one
    rolled_back = _roll_back(rehearsal, spark, teller) if rollback else None
    teller.say(
        f"DAG {rehearsal.dag_id} begins, {HOW_IT_RUNS}, approved in its conf; Spark's audits and the hold of the streaming job are tasks of it"
    )
    dag = rehearsal.migrate(tell=teller.line)
    teller.say(f"DAG run: {dag['state']}; stopping the load; the judge reads every replica; the streaming job takes in the rest")
    cutover = {**rehearsal.account_of_jvm(jvm)._asdict(), "pause_s": pause_of_cutover(rehearsal.journal())}
    account = rehearsal.account()
    stalls = stalls_by_act(slow_records(workload), rehearsal.journal())
    summary = summarise(account, dag) | {"stalls": stalls, "groups_state": groups["state"], "groups_seconds": groups["seconds"]}
    add_cutover(summary, cutover)
    if rolled_back is not None:
        summary["rollback"] = rolled_back | {"lost": summary["lost"]}
        summary["verdict"] = _worst(summary["verdict"], rolled_back["verdict"])
    add_spark(summary, plan.shape.name, spark, workload)
    (rehearsal.folder / "summary.json").write_text(json.dumps(summary, indent=1))
    print(table(summary, rehearsal))
    return 0 if summary["verdict"] == "PASS" else 1


def _roll_back(rehearsal: Rehearsal, spark: SparkSide, teller: Teller) -> dict[str, Any]:
    """The rollback's part of `summary.json`; lost records are counted over the whole demo."""
    teller.say(f"an Airflow with a scheduler starts; DAG {rehearsal.dag_id} runs to its request for approval")
    teller.say(f"the approver answers Roll back, which starts DAG {rehearsal.rollback_dag}, with its audit")
    run = roll_back_by_answer(rehearsal, teller.line)
    teller.say(
        f"DAG runs: migration {run['asked']}, then {run['migration']['state']}, rollback {run['state']}; that Airflow has ended"
    )
    found: dict[str, Any] = {"outcome": "INCONCLUSIVE", "headline": "Spark gave no verdict.", "levels": {}, "report": None}
    with suppress(KMigrateError):
        found = spark.verdict(rehearsal.cluster.plan.shape.name, "after_rollback")
    ended = (run["asked"], run["migration"]["state"], run["state"]) == ("parked", "success", "success")
    verdict = found["outcome"] if ended else _worst("FAIL", found["outcome"])
    audit = {"spark_headline": found["headline"], "spark_levels": found["levels"], "report": found["report"]}
    return {"verdict": verdict, "dag_state": run["state"], "dag_seconds": run["seconds"], "phases": run["phases"], **audit}


def summarise(account: Account, dag: dict[str, Any]) -> dict[str, Any]:
    """What `summary.json` holds. The verdict is PASS only for a run that succeeded, a complete ledger without a fault, and the judge's yes."""
    seen = account.summary()
    verdict = _worst("PASS" if dag["state"] == "success" else "FAIL", seen["verdict"].upper(), _judged(account))
    keys = (
        "lost",
        "unseen",
        "complete",
        "duplicated",
        "reordered",
        "acked",
        "longest_stall_ms",
        "p999_ms",
        "stalled_record_s",
        "longest_delivery_gap_ms",
    )
    return {
        "verdict": verdict,
        **{key: seen[key] for key in keys},
        "run_by": "dag.test",
        "dag_state": dag["state"],
        "dag_seconds": dag["seconds"],
        "tool_peak_mib": dag["peak_mib"],
        "phases": dag["phases"],
        "failed_tasks": [task for task, state in dag["tasks"].items() if state not in {"success", "skipped"}],
        "reasons": seen["failures"],
        "violations": seen["violations"],
        "judge": seen["judge"],
    }


def add_cutover(summary: dict[str, Any], cutover: dict[str, Any]) -> None:
    """What the JVM application says of itself: nothing lost or skipped, and nothing twice but what it had not committed; else it spoils the verdict."""
    is_good = cutover["acked"] and not cutover["lost"] and cutover["repeated"] <= cutover["uncommitted"]
    summary["cutover"] = cutover
    summary["verdict"] = _worst(summary["verdict"], "PASS" if is_good else "FAIL")


def _judged(account: Account) -> str:
    """FAIL for what anybody found, INCONCLUSIVE for what anybody could not tell."""
    if account.judged.problems:
        return "FAIL"
    return "INCONCLUSIVE" if account.failures else "PASS"


def add_spark(summary: dict[str, Any], cluster: str, spark: SparkSide, workload: Workload) -> None:
    """Spark's last verdict, and the streaming job's sink against the acknowledged records of its topic; each may spoil the verdict.

    Where Spark could not say anything it is INCONCLUSIVE, for the reason in `reasons`.
    """
    verdict: dict[str, Any] = {"outcome": "INCONCLUSIVE", "headline": "Spark gave no verdict.", "levels": {}, "report": None}
    sink: dict[str, int | None] = {"records": None, "distinct": None}
    for store, read in ((sink, spark.end_stream), (verdict, partial(spark.verdict, cluster, LAST_GATE))):
        try:
            store.update(read())
        except KMigrateError as error:
            summary["reasons"] = [*summary["reasons"], str(error)]
    expected = sum(
        event.count for event in workload.read_all_events().events if isinstance(event, Ack) and event.topic == spark.streamed
    )
    summary |= {
        "spark_verdict": verdict["outcome"],
        "spark_headline": verdict["headline"],
        "spark_levels": verdict["levels"],
        "spark_sink_records": sink["records"],
        "spark_sink_distinct": sink["distinct"],
        "spark_sink_expected": expected,
        "report": verdict["report"],
    }
    exact = sink["records"] == sink["distinct"] == expected
    summary["verdict"] = _worst(summary["verdict"], verdict["outcome"], "PASS" if exact else "FAIL")


def _worst(*found: str) -> str:
    return next((outcome for outcome in ("FAIL", "INCONCLUSIVE") if outcome in found), "PASS")


def table(summary: dict[str, Any], rehearsal: Rehearsal) -> str:
    """The end of the demo, for people."""
    rows = [f"  {phase['name']:<18}{phase['seconds']:>8.1f} s" for phase in summary["phases"]]
    stalls = [
        f"  {row['step']:<28}{row['longest_ms']:>9.0f} ms{row['over_100ms_record_s']:>10.1f} record-s"
        for row in summary["stalls"]
    ]
    return "\n".join(
        [
            "",
            f"phase                 time ({HOW_IT_RUNS})",
            *rows,
            f"  {'the whole DAG':<18}{summary['dag_seconds']:>8.1f} s",
            f"  {'consumers before':<18}{summary['groups_seconds']:>8.1f} s",
            "",
            "longest produce stall after each act (acks=all), and time above 100 ms",
            *stalls,
            "",
            f"  acked {summary['acked']}, lost {summary['lost']}, duplicated {summary['duplicated']}, out of order {summary['reordered']}",
            f"  longest produce stall {summary['longest_stall_ms']} ms, p99.9 {summary['p999_ms']} ms",
            f"  longest delivery gap {summary['longest_delivery_gap_ms']} ms",
            f"  a judge without kmigrate's code: {_says(summary['judge'])}",
            f"  a Spark streaming job's sink: {summary['spark_sink_records']} records, acked {summary['spark_sink_expected']}",
            f"  {_say_cutover(summary['cutover'])}",
            *[f"  {reason}" for reason in summary["reasons"]],
            *([f"  tasks that did not succeed: {', '.join(summary['failed_tasks'])}"] if summary["failed_tasks"] else []),
            "",
            *_rollback_rows(summary.get("rollback")),
            f"  Spark: {summary['spark_headline']}",
            f"  evidence: {', '.join(f'{level} {outcome}' for level, outcome in summary['spark_levels'].items())}",
            f"  verdict: {summary['verdict']}",
            "",
            "where to look next",
            f"  {summary['report']}: the report, in a browser",
            f"  {rehearsal.folder / 'summary.json'}: these figures",
            f"  {rehearsal.journal_folder}: what was seen, decided and done, with the evidence of each act",
            f"  {rehearsal.dag_log}: the tasks' logs",
            f"  {rehearsal.cluster.folder}: the nodes' files and logs",
            "  make airflow: the same DAG in Airflow's pages",
        ]
    )


def _say_cutover(cutover: dict[str, Any]) -> str:
    counts = ", ".join(f"{cutover[key]} {key}" for key in ("lost", "skipped", "repeated"))
    return f"a JVM application, cut over with a pause of {cutover['pause_s']} s: {cutover['acked']} records acked; by its own log {counts}"


def _says(judge: dict[str, Any]) -> str:
    said = "each in every replica's log and read once, both sides equal" if judge["is_good"] else "NOT GOOD, see below"
    return f"{judge['acknowledged']} records acknowledged; {said}"


def _rollback_rows(rolled_back: dict[str, Any] | None) -> list[str]:
    if rolled_back is None:
        return []
    return [
        f"  rollback before it: {rolled_back['verdict']} in {rolled_back['dag_seconds']:.1f} s; {rolled_back['spark_headline']}",
        f"  its report: {rolled_back['report']}",
        "",
    ]


if __name__ == "__main__":
    sys.exit(main())
