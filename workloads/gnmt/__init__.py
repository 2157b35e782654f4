"""GNMT: recurrent translation with attention."""
