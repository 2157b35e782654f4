"""The stage that puts the data in place before any clock runs: stage, prepare, clear caches."""

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

from rich.console import Console

from ..config.schema import Config
from ..config.validation import resolve_classes
from ..core.atomic_files import file_errors_as_run_errors
from ..core.console import StatusLine
from ..core.errors import DataError
from ..core.progress import ProgressCallback
from ..record import data_fingerprint
from ..record.run_record import Staging
from . import data_check, page_cache, staging
from .open_run_dir import OpenRun


def prepare_data(run: OpenRun) -> None:
    """Stage and prepare what the data class needs on disk, then clear this node's page cache of it.

    Raises `DataError` if files of a fetched dataset are damaged, or are not those that the run began with.
    """
    config = run.config
    with file_errors_as_run_errors():
        data_check.check_datasets(config)
        if staged := stage_data(config, run.console):
            run.run_dir.update(lambda record: replace(record, staging=staged))
        _, data_class = resolve_classes(config)
        with StatusLine(run.console) as status_line:
            settings = staging.data_settings(config, data_class)
            data_class.prepare_data(settings, status_line)
            if config.data.loader != "synthetic":
                _print_notes(run.console, data_class.preparation_notes(settings))
                cache = Path(settings.cache_dir) if hasattr(settings, "cache_dir") else None
                digest = data_fingerprint.digest(data_class.prepared_content(settings), cache)
                run.run_dir.update(lambda record: replace(record, data_digest=digest))
            _check_same_data(run)
            clear_caches(config, status_line)


def _print_notes(console: Console, notes: Sequence[str]) -> None:
    for note in notes:
        console.print(note, style="yellow", soft_wrap=True, markup=False, highlight=False)


def _check_same_data(run: OpenRun) -> None:
    """Record the fingerprint of the data, or compare it with that of the attempt whose checkpoint is continued."""
    fingerprint = data_check.fingerprint_data(run.config)
    earlier = run.run_dir.record().data_fingerprint
    if run.run_dir.checkpoint.exists() and earlier not in (None, fingerprint):
        raise DataError(
            f"The data in {run.config.data_dir} have changed since {run.run_dir.path} began: restore them, or start "
            "over in a new run directory."
        )
    run.run_dir.update(lambda record: replace(record, data_fingerprint=fingerprint))


def stage_data(config: Config, console: Console) -> Staging | None:
    """Copy data to this node's `staging_dir`, if the run has one."""
    if config.staging_dir is None:
        return None
    return staging.stage(config.recipe.data, Path(config.data_dir), Path(config.staging_dir), console)


def clear_caches(config: Config, progress: ProgressCallback) -> None:
    """Clear this node's page cache of the data, if the run asks for it; the log then says so."""
    if config.clear_caches:
        progress("clearing the page cache", 0)
        settings = staging.data_settings(config, resolve_classes(config)[1])
        page_cache.clear_page_cache(page_cache.data_paths(asdict(settings)))
