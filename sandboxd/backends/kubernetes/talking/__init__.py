"""The line to a cluster's API server: credentials, calls, watches. Knows no boxes."""
