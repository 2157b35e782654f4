"""The measurements of `timetrial accept`: clusters of known truth, and the faults of a machine."""

import numpy as np
import pytest

from timetrial.scripts.measure import accept_cluster, accept_faults


def test_the_slow_gpu_of_a_simulated_cluster_is_the_one_that_is_named():
    cluster = accept_cluster.Cluster(np.random.default_rng(1), 12, 1, 0.2, accept_cluster.NORMAL)
    ranking, _ = accept_cluster.compare(cluster)
    assert {(each.node, each.device) for each in ranking.outliers} == {("0", "GPU 0")}
    assert cluster.is_slow("0", "GPU 0")
    assert not cluster.is_slow("0", "GPU 1")
    assert not cluster.is_slow("0", "host")
    figures = cluster.measure()[0].figures
    assert len(figures) == accept_cluster.GPUS * 10 + 2


@pytest.mark.parametrize("tails", [accept_cluster.NORMAL, accept_cluster.NOISE, accept_cluster.MACHINES])
def test_a_simulated_cluster_varies_as_stated(tails):
    cluster = accept_cluster.Cluster(np.random.default_rng(2), 400, 0, 0.0, tails)
    first, second = (
        np.log([figure.value for node in cluster.measure() for figure in node.figures if figure.device != "host"])
        for _ in range(2)
    )
    assert abs(first.std() - np.sqrt(2) * accept_cluster.SPREAD) < 0.0006
    assert abs(np.corrcoef(first, second)[0, 1] - 0.5) < 0.05  # half of the variance stays


def test_measured_noise_differs_by_figure():
    noise = accept_cluster.MEASURED
    cluster = accept_cluster.Cluster(np.random.default_rng(4), 400, 0, 0.0, accept_cluster.NORMAL, noise)
    first, second = ([figure for node in cluster.measure() for figure in node.figures] for _ in range(2))
    changes = np.log([after.value / before.value for before, after in zip(first, second, strict=True)]).reshape(400, -1)
    gpus, hosts = changes[:, :-2].reshape(400 * accept_cluster.GPUS, 10), changes[:, -2:]
    # A change is of two draws, and each has the noise of the GPU and that of its node.
    np.testing.assert_allclose(gpus.std(axis=0), 2 * np.asarray(noise[0]), rtol=0.1)
    np.testing.assert_allclose(hosts.std(axis=0), np.sqrt(2) * np.asarray(noise[1]), rtol=0.1)


def test_noise_with_heavy_tails_makes_suspects_but_no_outliers():
    rng = np.random.default_rng(3)
    clusters = [accept_cluster.Cluster(rng, 20, 0, 0.0, accept_cluster.NOISE) for _ in range(30)]
    rankings = [accept_cluster.compare(cluster) for cluster in clusters]
    assert sum(measured_again > 0 for _, measured_again in rankings) > 0.05 * len(rankings)
    assert sum(bool(ranking.outliers) for ranking, _ in rankings) <= 0.05 * len(rankings)


def test_faults_are_those_that_the_machine_can_have():
    assert accept_faults.select_faults([], 0) == list(accept_faults.FAULTS)
    assert accept_faults.select_faults([], 1)[:2] == ["gpu", "cores"]
    assert accept_faults.select_faults(["peer", "bit"], 2) == ["peer", "bit"]


def test_a_flipped_bit_is_of_a_tensor_that_the_workload_trains():
    assert accept_faults.find_tensor()
