"""CIFAR-10 by the networks of two published card comparisons."""
