"""What Prometheus is told: read from the files of runs, served by one small process."""
