"""Warm-up of evaluation: in its own shapes, so that its searches are captured before the clock."""

from types import SimpleNamespace

import pytest

from timetrial.runner.hardware.device_graphs import flatten_inputs
from timetrial.runner.training.workload import BatchSharding
from timetrial.workloads.common.translation import parallel_data, workload
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
    assert (few.has_few_eval_shapes, many.has_few_eval_shapes) == (True, False)


@pytest.mark.parametrize("capture_search", [False, True])
@pytest.mark.parametrize("has_few_eval_shapes", [False, True])
def test_searches_are_captured_if_those_of_all_batches_can_be(capture_search, has_few_eval_shapes, monkeypatch):
    """On the clock, none is captured."""
    monkeypatch.setattr(workload.CapturedSearches, "run", lambda searches, start, source: ["captured"])
    translating = workload.TranslationWorkload.__new__(workload.TranslationWorkload)
    translating.settings = SimpleNamespace(capture_search=capture_search)
    translating.data = SimpleNamespace(has_few_eval_shapes=has_few_eval_shapes)
    translating.start_search = lambda model, source: SimpleNamespace(run=lambda: ["eager"])
    expected = "captured" if capture_search and has_few_eval_shapes else "eager"
    assert translating._translate(None, "source") == [expected]
