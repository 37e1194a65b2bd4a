"""Kernels that run before anybody leases their sandbox: started, and given what the lease brings.

What they are to run with is known when somebody wants them first. A daemon that dies meanwhile is
no matter: until a kernel was told that it is ready it has run no cell, and all may be done again.
"""
