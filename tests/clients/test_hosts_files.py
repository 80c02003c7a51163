"""Files are replaced whole, keep their bytes, their owner and their past."""

import stat
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider_kmigrate.clients.hosts import files
from airflow_provider_kmigrate.core.cluster import HostSpec, NodeRole, NodeSpec
from airflow_provider_kmigrate.exceptions import Failed


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def node(properties: Path, log_dir: str | None = None) -> NodeSpec:
    return NodeSpec(3000, NodeRole.CONTROLLER, "h", 9093, HostSpec("local", str(properties)), log_dir=log_dir)


def test_a_new_file_is_for_its_owner_only(tmp_path: Path) -> None:
    assert files.put(tmp_path / "deep" / "server.properties", "a=1\n") == files.sha256("a=1\n")
    assert mode(tmp_path / "deep" / "server.properties") == 0o600


def test_the_replaced_file_stays_beside_the_new_one(tmp_path: Path) -> None:
    path = tmp_path / "server.properties"
    old = files.put(path, "a=1\n")
    files.put(path, "a=2\n")
    assert path.read_text() == "a=2\n"
    assert Path(f"{path}.{old[:12]}.bak").read_text() == "a=1\n"
    assert {found.name for found in tmp_path.iterdir()} == {path.name, f"{path.name}.{old[:12]}.bak"}


def test_a_repeated_put_writes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "server.properties"
    files.put(path, "a=1\n")
    before = path.stat()
    files.put(path, "a=1\n")
    assert path.stat() == before
    assert list(tmp_path.iterdir()) == [path]


def test_a_replaced_file_stays_readable_for_the_service_that_reads_it(tmp_path: Path) -> None:
    path = tmp_path / "server.properties"
    path.write_text("a=1\n")
    path.chmod(0o640)
    files.put(path, "a=2\n")
    assert mode(path) == 0o640


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    real, link = tmp_path / "real.properties", tmp_path / "server.properties"
    real.write_text("a=1\n")
    link.symlink_to(real)
    files.put(link, "a=2\n")
    assert link.is_symlink()
    assert real.read_text() == "a=2\n"


@settings(max_examples=50)
@given(st.binary(max_size=200))
def test_every_byte_survives(data: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "server.properties"
        path.write_bytes(data)
        text = files.read(str(path))
        assert text is not None
        files.put(path.with_name("copy"), text)
        assert path.with_name("copy").read_bytes() == data


def test_a_text_that_java_would_misread_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(Failed):
        files.put(tmp_path / "server.properties", "password=\u20ac")
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_cannot_be_written_leaves_no_traces(tmp_path: Path) -> None:
    (tmp_path / "server.properties").mkdir()
    with pytest.raises(Failed):
        files.put(tmp_path / "server.properties", "a=1\n")
    assert [path.name for path in tmp_path.iterdir()] == ["server.properties"]


@pytest.mark.parametrize(
    ("keys", "dirs"),
    [
        ({"log.dirs": "/a, /b ,/a"}, ("/a", "/b")),
        ({"log.dir": "/a"}, ("/a",)),
        ({"log.dir": "/a", "log.dirs": "/b"}, ("/b",)),
        ({"log.dirs": "/a", "metadata.log.dir": "/m"}, ("/a", "/m")),
        ({"metadata.log.dir": "/m"}, ("/tmp/kafka-logs", "/m")),
        ({}, ("/tmp/kafka-logs",)),
        (None, ("/ctl",)),
    ],
)
def test_log_directories_are_found_as_kafka_finds_them(keys: dict[str, str] | None, dirs: tuple[str, ...]) -> None:
    assert files.log_dirs(node(Path("/x"), log_dir="/ctl"), keys) == dirs


def test_an_untouched_controller_has_no_properties_and_an_unformatted_directory(tmp_path: Path) -> None:
    seen = files.read_files(node(tmp_path / "server.properties", log_dir=f"{tmp_path}/data"))
    assert seen.properties is None
    assert seen.meta == {f"{tmp_path}/data": {}}
    assert seen.has_metadata_log is False


def test_meta_properties_and_the_metadata_log_are_seen(tmp_path: Path) -> None:
    (tmp_path / "data" / "__cluster_metadata-0").mkdir(parents=True)
    (tmp_path / "data" / "__cluster_metadata-0" / "quorum-state").write_text("{}")
    (tmp_path / "data" / "meta.properties").write_text("#comment\nversion=1\ncluster.id=-x\nnode.id=3000\n")
    path = tmp_path / "server.properties"
    path.write_text(f"node.id=3000\nlog.dirs={tmp_path}/data")
    seen = files.read_files(node(path))
    assert seen.meta == {f"{tmp_path}/data": {"version": "1", "cluster.id": "-x", "node.id": "3000"}}
    assert seen.has_metadata_log is True


def test_what_cannot_be_read_is_not_absent(tmp_path: Path) -> None:
    (tmp_path / "server.properties").mkdir()
    with pytest.raises(Failed):
        files.read_files(node(tmp_path / "server.properties"))


def test_the_tail_of_a_long_log_is_its_end(tmp_path: Path) -> None:
    log = tmp_path / "node.log"
    log.write_bytes(b"".join(b"line %d\n" % number for number in range(50_000)) + b"\xff last\n")
    assert files.tail(log, 2).splitlines() == [f"the end of {log}:", "line 49999", "\ufffd last"]
    assert files.tail(tmp_path / "none", 2) == ""
    assert log.stat().st_size > 65_536
