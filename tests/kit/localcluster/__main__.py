"""python -m tests.kit.localcluster prepare | up | status | down | snapshot | restore | clean"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import replace
from pathlib import Path

from airflow_provider_kmigrate.exceptions import KMigrateError
from tests.kit.localcluster import classes, jars, plan
from tests.kit.localcluster.cluster import DEFAULT_FOLDER, LocalCluster
from tests.kit.localcluster.plan import Shape

_FAILED, _NOT_RUNNING, _INTERRUPTED = 1, 3, 130  # 3: as systemctl says it


_VERBS = {
    "prepare": "download and record what the first `up` would miss",
    "up": "start whatever does not run",
    "status": "what runs",
    "down": "stop everything, keep the data",
    "snapshot": "stop everything, keep a copy of it as --snapshot NAME, go on",
    "restore": "stop everything, go on from that copy",
    "clean": "stop everything, remove the folder",
}


def main(argv: list[str] | None = None) -> int:
    """Exit code 0: done; 1: it failed and says why; 3: `status` found a node that should run and does not."""
    arguments = _parser().parse_args(argv)
    cluster = LocalCluster(arguments.dir)
    verbs = {
        "prepare": _prepare,
        "up": _up,
        "status": _status,
        "down": _down,
        "snapshot": _snapshot,
        "restore": _restore,
        "clean": _clean,
    }
    try:
        return verbs[arguments.verb](cluster, arguments)
    except KMigrateError as error:
        print(f"{arguments.verb} failed: {error}", file=sys.stderr)
        if arguments.verb == "up" and any(member.runs for member in cluster.status()):
            print(f"what did start still runs, its logs are {cluster.folder}/*/node.log; `down` stops it", file=sys.stderr)
        return _FAILED
    except KeyboardInterrupt:
        print(f"{arguments.verb} was interrupted; `down` stops whatever it started", file=sys.stderr)
        return _INTERRUPTED


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.kit.localcluster", description="A real Kafka cluster on this machine.")
    parser.add_argument("verb", choices=tuple(_VERBS), help="; ".join(f"{verb}: {text}" for verb, text in _VERBS.items()))
    parser.add_argument("--dir", type=Path, default=DEFAULT_FOLDER, help="where it lives (default: %(default)s)")
    parser.add_argument("--snapshot", metavar="NAME", default="snapshot", help="name of the copy (default: %(default)s)")
    shape = parser.add_argument_group("shape, for the first `up` only")
    shape.add_argument("--name", help="the cluster's name (demo)")
    shape.add_argument("--brokers", type=int, help="how many (3)")
    shape.add_argument("--racks", type=int, help="over how many racks the brokers go round, 0 for none (3)")
    shape.add_argument("--controllers", type=int, help="how many to prepare for the migration (3)")
    shape.add_argument("--zookeepers", type=int, help="servers of its ZooKeeper, 1 or 3 (1)")
    shape.add_argument("--chroot", help="ZooKeeper path below which Kafka lives, such as /kafka (none)")
    return parser


def _shape(cluster: LocalCluster, arguments: argparse.Namespace) -> Shape:
    """What there is already, changed by what was given: only a contradiction is refused."""
    given = {key: getattr(arguments, key) for key in ("name", "brokers", "racks", "controllers", "zookeepers", "chroot")}
    there = plan.load(cluster.folder)
    return replace(there.shape if there else Shape(), **{key: value for key, value in given.items() if value is not None})


def _prepare(_cluster: LocalCluster, _: argparse.Namespace) -> int:
    classes.prepare()
    print(f"ready to start; jars and class archives are in {jars.cache_folder()}")
    return 0


def _up(cluster: LocalCluster, arguments: argparse.Namespace) -> int:
    began = time.monotonic()
    found = cluster.up(_shape(cluster, arguments))
    print(f"cluster {found.shape.name} ({found.cluster_id}) serves after {time.monotonic() - began:.1f} s")
    _print_members(cluster)
    print(f"  ZooKeeper    {cluster.zookeeper}")
    print(f"  brokers      {cluster.bootstrap}")
    print(f"  cluster file {found.spec_path}")
    print(f"  connections  {found.connections_path}")
    print(next_steps(found))
    return 0


def next_steps(found: plan.Plan) -> str:
    """What can be typed now, in the folder in which `up` was."""
    python, folder, spec, connections = map(_typed, (Path(sys.executable), found.folder, found.spec_path, found.connections_path))
    command = Path(python).with_name("kmigrate")
    return f"""may it be migrated?
  {command} preflight {spec} --connections {connections}
migrate it: an Airflow with this package and the files of dags/ needs these two; `make airflow` does it all on a cluster of its own
  airflow connections import {connections}
  export AIRFLOW__KMIGRATE__CLUSTERS_FOLDER={found.spec_path.parent.absolute()}
stop it
  {python} -m tests.kit.localcluster down --dir {folder}"""


def _typed(path: Path) -> str:
    """As short as it can be typed here."""
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)


def _status(cluster: LocalCluster, _: argparse.Namespace) -> int:
    members = cluster.status()
    if not members:
        print(f"no local cluster in {cluster.folder}; `up` makes one")
        return _NOT_RUNNING
    _print_members(cluster)
    return 0 if all(member.runs for member in members if not member.name.startswith("controller")) else _NOT_RUNNING


def _down(cluster: LocalCluster, _: argparse.Namespace) -> int:
    if not plan.exists(cluster.folder):
        print(f"no local cluster in {cluster.folder}; --dir names another folder")
        return 0
    cluster.down()
    print(f"nothing of {cluster.folder} runs; its data and logs are kept, `up` continues, `clean` removes them")
    return 0


def _snapshot(cluster: LocalCluster, arguments: argparse.Namespace) -> int:
    cluster.snapshot(arguments.snapshot)
    return _up(cluster, arguments)


def _restore(cluster: LocalCluster, arguments: argparse.Namespace) -> int:
    cluster.restore(arguments.snapshot)
    return _up(cluster, arguments)


def _clean(cluster: LocalCluster, _: argparse.Namespace) -> int:
    cluster.clean()
    print(f"{cluster.folder} is gone")
    return 0


def _print_members(cluster: LocalCluster) -> None:
    for member in cluster.status():
        state = member.process.state if member.log.exists() else "prepared"  # a migration starts it
        pid = member.process.pid if member.runs else "-"
        print(f"  {member.name:<16} {state:<8} pid {pid!s:<8} port {member.port}  {member.log}")


if __name__ == "__main__":
    sys.exit(main())
