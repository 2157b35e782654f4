"""Synthetic ratings."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pandas as pd
import pytest

from timetrial.datasets.formats.movielens import read_ratings
from timetrial.datasets.synthetic.ratings import RatingsSpec, sample_interactions, write_ratings
from timetrial.datasets.synthetic.spec_digest import path_with_digest
from timetrial.runner.core.errors import DataError

SMALL = RatingsSpec(num_users=150, num_items=400, num_ratings=6000, num_clusters=5)


def test_writes_reproducible_movielens_csv(tmp_path):
    write_ratings(tmp_path / "one.csv", SMALL)
    write_ratings(tmp_path / "two.csv", SMALL)
    assert (tmp_path / "one.csv").read_bytes() == (tmp_path / "two.csv").read_bytes()
    frame = pd.read_csv(tmp_path / "one.csv")
    assert list(frame.columns) == ["userId", "movieId", "rating", "timestamp"]
    assert not frame.duplicated(["userId", "movieId"]).any()
    assert frame["rating"].between(0.5, 5).all()
    assert frame["timestamp"].is_unique
    assert len(list(tmp_path.iterdir())) == 2


def test_concurrent_writers_of_one_file(tmp_path):
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: write_ratings(tmp_path / "one.csv", SMALL), range(16)))
    assert [path.name for path in tmp_path.iterdir()] == ["one.csv"]


def test_number_of_ratings_per_user_and_in_total():
    users, _ = sample_interactions(SMALL, np.random.default_rng(1))
    counts = np.bincount(users, minlength=SMALL.num_users)
    assert counts.min() >= SMALL.min_ratings_per_user
    assert len(users) == pytest.approx(SMALL.num_ratings, rel=0.15)


def test_users_of_one_cluster_share_items():
    users, items = sample_interactions(
        RatingsSpec(num_users=300, num_items=500, num_ratings=12000, num_clusters=4, cluster_concentration=0.01),
        np.random.default_rng(1),
    )
    matrix = np.zeros((300, 500))
    matrix[users, items] = 1
    strengths = np.linalg.svd(matrix - matrix.mean(0), compute_uv=False)
    assert strengths[3] > 1.7 * strengths[4]  # four clusters stand out of the noise


def test_both_formats_of_movielens_hold_the_same_ratings(tmp_path):
    for name in ("ratings.csv", "ratings.dat"):
        write_ratings(tmp_path / name, SMALL)
    header, *lines = (tmp_path / "ratings.csv").read_text().splitlines()
    assert header == "userId,movieId,rating,timestamp"
    assert (tmp_path / "ratings.dat").read_text().splitlines() == [line.replace(",", "::") for line in lines]
    one, other = (read_ratings(tmp_path / name) for name in ("ratings.csv", "ratings.dat"))
    pd.testing.assert_frame_equal(one, other)


def test_other_specs_have_other_paths(tmp_path):
    paths = {path_with_digest(tmp_path / "ratings.csv", RatingsSpec(150, 400, 6000, 5, seed=seed)) for seed in (1, 2)}
    assert len(paths) == 2


def test_reports_unwritable_path(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match="name another place"):
        write_ratings(tmp_path / "file" / "ratings.csv", SMALL)
