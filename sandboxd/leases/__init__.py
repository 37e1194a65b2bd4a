"""The front desk: who holds which box until when. It knows nothing of HTTP."""
