"""Hostile logs, and wrong values for run records and measured peaks."""

import json

HOSTILE = "\x1b[31m\x1b]0;owned\x07 \x9b1m \u202eevil [/nope] <script>"
DEEP = "[" * 100_000
BIG = "9" * 5000
RECORD_CHANGES = [
    ("flags", 5), ("flags", []), ("flags", {"a": 1}), ("state", "fine"), ("state", 7), ("state", None),
    ("attempts", {}), ("attempts", [1]), ("attempts.0.hostname", 3), ("attempts.0.started_at", "x"), ("config", []),
    ("config", "x"), ("environment", 3), ("verdict", "complies"), ("verdict", {"problems": [1]}), ("telemetry", 3),
    ("cost", {"usd": "free"}), ("run_class", "new"), ("exit_code", "0"), ("exit_code", True), ("schema_version", 99),
    ("config.gpus", "x"), ("config.gpus", 0), ("config.gpus", -1), ("config.gpus", 1.5), ("config.gpus", 10**400),
    ("config.system", {"a": 1}), ("config.system", ["a"]), ("config.round", "v05"), ("config.round.name", 5),
    ("config.recipe", None), ("config.recipe.global_batch_size", "x"), ("config.recipe.global_batch_size", 0),
    ("config.precision.name", {}), ("config.accelerator", []), ("config.workload.benchmark", ["a"]),
    ("config.submission.org", {}), ("config.peer_to_peer", "no"), ("config.throughput", 5),
    ("config.throughput.steps", "x"), ("config.launcher.nodes", "x"), ("config.engine.compile", 1),
    ("config.recipe.training", 1), ("config.data.loader", 0),
]  # fmt: skip
TRAINING_CHANGES = [("training", 5), ("training.blocks", 1), ("training.seconds", "x"), ("training.quality", [1])]
THROUGHPUT_CHANGES = [
    ("throughput", 7), ("throughput.samples_per_second", "x"), ("throughput.samples_per_second", -1.0),
    ("throughput.train_ms", float("nan")), ("throughput.eval_ms", float("inf")), ("throughput.train_rates", "abc"),
    ("throughput.samples_per_second", 1e308), ("throughput.step_cost", 3), ("throughput.step_cost.samples", 0.0),
    ("throughput.step_cost.operations", -1.0), ("throughput.gpus", "2"),
]  # fmt: skip
PEAKS_CHANGES = [
    ("peaks", 5), ("peaks.tflops", []), ("peaks.tflops", {"fp32": "x"}), ("peaks.tflops", {"fp32": -1.0}),
    ("peaks.tflops", {"fp32": 0}), ("peaks.gb_s", "x"), ("peaks.gb_s", -1), ("rows", 5), ("rows", [5]), ("rows", [{}]),
    ("rows.0.tflops", "x"), ("rows.0.kind", {}), ("rows.0.repeats", "x"), ("rows.0.seconds", 0), ("measured", "x"),
    ("measured", None), ("schema", 2), ("system", 5), ("system", {"hostname": {}}), ("card", {}), ("rows.0.watts", []),
]  # fmt: skip


def lines(benchmark="resnet", **values):
    """Yield the lines of a log, in which `values` replace values by key, and `epoch`, `time_ms` and `status`."""
    epoch, time_ms = values.get("epoch", "4"), values.get("time_ms", "1600000100000")
    entries = {
        "submission_benchmark": json.dumps(benchmark),
        "submission_org": '"odd"',
        "submission_platform": '"odd"',
        "global_batch_size": "256",
        "train_samples": "1281167",
        "seed": "1",
        "opt_base_learning_rate": "0.1",
    } | values
    for key in entries.keys() - {"epoch", "time_ms", "eval_accuracy", "quality_target", "metadata"}:
        yield f':::MLLOG {{"key": "{key}", "value": {entries[key]}, "time_ms": 1600000000000, "metadata": {{}}}}'
    metadata = values.get("metadata", f'{{"epoch_num": {epoch}}}')
    yield ':::MLLOG {"key": "run_start", "value": null, "time_ms": 1600000000000, "metadata": {}}'
    for key in ("eval_accuracy", "quality_target"):
        value = values.get(key, "0.9")
        yield f':::MLLOG {{"key": "{key}", "value": {value}, "time_ms": {time_ms}, "metadata": {metadata}}}'
    yield f':::MLLOG {{"key": "run_stop", "value": null, "time_ms": {time_ms}, "metadata": {{"status": "success"}}}}'


LOGS = {
    **{
        f"{key} is {value[:12]}": "\n".join(lines(**{key: value}))
        for key in ("epoch", "eval_accuracy", "time_ms", "global_batch_size", "train_samples", "seed", "quality_target")
        for value in ("1e308", "-1e308", "NaN", "Infinity", BIG[:4000], BIG, "-1", "0", "1e-308", '"x"', "[]", "{}")
    },
    **{
        f"{key} is hostile": "\n".join(lines(**{key: json.dumps(HOSTILE)}))
        for key in ("submission_org", "submission_platform", "opt_base_learning_rate", "eval_accuracy")
    },
    "benchmark of 5,000 letters": "\n".join(lines(benchmark="x" * 5000)),
    "benchmark is a path": "\n".join(lines(benchmark="../../../escape")),
    "benchmark is hostile": "\n".join(lines(benchmark=HOSTILE)),
    "metric is hostile": "\n".join(lines(eval_accuracy=json.dumps({HOSTILE: 0.9}))),
    "quality as deep text": "\n".join(lines(eval_accuracy=json.dumps("[" * 20_000))),
    "deep quality": "\n".join(lines(eval_accuracy="[" * 20_000 + "]" * 20_000)),
    "deep object": "\n".join(lines(eval_accuracy='{"a":' * 400 + "1" + "}" * 400)),
    "deep metadata": "\n".join(lines(metadata='{"a":' * 400 + "1" + "}" * 400)),
    "metadata is a list": "\n".join(lines(metadata="[]")),
    "minus signs": ":::MLLOG {'key': 'seed', 'value': " + "-" * 9000 + "1}",
    "nested single quotes": ":::MLLOG {'key': 'seed', 'value': " + "[" * 9000 + "}",
    "alias bomb": ":::MLLOG {'key': 'a', 'value': &a [x, x], 'b': &b [*a, *a, *a], 'c': [*b, *b, *b]}",
    "spaces after SEED=": "SEED=" + " " * 1_000_000 + "x\n" + "\n".join(lines()),
    "20 MB line": ":::MLLOG " + "x" * 20_000_000 + "\n" + "\n".join(lines()),
    "markers": ":::MLLOG " * 100_000,
    "only NUL": "\0" * 1_000_000,
}
