"""What `python -m chapters chat` needs around a compiled model: its file, tokenizer, chat template and cache."""
