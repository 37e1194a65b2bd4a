"""What pods reach, and who reaches them: a policy, and the proof that the cluster holds it."""
