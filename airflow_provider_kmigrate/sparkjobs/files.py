"""Files of a checkpoint, on this machine or through Hadoop's client, and a read-only view of a Structured Streaming checkpoint."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import unquote, urlsplit

from airflow_provider_kmigrate.core.model import Reason
from airflow_provider_kmigrate.core.spark import hold as spark_hold
from airflow_provider_kmigrate.core.spark.hold import Checkpoint
from airflow_provider_kmigrate.exceptions import Refused, Unavailable

_NOT_THERE = "java.io.FileNotFoundException"


class Files(Protocol):
    """Paths are absolute, or URIs. Raises `Unavailable` if the file system does not answer, `Refused` if it cannot be used."""

    def read(self, path: str) -> str | None:
        """The text; None if there is no such file."""

    def write(self, path: str, text: str) -> None:
        """Make or replace the file; readers see the old text or the new one, on object stores too. Makes its folder."""

    def delete(self, path: str) -> None:
        """Ensure that it is absent."""

    def names(self, folder: str) -> list[str]:
        """The names in a folder; empty if there is no such folder."""


def join(folder: str, *parts: str) -> str:
    """A path below a folder."""
    return "/".join([folder.rstrip("/"), *parts])


class LocalFiles:
    """Files of this machine, or of its mounts."""

    def read(self, path: str) -> str | None:
        found: str | None = _tried(path, lambda: _local(path).read_text(encoding="utf-8"), None)
        return found

    def write(self, path: str, text: str) -> None:
        _tried(path, lambda: self._replace(_local(path), text), None)

    def delete(self, path: str) -> None:
        _tried(path, lambda: _local(path).unlink(missing_ok=True), None)

    def names(self, folder: str) -> list[str]:
        found: list[str] = _tried(folder, lambda: os.listdir(_local(folder)), [])  # noqa: PTH208  # names, no paths
        return found

    def _replace(self, path: Path, text: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
        with temporary.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)


def _local(path: str) -> Path:
    parts = urlsplit(path)
    if parts.scheme not in {"", "file"}:
        raise Refused.because(Reason("J14", f"{path} is not a path on this machine."))
    return Path(unquote(parts.path) if parts.scheme else path)


def _tried(path: str, act: Callable[[], Any], missing: Any) -> Any:
    try:
        return act()
    except FileNotFoundError:
        return missing
    except OSError as error:
        raise Unavailable(f"{path}: {error.strerror or error}") from error


class HadoopFiles:
    """Any file system that the job's own Spark session can reach, by its own settings: HDFS, S3, GCS, ABFS, local files."""

    def __init__(self, spark: Any) -> None:
        if not hasattr(spark, "_jvm"):
            text = "A Spark Connect session does not reach the checkpoint's file system."
            raise Refused.because(Reason("J14", text))
        context = spark.sparkContext
        self._jvm, self._gateway, self._conf = context._jvm, context._gateway, context._jsc.hadoopConfiguration()  # noqa: SLF001  # pyspark has no public way

    def read(self, path: str) -> str | None:
        def text() -> str:
            stream = self._system(path).open(self._path(path))
            try:
                return str(self._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
            finally:
                stream.close()

        found: str | None = self._asked(path, text, None)
        return found

    def write(self, path: str, text: str) -> None:
        """A file beside it is renamed over it; object stores, which show a file only when it is whole, get it directly."""

        def replace() -> None:
            target = self._path(path)
            beside = self._jvm.org.apache.hadoop.fs.Path(target.getParent(), f".{target.getName()}.{uuid.uuid4().hex}.tmp")
            renames = urlsplit(target.toUri().toString()).scheme in {"", "file", "hdfs", "viewfs"}
            self._create(beside if renames else target, text)
            if renames:
                self._rename(beside, target)

        self._asked(path, replace, None)

    def _create(self, target: Any, text: str) -> None:
        stream = target.getFileSystem(self._conf).create(target, True)
        stream.write(bytearray(text.encode()))
        stream.close()

    def _rename(self, source: Any, target: Any) -> None:
        """Rename over the target: `FileSystem.rename` replaces nothing; `FileContext` does."""
        rename = self._jvm.org.apache.hadoop.fs.Options.Rename
        options = self._gateway.new_array(rename, 1)
        options[0] = rename.OVERWRITE
        self._jvm.org.apache.hadoop.fs.FileContext.getFileContext(target.toUri(), self._conf).rename(source, target, options)

    def delete(self, path: str) -> None:
        self._asked(path, lambda: self._system(path).delete(self._path(path), False), None)

    def names(self, folder: str) -> list[str]:
        found = self._asked(folder, lambda: self._system(folder).listStatus(self._path(folder)), [])
        return [entry.getPath().getName() for entry in found]

    def _path(self, path: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(path)

    def _system(self, path: str) -> Any:
        return self._path(path).getFileSystem(self._conf)

    def _asked(self, path: str, act: Callable[[], Any], missing: Any) -> Any:
        """Call py4j. Its errors are of several classes; what Java threw stands in their text."""
        try:
            return act()
        except Exception as error:
            if _NOT_THERE in str(error):
                return missing
            raise Unavailable(f"{path}: {str(error).splitlines()[0][:300]}") from error


def read_checkpoint(files: Files, folder: str) -> Checkpoint:
    """The checkpoint now; of a running query it may be one batch old. Raises `Refused` (J05) if it is no checkpoint."""
    committed = spark_hold.batch_numbers(files.names(join(folder, "commits")))
    planned = spark_hold.batch_numbers(files.names(join(folder, "offsets")))
    metadata = files.read(join(folder, "metadata"))
    newest = committed[-1] if committed else None
    text = None if newest is None else files.read(join(folder, "offsets", str(newest)))
    return Checkpoint(
        query=spark_hold.query_id(metadata) if metadata else None,
        planned=planned[-1] if planned else None,
        committed=newest,
        offsets=spark_hold.batch_offsets(text) if text else {},
    )
