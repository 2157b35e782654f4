"""Mask R-CNN with ResNet-50 and a feature pyramid: boxes and masks of objects."""
