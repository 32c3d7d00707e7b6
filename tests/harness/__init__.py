"""A real SGLang Scheduler in this process, stepped by hand on the CPU; nothing of SGLang is replaced."""

import feather_sglang.bench.engine  # noqa: F401  it sets the environment that SGLang and torch are imported in
