"""ResNet-50 v1.5 image classification."""
