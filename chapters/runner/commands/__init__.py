"""What `python -m chapters <command>` does, a file per command: HELP, `run(options)`, `arguments(parser)` if any."""
