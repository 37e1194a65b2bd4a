"""The stockroom: how many boxes to make, which one to hand out, and getting rid of the used ones.

It knows nothing of who leases a box, or of what runs inside.
"""
