"""The ways to guests: at their pods' addresses, or through the API server."""
