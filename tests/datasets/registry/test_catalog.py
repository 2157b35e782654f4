"""What every set is made of is written down whole, and every recipe finds its data in one of them."""

import re
import tomllib

import pytest
import yaml

from timetrial.datasets.registry import catalog
from timetrial.runner.core.errors import ConfigurationError


def test_every_recipe_reads_what_some_set_makes(root):
    sources, unmade = catalog.read(), set()
    for recipe in (root / "conf" / "recipe").rglob("*.yaml"):
        for path in re.findall(r"\$\{data_dir\}/([\w./-]+)", recipe.read_text()):
            name, _, below = path.partition("/")
            if name not in ("embedded", "prepared"):
                made = sources[name].makes if name in sources else {}
                unmade |= set() if (below in made if below else made) else {path}
    assert not unmade


def test_one_name_is_one_file():
    """Downloads of all sets share a folder."""
    seen = {}
    for source in catalog.read().values():
        for file in source.files:
            assert seen.setdefault(file.name, file) == file


def test_what_is_downloaded_has_an_address_and_a_licence():
    for source in catalog.read().values():
        assert source.licence_url.startswith("https://")
        assert all(file.urls for file in source.files) or source.name == "imagenet"


def test_the_package_brings_the_facts(root):
    settings = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["setuptools"]
    assert settings["package-data"]["timetrial.datasets"] == ["sources/*.yaml"]


FACTS = {
    "title": "A set", "serves": "a test", "page": "https://there/", "licence": "none", "licence_url": "https://there/",
    "files": {"a.zip": {"urls": ["https://there/a.zip"], "bytes": 3, "md5": "0" * 32, "members": ["x/*", "y/*.txt"]}},
    "makes": {"a.txt": None},
}  # fmt: skip


@pytest.fixture
def described(tmp_path):
    def write(name="other", **changes):
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(FACTS | changes))
        return catalog.read(tmp_path)

    return write


def test_more_sets_come_on_top_and_replace_ours(described):
    assert len(described()) == len(catalog.read()) + 1
    sources = described("ml-1m", files={"ml-1m.zip": {"urls": ["https://mirror/ml-1m.zip"]}})
    (file,) = sources["ml-1m"].files
    assert file.urls == ("https://mirror/ml-1m.zip",)
    assert sources["ml-1m"].size() == (0, False)


def test_a_file_of_two_sets_is_described_once(described):
    (file,) = described(files={"ml-1m.zip": {"same_as": "ml-1m"}})["other"].files
    assert file == catalog.read()["ml-1m"].files[0]


def test_members_have_places(described):
    (file,) = described()["other"].files
    assert [file.place(name) for name in ("x/b/c.jpg", "y/a.txt", "y/a.jpg", "z/a.txt")] == [
        "x/b/c.jpg", "y/a.txt", None, None,
    ]  # fmt: skip
    (file,) = described(files={"a.zip": {"strip": 1}})["other"].files
    assert [file.place(name) for name in ("x/b/c.jpg", "x")] == ["b/c.jpg", None]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"colour": "red"}, "colour"),
        ({"files": {}}, "files and makes must not be empty"),
        ({"files": {"../a.zip": {}}}, "no plain file name"),
        ({"files": {"a.zip": {"md5": "12"}}}, "12, which is no 32 hexadecimal digits"),
        ({"files": {"a.zip": {"sha1": "12"}}}, "sha1"),
        ({"files": {"a.zip": {"urls": ["ftp://a/a.zip"]}}}, "none of http or https"),
        ({"files": {"a.zip": {"same_as": "nothing"}}}, "nothing"),
        ({"files": "a.zip"}, "does not describe a data set"),
    ],
)
def test_what_is_no_description_is_refused(described, tmp_path, words, changes):
    with pytest.raises(ConfigurationError, match=words) as caught:
        described(**changes)
    assert str(tmp_path / "other.yaml") in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["a: [", "- a", ""])
def test_what_is_no_yaml_is_refused(tmp_path, text):
    (tmp_path / "other.yaml").write_text(text)
    with pytest.raises(ConfigurationError, match=r"other\.yaml.*mend or remove it"):
        catalog.read(tmp_path)


def test_a_wrong_name_is_answered_with_the_right_ones():
    sources = catalog.read()
    with pytest.raises(ConfigurationError, match=r"ml-2m is no data set: choose from backbones, bccd, .*, wmt17\.$"):
        catalog.select(sources, ["ml-1m", "ml-2m"])
    assert [source.name for source in catalog.select(sources, ["coco", "bccd", "coco"])] == ["coco", "bccd"]
    with pytest.raises(ConfigurationError, match="is no folder"):
        catalog.read(catalog._OURS / "absent")
