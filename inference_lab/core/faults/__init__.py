"""Core: what a fault is: the table of modes, the directive grammar, precedence, the script."""
