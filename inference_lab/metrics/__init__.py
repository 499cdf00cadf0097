"""Shell: `GET /metrics`, in the format of Prometheus."""
