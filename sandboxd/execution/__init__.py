"""Commands, shells and files in a leased sandbox, and the truth about a broken line into it.

It knows leases and guests; it knows nothing of HTTP.
"""
