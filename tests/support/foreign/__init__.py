"""Clients of other services, as their users have them: environments of their own, and a model that
says what it is told to say.
"""
