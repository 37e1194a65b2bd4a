"""What requests look like. Unknown fields are refused by name; nothing here decides anything."""
