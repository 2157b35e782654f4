"""Mask R-CNN R50-FPN's arithmetic in float64, one box, bin and pixel at a time, from its description.

Boxes are corners (x1, y1, x2, y2) in pixels, both ends included: a width is x2 - x1 + 1, the last column of an image is
width - 1. Labels are 1..80, 0 is the background. Where the description is silent, the docstring says what is taken.
"""

import math

import numpy as np
from pycocotools import mask as coco

Array = np.ndarray
Box = tuple[float, float, float, float]
Weights = tuple[float, float, float, float]

SIZES = (32, 64, 128, 256, 512)
STRIDES = (4, 8, 16, 32, 64)
RATIOS = (0.5, 1.0, 2.0)
RPN_WEIGHTS, BOX_WEIGHTS = (1.0, 1.0, 1.0, 1.0), (10.0, 10.0, 5.0, 5.0)
LOG_LIMIT = math.log(1000 / 16)
NEGATIVE, IGNORED = -1, -2


def anchors(height: int, width: int, shapes: list[list[tuple[float, float]]] | None = None) -> list[Array]:
    """Per level P2..P6 the anchors [rows * columns * 3, 4] of a padded image of height x width pixels, not clipped.

    Rows, then columns, then ratios .5, 1, 2. A level has height / stride rows, rounded up. An anchor's centre is its
    cell's, stride * column + (stride - 1) / 2. A ratio is height over width at the area size * size, unrounded:
    inclusive width size / sqrt(ratio), height size * sqrt(ratio); or `shapes` has, per level and ratio, other inclusive
    widths and heights.
    """
    levels = []
    for level, (size, stride) in enumerate(zip(SIZES, STRIDES, strict=True)):
        exact = [(size / math.sqrt(ratio), size * math.sqrt(ratio)) for ratio in RATIOS]
        rows = []
        for i in range(-(-height // stride)):
            for j in range(-(-width // stride)):
                x, y = stride * j + (stride - 1) / 2, stride * i + (stride - 1) / 2
                for wide, high in exact if shapes is None else shapes[level]:
                    rows.append((x - (wide - 1) / 2, y - (high - 1) / 2, x + (wide - 1) / 2, y + (high - 1) / 2))
        levels.append(np.array(rows))
    return levels


def iou(a: Box, b: Box) -> float:
    """Intersection over union of two boxes by inclusive widths."""
    width = max(0.0, min(a[2], b[2]) - max(a[0], b[0]) + 1)
    height = max(0.0, min(a[3], b[3]) - max(a[1], b[1]) + 1)
    union = (a[2] - a[0] + 1) * (a[3] - a[1] + 1) + (b[2] - b[0] + 1) * (b[3] - b[1] + 1) - width * height
    return width * height / union


def encode(boxes: Array, references: Array, weights: Weights = RPN_WEIGHTS) -> Array:
    """Deltas [K, 4] that make boxes [K, 4] of references [K, 4], each multiplied by its weight; not clamped."""
    deltas = []
    for box, reference in zip(_rows(boxes), _rows(references), strict=True):
        x, y, width, height = _centred(box)
        from_x, from_y, from_width, from_height = _centred(reference)
        deltas.append(
            (
                weights[0] * (x - from_x) / from_width,
                weights[1] * (y - from_y) / from_height,
                weights[2] * math.log(width / from_width),
                weights[3] * math.log(height / from_height),
            )
        )
    return np.array(deltas).reshape(-1, 4)


def decode(deltas: Array, references: Array, weights: Weights = RPN_WEIGHTS) -> Array:
    """Boxes [K, 4] of deltas [K, 4] to references [K, 4]; log sizes, the weight taken off, are at most log(1000/16)."""
    boxes = []
    for delta, reference in zip(_rows(deltas), _rows(references), strict=True):
        from_x, from_y, from_width, from_height = _centred(reference)
        x = from_x + delta[0] / weights[0] * from_width
        y = from_y + delta[1] / weights[1] * from_height
        width = from_width * math.exp(min(delta[2] / weights[2], LOG_LIMIT))
        height = from_height * math.exp(min(delta[3] / weights[3], LOG_LIMIT))
        boxes.append((x - (width - 1) / 2, y - (height - 1) / 2, x + (width - 1) / 2, y + (height - 1) / 2))
    return np.array(boxes).reshape(-1, 4)


def rpn_match(candidates: Array, boxes: Array, height: int, width: int, outside_first: bool = False) -> list[int]:
    """For each anchor of candidates [A, 4] the number of its box in boxes [G, 4], or NEGATIVE, or IGNORED.

    An anchor's box is the one of largest IoU, of equals the first. It is positive from .7 on, negative below .3,
    ignored between; and positive if no anchor has a larger IoU with some box (all anchors that tie, nothing at IoU 0),
    still with the box that is best for itself. Last, anchors that leave the unpadded image, height x width pixels, (x1
    or y1 < 0, x2 > width - 1, y2 > height - 1) are ignored; with `outside_first` they do not compete for a box either.
    """
    rows, targets = _rows(candidates), _rows(boxes)
    inside = [x1 >= 0 and y1 >= 0 and x2 <= width - 1 and y2 <= height - 1 for x1, y1, x2, y2 in rows]
    overlaps = [[iou(row, target) for target in targets] for row in rows]
    competing = [index for index in range(len(rows)) if inside[index] or not outside_first]
    most = [max((overlaps[index][number] for index in competing), default=0.0) for number in range(len(targets))]
    matches = []
    for index in range(len(rows)):
        best, overlap = _best(overlaps[index])
        favourite = any(value == top > 0 for value, top in zip(overlaps[index], most, strict=True))
        if not inside[index]:
            matches.append(IGNORED)
        elif overlap >= 0.7 or favourite:
            matches.append(best)
        else:
            matches.append(NEGATIVE if overlap < 0.3 else IGNORED)
    return matches


def box_match(candidates: Array, boxes: Array) -> list[int]:
    """For each proposal of candidates [R, 4] the number of its box in boxes [G, 4], or NEGATIVE.

    That of largest IoU, of equals the first, if the IoU is at least .5.
    """
    matches = []
    for row in _rows(candidates):
        best, overlap = _best([iou(row, target) for target in _rows(boxes)])
        matches.append(best if overlap >= 0.5 else NEGATIVE)
    return matches


def level(box: Box) -> int:
    """The level, 2..5, from which a box's features are taken; the area is of inclusive widths."""
    area = (box[2] - box[0] + 1) * (box[3] - box[1] + 1)
    return min(max(math.floor(4 + math.log2(math.sqrt(area) / 224 + 1e-6)), 2), 5)


def roi_align(feature: Array, box: Box, output: int, scale: float, sampling: int = 2) -> Array:
    """[C, output, output]: each bin the mean of sampling x sampling points of feature [C, H, W].

    The box in pixels is multiplied by `scale`, the feature's pixels per pixel; no half pixel is taken off, and its
    width is x2 - x1, at least one pixel of the feature. The value at (y, x) is bilinear between the values at the whole
    coordinates around; up to 1 beyond the edges it is that of the edge, further out 0.
    """
    left, top = box[0] * scale, box[1] * scale
    bin_width = max(box[2] * scale - left, 1.0) / output
    bin_height = max(box[3] * scale - top, 1.0) / output
    result = np.zeros((feature.shape[0], output, output))
    for channel in range(feature.shape[0]):
        plane = feature[channel].tolist()
        for i in range(output):
            for j in range(output):
                total = 0.0
                for k in range(sampling):
                    for m in range(sampling):
                        y = top + (i + (k + 0.5) / sampling) * bin_height
                        x = left + (j + (m + 0.5) / sampling) * bin_width
                        total += _bilinear(plane, y, x)
                result[channel, i, j] = total / (sampling * sampling)
    return result


def mask_target(polygons: list[list[float]], box: Box, side: int = 28) -> Array:
    """0/1 [side, side]: what the union of polygons [x, y, x, y, ...] in pixels covers of a box.

    A coordinate becomes (x - x1) * side / (x2 - x1), in float32, the width at least 1; likewise y. Nothing is clipped
    or rounded before pycocotools rasterises each polygon at side x side (frPyObjects, merge, decode).
    """
    x1, y1, x2, y2 = np.asarray(box, np.float32)
    width, height = (np.float32(side / max(float(extent), 1.0)) for extent in (x2 - x1, y2 - y1))
    scaled = []
    for polygon in polygons:
        points = np.asarray(polygon, np.float32).reshape(-1, 2)
        scaled.append(((points - [x1, y1]).astype(np.float32) * np.array([width, height])).ravel().tolist())
    return np.asarray(coco.decode(coco.merge(coco.frPyObjects(scaled, side, side))), np.float64)


def rpn_loss(
    objectness: list[Array],
    deltas: list[Array],
    candidates: list[Array],
    boxes: list[Array],
    matches: list[list[int]],
    samples: list[list[int]],
) -> tuple[float, float]:
    """The objectness' and the boxes' loss of a batch, whose images the lists are.

    Per image objectness [A] before the sigmoid, deltas [A, 4], anchors [A, 4], boxes [G, 4], matches [A] as
    rpn_match's, and the sampled anchors' numbers. Binary cross entropy of the sampled and smooth L1 (beta 1/9) summed
    over the 4 coordinates of the positive among them, each over the number sampled in the whole batch.
    """
    chance, distance = 0.0, 0.0
    for image, chosen in enumerate(samples):
        for index in chosen:
            number = matches[image][index]
            assert number != IGNORED
            chance += _binary_cross_entropy(float(objectness[image][index]), 1.0 if number >= 0 else 0.0)
            if number >= 0:
                target = encode(boxes[image][number], candidates[image][index], RPN_WEIGHTS)
                distance += _smooth_l1_sum(deltas[image][index], target[0], 1 / 9)
    count = max(sum(len(chosen) for chosen in samples), 1)
    return chance / count, distance / count


def box_loss(
    scores: list[Array],
    deltas: list[Array],
    candidates: list[Array],
    boxes: list[Array],
    labels: list[Array],
    matches: list[list[int]],
    samples: list[list[int]],
) -> tuple[float, float]:
    """The classes' and the boxes' loss of a batch, whose images the lists are.

    Per image scores [R, C] before the softmax, deltas [R, C, 4], proposals [R, 4], boxes [G, 4], labels [G], matches
    [R] as box_match's, and the sampled proposals' numbers. Cross entropy of the sampled, and smooth L1 (beta 1) of the
    true class's deltas, weights 10 10 5 5, summed over the 4 coordinates of the positive among them, each over the
    number sampled in the whole batch.
    """
    entropy, distance = 0.0, 0.0
    for image, chosen in enumerate(samples):
        for index in chosen:
            number = matches[image][index]
            label = int(labels[image][number]) if number >= 0 else 0
            entropy += _cross_entropy(scores[image][index].tolist(), label)
            if number >= 0:
                target = encode(boxes[image][number], candidates[image][index], BOX_WEIGHTS)
                distance += _smooth_l1_sum(deltas[image][index][label], target[0], 1.0)
    count = max(sum(len(chosen) for chosen in samples), 1)
    return entropy / count, distance / count


def mask_loss(
    logits: list[Array],
    candidates: list[Array],
    polygons: list[list[list[list[float]]]],
    labels: list[Array],
    matches: list[list[int]],
    samples: list[list[int]],
) -> float:
    """The masks' loss of a batch, whose images the lists are; 0 without a positive.

    Per image logits [R, C, 28, 28], proposals [R, 4], each box's polygons, labels [G], matches [R] as box_match's, and
    the sampled proposals' numbers; of rows that are not positive nothing is read. The binary cross entropy of the true
    class's logits with mask_target, the mean over all pixels of all positive samples of the batch.
    """
    total, count = 0.0, 0
    for image, chosen in enumerate(samples):
        for index in chosen:
            number = matches[image][index]
            if number < 0:
                continue
            box = _rows(candidates[image][index])[0]
            row = logits[image][index][int(labels[image][number])].tolist()
            target = mask_target(polygons[image][number], box, len(row)).tolist()
            for i in range(len(row)):
                for j in range(len(row[i])):
                    total += _binary_cross_entropy(row[i][j], target[i][j])
                    count += 1
    return total / max(count, 1)


def nms(boxes: Array, scores: Array, overlap: float) -> list[int]:
    """Numbers of the boxes [K, 4] that stay, best of scores [K] first.

    A box falls to a better one that stays if their IoU exceeds `overlap`. Of equal scores the first counts as better.
    """
    rows, values = _rows(boxes), np.asarray(scores, dtype=np.float64).tolist()
    kept: list[int] = []
    for index in sorted(range(len(rows)), key=lambda index: -values[index]):
        if all(iou(rows[index], rows[better]) <= overlap for better in kept):
            kept.append(index)
    return kept


def clip(boxes: Array, height: int, width: int) -> Array:
    """Boxes [K, 4] with x within 0..width - 1 and y within 0..height - 1."""
    return np.array(
        [
            (_within(x1, width - 1), _within(y1, height - 1), _within(x2, width - 1), _within(y2, height - 1))
            for x1, y1, x2, y2 in _rows(boxes)
        ]
    ).reshape(-1, 4)


def proposals(
    objectness: list[list[Array]],
    deltas: list[list[Array]],
    levels: list[Array],
    sizes: list[tuple[int, int]],
    ground_truth: list[Array] | None = None,
    cap: int = 2000,
    best: int = 2000,
    over_batch: bool = True,
    overlap: float = 0.7,
) -> tuple[list[Array], list[Array]]:
    """Each image's proposals [K, 4] and their objectness [K], before the sigmoid as given.

    Per image and level objectness [A] and deltas [A, 4], per level anchors [A, 4] (the same for all images), per image
    its unpadded (height, width). Per image and level: the best `cap`, decoded, clipped to the image, thinned by nms at
    `overlap`, the best `cap` of what stays; no box is dropped for being small. Then the best `best` of the whole batch,
    in training, or of each image, without `over_batch`. They stay in the order level, then falling score; of equals the
    earlier image, then level, then anchor wins. Last, each image's ground_truth [G, 4] is appended, its score inf.
    """
    found = [_image_proposals(*parts, levels, cap, overlap) for parts in zip(objectness, deltas, sizes, strict=True)]
    groups = [range(len(found))] if over_batch else [[image] for image in range(len(found))]
    boxes: list[Array] = [np.zeros((0, 4))] * len(found)
    scores: list[Array] = [np.zeros(0)] * len(found)
    for group in groups:
        everything = [(image, place) for image in group for place in range(len(found[image]))]
        everything.sort(key=lambda entry: -found[entry[0]][entry[1]][0])
        chosen = set(everything[:best])
        for image in group:
            kept = [entry for place, entry in enumerate(found[image]) if (image, place) in chosen]
            if ground_truth is not None:
                kept += [(math.inf, box) for box in _rows(ground_truth[image])]
            boxes[image] = np.array([box for _, box in kept]).reshape(-1, 4)
            scores[image] = np.array([score for score, _ in kept])
    return boxes, scores


def paste(mask: Array, box: Box, height: int, width: int, whole_pixels: bool = True, inclusive: bool = True) -> Array:
    """0/1 [height, width]: a mask of chances [28, 28] in its box of the image, 1 where the chance is above .5.

    The mask gets a border of one zero, and the box grows by 30/28 about its centre: its inclusive width does, or, if
    not `inclusive`, x2 - x1. With `whole_pixels` the grown corners are then cut to whole numbers, towards zero. Pixel x
    of that box X1..X2 (X1 - .5 <= x < X2 + .5) lies at (x - X1 + .5) * 30 / (X2 - X1 + 1) - .5 of the bordered mask,
    whose values stand at whole coordinates, bilinear between them and constant beyond the outermost; likewise y.
    """
    padded = [[0.0] * (mask.shape[1] + 2)]
    padded += [[0.0, *row, 0.0] for row in mask.tolist()]
    padded += [[0.0] * (mask.shape[1] + 2)]
    x1, x2 = _grown(box[0], box[2], len(padded[0]), whole_pixels, inclusive)
    y1, y2 = _grown(box[1], box[3], len(padded), whole_pixels, inclusive)
    result = np.zeros((height, width))
    for i in range(height):
        for j in range(width):
            if y1 - 0.5 <= i < y2 + 0.5 and x1 - 0.5 <= j < x2 + 0.5:
                y = (i - y1 + 0.5) * len(padded) / (y2 - y1 + 1) - 0.5
                x = (j - x1 + 0.5) * len(padded[0]) / (x2 - x1 + 1) - 0.5
                y, x = _within(y, len(padded) - 1), _within(x, len(padded[0]) - 1)
                result[i, j] = 1.0 if _bilinear(padded, y, x) > 0.5 else 0.0
    return result


def count_parameters(classes: int = 81) -> dict[str, int]:
    """Numbers of "trainable" parameters, of "frozen" ones, and of "buffers"; classes count the background.

    Frozen are the convolutions of the stem and res2, and all batch norms: a scale and a shift a channel, buffers.
    """
    frozen, buffers = 3 * 64 * 7 * 7, 2 * 64
    trainable = 0
    inputs = 64
    for stage, (middle, blocks) in enumerate(((64, 3), (128, 4), (256, 6), (512, 3))):
        for block in range(blocks):
            weights = inputs * middle + middle * middle * 9 + middle * 4 * middle
            channels = middle + middle + 4 * middle
            if block == 0:
                weights += inputs * 4 * middle
                channels += 4 * middle
            inputs = 4 * middle
            buffers += 2 * channels
            if stage == 0:
                frozen += weights
            else:
                trainable += weights
    for channels in (256, 512, 1024, 2048):
        trainable += channels * 256 + 256 + 256 * 256 * 9 + 256
    trainable += 256 * 256 * 9 + 256 + 256 * 3 + 3 + 256 * 12 + 12
    trainable += 256 * 7 * 7 * 1024 + 1024 + 1024 * 1024 + 1024
    trainable += 1024 * classes + classes + 1024 * 4 * classes + 4 * classes
    trainable += 4 * (256 * 256 * 9 + 256) + 256 * 256 * 4 + 256 + 256 * classes + classes
    return {"trainable": trainable, "frozen": frozen, "buffers": buffers}


def learning_rate(
    iteration: int,
    base: float = 0.02,
    steps: tuple[int, ...] = (60_000, 80_000),
    warmup: int = 500,
    factor: float = 1 / 3,
    mlperf_linear: bool = False,
) -> float:
    """The rate of update number `iteration`, from 0; biases have twice it. By default of batches of 16.

    Times .1 from each of `steps` on. Warm-up goes linearly from factor * base at 0 to base at `warmup`; or, if
    `mlperf_linear`, is base - (warmup - iteration) * factor, the factor then a rate.
    """
    rate = base
    if iteration < warmup and mlperf_linear:
        rate = base - (warmup - iteration) * factor
    elif iteration < warmup:
        rate = base * (factor + (1 - factor) * iteration / warmup)
    for step in steps:
        if iteration >= step:
            rate *= 0.1
    return rate


def _image_proposals(
    objectness: list[Array], deltas: list[Array], size: tuple[int, int], levels: list[Array], cap: int, overlap: float
) -> list[tuple[float, Box]]:
    """One image's (score, box) after each level's nms, level by level, best first."""
    found = []
    for scores, moves, candidates in zip(objectness, deltas, levels, strict=True):
        values = np.asarray(scores, dtype=np.float64).tolist()
        order = sorted(range(len(values)), key=lambda index: -values[index])[:cap]
        boxes = clip(decode(moves[order], candidates[order], RPN_WEIGHTS), *size)
        kept = nms(boxes, np.array([values[index] for index in order]), overlap)[:cap]
        found += [(values[order[place]], _rows(boxes)[place]) for place in kept]
    return found


def _rows(boxes: Array) -> list[Box]:
    return [tuple(row) for row in np.asarray(boxes, dtype=np.float64).reshape(-1, 4).tolist()]


def _centred(box: Box) -> Box:
    return (box[0] + box[2]) / 2, (box[1] + box[3]) / 2, box[2] - box[0] + 1, box[3] - box[1] + 1


def _best(overlaps: list[float]) -> tuple[int, float]:
    """The first of the largest and itself; (-1, 0) of none."""
    best, most = NEGATIVE, 0.0
    for number, overlap in enumerate(overlaps):
        if best < 0 or overlap > most:
            best, most = number, overlap
    return best, most


def _within(value: float, last: float) -> float:
    return min(max(value, 0.0), last)


def _grown(first: float, last: float, padded: int, whole_pixels: bool, inclusive: bool) -> tuple[float, float]:
    """An interval of pixels grown by padded / (padded - 2) about its centre."""
    centre, growth = (first + last) / 2, padded / (padded - 2)
    half = ((last - first + 1) * growth - 1) / 2 if inclusive else (last - first) * growth / 2
    return (int(centre - half), int(centre + half)) if whole_pixels else (centre - half, centre + half)


def _bilinear(plane: list[list[float]], y: float, x: float) -> float:
    """Between the values [H, W] at whole coordinates; up to 1 beyond the edges the edge's, further out 0."""
    last_row, last_column = len(plane) - 1, len(plane[0]) - 1
    if y < -1 or x < -1 or y > last_row + 1 or x > last_column + 1:
        return 0.0
    y, x = _within(y, last_row), _within(x, last_column)
    i, j = math.floor(y), math.floor(x)
    below, right = min(i + 1, last_row), min(j + 1, last_column)
    upper = (1 - (x - j)) * plane[i][j] + (x - j) * plane[i][right]
    lower = (1 - (x - j)) * plane[below][j] + (x - j) * plane[below][right]
    return (1 - (y - i)) * upper + (y - i) * lower


def _smooth_l1_sum(values: Array, targets: Array, beta: float) -> float:
    total = 0.0
    for coordinate in range(4):
        difference = abs(float(values[coordinate]) - float(targets[coordinate]))
        total += 0.5 * difference * difference / beta if difference < beta else difference - 0.5 * beta
    return total


def _binary_cross_entropy(logit: float, target: float) -> float:
    return max(logit, 0.0) - logit * target + math.log1p(math.exp(-abs(logit)))


def _cross_entropy(row: list[float], label: int) -> float:
    highest = max(row)
    return highest + math.log(sum(math.exp(value - highest) for value in row)) - row[label]
