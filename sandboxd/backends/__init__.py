"""The seam: backends make and remove boxes, and connect to the guest inside. Nothing else."""
