"""``feather bench paper NAME``: the experiments of the Feather paper (arXiv 2605.06046), each with a verdict."""
