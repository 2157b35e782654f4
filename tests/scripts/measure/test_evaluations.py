"""The measurement of evaluations, on the CPU, where no kernels are traced."""

import pytest


@pytest.mark.integration
def test_times_of_evaluations_are_printed(measure, tiny_ncf):
    result = measure("evaluations.py", *tiny_ncf)
    assert len(result["evaluation_s"]) == 4
    assert min(*result["evaluation_s"], result["without_score_s"]) > 0
