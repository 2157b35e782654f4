"""MovieLens' file formats, valid and invalid, and the leave-one-out split against a slow reference."""

import bz2
import gzip
import lzma

import numpy as np
import pandas as pd
import pytest

from timetrial.datasets.formats import movielens
from timetrial.runner.core.errors import DataError, Exit

CSV = (
    "userId,movieId,rating,timestamp\n7,50,4.0,100\n7,60,3.5,300\n7,70,1.0,200\n3,60,5.0,50\n3,50,2.0,50\n3,90,2.0,10\n"
)
DAT = "7::50::4::100\n7::60::3::300\n7::70::1::200\n3::60::5::50\n3::50::2::50\n3::90::2::10\n"


def split_of(path, text, min_ratings_per_user=1):
    path.write_text(text)
    return movielens.leave_one_out(movielens.read_ratings(path), min_ratings_per_user, path.name)


@pytest.mark.parametrize(("name", "text"), [("ratings.csv", CSV), ("ratings.dat", DAT)])
def test_both_formats_give_the_expected_split(tmp_path, name, text):
    split = split_of(tmp_path / name, text)
    # In order of first appearance: users 7 -> 0, 3 -> 1; items 50 -> 0, 60 -> 1, 70 -> 2, 90 -> 3.
    assert (split.num_users, split.num_items) == (2, 4)
    assert split.held_out.tolist() == [1, 0]  # of user 3's two ratings at time 50, the later line
    assert list(zip(split.users.tolist(), split.items.tolist(), strict=True)) == [(0, 0), (0, 2), (1, 3), (1, 1)]
    assert split.users.dtype == split.items.dtype == split.held_out.dtype == np.int32


def test_reads_compressed_files(tmp_path):
    (tmp_path / "ratings.csv.xz").write_bytes(lzma.compress(CSV.encode()))
    assert len(movielens.read_ratings(tmp_path / "ratings.csv.xz")) == 6


def test_split_equals_slow_reference(tmp_path):
    generator = np.random.default_rng(3)
    pairs = generator.choice(40 * 60, 900, replace=False)
    frame = pd.DataFrame({"user": pairs // 60, "item": pairs % 60, "time": generator.integers(0, 50, 900)})
    split = movielens.leave_one_out(frame, 5, "made")
    users, items, latest = {}, {}, {}
    rows = [row for row in frame.itertuples() if (frame["user"] == row.user).sum() >= 5]
    for row in rows:
        users.setdefault(row.user, len(users)), items.setdefault(row.item, len(items))
        if row.user not in latest or row.time >= latest[row.user].time:
            latest[row.user] = row
    assert [items[latest[user].item] for user in users] == split.held_out.tolist()
    kept = {(users[row.user], items[row.item]) for row in rows if row is not latest[row.user]}
    assert kept == set(zip(split.users.tolist(), split.items.tolist(), strict=True))
    assert (np.diff(split.users) >= 0).all()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (CSV + "8,1,4.0\n", "line 8 is not a rating"),
        (CSV + "8,one,4.0,5\n9,9,9,9\n", "line 8 is not a rating"),
        (CSV + "8,1,good,5\n", "line 8 is not a rating"),
        (CSV + "8,1,,5\n", "line 8 is not a rating"),
        (CSV + "8,1,4.0,5,6,7\n", "line 8 is not a rating"),
        (CSV + "8,1,4.0,5,6\n", "line 8 is not a rating"),
        (CSV + "-8,1,4.0,5\n", "line 8 is not a rating"),
        (CSV + "\n8,1\n", "line 9 is not a rating"),
        (CSV + "8,1,4.0,99999999999999999999\n", "line 8|cannot be read"),
        (CSV + "8,1,4.0,5\n", "user 8 has one rating.*min_ratings_per_user=2"),
        ("userId,movieId,rating,timestamp\n", "contains no rating"),
        ("", "contains no rating"),
        (CSV.replace("userId,movieId", "a,b"), "does not begin with the line userId.*'a, b, rating, timestamp'"),
        (CSV[:-20] + "\0\1", "line 6 is not a rating"),
    ],
)
def test_rejects_invalid_csv(tmp_path, text, message):
    with pytest.raises(DataError, match=message) as caught:
        split_of(tmp_path / "ratings.csv", text)
    assert caught.value.exit_code == Exit.DATA
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("compression", [lzma, gzip, bz2])
@pytest.mark.parametrize("damage", [lambda data: data[:60], lambda data: data[:20] + b"xx" + data[22:], lambda _: b"x"])
def test_rejects_damaged_compressed_file(tmp_path, compression, damage):
    path = tmp_path / f"ratings.csv.{ {lzma: 'xz', gzip: 'gz', bz2: 'bz2'}[compression] }"
    path.write_bytes(damage(compression.compress(CSV.encode() * 100)))
    with pytest.raises(DataError) as caught:
        movielens.read_ratings(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("line", ["7:50::4::100", "7::50::4", "7::50::4::100::1", "7::x::4::100"])
def test_rejects_invalid_dat_line_by_number(tmp_path, line):
    with pytest.raises(DataError, match="line 7 is not a rating"):
        split_of(tmp_path / "ratings.dat", DAT + line + "\n")


def test_drops_users_with_few_ratings(tmp_path):
    split = split_of(tmp_path / "ratings.csv", CSV + "8,1,4.0,5\n", min_ratings_per_user=2)
    assert split.num_users == 2


def test_prepared_file_is_reused_until_the_source_changes(tmp_path):
    source = tmp_path / "ratings.csv"
    source.write_text(CSV)
    first = movielens.prepare(source, tmp_path / "prepared", 1)
    stamp = first.stat().st_mtime_ns
    assert movielens.prepare(source, tmp_path / "prepared", 1) == first
    assert first.stat().st_mtime_ns == stamp
    assert movielens.read_sizes(first) == (2, 4, 4, [0, 2, 4], [])
    assert movielens.read_split(first).held_out.tolist() == [1, 0]
    source.write_text(CSV + "3,70,1.0,60\n")
    second = movielens.prepare(source, tmp_path / "prepared", 1)
    assert movielens.read_split(second).held_out.tolist() == [1, 2]
    assert len(list((tmp_path / "prepared").glob("*.npz"))) == 2


@pytest.mark.parametrize("ranks", [1, 2, 3, 8])
@pytest.mark.parametrize("num_users", [8, 5000])
def test_ranks_share_users_by_their_positives(num_users, ranks):
    counts = np.random.default_rng(1).integers(0, 50, num_users)
    counts[:4] = 30
    sizes = movielens.count_sizes(np.arange(num_users, dtype=np.int32).repeat(counts), num_users, 9)
    users, positives = sizes.share_users(ranks)
    assert (users[0], users[-1], len(users)) == (0, num_users, ranks + 1)
    assert positives == [counts[:bound].sum() for bound in users]
    part = max(counts[bound : bound + -(-num_users // 1024)].sum() for bound in range(num_users))
    assert all(abs(found - counts.sum() * rank / ranks) <= part for rank, found in enumerate(positives))


def test_missing_manifest_is_named(tmp_path):
    source = tmp_path / "ratings.csv"
    source.write_text(CSV)
    prepared = movielens.prepare(source, tmp_path / "prepared", 1)
    prepared.with_suffix(".manifest.json").unlink()
    with pytest.raises(DataError, match=r"manifest.json cannot be read .*: delete .*npz, and it is prepared again"):
        movielens.read_sizes(prepared)


def test_rejected_file_leaves_no_prepared_file(tmp_path):
    (tmp_path / "ratings.csv").write_text(CSV + "nonsense\n")
    with pytest.raises(DataError):
        movielens.prepare(tmp_path / "ratings.csv", tmp_path / "prepared", 1)
    assert not (tmp_path / "prepared").exists()
