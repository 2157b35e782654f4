"""SSD-ResNet34's arithmetic in float64, one image, box and prior at a time, from its description.

Boxes are corners (left, top, right, bottom) as fractions of the image unless said otherwise; a width is right - left.
Labels are 1..C-1, 0 is the background. Where the description is silent, the docstring says what is taken.
"""

import math
from functools import cache

import numpy as np

Array = np.ndarray
Box = tuple[float, float, float, float]

SIDE = 300
MAPS = (38, 19, 10, 5, 3, 1)
STEPS = (8, 16, 32, 64, 100, 300)
SCALES = (21, 45, 99, 153, 207, 261, 315)
RATIOS = ((2,), (2, 3), (2, 3), (2, 3), (2,), (2,))
CHANNELS = (256, 512, 512, 256, 256, 256)
EXTRAS = ((256, 512), (256, 512), (128, 256), (128, 256), (128, 256))
VARIANCE_CENTRE, VARIANCE_SIZE = 0.1, 0.2
OPTIONS = ("none", 0.1, 0.3, 0.5, 0.7, 0.9, "no limit")
"""What a crop may be: no crop at all, a crop whose IoU with every box exceeds a number, any crop."""


def priors() -> Array:
    """[8732, 4]: centre x, centre y, width, height in fractions, each of the four clipped to 0..1.

    Per map, per shape, rows then columns. A ratio r is first sqrt(r) wider and flatter, then the other way round.
    """
    return np.array(_priors())


def iou(a: Box, b: Box) -> float:
    """Intersection over union of two corner boxes; 0 where the union is empty."""
    width = max(0.0, min(a[2], b[2]) - max(a[0], b[0]))
    height = max(0.0, min(a[3], b[3]) - max(a[1], b[1]))
    union = (a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - width * height
    return width * height / union if union > 0 else 0.0


def match(boxes: Array) -> list[int]:
    """For each of the 8732 priors the number of its box, or -1: boxes [G, 4].

    A prior takes its best box if their IoU is above .5, of equals the first. Then each box, in order, takes its best
    prior (of equals the first) whatever the IoU and whoever had it: of two boxes with one best prior the later wins.
    """
    corners = [_corners(prior) for prior in _priors()]
    rows = _rows(boxes)
    best_box, best_overlap = [-1] * len(corners), [0.5] * len(corners)
    best_prior = []
    for number, box in enumerate(rows):
        best, most = 0, -1.0
        for index, corner in enumerate(corners):
            overlap = iou(box, corner)
            if overlap > best_overlap[index]:
                best_box[index], best_overlap[index] = number, overlap
            if overlap > most:
                best, most = index, overlap
        best_prior.append(best)
    for number, index in enumerate(best_prior):
        best_box[index] = number
    return best_box


def encode(boxes: Array, labels: Array) -> tuple[Array, Array]:
    """Targets [8732, 4] and labels [8732] of one image's boxes [G, 4] and labels [G]; background is zeros.

    A target is the offset of the centre over the prior's size and over .1, and the log of the ratio of sizes over .2.
    """
    rows = _rows(boxes)
    targets, target_labels = np.zeros((len(_priors()), 4)), np.zeros(len(_priors()), dtype=np.int64)
    for index, number in enumerate(match(boxes)):
        if number >= 0:
            targets[index] = _encode_one(rows[number], _priors()[index])
            target_labels[index] = int(labels[number])
    return targets, target_labels


def decode(targets: Array) -> Array:
    """Corner boxes [8732, 4] of targets [8732, 4]: the inverse of the coding, not clipped. Zeros give the prior."""
    boxes = []
    for target, (x, y, width, height) in zip(targets.tolist(), _priors(), strict=True):
        centre_x = x + target[0] * VARIANCE_CENTRE * width
        centre_y = y + target[1] * VARIANCE_CENTRE * height
        new_width = width * math.exp(target[2] * VARIANCE_SIZE)
        new_height = height * math.exp(target[3] * VARIANCE_SIZE)
        boxes.append(_corners((centre_x, centre_y, new_width, new_height)))
    return np.array(boxes)


def loss(
    locations: Array, scores: Array, boxes: list[Array], labels: list[Array]
) -> tuple[float, dict[str, list[float] | list[int]]]:
    """The batch's loss, and each image's "location" and "classes" loss, "positives" and "negatives".

    Locations [N, 8732, 4], scores [N, 8732, C] before the softmax, per image boxes [G, 4] and labels [G]. Smooth L1
    bends at 1. The hard negatives are the 3 * positives (or as many as there are) with the largest cross entropy. Both
    losses are divided by the image's positives; the total is the mean over all N images of their sum. An image without
    boxes has no positives, hence no hard negatives: it adds 0 and counts in N.
    """
    parts: dict[str, list] = {"location": [], "classes": [], "positives": [], "negatives": []}
    for image in range(len(boxes)):
        targets, target_labels = encode(boxes[image], labels[image])
        location, classes, negatives, positives = 0.0, 0.0, [], 0
        for index, label in enumerate(target_labels.tolist()):
            entropy = _cross_entropy(scores[image][index].tolist(), label)
            if label == 0:
                negatives.append(entropy)
                continue
            positives += 1
            classes += entropy
            for coordinate in range(4):
                location += _smooth_l1(float(locations[image][index][coordinate]) - float(targets[index][coordinate]))
        hard = sorted(negatives, reverse=True)[: 3 * positives]
        classes += sum(hard)
        parts["location"].append(location / positives if positives else 0.0)
        parts["classes"].append(classes / positives if positives else 0.0)
        parts["positives"].append(positives)
        parts["negatives"].append(len(hard))
    total = sum(parts["location"]) + sum(parts["classes"])
    return total / len(boxes), parts


def crop(
    width: int, height: int, boxes: Array, labels: Array, random, num_cropping_iterations: int = 1
) -> tuple[Box, tuple[int, int, int, int], Array, Array]:
    """One crop: its corners as fractions and as pixels of the image, its boxes [K, 4] as fractions of it, labels [K].

    The image is width x height pixels, boxes [G, 4], labels [G]; G > 0. `random` is a random.Random or a numpy
    Generator. Draws, in order: the option, by randrange(7) or integers(7), of OPTIONS; unless it is "none", for each
    of the `num_cropping_iterations` tries, before the first is judged, four fractions by random(): width from .3 to 1,
    height from .3 to 1, left from 0 to 1 - width, top from 0 to 1 - height. Width/height (of these fractions) must lie
    in .5..2, bounds included. After all tries in vain the option is drawn anew. A limit must be exceeded by the IoU of
    the crop and each box, those that will be dropped too. A centre on the crop's edge is outside. Boxes are relative
    to the unrounded crop; pixels are rounded down.
    """
    while True:
        option = OPTIONS[int(random.integers(7)) if hasattr(random, "integers") else random.randrange(7)]
        if option == "none":
            return (0.0, 0.0, 1.0, 1.0), (0, 0, width, height), np.array(boxes, dtype=np.float64), np.array(labels)
        for drawn in [[random.random() for _ in range(4)] for _ in range(num_cropping_iterations)]:
            wide, high = 0.3 + 0.7 * drawn[0], 0.3 + 0.7 * drawn[1]
            if wide / high < 0.5 or wide / high > 2:
                continue
            left, top = (1.0 - wide) * drawn[2], (1.0 - high) * drawn[3]
            part = (left, top, left + wide, top + high)
            if option != "no limit" and not all(iou(box, part) > option for box in _rows(boxes)):
                continue
            kept = [number for number, box in enumerate(_rows(boxes)) if _holds_centre(part, box)]
            if not kept:
                continue
            pixels = (int(part[0] * width), int(part[1] * height), int(part[2] * width), int(part[3] * height))
            inside = [_relative(part, _rows(boxes)[number]) for number in kept]
            return part, pixels, np.array(inside), np.array([labels[number] for number in kept])


def detect(
    locations: Array,
    scores: Array,
    size: tuple[int, int],
    threshold: float = 0.05,
    candidates: int = 200,
    overlap: float = 0.5,
    most: int = 200,
) -> tuple[Array, Array, Array]:
    """One image's boxes [K, 4] in pixels, labels [K] and scores [K], best first.

    Locations [8732, 4], scores [8732, C] before the softmax, size (width, height) in pixels. Per class but the
    background: the best `candidates` of the scores above `threshold`; a box falls to a better one that stays if their
    IoU is above `overlap`. Then the best `most` of all classes. Boxes are not clipped. Of equal scores the lower class,
    then the lower prior comes first.
    """
    rows = _rows(decode(locations))
    chances = [_softmax(row) for row in scores.tolist()]
    found: list[tuple[float, int, Box]] = []
    for label in range(1, scores.shape[1]):
        above = [index for index in range(len(rows)) if chances[index][label] > threshold]
        above.sort(key=lambda index: -chances[index][label])
        kept: list[int] = []
        for index in above[:candidates]:
            if all(iou(rows[index], rows[better]) <= overlap for better in kept):
                kept.append(index)
        found += [(chances[index][label], label, rows[index]) for index in kept]
    found.sort(key=lambda entry: -entry[0])
    found = found[:most]
    width, height = size
    boxes = [(x1 * width, y1 * height, x2 * width, y2 * height) for _, _, (x1, y1, x2, y2) in found]
    labels = np.array([label for _, label, _ in found], dtype=np.int64)
    return np.array(boxes).reshape(-1, 4), labels, np.array([score for score, _, _ in found])


def count_parameters(classes: int = 81) -> dict[str, int]:
    """Learned numbers of "backbone", "extras" and "heads", and their "total"; running statistics are not counted.

    The backbone is ResNet-34 to conv4, each convolution without bias and with batch norm (2 numbers a channel); the
    other convolutions have a bias. conv4_1's stride changes no count, and it keeps its shortcut's convolution.
    """

    def convolution(inputs: int, outputs: int, side: int) -> int:
        return inputs * outputs * side * side

    backbone = convolution(3, 64, 7) + 2 * 64
    inputs = 64
    for outputs, blocks in ((64, 3), (128, 4), (256, 6)):
        for _ in range(blocks):
            backbone += convolution(inputs, outputs, 3) + 2 * outputs + convolution(outputs, outputs, 3) + 2 * outputs
            if inputs != outputs:
                backbone += convolution(inputs, outputs, 1) + 2 * outputs
            inputs = outputs
    extras = 0
    for middle, outputs in EXTRAS:
        extras += convolution(inputs, middle, 1) + middle + convolution(middle, outputs, 3) + outputs
        inputs = outputs
    heads = 0
    for channels, ratios in zip(CHANNELS, RATIOS, strict=True):
        shapes = 2 + 2 * len(ratios)
        heads += convolution(channels, shapes * 4, 3) + shapes * 4
        heads += convolution(channels, shapes * classes, 3) + shapes * classes
    return {"backbone": backbone, "extras": extras, "heads": heads, "total": backbone + extras + heads}


def learning_rate(
    step: int,
    images: int,
    batch: int,
    base: float | None = None,
    decay_epochs: tuple[int, ...] = (40, 50),
    warmup_steps: int = 0,
    warmup_factor: int = 0,
    drop_last: bool = False,
) -> float:
    """The rate of the update number `step`, from 0, of a data set of `images` in global batches of `batch`.

    `base` is 2.5e-3 * batch / 32 unless given. An epoch has images / batch steps, rounded up, or down if the last short
    batch is dropped; decay_epochs count from 0. Warm-up's i is `step`; it and the decay multiply where they meet.
    """
    rate = 2.5e-3 * batch / 32 if base is None else base
    epoch = step // (images // batch if drop_last else -(-images // batch))
    for boundary in decay_epochs:
        if epoch >= boundary:
            rate *= 0.1
    if step < warmup_steps:
        rate -= (warmup_steps - step) * rate / (warmup_steps * 2**warmup_factor)
    return rate


@cache
def _priors() -> list[Box]:
    rows = []
    for number, (side, step, ratios) in enumerate(zip(MAPS, STEPS, RATIOS, strict=True)):
        small, large = SCALES[number] / SIDE, SCALES[number + 1] / SIDE
        shapes = [(small, small), (math.sqrt(small * large), math.sqrt(small * large))]
        for ratio in ratios:
            shapes.append((small * math.sqrt(ratio), small / math.sqrt(ratio)))
            shapes.append((small / math.sqrt(ratio), small * math.sqrt(ratio)))
        cells = SIDE / step
        for width, height in shapes:
            for i in range(side):
                for j in range(side):
                    prior = ((j + 0.5) / cells, (i + 0.5) / cells, width, height)
                    rows.append(tuple(min(max(value, 0.0), 1.0) for value in prior))
    return rows


def _rows(boxes: Array) -> list[Box]:
    return [tuple(float(value) for value in row) for row in np.asarray(boxes, dtype=np.float64).reshape(-1, 4)]


def _corners(box: Box) -> Box:
    x, y, width, height = box
    return x - width / 2, y - height / 2, x + width / 2, y + height / 2


def _encode_one(box: Box, prior: Box) -> Box:
    left, top, right, bottom = box
    x, y, width, height = prior
    return (
        ((left + right) / 2 - x) / width / VARIANCE_CENTRE,
        ((top + bottom) / 2 - y) / height / VARIANCE_CENTRE,
        math.log((right - left) / width) / VARIANCE_SIZE,
        math.log((bottom - top) / height) / VARIANCE_SIZE,
    )


def _holds_centre(part: Box, box: Box) -> bool:
    x, y = (box[0] + box[2]) / 2, (box[1] + box[3]) / 2
    return part[0] < x < part[2] and part[1] < y < part[3]


def _relative(part: Box, box: Box) -> Box:
    """The box, clipped to the part, as fractions of the part."""
    width, height = part[2] - part[0], part[3] - part[1]
    left, top = max(box[0], part[0]), max(box[1], part[1])
    right, bottom = min(box[2], part[2]), min(box[3], part[3])
    return (left - part[0]) / width, (top - part[1]) / height, (right - part[0]) / width, (bottom - part[1]) / height


def _smooth_l1(difference: float) -> float:
    return 0.5 * difference * difference if abs(difference) < 1 else abs(difference) - 0.5


def _softmax(row: list[float]) -> list[float]:
    highest = max(row)
    powers = [math.exp(value - highest) for value in row]
    total = sum(powers)
    return [power / total for power in powers]


def _cross_entropy(row: list[float], label: int) -> float:
    highest = max(row)
    return highest + math.log(sum(math.exp(value - highest) for value in row)) - row[label]
