"""The losses of training steps on one rank and on two."""

import pytest


@pytest.mark.integration
def test_two_ranks_have_the_losses_of_one(measure, tiny_ncf):
    one, two = (measure("losses.py", "--steps", "5", f"gpus={gpus}", *tiny_ncf) for gpus in (1, 2))
    assert (one["gpus"], two["gpus"]) == (1, 2)
    assert len(set(one["losses"])) == 5
    assert two["losses"] == pytest.approx(one["losses"], rel=1e-6)
