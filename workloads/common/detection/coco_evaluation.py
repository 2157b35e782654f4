"""COCO's average precision of boxes and masks, counted by pycocotools.

What takes long is done in shares, in the processes of a pool if there is one.
"""

import contextlib
import dataclasses
import io
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from dataclasses import dataclass
from itertools import chain
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ....datasets.formats import coco_masks
from ....datasets.formats.coco import CocoSet
from ....runner.core.errors import ConfigurationError

Kind = Literal["bbox", "segm"]
Columns = dict[str, NDArray[Any]]
PackedMask = dict[str, Any]  # pycocotools' {"size": [height, width], "counts": bytes}

_MOST_WORKERS = 16  # beyond that, processes are in each other's way
_SHARES = 32  # of a set: enough to keep processes busy to the end
_MOST_DETECTIONS = 100  # of an image and category that count

# Some images of a set in order of their ids, without its outlines and runs; their packed masks; what is found in them.
_Share = tuple[CocoSet, list[PackedMask] | None, "Detections"]


@dataclass(frozen=True)
class Detections:
    """D detections, of one rank or of all, in plain arrays, which pickle fast.

    `image` and `category` int64 [D] are COCO's ids, `box` float32 [D, 4] is x, y, width, height in pixels, `score`
    float32 [D]; `mask` holds D packed masks, or is None where only boxes are found.
    """

    image: NDArray[np.int64]
    category: NDArray[np.int64]
    box: NDArray[np.float32]
    score: NDArray[np.float32]
    mask: list[PackedMask] | None = None

    def __post_init__(self) -> None:
        """Refuses columns that differ in length."""
        columns = (self.image, self.category, self.box, self.score, self.image if self.mask is None else self.mask)
        if len({len(column) for column in columns}) > 1:
            raise ValueError("Detections need as many images, categories, boxes, scores and masks, if any.")

    def __len__(self) -> int:
        return len(self.image)


def join(parts: Sequence[Detections]) -> Detections:
    """The detections of all parts, of at least one; with masks where every part has them."""
    image, category = (np.concatenate([getattr(part, name) for part in parts]) for name in ("image", "category"))
    box, score = (np.concatenate([getattr(part, name) for part in parts]) for name in ("box", "score"))
    masks = [part.mask for part in parts if part.mask is not None]
    every = list(chain.from_iterable(masks)) if len(masks) == len(parts) else None
    return Detections(image, category, box, score, every)


def processes(workers: int | None = None) -> ProcessPoolExecutor:
    """A pool of `workers` processes, or of one for each usable core, at most 16.

    They start here, best off the clock: each imports anew what the main module imports, for they are spawned, because
    whoever asks may have threads and a device. They end with the pool, or with this process.
    """
    if workers is None:
        usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        workers = min(_MOST_WORKERS, usable)
    pool = ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"), _belong_to_the_parent)
    for _ in range(workers):
        pool.submit(int)  # each job starts one, while none is idle
    return pool


def each(function: Callable[[Any], Any], jobs: Iterable[Any], pool: Executor | None) -> list[Any]:
    """What `function` gives of each of the jobs, in their order, by the processes of the pool if there is one."""
    return list(map(function, jobs) if pool is None else pool.map(function, jobs))


def pycocotools_loaded() -> Any:
    """pycocotools with all its parts; raises `ConfigurationError` where it is not installed."""
    try:
        import pycocotools.coco
        import pycocotools.cocoeval
        import pycocotools.mask
    except ImportError as error:
        raise ConfigurationError("COCO's scores need pycocotools: pip install pycocotools.") from error
    return pycocotools


def average_precision(
    truth: CocoSet,
    detections: Detections,
    kind: Kind,
    *,
    images: NDArray[np.int64] | None = None,
    pool: Executor | None = None,
) -> dict[str, float]:
    """COCO's {"AP": the mean over IoUs of .5 to .95, "AP50": at .5} of boxes or masks, as fractions.

    It is counted over all images, or over those of the ids `images`. Raises `ValueError` for detections of images or
    categories that the set does not have, and where there is no single object to find; `DataError` for masks of
    annotations that have none.
    """
    pycocotools_loaded()
    if kind == "segm" and detections.mask is None:
        raise ValueError("These detections have no masks to score: give a packed mask of each.")
    chosen = truth.image_id if images is None else images
    for name, found, known in (
        ("Image", np.concatenate([detections.image, chosen]), truth.image_id),
        ("Category", detections.category, truth.category_id),
    ):
        if (strange := np.setdiff1d(found, known)).size:
            raise ValueError(f"{name} {strange[0]} is not in {truth.annotations}: score a set with its own detections.")
    order = np.argsort(truth.image_id)
    order = order[np.isin(truth.image_id[order], chosen)]
    return _accumulate(truth, kind, each(_match, _shares(truth, detections, order, kind), pool))


def _shares(truth: CocoSet, found: Detections, order: NDArray[np.int64], kind: Kind) -> Iterator[_Share]:
    """The images `order`, which are in order of their ids, in shares with what was found in them."""
    rows = np.argsort(found.image, kind="stable")  # equal scores of an image keep the order in which they are given
    rows = rows[np.isin(found.image[rows], truth.image_id[order])]
    bare = dataclasses.replace(truth, corner=truth.corner[:0], corners=truth.corners[:0], runs=truth.runs[:0])
    bare = dataclasses.replace(bare, annotation_id=np.arange(len(truth.box)))
    for images in np.array_split(order, min(_SHARES, len(order))) if len(order) else []:
        part = bare.select(images)
        some = rows[slice(*np.searchsorted(found.image[rows], part.image_id[[0, -1]] + [0, 1]))]
        here = Detections(found.image[some], found.category[some], found.box[some], found.score[some])
        masks = None
        if kind == "segm" and found.mask is not None:
            masks = [truth.packed_mask(annotation) for annotation in part.annotation_id.tolist()]
            here = dataclasses.replace(here, mask=[found.mask[row] for row in some.tolist()])
        yield part, masks, here


def _match(share: _Share) -> list[dict[str, Any] | None]:
    """For each category what was matched in all images of a share, as `accumulate` takes it of one image."""
    truth, masks, found = share
    image, category = truth.image_id[truth.image], truth.category_id[truth.category]
    box = coco_masks.exact(truth.box)
    sought: Columns = {"image_id": image, "category_id": category, "bbox": box, "iscrowd": truth.crowd}
    answers: Columns = {"image_id": found.image, "category_id": found.category, "bbox": found.box, "score": found.score}
    with contextlib.redirect_stdout(io.StringIO()):
        indexes = _index(truth, sought, masks), _index(truth, answers, found.mask)
        evaluation = _evaluation("bbox" if masks is None else "segm", *indexes)
        evaluation.evaluate()
    starts = range(0, len(evaluation.evalImgs), len(truth))
    return [_as_of_one_image([one for one in evaluation.evalImgs[at : at + len(truth)] if one]) for at in starts]


def _index(truth: CocoSet, columns: Columns, masks: Sequence[PackedMask] | None) -> Any:
    """pycocotools' index of annotations or detections, given as columns."""
    rows = zip(*(column.tolist() for column in columns.values()), strict=True)
    entries: list[dict[str, Any]] = [dict(zip(columns, row, strict=True)) for row in rows]
    for number, entry in enumerate(entries):
        # To pycocotools a match with the id 0 is none. Objects of all sizes are asked for, so any area will do.
        entry |= {"id": 1 + number, "area": 0.0, "segmentation": None if masks is None else masks[number]}
    images = zip(truth.image_id.tolist(), truth.height.tolist(), truth.width.tolist(), strict=True)
    made = pycocotools_loaded().coco.COCO()
    made.dataset = {
        "images": [{"id": number, "height": height, "width": width} for number, height, width in images],
        "categories": [{"id": number} for number in truth.category_id.tolist()],
        "annotations": entries,
    }
    made.createIndex()
    return made


def _evaluation(kind: Kind, truth: Any = None, found: Any = None) -> Any:
    """pycocotools' evaluation, of objects of all sizes alone: its other numbers would take most of its time."""
    made = pycocotools_loaded().cocoeval.COCOeval(truth, found, kind)
    made.params.areaRng, made.params.areaRngLbl = made.params.areaRng[:1], made.params.areaRngLbl[:1]
    made.params.maxDets = [_MOST_DETECTIONS]
    return made


def _as_of_one_image(results: list[dict[str, Any]]) -> dict[str, Any] | None:
    """The matches of one category in several images, one after the other."""
    if not results:
        return None
    joined = {name: np.concatenate([one[name] for one in results]) for name in ("dtScores", "gtIgnore")}
    across = {name: np.concatenate([one[name] for one in results], axis=1) != 0 for name in ("dtMatches", "dtIgnore")}
    return joined | across


def _accumulate(truth: CocoSet, kind: Kind, parts: list[list[dict[str, Any] | None]]) -> dict[str, float]:
    """Average precision from the matches of each share and category."""
    evaluation = _evaluation(kind)
    # Here a share stands for an image, whose detections have been cut to the best ones already.
    evaluation.params.imgIds, evaluation.params.maxDets = list(range(len(parts))), [np.iinfo(np.int64).max]
    evaluation.params.catIds = truth.category_id.tolist()
    evaluation.evalImgs = [part[category] for category in range(len(truth.category_id)) for part in parts]
    evaluation._paramsEval = evaluation.params
    with contextlib.redirect_stdout(io.StringIO()):
        evaluation.accumulate()
    precision = evaluation.eval["precision"]  # [IoU, recall, category, 1, 1], -1 where a category has no objects
    known = precision > -1
    if not known.any():
        raise ValueError(f"{truth.annotations} has no single object in these images: there is nothing to score.")
    return {"AP": float(precision[known].mean()), "AP50": float(precision[0][known[0]].mean())}


def _belong_to_the_parent() -> None:
    """A process of a pool leaves signals to its parent, and is not left over where that is killed."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=_end_with_the_parent, daemon=True).start()


def _end_with_the_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent
    parent.join()
    os._exit(1)
