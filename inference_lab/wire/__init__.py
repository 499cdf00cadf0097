"""Wire: the only code that knows transports, producers and the private names of Twisted."""
