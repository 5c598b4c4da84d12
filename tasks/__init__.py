"""The stages of the pipeline, one a file, and what they share: records, paths, services."""
