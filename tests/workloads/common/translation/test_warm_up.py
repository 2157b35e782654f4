"""Warm-up of evaluation: in its own shapes, so that its searches are captured before the clock."""

import pytest

from timetrial.runner.hardware.device_graphs import flatten_inputs
from timetrial.runner.training.workload import BatchSharding
from timetrial.workloads.common.translation import parallel_data
from timetrial.workloads.gnmt.data import GNMTData
from timetrial.workloads.transformer.data import TransformerData


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize(("data_class", "batch_size"), [(GNMTData, 64), (TransformerData, 700)])
def test_warm_up_evaluates_in_the_shapes_of_a_few_batches(build, data_class, batch_size, rank, monkeypatch):
    monkeypatch.setattr(parallel_data, "supports_graphs", lambda device: True)
    sharding = BatchSharding(rank, 2)

    def keys(batches):
        return [flatten_inputs(batch.inputs[0])[0] for batch in batches]

    few, many = (build(data_class, batch_size, sharding=sharding, eval_batch_size=size) for size in (10, 2))
    assert keys(few.warm_up_eval_batches()) == keys(few.eval_batches())
    (synthetic,) = many.warm_up_eval_batches()
    assert synthetic.weight == 2
