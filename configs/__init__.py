"""What a run is made of: the schema, the profiles, the fixed mazes and the tiny base model."""
