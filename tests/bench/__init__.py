"""The benchmark: `make bench` measures, prints a table and keeps the numbers as JSON."""
