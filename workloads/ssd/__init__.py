"""SSD300 with ResNet-34: object detection in one shot."""
