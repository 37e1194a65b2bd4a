"""What operators see: metrics and structured logs. Labels come from closed sets, never an id."""
