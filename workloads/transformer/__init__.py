"""Transformer: machine translation with attention only."""
