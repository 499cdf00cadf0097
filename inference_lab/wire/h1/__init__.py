"""HTTP/1.1 and 1.0: the connection, and how a response goes out on it and ends."""
