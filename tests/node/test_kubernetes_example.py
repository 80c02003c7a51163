"""The guide's command for applications on Kubernetes: run as it is written, against a `kubectl` that keeps what it was asked."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from airflow_provider_kmigrate import spec
from tests.core.spec_text import GOOD

GUIDE = (Path(__file__).parents[2] / "docs" / "operators-guide.md").read_text(encoding="utf-8")
[SCRIPT] = re.findall(r"```sh\n(#!/bin/sh\n# invoices-on-kubernetes.*?)```", GUIDE, re.DOTALL)
ENTRIES = [entry for entry in re.findall(r"```yaml\n(groups:.*?)```", GUIDE, re.DOTALL) if "way: cutover" in entry]

# What is asked first: of the sets whose pods must be gone, and that they are gone; only then what starts.
STOP_OLD, STOP_NEW = "scale statefulset/invoices-old --replicas 0", "scale statefulset/invoices --replicas 0"
GONE_OLD = "get pod --selector app=invoices-old --output name"
GONE_NEW = "get pod --selector app=invoices --output name"
START_OLD, START_NEW = "scale statefulset/invoices-old --replicas 2", "scale statefulset/invoices --replicas 2"


def run(folder: Path, kind: str, fails: str = "nothing", pods_stay: int = 0) -> tuple[int, list[str]]:
    """The exit code, and what kubectl was asked; it fails at the first request that has `fails` in it, and shows a pod `pods_stay` times."""
    kubectl, script, asked = folder / "kubectl", folder / "invoices-on-kubernetes", folder / "asked"
    shows_pod = f'[ "$(grep -c "get pod" {asked})" -gt {pods_stay} ] || echo pod/invoices-0'
    kubectl.write_text(f'#!/bin/sh\necho "$*" >>{asked}\ncase "$*" in *"{fails}"*) exit 1 ;; *"get pod"*) {shows_pod} ;; esac\n')
    script.write_text(SCRIPT.replace("seq 120", "seq 5"))
    sleep = folder / "sleep"
    sleep.write_text("#!/bin/sh\n")
    for program in (kubectl, script, sleep):
        program.chmod(0o755)
    environment = {"PATH": f"{folder}:{os.environ['PATH']}"}
    code = subprocess.run([script, kind], env=environment, timeout=20, check=False, stderr=subprocess.DEVNULL).returncode
    lines = asked.read_text().splitlines() if asked.exists() else []
    assert all(line.startswith("--namespace billing --request-timeout 20s ") for line in lines)
    return code, [line.partition("20s ")[2] for line in lines]


@pytest.mark.parametrize(
    ("kind", "asked"),
    [
        ("stopped", [STOP_OLD, STOP_NEW, GONE_OLD, GONE_NEW]),
        ("zookeeper", [STOP_NEW, GONE_NEW, START_OLD]),
        ("kafka", [STOP_OLD, GONE_OLD, START_NEW]),
    ],
)
def test_each_kind_stops_and_waits_before_it_starts(tmp_path: Path, kind: str, asked: list[str]) -> None:
    assert run(tmp_path, kind) == (0, asked)


def test_it_waits_until_no_pod_is_left(tmp_path: Path) -> None:
    assert run(tmp_path, "kafka", pods_stay=3) == (0, [STOP_OLD, *[GONE_OLD] * 4, START_NEW])


def test_pods_that_stay_end_it(tmp_path: Path) -> None:
    code, asked = run(tmp_path, "kafka", pods_stay=1_000)
    assert (code, asked) == (1, [STOP_OLD, *[GONE_OLD] * 5])


@pytest.mark.parametrize("fails", ["replicas 0", "get pod"])
def test_nothing_starts_beside_pods_that_are_not_known_to_be_gone(tmp_path: Path, fails: str) -> None:
    code, asked = run(tmp_path, "kafka", fails)
    assert code != 0
    assert START_NEW not in asked


def test_an_unknown_kind_asks_nothing(tmp_path: Path) -> None:
    assert run(tmp_path, "migrating") == (2, [])


@pytest.mark.parametrize("entry", ENTRIES)
def test_the_entries_of_the_guide_are_cluster_files(entry: str) -> None:
    assert spec.loads(GOOD + entry).groups[0].instances


def test_the_guide_shows_a_command_units_and_kubernetes() -> None:
    assert ["{host}" in entry or "units:" in entry or "on-kubernetes {kind}" in entry for entry in ENTRIES] == [True] * 3
