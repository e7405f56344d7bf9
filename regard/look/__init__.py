"""Looking into a model: what it attended to, and pictures of it."""
