"""The server image: how an inference server is started and how its processes end."""
