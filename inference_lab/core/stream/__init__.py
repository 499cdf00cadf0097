"""A response as a script: events, what a death makes of an answer's frames, and how they are spelled."""
