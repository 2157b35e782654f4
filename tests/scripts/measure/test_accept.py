"""The measurements of `timetrial accept`: clusters of known truth, and the faults of a machine."""

import numpy as np

from timetrial.runner.benchmarks.accept.cluster import rank_nodes
from timetrial.scripts.measure import accept_cluster, accept_faults


def test_the_slow_gpu_of_a_simulated_cluster_is_the_one_that_is_named():
    nodes = accept_cluster.simulate(np.random.default_rng(1), 12, 1, 0.2, np.inf)
    assert {(each.node, each.device) for each in rank_nodes(nodes).outliers} == {("0", "GPU 0")}
    assert len(nodes[0].figures) == accept_cluster.GPUS * accept_cluster.GPU_FIGURES + accept_cluster.HOST_FIGURES


def test_a_simulated_cluster_varies_as_stated():
    nodes = accept_cluster.simulate(np.random.default_rng(2), 400, 0, 0.0, 5.0)
    logs = np.log([figure.value for node in nodes for figure in node.figures if figure.device != "host"])
    assert abs(logs.std() - np.sqrt(2) * accept_cluster.SPREAD) < 0.0005


def test_faults_are_those_that_the_machine_can_have():
    assert accept_faults.select_faults([], 0) == list(accept_faults.FAULTS)
    assert accept_faults.select_faults([], 1)[:2] == ["gpu", "cores"]
    assert accept_faults.select_faults(["peer", "bit"], 2) == ["peer", "bit"]


def test_a_flipped_bit_is_of_a_tensor_that_the_workload_trains():
    assert accept_faults.find_tensor()
