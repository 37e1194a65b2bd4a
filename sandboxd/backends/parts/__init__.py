"""Pieces that backends are made of: how deaths are judged and told, and how removals take turns."""
