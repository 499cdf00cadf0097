"""Shell: which models are served and which incidents are known, from TOML files."""
