"""Runs: whose trainer is heard of, and what happens to the leases of those that are not."""

from sandboxd.leases.runs.runs import Runs

__all__ = ["Runs"]
