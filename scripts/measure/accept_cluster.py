"""Simulate clusters of known truth, and count the false alarms and misses of `timetrial accept --compare`.

    python -P scripts/measure/accept_cluster.py [--seed 1] [--clusters 600] [--slow 0.05]

A node has eight GPUs with 9 figures each and two figures of the host. Rates vary by 1% from GPU to GPU and by 1% from
node to node; half of each variance is of the machines and half is noise, which another measurement draws anew. They are
normal on the log scale; either half may have the heavy tails of Student's t with 5 degrees of freedom instead. A slow
node has one GPU that is slower than that by a fixed share in each figure. All nodes are measured once, and those with a
suspect again. A false alarm is a cluster with a named device that is slower than the median by less than --slow; a
miss is a slow node that is not named. Prints a table row for each setting.
"""

import argparse
import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from timetrial.runner.benchmarks.accept.cluster import Node, Ranking, rank_nodes
from timetrial.runner.benchmarks.accept.figures import Figure, State

CLUSTERS = {3: 1.0, 10: 1.0, 100: 0.25, 1000: 0.06}  # share of --clusters that is simulated of each size
SPREAD = 0.01
GPUS, GPU_FIGURES, HOST_FIGURES = 8, 9, 2
SLOW = 0.05  # by default, a device that is slower by so much is slow, whatever made it so
NORMAL, MACHINES, NOISE = "normal", "t, machines", "t, noise"


class Cluster:
    """A cluster whose first `num_slow` nodes have a slow GPU; `logs` are the log rates without noise."""

    def __init__(self, rng: np.random.Generator, num_nodes: int, num_slow: int, deficit: float, tails: str) -> None:
        self._rng, self._num_nodes, self._tails = rng, num_nodes, tails
        self.logs = self._draw(is_heavy=tails == MACHINES)
        self.logs[0][:num_slow, 0] += np.log1p(-deficit)

    def measure(self) -> list[Node]:
        """Return a measurement of every node."""
        noise = self._draw(is_heavy=self._tails == NOISE)
        gpus, hosts = (np.exp(log + more) for log, more in zip(self.logs, noise, strict=True))
        models = {f"GPU {gpu}": "GPU" for gpu in range(GPUS)} | {"host": "CPU"}
        figures = [tuple(_figures(gpu, host)) for gpu, host in zip(gpus, hosts, strict=True)]
        return [Node(str(number), "", State.PASS, same, models) for number, same in enumerate(figures)]

    def is_slow(self, node: str, device: str, deficit: float = SLOW) -> bool:
        """Return whether a device is truly slower by `deficit` in a figure."""
        logs = (
            self.logs[1][int(node)] if device == "host" else self.logs[0][int(node), int(device.removeprefix("GPU "))]
        )
        return bool(min(logs) < np.log1p(-deficit))

    def _draw(self, *, is_heavy: bool) -> tuple[np.ndarray, np.ndarray]:
        """Return half of the variance, of the GPUs' figures and of the hosts'."""

        def draw(*shape: int) -> np.ndarray:
            values = self._rng.standard_t(5, shape) * math.sqrt(3 / 5) if is_heavy else self._rng.standard_normal(shape)
            return math.sqrt(0.5) * SPREAD * values

        nodes = self._num_nodes
        return draw(nodes, GPUS, GPU_FIGURES) + draw(nodes, 1, GPU_FIGURES), draw(nodes, HOST_FIGURES)


def _figures(gpus: np.ndarray, hosts: np.ndarray) -> Iterator[Figure]:
    for (gpu, figure), rate in np.ndenumerate(gpus):
        yield Figure(f"figure {figure}", f"GPU {gpu}", "1/s", (float(rate),))
    for (figure,), rate in np.ndenumerate(hosts):
        yield Figure(f"host figure {figure}", "host", "1/s", (float(rate),))


def compare(cluster: Cluster) -> tuple[Ranking, int]:
    """Return the ranking after nodes with a suspect were measured again, and how many those are."""
    nodes = cluster.measure()
    ranking = rank_nodes(nodes)
    suspects = {int(suspect.node) for suspect in ranking.suspects}
    if suspects:
        again = cluster.measure()
        nodes = [replace(again[k], before=node.figures) if k in suspects else node for k, node in enumerate(nodes)]
        ranking = rank_nodes(nodes)
    return ranking, len(suspects)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--clusters", type=int, default=600, help="of 3 and of 10 equal nodes; fewer of the others")
    parser.add_argument("--slow", type=float, default=SLOW, help="share from which on a slower device is slow")
    arguments = parser.parse_args()
    rng = np.random.default_rng(arguments.seed)
    columns = ("nodes", "slow nodes", "slower by", "tails", "clusters", "with a false alarm", "slow nodes missed")
    print(f"| {' | '.join(columns)} | nodes measured again |\n|{(len(columns) + 1) * '---|'}")
    settings = [(0.0, 0.0, tails) for tails in (NORMAL, NOISE, MACHINES)]
    settings += [
        (share, deficit, tails) for share in (0.01, 0.05) for deficit in (0.05, 0.10) for tails in (NORMAL, NOISE)
    ]
    for num_nodes, share_of_clusters in CLUSTERS.items():
        for share, deficit, tails in settings:
            num_slow = math.ceil(share * num_nodes)
            if share == 0.01 and num_slow == math.ceil(0.05 * num_nodes):  # the same as 5%
                continue
            num_clusters = math.ceil(share_of_clusters * arguments.clusters / (4 if num_slow else 1))
            alarms = found = measured_again = 0
            for _ in range(num_clusters):
                cluster = Cluster(rng, num_nodes, num_slow, deficit, tails)
                ranking, suspects = compare(cluster)
                named = {(each.node, each.device) for each in ranking.outliers}
                alarms += not all(cluster.is_slow(*each, arguments.slow) for each in named)
                found += len({node for node, _ in named if int(node) < num_slow})
                measured_again += suspects
            missed = f"{1 - found / num_slow / num_clusters:.1%}" if num_slow else ""
            cells = (num_nodes, num_slow, f"{deficit:.0%}" if num_slow else "", tails, num_clusters)
            again = f"{measured_again / num_nodes / num_clusters:.2%}"
            print(f"| {' | '.join(map(str, cells))} | {alarms / num_clusters:.1%} | {missed} | {again} |", flush=True)


if __name__ == "__main__":
    main()
