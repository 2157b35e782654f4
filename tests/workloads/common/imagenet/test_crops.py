"""Crops of ImageNet: their limits, and their distribution beside that of the reference."""

import math
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as some
from scipy import stats

from timetrial.workloads.common.imagenet import crops

SIZES = some.integers(1, 700)
steady = settings(deadline=None, derandomize=True)


@steady
@given(SIZES, SIZES, some.floats(0.01, 1), some.integers(0, 2**32))
def test_random_crop_is_inside_the_image_and_within_area_and_aspect_limits(height, width, min_crop_area, seed):
    top, left, tall, wide = crops.random_crop_box(height, width, min_crop_area, np.random.default_rng(seed))
    assert 0 <= top <= top + tall <= height
    assert 0 <= left <= left + wide <= width
    if (tall, wide) != (height, width):
        # Edges are whole pixels: each is up to half a pixel off.
        assert (tall + 0.5) * (wide + 0.5) >= min_crop_area * height * width
        assert (wide + 0.5) / max(0.5, tall - 0.5) >= 0.75
        assert (wide - 0.5) / (tall + 0.5) <= 1.33


def test_random_crops_cover_all_heights_aspects_and_positions():
    generator = np.random.default_rng(1)
    boxes = np.array([crops.random_crop_box(1000, 1000, 0.1, generator) for _ in range(4000)])
    top, left, tall, wide = boxes.T
    area, aspect = tall * wide / 1e6, wide / tall
    assert area.min() == pytest.approx(0.1, abs=0.01)
    assert area.max() > 0.95
    assert aspect.min() == pytest.approx(0.75, abs=0.01)
    assert aspect.max() == pytest.approx(1.33, abs=0.01)
    for least, most in ((0.75, 0.85), (0.95, 1.05), (1.2, 1.33)):  # at each aspect heights are uniform over what fits
        middle = (least + most) / 2
        ends = math.sqrt(0.1 / middle) * 1000, min(1000, 1000 / middle, math.sqrt(1 / middle) * 1000)
        assert tall[(aspect > least) & (aspect < most)].mean() == pytest.approx(sum(ends) / 2, rel=0.03)
    assert (top[area < 0.4] / (1000 - tall[area < 0.4])).mean() == pytest.approx(0.5, abs=0.03)
    assert (left[area < 0.4] / (1000 - wide[area < 0.4])).mean() == pytest.approx(0.5, abs=0.03)


@pytest.mark.tensorflow
def test_random_crops_have_the_distribution_of_the_reference(tmp_path):
    """Against the operation that MLPerf's references call, with their arguments; in a process of its own."""
    code = """
import sys, numpy, torchvision
from timetrial.workloads.common.imagenet.tensorflow_import import tensorflow as tf
def one(number):
    arguments = dict(min_object_covered=0.1, aspect_ratio_range=(0.75, 1.33), area_range=(0.05, 1.0), max_attempts=100)
    begin, size, _ = tf.image.stateless_sample_distorted_bounding_box(
        (375, 500, 3), tf.zeros((1, 0, 4)), tf.stack([number, 1]), use_image_if_no_bounding_boxes=True, **arguments)
    return tf.concat([begin[:2], size[:2]], 0)
numpy.save(sys.argv[1], tf.function(lambda: tf.map_fn(one, tf.range(8000), fn_output_signature=tf.int32))().numpy())
"""
    subprocess.run([sys.executable, "-P", "-c", code, str(tmp_path / "boxes.npy")], check=True, timeout=200)
    generator = np.random.default_rng(1)
    ours = np.array([crops.random_crop_box(375, 500, 0.1, generator) for _ in range(8000)])
    theirs = np.load(tmp_path / "boxes.npy")
    for measure in (lambda box: box[:, 2] * box[:, 3], lambda box: box[:, 3] / box[:, 2], lambda box: box[:, 2]):
        assert stats.ks_2samp(measure(ours), measure(theirs)).statistic < 0.025  # a uniform area's: 0.09 to 0.13


@pytest.mark.parametrize(("height", "width"), [(10, 1000), (1000, 10), (1, 2)])
def test_image_that_no_crop_fits_is_taken_whole(height, width):
    assert crops.random_crop_box(height, width, 1.0, np.random.default_rng(1)) == (0, 0, height, width)


@steady
@given(some.integers(16, 3000), some.integers(16, 3000))
def test_center_crop_is_that_of_mlperf_after_its_resize(height, width):
    scale = 256 / min(height, width)  # the short side becomes 256
    scaled = round(height * scale), round(width * scale)
    expected = [(edge - 224) // 2 / scale for edge in scaled]
    top, left, tall, wide = crops.center_crop_box(height, width)
    assert tall == wide
    assert tall == pytest.approx(224 * min(height, width) / 256, abs=0.5)  # exact in floating point
    assert (top, left) == pytest.approx(expected, abs=1 + 1 / scale)
    assert min(top, left) >= 0
    assert top + tall <= height
    assert left + wide <= width


@steady
@given(SIZES, SIZES)
def test_center_crop_of_a_tiny_image_is_inside_it(height, width):
    top, left, tall, wide = crops.center_crop_box(height, width)
    assert 0 <= top < top + tall <= height
    assert 0 <= left < left + wide <= width
