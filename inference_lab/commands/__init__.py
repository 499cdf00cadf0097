"""Shell: the subcommands of `inference-lab` beside `serve`."""
