"""Step-by-step build of a dataset from its raw files. A killed build repeats at most the steps that were running."""

import hashlib
import shutil
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from ...runner.core.errors import DataError
from ..download import manifest
from ..download.manifest import Entry, Manifest
from ..download.worker_pool import ByteCounter, WorkerPool


class BuildStep(NamedTuple):
    """A step whose output becomes part of the dataset.

    `build(folder, count)` writes into a new folder, whose content is then moved to `subfolder` of the dataset. Names of
    steps are unique within the dataset.
    """

    name: str
    build: Callable[[Path, ByteCounter], None]
    subfolder: str = ""


class DatasetBuilder:
    """Builds a dataset in the hidden `folder`: its files in `dataset/`, the manifests of completed steps in `steps/`.

    `count` is called with the number of bytes processed and raises `Stopped` if the build is to stop.
    """

    def __init__(self, folder: Path, pool: WorkerPool, count: ByteCounter) -> None:
        self.pool, self._folder, self._count = pool, folder, count
        self._dataset, self._steps = folder / "dataset", folder / "steps"
        if not self._dataset.exists():  # new, or killed after publishing a dataset that was deleted since
            shutil.rmtree(self._steps, ignore_errors=True)
            self._dataset.mkdir(parents=True)

    def run(self, steps: Sequence[BuildStep]) -> None:
        """Run the steps that are not yet complete, several at a time."""
        self.pool.run(partial(self._run_step, step) for step in steps)

    def entries(self) -> list[Entry]:
        """Return the entries of all files of the completed steps."""
        paths = sorted(path for path in self._steps.glob("*") if path.suffix != ".part")
        return [
            entry for path in paths for entry in manifest.parse(path.read_text(encoding="utf-8"), str(path)).entries
        ]

    def publish(self, target: Path, metadata: Mapping[str, Any], outputs: Mapping[str, str | None]) -> None:
        """Rename the built dataset, with its manifest, to `target` and remove the builder's folder.

        Raises `DataError` if one of the `outputs` is missing or differs from its md5, or if a file is not what its
        step wrote.
        """
        dataset_manifest = Manifest(dict(metadata), self.entries())
        for fault in manifest.find_size_faults(self._dataset, dataset_manifest):
            raise DataError(f"{fault.removesuffix('.')} after it was built: remove {self._folder} and prepare again.")
        for path, md5 in outputs.items():
            if not (self._dataset / path).exists():
                raise DataError(f"The raw files do not contain {target / path}: they are another version.")
            if md5 and hashlib.md5((self._dataset / path).read_bytes()).hexdigest() != md5:
                raise DataError(f"{target / path} does not have the md5 {md5}: the raw files are another version.")
        manifest.write_text(self._dataset / manifest.FILE_NAME, dataset_manifest.to_text())
        self._dataset.rename(target)
        shutil.rmtree(self._folder)

    def _run_step(self, step: BuildStep) -> None:
        step_manifest = self._steps / step.name
        if step_manifest.exists():
            return
        new = self._folder / f"{step.name}.new"
        shutil.rmtree(new, ignore_errors=True)
        new.mkdir()
        step.build(new, self._count)
        entries = manifest.hash_tree(new, lambda _: self._count(0))
        destination = self._dataset / step.subfolder
        destination.mkdir(parents=True, exist_ok=True)
        for path in sorted(new.iterdir()):
            target = destination / path.name
            if target.is_dir():  # of an attempt that was killed before its manifest was written
                shutil.rmtree(target)
            path.replace(target)
        new.rmdir()
        placed = [entry._replace(path=str(Path(step.subfolder, entry.path))) for entry in entries]
        manifest.write_text(step_manifest, Manifest({"step": step.name}, placed).to_text())
