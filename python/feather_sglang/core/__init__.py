"""The scheduler core: the interface to engines, the gates, and the class that drives the index. Knows no engine."""
