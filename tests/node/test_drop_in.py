"""The drop-ins that `node install` offers: shown, written with the flag, removed; on a folder of units in the place of systemd's."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.node.machine import mounted
from tests.node.script_text import text

SHOWN = """\
TimeoutStopUSec=1min 30s
KillMode=control-group
KillSignal=15
SuccessExitStatus=
ExecStop={ path=/s ; argv[]=/opt/kafka/bin/kafka-server-stop.sh ; ignore_errors=no ; pid=0 ; status=0/0 }
"""
NEEDED = "[Service]\nTimeoutStopSec=600\nExecStop=\nSuccessExitStatus=143\n"

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="installs files of root's: needs root")


class Units:
    """The script's functions for drop-ins, and a systemd that shows what the test says."""

    def __init__(self, folder: Path, drop_in: str = "") -> None:
        self.folder, self.drop_in = folder, drop_in
        self.path = folder / "kafka.service.d" / "kmigrate.conf"
        self.shows(SHOWN)
        [program] = re.findall(r"unit\.py\" <<'END_OF_KMIGRATE_NODE'\n(.*?)END_OF", text(), re.DOTALL)
        (folder / "unit.py").write_text(program)

    def shows(self, shown: str, *drop_ins: Path) -> None:
        """What systemd has loaded, with these drop-ins."""
        (self.folder / "shown").write_text(f"{shown}DropInPaths={' '.join(map(str, drop_ins))}\n")

    def has(self, name: str, content: str) -> None:
        """A drop-in that is there before."""
        self.path.parent.mkdir(exist_ok=True)
        self.path.with_name(name).write_text(content)
        self.shows(SHOWN, self.path.with_name(name))

    def __call__(self, *, dry: bool = False) -> subprocess.CompletedProcess[str]:
        would = "'would write' removes='would remove'" if dry else "writes removes=removes"
        lines = (
            text().replace("/etc/systemd/system", str(self.folder)),
            f"work={self.folder} machine=m drop_in={self.drop_in} dry={'--dry-run' if dry else ''} units=' kafka.service:330'",
            f"writes={would}",
            'systemctl() { if [ "$1" = show ]; then cat "$work/shown"; else echo "$1" >>"$work/asked"; fi; }',
            "plan_drop_ins",
            "put_drop_ins",
        )
        return subprocess.run(["sh"], input="\n".join(lines), capture_output=True, text=True, timeout=10, check=False)

    def reloads(self) -> int:
        asked = self.folder / "asked"
        return asked.read_text().count("daemon-reload") if asked.exists() else 0


def test_a_drop_in_that_a_unit_needs_is_only_shown_without_the_flag(tmp_path: Path) -> None:
    units = Units(tmp_path)
    done = units()
    assert (done.returncode, done.stderr) == (0, "")
    assert "m: kafka.service needs a drop-in, which --drop-in write writes" in done.stdout
    assert "".join(f"{line.strip()}\n" for line in done.stdout.splitlines()[2:]) == NEEDED
    assert "would write" not in done.stdout, "without the flag there is nothing to do"
    assert (units.path.exists(), units.reloads()) == (False, 0)
    units.shows("TimeoutStopUSec=10min\n")
    assert units().stdout == ""


@needs_root
def test_a_drop_in_is_shown_then_written_and_not_a_second_time(tmp_path: Path) -> None:
    units = Units(tmp_path, "write")
    assert f"m: would write {units.path} (root, mode 0644)" in units(dry=True).stdout
    assert (units.path.exists(), units.reloads()) == (False, 0)
    units()
    assert (units.path.read_text().partition("\n")[2], units.reloads()) == (NEEDED, 1)
    units.shows("TimeoutStopUSec=10min\nSuccessExitStatus=143\n", units.path)
    again = units()
    assert (again.returncode, again.stdout) == (0, f"m: {units.path} is there\n"), again.stderr
    assert list(units.path.parent.iterdir()) == [units.path]


@needs_root
def test_a_drop_in_that_has_no_effect_is_an_error(tmp_path: Path) -> None:
    units = Units(tmp_path, "write")
    units.has("kmigrate.conf", "[Service]\nTimeoutStopSec=9\n")
    done = units()
    assert (done.returncode, units.path.read_text().partition("\n")[2]) == (1, NEEDED)
    assert "m: systemd does not take /" in done.stderr


@needs_root
@pytest.mark.parametrize(("name", "wins"), [("override.conf", True), ("10-limits.conf", False)])
def test_a_drop_in_of_others_that_would_win_is_named_before_anything_is_written(tmp_path: Path, name: str, wins: bool) -> None:
    units = Units(tmp_path, "write")
    units.has(name, "[Service]\nTimeoutStopSec=90\n")
    done = units(dry=True)
    assert (done.returncode, "would write" in done.stdout) == ((1, False) if wins else (0, True)), done.stderr
    said = f"Take it out there: {units.path.parent}/override.conf: TimeoutStopSec=90\nm: kafka.service gets no drop-in"
    assert (said in done.stderr) == wins


@needs_root
def test_a_disk_that_is_full_while_a_drop_in_is_written_leaves_the_old_one(tmp_path: Path) -> None:
    units = Units(tmp_path, "write")
    units.path.parent.mkdir()
    with mounted(units.path.parent, "size=8k"):
        old = "# by kmigrate\n[Service]\nTimeoutStopSec=700\n"
        units.has("kmigrate.conf", old)
        full = units.path.with_name("full")
        with contextlib.suppress(OSError), full.open("wb") as file:
            file.write(b"x" * 65536)
        done = units()
        assert done.returncode == 1, done.stdout
        assert "No space left on device" in done.stderr
        assert f"m: {units.path} could not be written, and is as it was." in done.stderr
        assert (units.path.read_text(), units.reloads()) == (old, 0)
        assert sorted(units.path.parent.iterdir()) == [full, units.path], "nothing half is left"
        full.unlink()
        assert (units().returncode, units.path.read_text().partition("\n")[2], units.reloads()) == (1, NEEDED, 1)


@needs_root
def test_a_drop_in_is_removed_alone(tmp_path: Path) -> None:
    units = Units(tmp_path, "remove")
    assert units().stdout == ""
    units.has("override.conf", "[Service]\nUser=k\n")
    units.has("kmigrate.conf", NEEDED)
    assert f"m: would remove {units.path}\n    [Service]" in units(dry=True).stdout
    assert units.path.exists()
    assert f"m: removes {units.path}" in units().stdout
    assert [left.name for left in units.path.parent.iterdir()] == ["override.conf"]
    assert units.reloads() == 1
