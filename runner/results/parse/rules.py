"""MLPerf's own facts that logs leave out: which targets a round set, how many runs make a score."""

from collections.abc import Mapping

# Quality targets as fractions, per benchmark and round of first validity (training_policies; the checker's rule files).
_TARGETS: dict[str, list[tuple[str, dict[str, float]]]] = {
    "resnet": [("v0.5", {"accuracy": 0.749}), ("v0.6", {"accuracy": 0.759})],
    "ssd": [("v0.5", {"mAP": 0.212}), ("v0.6", {"mAP": 0.23}), ("v2.0", {"mAP": 0.34})],
    "maskrcnn": [("v0.5", {"BBOX": 0.377, "SEGM": 0.339})],
    "gnmt": [("v0.5", {"BLEU": 0.218}), ("v0.6", {"BLEU": 0.24})],
    "transformer": [("v0.5", {"BLEU": 0.25})],
    "ncf": [("v0.5", {"hit_rate": 0.635})],
}
_ALIASES = {"mask": "maskrcnn", "mask_rcnn": "maskrcnn", "resnet50": "resnet", "imageclassification": "resnet"}
_ALIASES |= {"retinanet": "ssd", "single_stage_detector": "ssd", "translation": "transformer", "rnn_translator": "gnmt"}
_RUNS = {"resnet": 5, "ssd": 5, "maskrcnn": 5, "gnmt": 10, "transformer": 10, "ncf": 50}


def benchmark_of(name: str) -> str:
    """The six benchmarks' usual name for `name`; another name as it is, in lower case."""
    lower = name.strip().lower().replace("-", "_")
    return _ALIASES.get(lower, lower)


def is_benchmark(name: str) -> bool:
    """True if `name` is one of the six, or another name of one."""
    return benchmark_of(name) in _TARGETS


def target(benchmark: str, round_: str) -> Mapping[str, float] | None:
    """The quality, as fractions by metric, that `round_` ("v0.7") asked for; without a round the newest known.

    None for a benchmark that is not of the six.
    """
    valid = [goal for since, goal in _TARGETS.get(benchmark, []) if not round_ or _order(since) <= _order(round_)]
    return valid[-1] if valid else None


def model_of(benchmark: str, round_: str) -> str:
    """The model behind a benchmark's name: since v2.0 `ssd` means RetinaNet on OpenImages."""
    return "retinanet" if benchmark == "ssd" and round_ and _order(round_) >= _order("v2.0") else benchmark


def runs_for_a_score(benchmark: str) -> int | None:
    """Runs that a score needs (training rules, section on benchmark runs)."""
    return _RUNS.get(benchmark)


def _order(round_: str) -> tuple[int, ...]:
    return tuple(int(part) for part in round_.lstrip("v").split(".") if part.isdigit())


# Samples of the training sets, to tell a logged count of iterations from one of samples.
_TRAIN_SAMPLES = {
    "resnet": 1_281_167,
    "ssd": 117_266,
    "retinanet": 1_170_301,
    "maskrcnn": 117_266,
    "gnmt": 3_498_161,
    "transformer": 4_590_101,
    "ncf": 99_308_870,
}
# Multiply-adds of one forward pass per sample, times two (operations), times three (forward and backward).
# ResNet-50 v1.5 at 224 pixels: 4.09 G multiply-adds (torchvision's model page); NeuMF: its four dense layers.
_TRAIN_OPERATIONS = {"resnet": 6 * 4.09e9, "ncf": 6 * 106_624.0}


def train_samples(model: str) -> int | None:
    """Size of the reference training set."""
    return _TRAIN_SAMPLES.get(model)


def train_operations(model: str) -> float | None:
    """Floating-point operations of training on one sample; None where they depend on the sample's length or boxes."""
    return _TRAIN_OPERATIONS.get(model)
