"""Tables of the configuration that one subject fills alone; the schema names them."""
