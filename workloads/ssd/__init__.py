"""SSD300 with a ResNet-34 backbone: single-shot object detection."""
