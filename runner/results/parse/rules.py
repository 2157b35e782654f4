"""MLPerf facts that logs leave out: quality targets by round, runs per score, sizes of the training sets."""

from collections.abc import Mapping

# Quality targets as fractions, with the first round they apply to (docs/mlperf_rules.md, "Targets by round").
_TARGETS: dict[str, list[tuple[str, dict[str, float]]]] = {
    "resnet": [("v0.5", {"accuracy": 0.749}), ("v0.6", {"accuracy": 0.759})],
    "ssd": [("v0.5", {"mAP": 0.212}), ("v0.6", {"mAP": 0.23}), ("v2.0", {"mAP": 0.34})],
    "maskrcnn": [("v0.5", {"BBOX": 0.377, "SEGM": 0.339})],
    "gnmt": [("v0.5", {"BLEU": 0.218}), ("v0.6", {"BLEU": 0.24})],
    "transformer": [("v0.5", {"BLEU": 0.25})],
    "ncf": [("v0.5", {"hit_rate": 0.635})],
}
_ALIASES = {
    "mask": "maskrcnn",
    "mask_rcnn": "maskrcnn",
    "resnet50": "resnet",
    "imageclassification": "resnet",
    "retinanet": "ssd",
    "single_stage_detector": "ssd",
    "translation": "transformer",
    "rnn_translator": "gnmt",
}
_RUNS_PER_SCORE = {"resnet": 5, "ssd": 5, "maskrcnn": 5, "gnmt": 10, "transformer": 10, "ncf": 50}
_TRAIN_SAMPLES = {
    "resnet": 1_281_167,
    "ssd": 117_266,
    "retinanet": 1_170_301,
    "maskrcnn": 117_266,
    "gnmt": 3_498_161,
    "transformer": 4_590_101,
    "ncf": 99_308_850,  # 19,861,770 positives, each with 4 negatives
}
# Twice the multiply-adds of a forward pass, times three for forward and backward.
# ResNet-50 v1.5 at 224 pixels: 4.09 G multiply-adds (torchvision's model page); NeuMF: its four dense layers.
_TRAIN_FLOPS_PER_SAMPLE = {"resnet": 6 * 4.09e9, "ncf": 6 * 106_624.0}


def canonical_benchmark(name: str) -> str:
    """Return MLPerf's name of the benchmark that `name` is an alias of; other names in lower case."""
    lower = name.strip().lower().replace("-", "_")
    return _ALIASES.get(lower, lower)


def is_benchmark(name: str) -> bool:
    """Return True if `name` is one of the six benchmarks or an alias of one."""
    return canonical_benchmark(name) in _TARGETS


def quality_target(benchmark: str, round_: str) -> Mapping[str, float] | None:
    """Return the quality target of `round_` ("v0.7") by metric, as fractions.

    Without a round the target is that of the newest known round. None for a benchmark other than the six.
    """
    targets = [
        target
        for first_round, target in _TARGETS.get(benchmark, [])
        if not round_ or _round_number(first_round) <= _round_number(round_)
    ]
    return targets[-1] if targets else None


def model_name(benchmark: str, round_: str) -> str:
    """Return the model of a benchmark: since v2.0 `ssd` is RetinaNet on OpenImages."""
    if benchmark == "ssd" and round_ and _round_number(round_) >= _round_number("v2.0"):
        return "retinanet"
    return benchmark


def runs_per_score(benchmark: str) -> int | None:
    """Return the number of runs that a score requires (training rules, section on benchmark runs)."""
    return _RUNS_PER_SCORE.get(benchmark)


def train_samples(model: str) -> int | None:
    """Return the size of the reference training set."""
    return _TRAIN_SAMPLES.get(model)


def train_flops_per_sample(model: str) -> float | None:
    """Return the floating-point operations of training on one sample.

    None for models whose operations depend on the length of the text or on the number of boxes.
    """
    return _TRAIN_FLOPS_PER_SAMPLE.get(model)


def _round_number(round_: str) -> tuple[int, ...]:
    return tuple(int(part) for part in round_.lstrip("v").split(".") if part.isdigit())
