"""ConnectRPC as far as foreign clients speak it: protobuf, envelopes, codes of errors."""
