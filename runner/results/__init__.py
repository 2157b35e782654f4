"""Results: read, judge and show MLPerf logs of every round. Nothing here imports a framework."""
