"""The execution paths of a process, and of several runs."""

import pytest

from timetrial.runner.core import execution_paths
from timetrial.runner.core.execution_paths import fall_back, format_paths, merge_paths, take, taken


@pytest.fixture(autouse=True)
def _no_paths():
    execution_paths.forget()
    yield
    execution_paths.forget()


def test_a_path_that_some_of_a_part_takes_is_not_replaced_by_the_one_to_fall_back_on():
    fall_back("kernels", "PyTorch")
    assert taken() == {"kernels": "PyTorch"}
    take("kernels", "Triton")
    fall_back("kernels", "PyTorch")
    take("beam_search", "captured")
    assert format_paths(taken()) == "beam search captured, kernels Triton"


def test_runs_without_paths_are_unknown():
    assert format_paths({}) == "unknown"
    assert merge_paths([{}, {}]) == {}
    assert merge_paths([{"steps": "captured"}, {"steps": "captured"}]) == {"steps": "captured"}
    assert merge_paths([{"steps": "captured"}, {}]) == {"steps": "captured or unknown"}
