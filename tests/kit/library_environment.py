"""An environment of an application: Python, the library's project, and what its wheel asks for. No Airflow, no provider."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import distribution
from pathlib import Path

from packaging.requirements import Requirement

from tests.kit.library_wheel import PACKAGE, ROOT, library_requirements, write_project


def make_environment(folder: Path) -> Path:
    """The folder of packages of that environment."""
    write_project(folder)
    return _link_packages(folder)


def make_former_environment(folder: Path, commit: str) -> Path | None:
    """The same with the package as a commit has it; None if that is not in this checkout's history."""
    folder.mkdir(parents=True)
    made = subprocess.run(["git", "archive", commit, PACKAGE], cwd=ROOT, capture_output=True, timeout=60.0, check=False)
    if made.returncode:
        return None
    subprocess.run(["tar", "-x", "-C", str(folder)], input=made.stdout, timeout=60.0, check=True)
    return _link_packages(folder)


def _link_packages(folder: Path) -> Path:
    """What the library asks for, from this environment."""
    for requirement in library_requirements():
        package = distribution(Requirement(requirement).name)
        for top in {file.parts[0] for file in package.files or () if file.parts[0] != ".."}:
            link = folder / top
            if not link.exists():
                link.symlink_to(Path(str(package.locate_file(top))).resolve())
    return folder


def run_in(environment: Path, program: str, *arguments: str, timeout: float = 60.0) -> subprocess.CompletedProcess[str]:
    """Run a program as an application would: nothing but the environment and Python's own modules can be imported."""
    argv = command_in(environment, program, *arguments)
    return subprocess.run(argv, capture_output=True, text=True, timeout=timeout, check=False)


def command_in(environment: Path, program: str, *arguments: str) -> list[str]:
    """The command of `run_in`."""
    start = f"import sys; sys.path.append({str(environment)!r})\n"
    return [sys.executable, "-I", "-S", "-c", start + program, *arguments]
