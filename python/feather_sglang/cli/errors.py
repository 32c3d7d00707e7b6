"""Bad input, as one line."""

from __future__ import annotations


class UsageError(Exception):
    """Something the user can mend. The message says, in one line, what was wrong, what was expected and what to do."""
