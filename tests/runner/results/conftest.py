"""Writes logs in every dialect, in the form of published code."""

import json

import pytest


class Writer:
    """Writes the lines of one log, with a clock that the test advances."""

    def __init__(self, path, dialect="v0.7", benchmark="resnet", prefix=""):
        self.path, self.dialect, self.benchmark, self.prefix = path, dialect, benchmark, prefix
        self.seconds, self.lines = 1_600_000_000.0, []
        if dialect != "v0.5":
            self("submission_benchmark", benchmark)

    def __call__(self, key, value=None, after=0.0, **metadata):
        self.seconds += after
        if self.dialect == "v0.7":
            entry = {"namespace": "", "time_ms": round(self.seconds * 1000), "event_type": "POINT_IN_TIME"}
            entry |= {"key": key, "value": value, "metadata": {"file": "a.py", "lineno": 1, **metadata}}
            line = f":::MLLOG {json.dumps(entry)}"
        elif self.dialect == "v0.6":
            line = f":::MLL {self.seconds:.3f} {key}: {json.dumps({'value': value, 'metadata': metadata})}"
        else:
            tail = "" if value is None else f": {json.dumps(value)}"
            line = f":::MLPv0.5.0 {self.benchmark} {self.seconds:.9f} (train.py:3) {key}{tail}"
        self.lines.append(self.prefix + line)
        return self

    def evaluate(self, label, value, after=100.0):
        if self.dialect == "v0.5":
            return self("eval_accuracy", {"epoch": label, "value": value}, after)
        return self("eval_accuracy", value, after, **({} if label is None else {"epoch_num": label}))

    def stop(self, status="success", after=1.0):
        if self.dialect == "v0.5":
            return self("run_stop", {"success": status == "success"}, after)
        return self("run_stop", None, after, status=status)

    def write(self, text=None):
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(text if text is not None else "\n".join(self.lines) + "\n")
        return self.path


@pytest.fixture
def log(tmp_path):
    """Return a function that creates a Writer: log("path/of/result_0.txt", dialect=..., benchmark=...)."""

    def create(name="result_0.txt", **options):
        return Writer(tmp_path / name, **options)

    return create


@pytest.fixture
def read():
    """Return a function that reads one file as a run: read(path, round_=..., benchmark=...)."""
    from timetrial.runner.results.parse.mllog import read_log
    from timetrial.runner.results.parse.run_reader import read_run

    def read_path(path, **location):
        return read_run(read_log(path), **location)

    return read_path


@pytest.fixture
def published(tmp_path):
    """Return a function that writes a published tree: runs of one system, of which the last `failed` fail."""

    def write(system_name, epochs, seconds_per_epoch, *, failed=0, batch=2048, rate=0.002, benchmark="gnmt", gpus=8):
        for number, count in enumerate([*epochs, *[8] * failed]):
            writer = Writer(
                tmp_path / f"tree/v0.7/Maker/{system_name}/{benchmark}/result_{number}.txt", benchmark=benchmark
            )
            writer("seed", 17 + number)("global_batch_size", batch)("opt_base_learning_rate", rate)("run_start")
            converges = number < len(epochs)
            for epoch in range(1, count + 1):
                writer("block_start", first_epoch_num=epoch, epoch_count=1)
                quality = 0.245 if converges and epoch == count else 0.2 + epoch / 1000
                writer.evaluate(epoch, quality, after=seconds_per_epoch + number / 100)
            writer.stop("success" if converges else "aborted", after=0.0).write()
        system = {"accelerator_model_name": "Tesla V100-SXM2-16GB", "accelerators_per_node": str(gpus)}
        folder = tmp_path / "tree/v0.7/Maker/systems"
        folder.mkdir(exist_ok=True)
        (folder / f"{system_name}.json").write_text(
            json.dumps(system | {"number_of_nodes": "1", "framework": "PyTorch"})
        )
        return tmp_path / "tree"

    return write
