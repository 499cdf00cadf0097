"""Shell: the Klein application, its request structs and error answers."""
