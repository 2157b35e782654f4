"""MLPerf facts that logs leave out: quality targets by round, runs per score, sizes of the training sets."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

# Metrics of which less is better; of all others more is better.
LOWER_IS_BETTER = frozenset({"loss", "log_perplexity", "WER", "FID"})


@dataclass(frozen=True)
class Benchmark:
    """Rules of a benchmark: runs that a score requires, quality targets by first round, size of the training set."""

    runs_per_score: int
    targets: Mapping[str, Mapping[str, float]]
    train_samples: int | None = None


# Targets are fractions, except losses and FID. Sources: the rules of v0.5 and v0.6 (docs/mlperf_rules.md); from v0.7 on
# the files closed_<benchmark>.yaml of MLCommons' compliance checker, and its benchmark_meta.py for the runs.
# BERT's target in v0.7 was 0.706 for batches of 8,192 and more.
_BENCHMARKS = {
    "resnet": Benchmark(5, {"v0.5": {"accuracy": 0.749}, "v0.6": {"accuracy": 0.759}}, 1_281_167),
    "ssd": Benchmark(5, {"v0.5": {"mAP": 0.212}, "v0.6": {"mAP": 0.23}, "v2.0": {"mAP": 0.34}}, 117_266),
    "retinanet": Benchmark(5, {"v2.0": {"mAP": 0.34}}, 1_170_301),
    "maskrcnn": Benchmark(5, {"v0.5": {"BBOX": 0.377, "SEGM": 0.339}}, 117_266),
    "gnmt": Benchmark(10, {"v0.5": {"BLEU": 0.218}, "v0.6": {"BLEU": 0.24}}, 3_498_161),
    "transformer": Benchmark(10, {"v0.5": {"BLEU": 0.25}}, 4_590_101),
    "ncf": Benchmark(50, {"v0.5": {"hit_rate": 0.635}}, 99_308_850),  # 19,861,770 positives, each with 4 negatives
    "minigo": Benchmark(10, {"v0.7": {"win_rate": 0.5}}),
    "bert": Benchmark(10, {"v0.7": {"masked_lm_accuracy": 0.712}, "v1.0": {"masked_lm_accuracy": 0.72}}),
    "dlrm": Benchmark(5, {"v0.7": {"AUC": 0.8025}}),
    "rnnt": Benchmark(10, {"v1.0": {"WER": 0.058}}),
    "unet3d": Benchmark(40, {"v1.0": {"mean_dice": 0.908}}, 168),
    "dlrm_dcnv2": Benchmark(10, {"v3.0": {"AUC": 0.80275}}, 4_195_197_692),
    "gpt3": Benchmark(3, {"v3.0": {"log_perplexity": 2.69}}),
    "stable_diffusion": Benchmark(10, {"v3.1": {"FID": 90.0, "CLIP": 0.15}}),
    "gnn": Benchmark(10, {"v4.0": {"accuracy": 0.72}}),
    "rgat": Benchmark(10, {"v4.0": {"accuracy": 0.72}}, 94_605_581),
    "llama2_70b_lora": Benchmark(10, {"v4.0": {"loss": 0.925}}),
    "llama31_405b": Benchmark(3, {"v5.0": {"log_perplexity": 5.6}}),
    "llama31_8b": Benchmark(10, {"v5.1": {"log_perplexity": 3.3}}),
    "flux1": Benchmark(10, {"v5.1": {"loss": 0.586}}),
    "gpt_oss_20b": Benchmark(10, {"v6.0": {"log_perplexity": 3.34}}),
    "deepseekv3_671b": Benchmark(3, {"v6.0": {"log_perplexity": 3.6}}),
}
# Other names in folders and logs of v0.5 and v0.6.
_ALIASES = {
    "mask": "maskrcnn",
    "mask_rcnn": "maskrcnn",
    "resnet50": "resnet",
    "imageclassification": "resnet",
    "single_stage_detector": "ssd",
    "translation": "transformer",
    "rnn_translator": "gnmt",
}
_NO_WORD = re.compile(r"[^a-z0-9_]+")
_MAX_NAME = 100  # characters; a file is named after it
# Twice the multiply-adds of a forward pass, times three for forward and backward.
# ResNet-50 v1.5 at 224 pixels: 4.09 G multiply-adds (torchvision's model page); NeuMF: its four dense layers.
_TRAIN_FLOPS_PER_SAMPLE = {"resnet": 6 * 4.09e9, "ncf": 6 * 106_624.0}


def canonical_benchmark(name: str) -> str:
    """Return MLPerf's name of the benchmark that `name` is an alias of; other names as a file name in lower case."""
    lower = _NO_WORD.sub("_", name.strip().lower())[:_MAX_NAME]
    return _ALIASES.get(lower, lower)


def is_benchmark(name: str) -> bool:
    """Return True if `name` is a benchmark of MLPerf Training or an alias of one."""
    return canonical_benchmark(name) in _BENCHMARKS


def quality_target(benchmark: str, round_: str) -> Mapping[str, float] | None:
    """Return the quality target of `round_` ("v0.7") by metric.

    Without a round the target is that of the newest known round. None for a benchmark that is not in the rules.
    """
    targets = [
        target
        for first_round, target in (_BENCHMARKS[benchmark].targets if benchmark in _BENCHMARKS else {}).items()
        if not round_ or _round_number(first_round) <= _round_number(round_)
    ]
    return targets[-1] if targets else None


def metric_names(benchmark: str) -> list[str]:
    """Return the metrics that must reach the target; empty for a benchmark that is not in the rules."""
    return list(quality_target(benchmark, "") or {})


def model_name(benchmark: str, round_: str) -> str:
    """Return the model of a benchmark: since v2.0 `ssd` is RetinaNet on OpenImages, and `gnn` was RGAT."""
    if benchmark == "gnn":
        return "rgat"
    if benchmark == "ssd" and round_ and _round_number(round_) >= _round_number("v2.0"):
        return "retinanet"
    return benchmark


def runs_per_score(benchmark: str) -> int | None:
    """Return the number of runs that a score requires (training rules, section on benchmark runs)."""
    return _BENCHMARKS[benchmark].runs_per_score if benchmark in _BENCHMARKS else None


def train_samples(model: str) -> int | None:
    """Return the size of the reference training set."""
    return _BENCHMARKS[model].train_samples if model in _BENCHMARKS else None


def train_flops_per_sample(model: str) -> float | None:
    """Return the floating-point operations of training on one sample.

    None for models whose operations depend on the length of the text or on the number of boxes.
    """
    return _TRAIN_FLOPS_PER_SAMPLE.get(model)


def _round_number(round_: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"[0-9]{1,9}", round_)))
