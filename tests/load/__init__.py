"""Load on the endpoint."""
