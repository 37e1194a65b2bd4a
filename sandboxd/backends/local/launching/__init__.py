"""How a box comes to be: identities, roots, bubblewrap's words, and the thread that starts it."""
