"""CIFAR-10 image classification by the networks of published hardware comparisons."""
