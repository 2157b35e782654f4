"""SSD's crops against a slow oracle that draws the same numbers."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest

from timetrial.workloads.ssd.crops import crop

spec = importlib.util.spec_from_file_location("ssd_oracle", Path(__file__).with_name("oracle.py"))
oracle = importlib.util.module_from_spec(spec)
spec.loader.exec_module(oracle)


def draw(random, count):
    low = random.uniform(0, 0.8, (count, 2))
    return np.concatenate([low, np.minimum(low + random.uniform(0.05, 0.6, (count, 2)), 1.0)], 1)


@pytest.mark.parametrize("attempts", [1, 50])
def test_crops_are_those_of_the_reference(attempts):
    random, whole = np.random.default_rng(1), 0
    for seed in range(400):
        boxes = draw(random, int(random.integers(1, 5)))
        part, numbers, kept = crop(boxes, np.random.default_rng(seed), attempts)
        labels = np.arange(len(boxes))
        right, _, expected, chosen = oracle.crop(640, 480, boxes, labels, np.random.default_rng(seed), attempts)
        np.testing.assert_allclose(part, right, atol=1e-12)
        assert numbers.tolist() == list(chosen)
        np.testing.assert_allclose(kept, expected, atol=1e-12)
        whole += part == (0.0, 0.0, 1.0, 1.0)
    assert 0.1 < whole / 400 < 0.6


def test_image_without_boxes_is_taken_whole():
    part, numbers, kept = crop(np.zeros((0, 4)), np.random.default_rng(1), 1)
    assert part == (0.0, 0.0, 1.0, 1.0)
    assert (len(numbers), kept.shape) == (0, (0, 4))
