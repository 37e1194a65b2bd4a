"""What answers look like, for the OpenAPI document alone: nothing is built or checked with these at
run time, `render` writes answers. A test holds the two together.
"""
