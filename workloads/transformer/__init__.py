"""Transformer on sentence pairs of English and German."""
