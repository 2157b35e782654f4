"""GNMT: recurrent machine translation with attention."""
