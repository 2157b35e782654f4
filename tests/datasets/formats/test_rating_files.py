"""Rating files as people have them: each form gives MovieLens' split, and what cannot be read is named by its line."""

import pytest

from timetrial.datasets.formats import movielens
from timetrial.runner.core.errors import DataError

ROWS = [(7, 50, 4.0, 100), (7, 60, 3.5, 300), (7, 70, 1.0, 200), (3, 60, 5.0, 50), (3, 50, 2.0, 60), (3, 90, 2.0, 10)]


def as_day(time):
    return f"2001-02-03 04:{time // 60:02d}:{time % 60:02d}"


def table(separator, header="", form="{}{s}{}{s}{}{s}{}", time=lambda seconds: seconds):
    lines = [form.format(user, item, rating, time(seconds), s=separator) for user, item, rating, seconds in ROWS]
    return "\n".join([*([header] if header else []), *lines]) + "\n"


FORMS = {
    "u.data": table("\t"),
    "spaces.txt": table("  "),
    "colons.txt": table("::"),
    "no_header.csv": table(","),
    "quoted_iso.csv": table(",", '"userId","movieId","rating","timestamp"', '{}{s}{}{s}{}{s}"{}"', as_day),
    "iso_t_zone.csv": table(",", "user,item,score,date", time=lambda t: as_day(t).replace(" ", "T") + "Z"),
    "milliseconds.csv": table(",", "user_id,item_id,rating,ts", time=lambda seconds: seconds * 1000),
    "fractions.csv": table(",", "userId,movieId,rating,time", time=lambda seconds: f"{seconds}.5"),
    "index.csv": table(",", ",userId,movieId,rating,timestamp", "0{s}{}{s}{}{s}{}{s}{}"),
    "semicolon.csv": table(";", "userId;movieId;rating;timestamp").replace(".", ","),
    "bom.csv": "\ufeff" + table(",", "User ID,Product ID,Stars,Timestamp"),
    "text_ids.csv": table(",", "reviewerID,asin,overall,unixReviewTime", "A{}{s}B{}{s}{}{s}{}"),
    "titles.csv": table(
        ",", ",title,userId,movieId,rating,timestamp", '0{s}"A title, the {1}"{s}{0}{s}{1}{s}{2}{s}{3}'
    ),
    "no_rating.csv": table(",", "user,item,time", "{0}{s}{1}{s}{3}"),
}


def split_of(path, text):
    path.write_text(text, encoding="utf-8")
    return movielens.leave_one_out(movielens.read_ratings(path), 1, path.name)


@pytest.mark.parametrize("name", FORMS)
def test_every_form_gives_the_same_split(tmp_path, name):
    split = split_of(tmp_path / name, FORMS[name])
    assert (split.num_users, split.num_items, split.num_repeated) == (2, 4, 0)
    assert list(zip(split.users.tolist(), split.items.tolist(), strict=True)) == [(0, 0), (0, 2), (1, 3), (1, 1)]
    assert split.held_out.tolist() == [1, 0]


def test_without_times_the_last_line_is_the_latest_and_it_is_said(tmp_path):
    path = tmp_path / "r.csv"
    split = split_of(path, table(",", "user,item", "{}{s}{}"))
    assert split.held_out.tolist() == [2, 3]
    notes = movielens.read_sizes(movielens.prepare(path, tmp_path / "prepared", 1)).notes
    assert len(notes) == 1
    assert "has no times: of a user's ratings, the last line counts as the latest" in notes[0]


def test_of_repeated_ratings_the_latest_counts_and_it_is_said(tmp_path):
    path = tmp_path / "ratings.csv"
    text = table(",", "userId,movieId,rating,timestamp")
    split = split_of(path, text + "7,50,1.0,400\n3,90,1.0,5\n")
    assert split.num_repeated == 2
    assert split.held_out.tolist() == [2, 2]  # items in order of first appearance of what is left: 60, 70, 50, 90
    assert list(zip(split.users.tolist(), split.items.tolist(), strict=True)) == [(0, 1), (0, 0), (1, 3), (1, 0)]
    notes = movielens.read_sizes(movielens.prepare(path, tmp_path / "prepared", 1)).notes
    assert "repeats 2 ratings of an item by a user: the latest one counts" in notes[0]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (FORMS["u.data"] + "8\tx\t4\t5\n", "line 7 is not a rating"),
        (FORMS["u.data"] + "\n8\t\t4\t5\n", "line 8 is not a rating"),
        (FORMS["quoted_iso.csv"] + '8,9,4,"2001-02-30 00:00:00"\n', "line 8 is not a rating"),
        (FORMS["iso_t_zone.csv"] + "8,9,good,2001-02-03\n", "line 8 is not a rating"),
        (table(",", "who,what,rating,timestamp"), "does not begin with .*'who, what, rating, timestamp': name its"),
    ],
)
def test_what_cannot_be_read_is_named_by_its_line(tmp_path, text, message):
    with pytest.raises(DataError, match=message) as caught:
        split_of(tmp_path / "ratings.txt", text)
    assert "\n" not in str(caught.value)
