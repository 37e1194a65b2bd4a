"""Which pods there are, who lives, who died and why: by what the API server tells."""
