"""Feather for SGLang: a prefix-homogeneous batch scheduler.

Importing the package is cheap: neither torch nor sglang is loaded. The layers, from the bottom up:

- ``feather_sglang._cht``: the chunked hash tree, in Rust (``cht-rs/``);
- ``feather_sglang.core``: the engine-neutral scheduler core (the rules, the gates);
- ``feather_sglang.sglang``: the SGLang plugin (hooks only);
- ``feather_sglang.cli``: the ``feather`` command.
"""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("feather-sglang")
except PackageNotFoundError:  # a source tree that was never installed
    __version__ = "0+unknown"

__all__ = ["__version__"]
