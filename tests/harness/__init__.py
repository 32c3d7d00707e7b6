"""A real SGLang Scheduler in this process, stepped by hand on the CPU; nothing of SGLang is replaced."""
