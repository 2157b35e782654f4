"""Mask R-CNN with ResNet-50 and a feature pyramid network: instance segmentation."""
