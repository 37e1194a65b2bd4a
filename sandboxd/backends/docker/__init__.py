"""The docker backend: sandboxes as containers of an engine with Docker's API."""
