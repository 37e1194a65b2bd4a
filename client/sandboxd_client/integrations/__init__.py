"""Plugs for other programs, each with the packages of that program: nothing else imports them."""
