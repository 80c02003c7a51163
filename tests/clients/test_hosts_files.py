"""Files of this machine keep every byte as they are read, and name their directories as Kafka finds them."""

import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider_kmigrate.clients.hosts import files
from airflow_provider_kmigrate.core.cluster_state.spec import HostSpec, NodeRole, NodeSpec
from airflow_provider_kmigrate.exceptions import Failed


def node(properties: Path, log_dir: str | None = None) -> NodeSpec:
    return NodeSpec(3000, NodeRole.CONTROLLER, "h", 9093, HostSpec("agent", str(properties)), log_dir=log_dir)


@settings(max_examples=50)
@given(st.binary(max_size=200))
def test_every_byte_survives(data: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "server.properties"
        path.write_bytes(data)
        text = files.read(str(path))
        assert text is not None
        assert text.encode(files.ENCODING) == data


def test_a_text_that_java_would_misread_has_no_hash() -> None:
    with pytest.raises(Failed, match="unless it is escaped"):
        files.sha256("password=\u20ac")


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


def test_what_cannot_be_read_is_not_absent(tmp_path: Path) -> None:
    with pytest.raises(Failed):
        files.read(str(tmp_path))
    assert files.read(str(tmp_path / "none")) is None
