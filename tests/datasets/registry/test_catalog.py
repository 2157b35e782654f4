"""Descriptions of datasets are complete, and every recipe finds its data in one of them."""

import fnmatch
import re
import tomllib

import pytest
import yaml

from timetrial.datasets.registry import catalog
from timetrial.runner.core.errors import ConfigurationError


def test_every_recipe_reads_outputs_of_a_dataset(root):
    sources, missing = catalog.read(), set()
    for recipe in (root / "conf" / "recipe").rglob("*.yaml"):
        for path in re.findall(r"\$\{data_dir\}/([\w./*-]+)", recipe.read_text()):
            name, _, below = path.partition("/")
            if name not in ("embedded", "prepared"):
                made = sources[name].outputs if name in sources else {}
                missing |= set() if (fnmatch.filter(made, below) if below else made) else {path}
    assert not missing


def test_file_names_are_unique():
    """Downloads of all datasets share a folder."""
    seen = {}
    for source in catalog.read().values():
        for file in source.files:
            assert seen.setdefault(file.name, file) == file


def test_every_download_has_urls_and_a_license():
    for source in catalog.read().values():
        assert source.license_url.startswith("https://")
        assert all(file.urls for file in source.files) or source.name == "imagenet"


def test_encrypted_mirrors_come_first_and_others_have_a_checksum():
    unencrypted = set()
    for source in catalog.read().values():
        for file in source.files:
            schemes = [url.partition(":")[0] for url in file.urls]
            assert schemes == sorted(schemes, reverse=True)
            if "http" in schemes:
                unencrypted.add(source.name)
                assert "https" in schemes
                assert len(file.sha256) == 64
    assert unencrypted == {"coco", "wmt16", "wmt17"}


def test_url_without_encryption_needs_a_checksum(described):
    file = {"urls": ["http://there/a.zip"]}
    with pytest.raises(ConfigurationError, match=r"http://there/a\.zip and no checksum: add its sha256, or use https"):
        described(files={"a.zip": file})
    described(files={"a.zip": file | {"sha256": "0" * 64}})
    described(files={"a.zip": {"urls": ["http://127.0.0.1:80/a.zip"]}})


def test_package_contains_the_descriptions(root):
    settings = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["setuptools"]
    assert settings["package-data"]["timetrial.datasets.registry"] == ["sources/*.yaml"]


DESCRIPTION = {
    "title": "A set", "used_by": "a test", "homepage": "https://there/", "license": "none", "license_url": "https://there/",
    "files": {"a.zip": {"urls": ["https://there/a.zip"], "bytes": 3, "md5": "0" * 32, "members": ["x/*", "y/*.txt"]}},
    "outputs": {"a.txt": None},
}  # fmt: skip


@pytest.fixture
def described(tmp_path):
    def write(name="other", **changes):
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(DESCRIPTION | changes))
        return catalog.read(tmp_path)

    return write


def test_extra_descriptions_add_and_replace(described):
    assert len(described()) == len(catalog.read()) + 1
    sources = described("ml-1m", files={"ml-1m.zip": {"urls": ["https://mirror/ml-1m.zip"]}})
    (file,) = sources["ml-1m"].files
    assert file.urls == ("https://mirror/ml-1m.zip",)
    assert sources["ml-1m"].download_size() == (0, False)


def test_same_as_shares_a_file(described):
    (file,) = described(files={"ml-1m.zip": {"same_as": "ml-1m"}})["other"].files
    assert file == catalog.read()["ml-1m"].files[0]


def test_members_are_selected_and_stripped(described):
    (file,) = described()["other"].files
    assert [file.target_path(name) for name in ("x/b/c.jpg", "y/a.txt", "y/a.jpg", "z/a.txt")] == [
        "x/b/c.jpg", "y/a.txt", None, None,
    ]  # fmt: skip
    (file,) = described(files={"a.zip": {"strip_components": 1}})["other"].files
    assert [file.target_path(name) for name in ("x/b/c.jpg", "x")] == ["b/c.jpg", None]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"color": "red"}, "color"),
        ({"files": {}}, "files and outputs must not be empty"),
        ({"files": {"../a.zip": {}}}, "is not a plain file name"),
        ({"files": {"a.zip": {"md5": "12"}}}, "12, which is not 32 hexadecimal digits"),
        ({"files": {"a.zip": {"sha1": "12"}}}, "sha1"),
        ({"files": {"a.zip": {"urls": ["ftp://a/a.zip"]}}}, "neither http nor https"),
        ({"files": {"a.zip": {"same_as": "nothing"}}}, "nothing"),
        ({"files": "a.zip"}, "does not describe a dataset"),
    ],
)
def test_rejects_invalid_description(described, tmp_path, message, changes):
    with pytest.raises(ConfigurationError, match=message) as caught:
        described(**changes)
    assert str(tmp_path / "other.yaml") in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["a: [", "- a", ""])
def test_rejects_invalid_yaml(tmp_path, text):
    (tmp_path / "other.yaml").write_text(text)
    with pytest.raises(ConfigurationError, match=r"other\.yaml.*correct or remove it"):
        catalog.read(tmp_path)


def test_unknown_name_lists_the_known_ones():
    sources = catalog.read()
    with pytest.raises(ConfigurationError, match=r"^tow is not a dataset: choose one of backbones, bccd, .*, wmt17\.$"):
        catalog.select(sources, ["ml-1m", "tow"])
    with pytest.raises(ConfigurationError, match=r"^ml-2m is not a dataset: did you mean ml-20m\? Choose one of back"):
        catalog.select(sources, ["ml-2m"])
    assert [source.name for source in catalog.select(sources, ["coco", "bccd", "coco"])] == ["coco", "bccd"]
    with pytest.raises(ConfigurationError, match="is not a folder"):
        catalog.read(catalog._BUILT_IN / "absent")
