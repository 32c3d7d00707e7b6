"""Benches: ``feather bench KIND`` measures real servers, prints a table, and writes JSON and pictures."""
