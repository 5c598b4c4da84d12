"""Tests that run in the trainer environment: torch, SkyRL, vLLM."""
