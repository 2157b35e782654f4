#!/usr/bin/env python
"""Measure how fast worker processes read the JPEGs and crops of an image workload, as they do for a GPU that decodes.

    python -P scripts/measure/loader.py [--batches N] [--memory-gib N] KEY=VALUE...

Prints one JSON line: images a second, the milliseconds of the rank's own processor a batch, and those that a worker
takes to start. Nothing is decoded, so it runs without a GPU. Leave the machine idle.
"""

import argparse
import itertools
import json
import time

import torch

from timetrial.runner.config.compose import compose
from timetrial.runner.config.validation import resolve_classes, validate
from timetrial.runner.core.progress import no_progress
from timetrial.runner.launch.staging import data_settings
from timetrial.runner.training.seeds import derive_streams
from timetrial.runner.training.workload import BatchSharding
from timetrial.workloads.common.vision.decode_workers import BatchWorkers
from timetrial.workloads.common.vision.image_data import ImageData

_WARM_UP_BATCHES = 30


def main() -> None:
    """Measure the run of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=int, default=400)
    parser.add_argument("--memory-gib", type=int, default=0, help="of this process while workers start (default: 0)")
    arguments, overrides = parser.parse_known_args()
    config = validate(compose(["accelerator=cpu", *overrides]).node)
    _, data_class = resolve_classes(config)
    if not issubclass(data_class, ImageData):
        parser.error("The workload has no images.")
    settings = data_settings(config, data_class)
    data_class.prepare_data(settings, no_progress)
    batch = {"global_batch_size": config.recipe.global_batch_size, "sharding": BatchSharding()}
    data = data_class(settings, **batch, device=torch.device("cpu"), seeds=derive_streams(1))
    data._open_sets()
    dataset, processes = data.build_dataset(True), data._workers()
    ballast = torch.ones(arguments.memory_gib << 28)  # touched: a fork copies the page table of what is in memory
    began = time.perf_counter()
    workers = BatchWorkers(processes, reuse_memory=True)
    start = time.perf_counter() - began
    workers.open(dataset.encoded_batch)
    del ballast
    keys = ((epoch, indices) for epoch in itertools.count(1) for indices in data.train_plan(epoch))
    batches = workers.run(keys)
    for _ in range(_WARM_UP_BATCHES):
        next(batches)
    started, processor = time.perf_counter(), time.process_time()
    images = sum(len(batch.lengths) for batch in itertools.islice(batches, arguments.batches))
    seconds, processor = time.perf_counter() - started, time.process_time() - processor
    result = {"run": " ".join(overrides), "workers": processes, "images_per_second": round(images / seconds)}
    result["rank_ms_per_batch"] = round(processor / arguments.batches * 1e3, 3)
    print(json.dumps(result | {"start_ms_per_worker": round(start / max(1, processes) * 1e3, 1)}), flush=True)


if __name__ == "__main__":
    main()
