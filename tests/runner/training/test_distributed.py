"""What the ranks of a run tell each other."""

import os


def test_ranks_know_the_processes_of_their_node(in_two_ranks):
    def body(world, rank):
        return os.getpid(), world.node_processes(nodes=1), world.node_processes(nodes=2)

    (first, *of_first), (second, *of_second) = in_two_ranks(body)
    assert of_first == [[first, second], [first]]
    assert of_second == [[first, second], [second]]
