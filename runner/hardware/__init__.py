"""Devices, number formats and sensors: the only package that knows one vendor from another."""
