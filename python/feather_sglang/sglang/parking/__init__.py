"""Rows of SGLang's running batch that sit out a decode step, and parking: their own KV waits in host memory.

``rows`` has the rows of a scheduler chosen, ``batches`` takes some out of a batch and puts them back, ``tails`` moves
the KV of a request, ``slab`` is the host memory, ``support`` says where it cannot hold.
"""
