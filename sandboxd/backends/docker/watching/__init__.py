"""Who lives, who died, and why: by pidfds, by what the engine tells, by measuring."""
