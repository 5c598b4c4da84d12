"""The flows, one a file, each a recipe of stages; `python -m flows` is the operator's command."""
