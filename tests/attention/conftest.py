"""These tests import torch and SGLang in the environment of all the others."""

import tests.harness  # noqa: F401
