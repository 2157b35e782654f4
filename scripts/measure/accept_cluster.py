"""Simulate clusters of known truth, and count the false alarms and misses of `timetrial accept --compare`.

    python -P scripts/measure/accept_cluster.py [--seed 1] [--clusters 600] [--slow 0.05] [--measured]

A node has eight GPUs with 10 figures each and two figures of the host. Rates vary by 1% from GPU to GPU and by 1% from
node to node; half of each variance is of the machines and half is noise, which another measurement draws anew. They are
normal on the log scale; either half may have the heavy tails of Student's t with 5 degrees of freedom instead. A slow
node has one GPU that is slower than that by a fixed share in each figure. All nodes are measured once, and those with a
suspect again. A false alarm is a cluster with a named device that is slower than the median by less than --slow; a
miss is a slow node that is not named. With --measured, the noise of each figure has the standard deviation that ten
acceptances of one H200 had (docs/accept.md). Prints a table row for each setting.
"""

import argparse
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from timetrial.runner.benchmarks.accept.cluster import Node, Ranking, rank_nodes
from timetrial.runner.benchmarks.accept.figures import Figure, State

CLUSTERS = {3: 1.0, 10: 1.0, 100: 0.25, 1000: 0.06}  # share of --clusters that is simulated of each size
SPREAD = 0.01
GPUS = 8
EQUAL = (10 * [math.sqrt(0.5) * SPREAD], 2 * [math.sqrt(0.5) * SPREAD])
# Noise in fp32, tf32, bf16 and fp16 products, copies on the GPU, to it and from it, NCF, GNMT and GPT, half of each
# variance between GPUs and half between nodes; in copies and reads of files on the host.
MEASURED = (
    [math.sqrt(0.5) * sd for sd in (0.0035, 0.0327, 0.0383, 0.0348, 0.0026, 0.0051, 0.0031, 0.001, 0.011, 0.0011)],
    [0.0684, 0.0857],
)
SLOW = 0.05  # by default, a device that is slower by so much is slow, whatever made it so
Spreads = tuple[Sequence[float], Sequence[float]]  # of the figures of a GPU, and of a host
NORMAL, MACHINES, NOISE = "normal", "t, machines", "t, noise"


class Cluster:
    """A cluster whose first `num_slow` nodes have a slow GPU; `logs` are the log rates without noise.

    `noise` has the standard deviations of the noise in the figures of a GPU and of a host.
    """

    def __init__(
        self,
        rng: np.random.Generator,
        num_nodes: int,
        num_slow: int,
        deficit: float,
        tails: str,
        noise: Spreads = EQUAL,
    ) -> None:
        self._rng, self._num_nodes, self._tails, self._noise = rng, num_nodes, tails, noise
        self.logs = self._draw(EQUAL, is_heavy=tails == MACHINES)
        self.logs[0][:num_slow, 0] += np.log1p(-deficit)

    def measure(self) -> list[Node]:
        """Return a measurement of every node."""
        noise = self._draw(self._noise, is_heavy=self._tails == NOISE)
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

    def _draw(self, spreads: Spreads, *, is_heavy: bool) -> tuple[np.ndarray, np.ndarray]:
        """Return deviations of the GPUs' figures and of the hosts', with the standard deviations of `spreads`."""

        def draw(spread: Sequence[float], *shape: int) -> np.ndarray:
            shape = (self._num_nodes, *shape, len(spread))
            values = self._rng.standard_t(5, shape) * math.sqrt(3 / 5) if is_heavy else self._rng.standard_normal(shape)
            return np.asarray(spread) * values

        gpu, host = spreads
        return draw(gpu, GPUS) + draw(gpu, 1), draw(host)


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
    parser.add_argument("--measured", action="store_true", help="with the noise that was measured on H200s")
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
                cluster = Cluster(rng, num_nodes, num_slow, deficit, tails, MEASURED if arguments.measured else EQUAL)
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
