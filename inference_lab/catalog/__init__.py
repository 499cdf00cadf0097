"""Shell: facts of models and hardware as TOML files, one per entry, and the code that finds them."""

from inference_lab.catalog.lookup import Catalog

__all__ = ["Catalog"]
