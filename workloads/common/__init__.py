"""What two or more workloads share."""
