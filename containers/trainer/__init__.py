"""The trainer image: the maze environment, the SkyRL experiment, evaluation and the base model."""
