"""What `python -m chapters <command>` does: one file a command."""
