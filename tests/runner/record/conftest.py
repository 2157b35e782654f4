"""Telemetry written by hand."""

import pytest

from timetrial.runner.callbacks.telemetry import COLUMNS


@pytest.fixture
def write_samples(tmp_path):
    """write_samples(count, interval, device=..., **columns) appends rows and returns the run directory.

    The value of a column may be a function of the row's index. The last row is off the clock.
    """

    def write(count, interval=1.0, *, start=1000.0, device="0", source="NVML", phase="train", node=0, **columns):
        path = tmp_path / (f"telemetry_{node}.csv" if node else "telemetry.csv")
        is_new = not path.exists()
        with open(path, "a") as file:
            if is_new:
                file.write(",".join(COLUMNS) + "\n")
            for index in range(count):
                is_last = index == count - 1
                row = {"time": start + index * interval, "phase": "" if is_last else phase, "device": device}
                row |= {"source": source}
                row |= {name: value(index) if callable(value) else value for name, value in columns.items()}
                file.write(",".join(str(row.get(name, "")) for name in COLUMNS) + "\n")
        return tmp_path

    return write
