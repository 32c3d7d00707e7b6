"""``--attention-backend feather-cascade``: attention that reads what rows share once.

A backend of its own: it serves any ``--schedule-policy``. Imports neither torch nor sglang by itself.
"""

BACKEND = "feather-cascade"
"""The choice of ``--attention-backend``."""
