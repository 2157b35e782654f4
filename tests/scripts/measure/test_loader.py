"""The measurement of reading processes."""

import pytest


@pytest.mark.integration
def test_images_a_second_are_printed(measure, few_images):
    result = measure("loader.py", "--batches", "3", "workload=resnet50", *few_images, "recipe.data.workers=1")
    assert result["workers"] == 1
    assert min(result[name] for name in ("images_per_second", "rank_ms_per_batch", "start_ms_per_worker")) > 0


@pytest.mark.integration
def test_a_workload_without_images_is_refused(start):
    done = start("loader.py", "workload=ncf")
    assert (done.returncode, done.stderr.splitlines()[-1][-27:]) == (2, "The workload has no images.")
