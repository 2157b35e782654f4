"""The measurement of whole runs, on the CPU."""

import pytest


@pytest.mark.integration
def test_runs_differ_by_their_seeds_and_the_first_is_that_of_a_single_run(measure, few_images):
    overrides = ["workload=cifar10", "accelerator=cpu", "accelerator.threads=1", "recipe.max_epochs=2", *few_images]
    two, one = (measure("runs.py", "--seeds", str(seeds), *overrides) for seeds in (2, 1))
    assert len(two["seconds"]) == len(two["accuracy"]) == 2
    assert two["accuracy"][0] == one["accuracy"][0]
    assert min(two["seconds"]) > 0


@pytest.mark.integration
def test_a_workload_without_images_is_refused(start, tiny_ncf):
    done = start("runs.py", *tiny_ncf)
    assert done.stderr.splitlines()[-1].startswith("Only workloads of images are timed")
