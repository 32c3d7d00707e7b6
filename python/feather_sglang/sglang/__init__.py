"""The SGLang adapter: hooks only, and the one place of the package that imports sglang.

- ``plugin``: what is hooked, in which process; the entry point ``sglang.srt.plugins``;
- ``options``: what can be set, and from where; ``arguments``: flags on SGLang's command line, checked in the launcher;
- ``compat``: the versions of SGLang it knows, and whether every hook is live;
- ``hooks``: one function a hook, thin: they hand over to the adapter;
- ``adapter``: one pass of the scheduler core inside one pass of SGLang's scheduler;
- ``mirror``: the core, kept in step with the engine; ``book``: which request is where; ``rows``: what the core is told
  of a request; ``limits``: what a pass may spend;
- ``queue``: the waiting queue that reports its changes and can show a plan once;
- ``start``: the start in one scheduler, the start line, ``/server_info``.
"""
