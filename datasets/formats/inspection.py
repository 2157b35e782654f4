"""What data of a user's own are, whether they would train, and the command that trains on them."""

import contextlib
import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ...runner.core.errors import DataError
from . import coco, coco_json, coco_problems, imagenet, movielens, parallel_text, rating_files

_SPLITS = {"train": ("train",), "val": ("val", "validation", "test")}
_BILINGUAL_SUFFIXES = {".tsv", ".jsonl", ".ndjson"}
_RATING_SUFFIXES = {".csv", ".tsv", ".dat", ".data"}
_KINDS = "class folders in train/ and val/, COCO annotations, parallel text, ratings or a text file"


@dataclass(frozen=True)
class Inspection:
    """The kind of the data, facts about them, problems that a run would end with, and the command of a run."""

    kind: str
    facts: list[str]
    problems: list[str]
    command: str


def inspect(path: Path) -> Inspection:
    """Return what is at `path`, a file or a folder; raise `DataError` if it is nothing that a workload reads."""
    if not path.exists():
        raise DataError(f"{path} is missing: name a file or a folder.")
    if path.is_dir():
        for inspect_folder in (_find_coco, _find_classes, _find_parallel_text):
            if found := inspect_folder(path):
                return found
        raise DataError(f"{path} is no dataset that a workload reads: it needs {_KINDS}.")
    if path.suffix == ".json":
        raise DataError(f"{path} is one split: name the folder with the annotations and images of both.")
    suffixes = {suffix.lower() for suffix in path.suffixes}
    return _inspect_ratings(path) if suffixes & _RATING_SUFFIXES else _inspect_text(path)


def _command(recipe: str, **settings: Any) -> str:
    """Return the command of a run on these settings of `recipe.data`, quoted for the shell and for Hydra."""
    overrides = [f"recipe.data.{key}={_quote(value)}" for key, value in settings.items()]
    return shlex.join(["timetrial", "run", f"recipe={recipe}", *overrides])


def _quote(value: Any) -> str:
    """Return a value as an override takes it: paths with commas, spaces and the like in quotes."""
    if isinstance(value, list):
        return f"[{','.join(map(_quote, value))}]"
    text = str(value)
    return text if re.fullmatch(r"[\w./+-]+", text) else '"{}"'.format(text.replace('"', '\\"'))


def _inspect_ratings(path: Path) -> Inspection:
    try:
        ratings = movielens.read_ratings(path)
    except DataError as error:
        return Inspection("ratings", [], [str(error)], _command("ncf/mini", path=path))
    counts = ratings["user"].value_counts()
    facts = [f"{len(ratings):,} ratings of {ratings['item'].nunique():,} items by {len(counts):,} users"]
    facts += ratings.attrs.get("notes", [])
    if layout := rating_files.detect(path):
        facts.append(f"columns: {', '.join(layout.columns)}, separated by {layout.separator!r}")
    if repeated := int(ratings.duplicated(["user", "item"]).sum()):
        facts.append(f"{repeated:,} repeated ratings of an item by a user: the latest one counts")
    settings: dict[str, Any] = {"path": path}
    if single := int((ratings.drop_duplicates(["user", "item"])["user"].value_counts() == 1).sum()):
        facts.append(f"{single:,} users with one rating, who are dropped by min_ratings_per_user=2")
        settings["min_ratings_per_user"] = 2
    problems = []
    try:
        facts += movielens.check_items(path, ratings["item"].nunique())
    except DataError as error:
        problems = [str(error)]
    return Inspection("ratings", facts, problems, _command("ncf/mini", **settings))


def _inspect_text(path: Path) -> Inspection:
    lines = words = characters = 0
    command = _command("gpt/mini", train=[path])
    try:
        for line in parallel_text.read_lines(path):
            lines, words, characters = lines + 1, words + len(line.split()), characters + len(line) + 1
    except DataError as error:
        return Inspection("text", [], [str(error)], command)
    facts = [f"{lines:,} lines, {words:,} words, {characters:,} characters; the last tenth is for validation"]
    return Inspection("text", facts, [] if characters > 1 else [f"{path} is empty: add text."], command)


def _find_classes(folder: Path) -> Inspection | None:
    if not (folder / "train").is_dir() or not any(map(_holds_images, (folder / "train").iterdir())):
        return None
    command = _command("resnet50/mini", folder=folder)
    try:
        train, val, num_classes, layout = imagenet.open_dataset(folder)
    except DataError as error:
        return Inspection("images in class folders", [], [str(error)], command)
    per_class = np.bincount(train.label)
    facts = [
        f"{len(train):,} training and {len(val):,} validation images of {num_classes} classes ({layout})",
        f"{per_class.min():,} to {per_class.max():,} training images a class",
    ]
    if sizes := imagenet.sample_headers(train)[0]:
        low, high = np.min(sizes, 0), np.max(sizes, 0)
        facts.append(f"{low[0]}x{low[1]} to {high[0]}x{high[1]} pixels in a sample of {len(sizes)}")
    facts += [note.rstrip(".") for note in imagenet.find_oddities(folder, train)]
    problems = [*filter(None, map(train.find_problem, train.sample()))]
    return Inspection("images in class folders", facts, problems, command)


def _holds_images(entry: Path) -> bool:
    """Return whether this is a class folder or a shard."""
    return entry.is_dir() or entry.suffix == ".tar" or "tfrecord" in entry.name or "-of-" in entry.name


def _find_coco(folder: Path) -> Inspection | None:
    files = sorted(path for pattern in ("*.json", "*/*.json") for path in folder.glob(pattern))
    found: dict[str, tuple[Path, Path]] = {}
    for split, words in _SPLITS.items():
        path = next((path for word in words for path in files if word in path.stem.lower()), None)
        if path is not None:
            found[split] = path, _image_folder(folder, path, words)
    if not files:
        return None
    if len(found) < 2:
        names = ", ".join(path.name for path in files[:3])
        raise DataError(f"{folder} has {names}, and needs a JSON file of each split, with train and val in its name.")
    facts, problems, has_masks, categories = [], [], True, []
    for split, (annotations, images) in found.items():
        problems += coco.check(annotations, images, segmentations=False, files=True, drop_empty=split == "train")
        try:
            instances, found_problems = coco_json.read_instances(annotations, images, masks=False, masks_required=False)
        except DataError:
            continue
        boxes, names = len(instances.annotations["id"]), instances.categories["name"].tolist()
        facts.append(
            f"{split}: {len(instances.images['id']):,} images, {boxes:,} boxes of {len(names)} classes "
            f"({', '.join(map(str, names[:5]))}{', ...' if len(names) > 5 else ''})"
        )
        facts += [f"{split}: {sentence}" for sentence in found_problems.mended]
        if empty := int(instances.empty.sum()) * (split == "train"):
            facts.append(f"train: {coco_problems.LEFT_OUT}: {empty:,}")
        categories.append(names)
        if boxes and instances.annotations["iscrowd"].all():
            problems.append(f"{annotations} {coco_problems.ONLY_CROWDS}")
        has_masks &= not coco.check(annotations, images, masks=True, drop_empty=split == "train") and boxes > 0
    if len(categories) == 2 and categories[0] != categories[1]:
        problems.append(coco_problems.different_categories([path for path, _ in found.values()], categories))
    settings = {
        f"{split}_{key}": place
        for split, places in found.items()
        for key, place in zip(("annotations", "images"), places, strict=True)
    }
    facts.append("every object has a mask: recipe=maskrcnn/mini trains on them too" if has_masks else "no masks")
    return Inspection("COCO annotations", facts, problems, _command("ssd/mini", **settings))


def _image_folder(folder: Path, annotations: Path, words: tuple[str, ...]) -> Path:
    """Return the folder of a split's images: one with the split's name, `images`, or that of the annotations."""
    folders = [entry for entry in sorted(folder.iterdir()) if entry.is_dir() and entry.name != "annotations"]
    named = [entry for word in words for entry in folders if word in entry.name.lower()]
    common = [entry for entry in folders if entry.name.lower() in ("images", "img", "jpegimages")]
    return next(iter([*named, *common]), annotations.parent)


def _find_parallel_text(folder: Path) -> Inspection | None:
    by_stem: dict[str, list[Path]] = {}
    for path in sorted(path for path in folder.iterdir() if path.is_file() and not path.name.startswith(".")):
        by_stem.setdefault(path.name.split(".")[0], []).append(path)
    pairs = {
        stem: paths if len(paths) == 2 else paths * 2
        for stem, paths in by_stem.items()
        if len(paths) == 2 or not _BILINGUAL_SUFFIXES.isdisjoint(paths[0].suffixes)
    }
    train = next((paths for stem, paths in pairs.items() if "train" in stem), None)
    test = next((paths for word in ("test", "val", "dev") for stem, paths in pairs.items() if word in stem), None)
    if not train or not test:
        return None
    facts, problems = [], []
    languages = [path.name.split(".")[1] for path in train]
    if train[0] == train[1]:
        with contextlib.suppress(DataError):  # found again below
            languages = parallel_text.read_languages(train[0])
        if not languages:
            languages = ["en", "de"]
            facts.append(f"{train[0].name} names no languages: recipe.data.languages=[en,de] is assumed")
    for paths in (train, test):
        try:
            lengths = [
                (len(pair.source.split()), len(pair.target.split()))
                for pair in parallel_text.read_pairs(paths[0], paths[1], languages)
            ]
            names = " and ".join(dict.fromkeys(path.name for path in paths))
            facts.append(f"{names}: {len(lengths):,} pairs of up to {np.max(lengths, initial=0)} words")
        except DataError as error:
            problems.append(str(error))
    try:
        parallel_text.read_test(test[0], test[1], languages)
    except DataError as error:
        problems += [str(error)] if str(error) not in problems else []
    sides = dict(zip(("source", "target"), train, strict=True))
    command = _command(
        "gnmt/mini",
        **{side: [path] for side, path in sides.items()},
        **{f"test_{side}": path for side, path in zip(sides, test, strict=True)},
        languages=languages,
    )
    return Inspection("parallel text", facts, problems, command)
