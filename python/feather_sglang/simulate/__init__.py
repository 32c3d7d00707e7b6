"""A small engine that drives the real scheduler core and index on modelled step times."""
