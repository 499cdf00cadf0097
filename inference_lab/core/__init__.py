"""The core: values in, values out. It imports no reactor, no clock, no file and nothing of the rest of the package."""
