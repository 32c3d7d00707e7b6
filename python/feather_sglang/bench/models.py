"""What workloads need of the served model: its tokenizer, and how long a request may be."""

from __future__ import annotations

from collections.abc import Sequence

from feather_sglang.cli.errors import UsageError


class ModelTokenizer:
    """A Hugging Face tokenizer, loaded.

    :param trusted: whether code that comes with it is run (SGLang's ``--trust-remote-code``).
    :raises UsageError: if there is none.
    """

    def __init__(self, path: str, *, trusted: bool = False) -> None:
        from transformers import AutoTokenizer

        try:
            self._tokenizer = AutoTokenizer.from_pretrained(path, trust_remote_code=trusted)
        except (OSError, ValueError) as error:
            raise UsageError(
                f"no tokenizer at {path} ({str(error).splitlines()[0]}): name a model folder with one, or an id, by "
                "--model-path"
            ) from None
        special = set(self._tokenizer.all_special_ids)
        self.plain: Sequence[int] = sorted(set(self._tokenizer.get_vocab().values()) - special)

    def encode(self, text: str) -> list[int]:
        """Token ids of a text, nothing added."""
        tokens: list[int] = self._tokenizer.encode(text, add_special_tokens=False)
        return tokens


_KEPT = 8
"""Tokens of the context that SGLang does not give to a request (it takes two), and some to spare."""


def context_of(path: str, *, trusted: bool = False) -> int | None:
    """Tokens, prompt and output, that a request to a model may have; None: its configuration does not say."""
    from transformers import AutoConfig

    try:
        config = AutoConfig.from_pretrained(path, trust_remote_code=trusted)
        config = getattr(config, "text_config", config)
        return int(config.max_position_embeddings) - _KEPT
    except (OSError, ValueError, AttributeError):
        return None
