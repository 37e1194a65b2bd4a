"""Builds the images `base` and `python`: `python -m scripts.images`, or `make images`."""
