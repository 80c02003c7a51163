"""kmigrate on each older release of Airflow that it admits, on the lowest of all bounds at once, and by later Pythons: `python -m tests.airflows` (`make airflows`).

For each it makes an environment below `build/airflows`, installs that Airflow with what was there on a day soon after its release, then by pip the
wheel of this checkout with the extra `ssh`, compares what was installed before and after (kmigrate may replace no package of Airflow), and runs `tests.airflow_rehearsal`
in it. With `--scheduler` it then runs `tests.system.on_scheduler` on it: a real scheduler and real brokers. Ends with 1 if one fails.

Airflow's own constraints are on a host that not every machine reaches; `uv` resolves as on that day, by the registry's times of upload.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from configparser import ConfigParser
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
BUILD = ROOT / "build" / "airflows"
UV = BUILD / "uv" / "bin" / "uv"
DAYS = {"3.1.8": "2026-04-01", "3.2.2": "2026-06-01", "3.3.0": "2026-08-01"}
"""Each release, and the day whose packages it gets: the newest of later days are too new for its code (seen: 3.2.2 with pydantic 2.14)."""
NEWEST = "3.3.2"
LOWEST = "3.1.8"
NAME = "airflow-provider-kmigrate"
PYTHONS = ("3.12", "3.13")
"""Later than the 3.11 of all other tests. Each gets the newest Airflow with the versions of this checkout's own tests."""
MINUTES = 30


@dataclass(frozen=True)
class Environment:
    """An Airflow, the minor of Python that runs it, and further arguments of `uv pip install`."""

    name: str
    release: str
    python: str
    arguments: tuple[str, ...]


def read_requirements(*extras: str) -> list[str]:
    """Of this checkout, as its users get them."""
    setup = ConfigParser()
    setup.read(ROOT / "setup.cfg")
    lists = setup["options"]["install_requires"], *(setup["options.extras_require"][extra] for extra in extras)
    return [line for text in lists for line in text.splitlines() if line]


def list_environments() -> list[Environment]:
    """Each older release with the packages of its days, the lowest of every bound at once, and each later Python."""
    lowest = ("--resolution", "lowest-direct", "--exclude-newer", DAYS["3.3.0"], *read_requirements("ssh", "spark", "sasl"))
    return [
        *(Environment(release, release, "3.11", ("--exclude-newer", day)) for release, day in DAYS.items()),
        Environment("lowest-bounds", LOWEST, "3.11", lowest),
        *(
            Environment(f"{NEWEST}-python{python}", NEWEST, python, ("--constraint", str(ROOT / "constraints-3.11.txt")))
            for python in PYTHONS
        ),
    ]


def find_python(minor: str) -> str:
    """An interpreter of this minor of Python, of the search path or of pyenv; empty if there is none."""
    for candidate in (shutil.which(f"python{minor}"), *Path.home().glob(f".pyenv/versions/{minor}.*/bin/python{minor}")):
        if candidate and subprocess.run([candidate, "--version"], capture_output=True, check=False, timeout=60).returncode == 0:
            return str(candidate)
    return ""


def run(*words: object, timeout_minutes: float = MINUTES, **options: object) -> str:
    """The output of a command. Raises `CalledProcessError`."""
    argv = [str(word) for word in words]
    ended: subprocess.CompletedProcess[str] = subprocess.run(  # type: ignore[call-overload]
        argv, cwd=ROOT, check=True, text=True, timeout=60 * timeout_minutes, **{"stdout": subprocess.PIPE, **options}
    )
    return ended.stdout


def list_replaced(before: str, after: str) -> list[str]:
    """The packages that two outputs of `pip freeze` have in different versions, or that the second one lacks."""
    versions = [dict(re.findall(r"^([^=\s]+)==(\S+)$", text, re.MULTILINE)) for text in (before, after)]
    return sorted(
        f"{name} {version} -> {versions[1].get(name)}"
        for name, version in versions[0].items()
        if versions[1].get(name) != version
    )


def install(environment: Environment, python: str, wheel: Path) -> str:
    """Make the environment anew; returns what was seen. Raises `CalledProcessError`, and `AssertionError` if a package was replaced."""
    folder = BUILD / environment.name
    run(python, "-m", "venv", "--clear", folder)
    where = ("--python", folder / "bin" / "python", "--quiet")
    run(UV, "pip", "install", *where, f"apache-airflow=={environment.release}", *environment.arguments)
    pip = folder / "bin" / "pip"
    alone = os.environ | {"PYTHONPATH": ""}  # where pip finds this checkout, it installs nothing
    before, installed = run(pip, "freeze", env=alone), folder / "installed.txt"
    installed.write_text(before, encoding="utf-8")
    run(
        pip,
        "install",
        "--disable-pip-version-check",
        "--quiet",
        "--constraint",
        installed,
        f"{NAME}[ssh] @ {wheel.as_uri()}",
        env=alone,
    )
    after = run(pip, "freeze", env=alone)
    assert NAME in after
    assert not list_replaced(before, after), list_replaced(before, after)
    return f"installed beside Airflow {environment.release}; no package replaced"


def rehearse(environment: Environment) -> Iterator[str]:
    """What was seen of a simulated migration there, a line at a time. Raises `CalledProcessError`."""
    shown = BUILD / "tests_alone"  # the wheel is tried, not this checkout
    shown.mkdir(exist_ok=True)
    if not (shown / "tests").is_symlink():
        (shown / "tests").symlink_to(ROOT / "tests")
    python, alone = BUILD / environment.name / "bin" / "python", os.environ | {"PYTHONPATH": str(shown), "PYTHONSAFEPATH": "1"}
    output = run(python, "-m", "tests.airflow_rehearsal", stderr=subprocess.STDOUT, env=alone)
    (BUILD / f"{environment.name}.log").write_text(output, encoding="utf-8")
    yield from (
        line for line in output.splitlines() if re.match(r"(Airflow|modules|provider|migrated:|approved|DAGs|tasks) ", line)
    )


def check_on_scheduler(environment: Environment) -> Iterator[str]:
    """The same on a real scheduler with real brokers; its lines can be followed in a file. Raises `CalledProcessError`."""
    python, folder = BUILD / environment.name / "bin" / "python", BUILD / f"{environment.name}-scheduler"
    log = BUILD / f"{environment.name}-scheduler.log"
    print(f"a migration on a scheduler: {log.relative_to(ROOT)}", flush=True)
    with log.open("w", encoding="utf-8") as lines:
        argv = (sys.executable, "-u", "-m", "tests.system.on_scheduler", "--python", python, "--dir", folder)
        run(*argv, stdout=lines, stderr=subprocess.STDOUT)
    yield from (f"on a scheduler: {line}" for line in log.read_text(encoding="utf-8").splitlines())


def prepare() -> Path:
    """The wheel of this checkout, and `uv`."""
    run(sys.executable, "-m", "pip", "install", "--quiet", "--upgrade", "--target", BUILD / "uv", "uv")
    shutil.rmtree(ROOT / "build" / "lib", ignore_errors=True)  # setuptools packs what an earlier build left there
    run(UV, "build", "--quiet", "--wheel", "--out-dir", BUILD, ROOT)
    [wheel] = BUILD.glob("airflow_provider_kmigrate-*.whl")
    return wheel


def main() -> int:
    """Prints what was seen of each."""
    parser = argparse.ArgumentParser(prog="python -m tests.airflows", description=(__doc__ or "").split("\n")[0])
    environments = list_environments()
    names = [environment.name for environment in environments]
    parser.add_argument("names", nargs="*", default=names, metavar="NAME", help=f"of {', '.join(names)}; all")
    parser.add_argument("--scheduler", action="store_true", help="also on a real scheduler with real brokers (10 minutes each)")
    arguments, wheel, failed, absent = parser.parse_args(), prepare(), list[str](), list[str]()
    for environment in (environment for environment in environments if environment.name in arguments.names):
        if not (python := find_python(environment.python)):
            absent.append(environment.name)
            continue
        print(f"---- {environment.name}", flush=True)
        try:
            print(install(environment, python, wheel), flush=True)
            for check in (rehearse, check_on_scheduler) if arguments.scheduler else (rehearse,):
                for line in check(environment):
                    print(line, flush=True)
        except (subprocess.SubprocessError, AssertionError) as error:
            failed.append(environment.name)
            print(f"FAILED: {error}\n{str(getattr(error, 'output', '') or '')[-4000:]}", flush=True)
    if absent:
        print(f"not run, this machine has no such Python: {', '.join(absent)}")
    print(
        f"failed: {', '.join(failed)}" if failed else "kmigrate runs on each of the others" if absent else "kmigrate runs on each"
    )
    return bool(failed)


if __name__ == "__main__":
    raise SystemExit(main())
