"""Dialects of other services, so that their clients run here unchanged.

Codecs alone: what a foreign request asks for is asked of the same services as our own doors ask,
and what they answer is told in the foreign form. Nothing of leases or commands is decided here.
"""
