"""`inference-lab record`: a live response captured into an incident file."""
