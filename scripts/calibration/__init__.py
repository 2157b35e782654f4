"""Simulation of the statistics with known truth: what `scripts/calibrate` runs."""
