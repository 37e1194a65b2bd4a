"""What differs between the twins by more than a word: waiting, connecting, threads.

The same names on both sides.
"""
