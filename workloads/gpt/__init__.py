"""GPT: language modeling with a decoder-only Transformer."""
