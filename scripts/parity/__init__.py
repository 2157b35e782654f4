"""Convergence beside MLPerf's retired reference implementations, at equal data and hyperparameters."""
