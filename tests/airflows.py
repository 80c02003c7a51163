"""kmigrate on each older release of Airflow that setup.cfg admits: `python -m tests.airflows` (`make airflows`).

For each it makes an environment below `build/airflows`, installs that Airflow, then the wheel of this checkout, compares what was installed before
and after (kmigrate may replace no package of Airflow), and runs `tests.airflow_rehearsal` in it. Ends with 1 if a release fails.

Airflow's own constraints are on a host that not every machine reaches. So pip resolves alone, and `HELD` names what is too new for a release.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
BUILD = ROOT / "build" / "airflows"
HELD = {
    "3.1.8": ("fastapi<0.118",),
    "3.2.2": ("cadwyn<7", "fastapi<0.137", "pydantic<2.14", "starlette<1.1"),
}
"""Each release, and what its own code does not run with (seen 2026-12-01: Airflow 3.2.2 with pydantic 2.14 and fastapi 0.165)."""
MINUTES = 30


def run(*words: object, timeout_minutes: float = MINUTES, **options: object) -> str:
    """The output of a command. Raises `CalledProcessError`."""
    argv = [str(word) for word in words]
    return subprocess.run(
        argv, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True, timeout=60 * timeout_minutes, **options
    ).stdout  # type: ignore[call-overload]


def list_replaced(before: str, after: str) -> list[str]:
    """The packages that two outputs of `pip freeze` have in different versions, or that the second one lacks."""
    versions = [dict(re.findall(r"^([^=\s]+)==(\S+)$", text, re.MULTILINE)) for text in (before, after)]
    return sorted(
        f"{name} {version} -> {versions[1].get(name)}"
        for name, version in versions[0].items()
        if versions[1].get(name) != version
    )


def check_release(release: str, wheel: Path) -> Iterator[str]:
    """What was seen, a line at a time. Raises `CalledProcessError`, and `AssertionError` if a package was replaced."""
    folder = BUILD / release
    run(sys.executable, "-m", "venv", folder)
    pip = (folder / "bin" / "pip", "--disable-pip-version-check", "--quiet")
    run(*pip, "install", f"apache-airflow=={release}", *HELD[release])
    before = run(folder / "bin" / "pip", "freeze", "--exclude", "airflow-provider-kmigrate")
    run(*pip, "install", "--force-reinstall", "--no-deps", wheel)
    run(*pip, "install", wheel)
    after = run(folder / "bin" / "pip", "freeze")
    assert not list_replaced(before, after), list_replaced(before, after)
    yield f"installed beside Airflow {release}; no package replaced"
    output = run(folder / "bin" / "python", "-m", "tests.airflow_rehearsal", stderr=subprocess.STDOUT)
    (BUILD / f"{release}.log").write_text(output, encoding="utf-8")
    yield from (
        line for line in output.splitlines() if re.match(r"(Airflow|modules|provider|migrated:|approved|DAGs|tasks) ", line)
    )


def build_wheel() -> Path:
    """The wheel of this checkout."""
    run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", BUILD, ROOT)
    [wheel] = BUILD.glob("airflow_provider_kmigrate-*.whl")
    return wheel


def main() -> int:
    """Prints what was seen of each release."""
    parser = argparse.ArgumentParser(prog="python -m tests.airflows", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("releases", nargs="*", default=list(HELD), metavar="RELEASE", help=f"of {', '.join(HELD)}; all")
    wheel, failed = build_wheel(), list[str]()
    for release in parser.parse_args().releases:
        try:
            for line in check_release(release, wheel):
                print(line, flush=True)
        except (subprocess.SubprocessError, AssertionError) as error:
            failed.append(release)
            print(f"Airflow {release} FAILED: {error}\n{str(getattr(error, 'output', '') or '')[-4000:]}", flush=True)
    print(f"failed: {', '.join(failed)}" if failed else "kmigrate runs on each of them")
    return bool(failed)


if __name__ == "__main__":
    raise SystemExit(main())
