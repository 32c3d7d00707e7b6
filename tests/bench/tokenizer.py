"""A tokenizer of bytes, for tests that need tokens and no model."""

from __future__ import annotations


class Bytes:
    plain = range(256)

    def encode(self, text: str) -> list[int]:
        return list(text.encode())
