"""Two ranks within a test."""

import multiprocessing
import os
import warnings

import pytest
import torch

from timetrial.runner.training import distributed


@pytest.fixture
def in_two_ranks():
    """in_two_ranks(body): the results of body(world, rank) in two forked gloo ranks, in rank order."""
    if torch.accelerator.is_available():
        pytest.skip("a process that has initialized an accelerator cannot fork")
    context = multiprocessing.get_context("fork")

    def run(body):
        results = context.Queue()

        def run_rank(rank, store):
            os.environ.update(distributed.rank_environment(store, rank, rank, 2))
            torch.set_num_threads(1)
            with distributed.join_world(torch.device("cpu"), 30) as world:
                results.put((rank, body(world, rank)))

        with distributed.local_store() as store, warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".*fork.*", DeprecationWarning)
            ranks = [context.Process(target=run_rank, args=(rank, store)) for rank in range(2)]
            for process in ranks:
                process.start()
            values = dict(results.get(timeout=120) for _ in ranks)
            for process in ranks:
                process.join(60)
        return [values[0], values[1]]

    return run
