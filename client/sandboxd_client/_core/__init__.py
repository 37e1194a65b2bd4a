"""The deciding parts of the SDK, pure: no socket, no sleep, no difference between the twins."""
