"""An outcome must not depend on what the shell has set that starts the tests; what they start gets the same."""

from __future__ import annotations

import os

for _name in list(os.environ):
    if _name.startswith(("FEATHER_", "SGLANG_")) or _name in ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR"):
        del os.environ[_name]
# All servers are on this machine: no request is for a proxy.
os.environ |= {"no_proxy": "127.0.0.1,localhost,::1", "NO_PROXY": "127.0.0.1,localhost,::1"}
