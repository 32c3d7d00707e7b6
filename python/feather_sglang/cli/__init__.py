"""The ``feather`` command. Each subcommand is a module with ``main(argv) -> exit status``, imported when it is run."""
