"""Commands, shells and files in a leased sandbox: deadlines, re-attaching, verdicts on broken lines.

It knows leases and guests; it knows nothing of HTTP.
"""
