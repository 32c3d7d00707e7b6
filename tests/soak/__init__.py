"""Chaos on the real Scheduler: random loads and disturbances, everything checked after every pass."""
