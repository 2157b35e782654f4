"""The generated population."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pandas as pd
import pytest

from timetrial.datasets.synthetic.ratings import Tastes, draw_pairs, path_of, write_ratings
from timetrial.runner.core.errors import DataError

SMALL = Tastes(users=150, items=400, ratings=6000, tastes=5)


def test_the_file_has_movielens_form_and_repeats(tmp_path):
    write_ratings(tmp_path / "one.csv", SMALL)
    write_ratings(tmp_path / "two.csv", SMALL)
    assert (tmp_path / "one.csv").read_bytes() == (tmp_path / "two.csv").read_bytes()
    frame = pd.read_csv(tmp_path / "one.csv")
    assert list(frame.columns) == ["userId", "movieId", "rating", "timestamp"]
    assert not frame.duplicated(["userId", "movieId"]).any()
    assert frame["rating"].between(0.5, 5).all()
    assert frame["timestamp"].is_unique
    assert len(list(tmp_path.iterdir())) == 2


def test_many_runs_write_one_file_at_once(tmp_path):
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: write_ratings(tmp_path / "one.csv", SMALL), range(16)))
    assert [path.name for path in tmp_path.iterdir()] == ["one.csv"]


def test_every_user_has_the_minimum_and_the_total_is_near():
    users, _ = draw_pairs(SMALL, np.random.default_rng(1))
    counts = np.bincount(users, minlength=SMALL.users)
    assert counts.min() >= SMALL.min_ratings
    assert len(users) == pytest.approx(SMALL.ratings, rel=0.15)


def test_people_of_one_taste_share_items():
    users, items = draw_pairs(
        Tastes(users=300, items=500, ratings=12000, tastes=4, focus=0.01), np.random.default_rng(1)
    )
    matrix = np.zeros((300, 500))
    matrix[users, items] = 1
    strengths = np.linalg.svd(matrix - matrix.mean(0), compute_uv=False)
    assert strengths[3] > 1.7 * strengths[4]  # four tastes stand out of the noise


def test_another_population_is_another_file(tmp_path):
    paths = {path_of(tmp_path / "ratings.csv", Tastes(150, 400, 6000, 5, seed=seed)) for seed in (1, 2)}
    assert len(paths) == 2


def test_an_unwritable_place_is_one_sentence(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match="name another place"):
        write_ratings(tmp_path / "file" / "ratings.csv", SMALL)
