"""Simulate clusters of known truth, and count the false alarms and misses of `timetrial accept --compare`.

    python -P scripts/measure/accept_cluster.py [--seed 1]

A node has eight GPUs with 9 figures each and two figures of the host; rates vary by 1% from GPU to GPU and by 1% from
node to node, as a lognormal or with the heavy tails of Student's t with 5 degrees of freedom. A slow node has one GPU
that is slower than that by a fixed share in each figure. A false alarm is a cluster in which an outlier is named on a
node that is not slow; a miss is a slow node that is not named. Prints a table row for each setting.
"""

import argparse
import math
from collections.abc import Iterator

import numpy as np

from timetrial.runner.benchmarks.accept.cluster import Node, rank_nodes
from timetrial.runner.benchmarks.accept.figures import Figure, State

CLUSTERS = {3: 1000, 10: 1000, 100: 200, 1000: 40}  # simulated of each size
SPREAD = 0.01
GPUS, GPU_FIGURES, HOST_FIGURES = 8, 9, 2


def simulate(rng: np.random.Generator, num_nodes: int, num_slow: int, deficit: float, dof: float) -> list[Node]:
    """Return a cluster whose first `num_slow` nodes have a slow GPU."""

    def noise(*shape: int) -> np.ndarray:
        normal = (
            rng.standard_t(dof, shape) * np.sqrt((dof - 2) / dof) if np.isfinite(dof) else rng.standard_normal(shape)
        )
        return SPREAD * normal

    gpu_logs = noise(num_nodes, GPUS, GPU_FIGURES) + noise(num_nodes, 1, GPU_FIGURES)
    gpu_logs[:num_slow, 0] += np.log1p(-deficit)
    host_logs = noise(num_nodes, HOST_FIGURES)
    models = {f"GPU {gpu}": "GPU" for gpu in range(GPUS)} | {"host": "CPU"}
    return [
        Node(str(node), "", State.PASS, tuple(_figures(gpu_logs[node], host_logs[node])), models)
        for node in range(num_nodes)
    ]


def _figures(gpu_logs: np.ndarray, host_logs: np.ndarray) -> Iterator[Figure]:
    for (gpu, figure), log in np.ndenumerate(gpu_logs):
        yield Figure(f"figure {figure}", f"GPU {gpu}", "1/s", (float(np.exp(log)),))
    for (figure,), log in np.ndenumerate(host_logs):
        yield Figure(f"host figure {figure}", "host", "1/s", (float(np.exp(log)),))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=1)
    rng = np.random.default_rng(parser.parse_args().seed)
    print("| nodes | slow nodes | slower by | distribution | clusters | with a false alarm | slow nodes missed |")
    print("|---|---|---|---|---|---|---|")
    settings = [(0.0, 0.0, np.inf), (0.0, 0.0, 5.0)]
    settings += [(share, deficit, np.inf) for share in (0.01, 0.05) for deficit in (0.05, 0.10)]
    for num_nodes, num_clusters in CLUSTERS.items():
        for share, deficit, dof in settings:
            num_slow = math.ceil(share * num_nodes)
            if share == 0.01 and num_slow == math.ceil(0.05 * num_nodes):  # the same as 5%
                continue
            alarms = found = 0
            for _ in range(num_clusters):
                outliers = rank_nodes(simulate(rng, num_nodes, num_slow, deficit, dof)).outliers
                named = {int(outlier.node) for outlier in outliers}
                alarms += any(node >= num_slow for node in named)
                found += sum(node < num_slow for node in named)
            missed = f"{1 - found / num_slow / num_clusters:.1%}" if num_slow else ""
            shape = "normal" if np.isinf(dof) else "t, 5 dof"
            cells = (num_nodes, num_slow, f"{deficit:.0%}" if num_slow else "", shape, num_clusters)
            print(f"| {' | '.join(map(str, cells))} | {alarms / num_clusters:.1%} | {missed} |", flush=True)


if __name__ == "__main__":
    main()
