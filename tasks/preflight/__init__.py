"""What is checked before a run is paid for: one subject a file, each a finding with its fix."""
